"""A run is recognized by its digits in commits, by its client id and by its group.instance.id."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.run_ids import (
    dagster_run_id_of_client,
    instance_id_for_run,
    is_short_run_id,
    run_id_of_client,
    run_id_of_instance,
    short_run_id,
)

RUN = "0badcafe-1111-2222-3333-444444444444"


@pytest.mark.parametrize(
    ("client_id", "mark", "run"),
    [
        pytest.param(f"dagster/orders_job/{RUN}/orders", "0badcafe", RUN, id="a run of Dagster"),
        pytest.param(f"kafka-liveness/script/{RUN}/orders", "0badcafe", None, id="a script"),
        pytest.param("rdkafka", None, None, id="another client"),
        pytest.param("dagster/orders_job", None, None, id="no run id"),
        pytest.param(f"other/orders_job/{RUN}/orders", None, None, id="the same form of another client"),
    ],
)
def test_a_client_id_names_its_run(client_id, mark, run):
    """Only clients of this package belong to a run, and only Dagster's runs can be looked up there."""
    assert run_id_of_client(client_id) == mark
    assert dagster_run_id_of_client(client_id) == run


def test_every_run_id_has_eight_digits():
    """A run id of another form gets digits made of all of it, the same each time."""
    assert short_run_id(RUN) == "0badcafe"
    other = short_run_id("run-of-a-test-1")
    assert is_short_run_id(other)
    assert other == short_run_id("run-of-a-test-1") != short_run_id("run-of-a-test-2")
    assert [is_short_run_id(text) for text in ("0badcafe", "0BADCAFE", "0badcaf", "kcat at 10.0.0.7")] == [
        True,
        False,
        False,
        False,
    ]


def test_a_group_instance_id_of_a_run_is_read_back():
    """A name that a user gave belongs to no run."""
    assert run_id_of_instance(instance_id_for_run(RUN, "00c0ffee")) == RUN
    assert [run_id_of_instance(name) for name in ("etl-0", "kafka-liveness.a.b", "", None)] == [None] * 4
