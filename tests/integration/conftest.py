"""A group in a state to begin with, on the real broker."""

from __future__ import annotations

import dagster as dg
import pytest

from kafka_liveness_dagster.core.commit_metadata import OwnerState
from kafka_liveness_dagster.lanes import small_batches
from tests.history.checker import check
from tests.history.observer import Observer
from tests.integration.dagster_runs import DagsterRuns, RealDagster, make_topics
from tests.integration.interrupted_runs import cases
from tests.integration.kafka_group import KafkaGroup
from tests.timeouts import be_patient


@pytest.fixture(scope="module", autouse=True)
def patient():
    """Give the product time where a busy machine exceeds its limits.

    A test of such a limit sets it itself.
    """
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch.setattr)
        yield


@pytest.fixture
def instance(tmp_path, monkeypatch):
    """Dagster's records in a folder that other processes find by DAGSTER_HOME."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    (tmp_path / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    with dg.DagsterInstance.from_config(str(tmp_path)) as found:
        yield found


@pytest.fixture
def spark_reads(monkeypatch):
    """Spark reads the records of each batch, however small it is."""
    monkeypatch.setattr(small_batches, "MAX_OFFSETS", 0)


@pytest.fixture
def world(services, make_topic, produce):
    """Nothing was produced and nobody consumed."""
    return KafkaGroup(services, make_topic(4), produce)


@pytest.fixture
def crashed(world):
    """Committed 70, crashed at 100, log end 120 on return."""
    world.crash()
    assert world.live_log()[0] == 70
    assert world.live_log()[1].owner_state is OwnerState.RUNNING
    world.grow_to(120)
    return world


@pytest.fixture(scope="session")
def real_dagster(services, tmp_path_factory, produce):
    """One Dagster for all cases of ``chaos``."""
    with RealDagster(services, tmp_path_factory.mktemp("dagster")) as found:
        make_topics(found, produce)
        yield found


@pytest.fixture
def story(real_dagster, warm_spark, rows, catalog, tmp_path):
    """The story of a law under a protocol: ``story(law, protocol)``.

    Its history is checked when the test ends.
    """
    used = []

    def of(law, protocol):
        (case,) = (
            case for case in cases(real_dagster.name) if (case.law.name, case.protocol) == (law, protocol)
        )
        used.append(case)
        return DagsterRuns(case, real_dagster, warm_spark, rows)

    yield of
    for case in used:
        if case.law.writes:
            check_history(case, real_dagster, catalog, tmp_path / f"{case.name}.jsonl")


def check_history(case, world, catalog, path):
    """Compare the topic, both commit logs, the reports and the table.

    A batch under way contradicts none of them.
    """
    history = Observer(
        path,
        bootstrap_servers=world.services.bootstrap_servers,
        topics=[case.topic],
        group=case.group_id,
        load_table=lambda: catalog.load_table(case.table.partition(".")[2]),
    )
    history.produced()
    history.committed()
    history.dagster(world.instance, case.name, f"{case.name}_crash_lag")
    history.read()
    assert check(history.file.events()) == []
