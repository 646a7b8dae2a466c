"""Daemon, webserver, code server and run worker of a real ``dagster dev`` die at once: a power failure.

What is left is a run that Dagster calls started, and nobody who could tell it better. Nothing is set but what
the README sets: no ``dagster.yaml``, no ``fail_ghost_runs``.
"""

from __future__ import annotations

from contextlib import suppress

import dagster as dg
import pytest
from pyiceberg.exceptions import NoSuchTableError

from kafka_liveness_dagster.core.run_ids import short_run_id
from tests.integration.power_loss import DagsterDev, pipeline
from tests.waiting import wait_for

PATIENCE = 300.0  # seconds, of a machine that does a lot besides


@pytest.fixture
def dev(services, make_topic, table, warm_spark, tmp_path):
    """``dagster dev`` with the README's pipeline on a topic of its own, its sensor switched on."""
    topic = make_topic(2)
    with DagsterDev(tmp_path, pipeline(topic, f"etl-{topic}", table), services) as found:
        found.topic, found.table = topic, table
        found.start()
        wait_for(found.switch_sensor_on, PATIENCE)
        yield found


@pytest.fixture
def fresh(dev, services, produce, rows):
    """Produce, a record a look, until one that was produced since then is in the table.

    How many were produced.
    """
    produced = [0]

    def until_fresh():
        since = produced[0]

        def look():
            produce(services.bootstrap_servers, dev.topic, 0, [str(produced[0])])
            produced[0] += 1
            with suppress(NoSuchTableError):
                return any(row["offset"] >= since for row in rows(dev.table))

        wait_for(look, PATIENCE, what="a fresh row", details=dev.log_messages)
        return produced[0]

    return until_fresh


def test_fresh_rows_come_after_a_power_loss(dev, fresh, rows):
    """The first look asks for a successor, and the dead run is failed; no offset is in the table twice."""
    fresh()
    [dead] = dev.runs(dg.DagsterRunStatus.STARTED)
    dev.power_loss()
    assert dev.status(dead) is dg.DagsterRunStatus.STARTED
    restarted_at = dev.start()
    fresh()
    successor, _ = dev.runs()
    assert successor.run_id in dev.first_tick(restarted_at).run_ids
    assert successor.tags["kafka_liveness/started_because"] == f"run {short_run_id(dead.run_id)} crashed"
    wait_for(lambda: dev.status(dead) is dg.DagsterRunStatus.FAILURE)
    assert dev.why(dead).startswith(
        f"run {short_run_id(dead.run_id)} is in progress, but its process is gone"
    )
    offsets = [row["offset"] for row in rows(dev.table)]
    assert len(offsets) == len(set(offsets))
