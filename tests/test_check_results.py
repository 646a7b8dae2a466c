"""The sensor's asset checks: which results it stores, and when Dagster shows them as outdated."""

from __future__ import annotations

import dagster as dg
import pytest

from kafka_liveness_dagster.sensor.checks import GroupChecks, changed_evaluations, needs_reevaluation

BEGAN = 1_000.0


def results(*passed):
    """Results of checks, as an evaluation gives them."""
    return [
        dg.AssetCheckEvaluation(
            asset_key=dg.AssetKey("orders"),
            check_name=f"check_{number}",
            passed=one,
            severity=dg.AssetCheckSeverity.WARN,
        )
        for number, one in enumerate(passed)
    ]


@pytest.mark.parametrize(
    ("passed", "seconds", "stored"),
    [
        pytest.param((True, True), 1, 0, id="nothing changed"),
        pytest.param((True, False), 1, 2, id="one fails"),
        pytest.param((True, True), 599, 0, id="nothing changed for long"),
        pytest.param((True, True), 600, 2, id="stored again every ten minutes"),
    ],
)
def test_a_changed_result_is_stored_at_once(passed, seconds, stored):
    """Each stored result is a row in Dagster's database: an unchanged one is stored every ten minutes."""
    _, outcomes, at = changed_evaluations(results(True, True), "", 0.0, BEGAN)
    found, outcomes_now, stored_at = changed_evaluations(results(*passed), outcomes, at, BEGAN + seconds)
    assert len(found) == stored
    assert stored_at == (BEGAN + seconds if stored else BEGAN)
    assert (outcomes_now == outcomes) is all(passed)


def test_results_that_a_materialization_hides_are_stored_again():
    """Dagster shows checks as not evaluated after a materialization; 20 s are between two such rows."""
    assert needs_reevaluation(8, 7, BEGAN, BEGAN + 20)
    assert not needs_reevaluation(8, 7, BEGAN, BEGAN + 19)
    assert not needs_reevaluation(7, 7, BEGAN, BEGAN + 20)
    found, _, _ = changed_evaluations(results(True), ".", BEGAN, BEGAN + 20, must_repeat=True)
    assert len(found) == 1


def test_a_materialization_of_this_second_hides_results_at_the_next_tick():
    """SQLite stores whole seconds: results of the same second may count as older."""
    checks = GroupChecks(
        group_id="orders-etl",
        topics=("orders",),
        live=dg.AssetKey("orders"),
        crash_lag=dg.AssetKey("orders_crash_lag"),
        partitions_name="orders_crash_lag",
        max_lag=None,
        max_crash_lag_age_seconds=None,
        max_poll_records=10,
        max_live_runs=1,
        ghost_after_seconds=60.0,
    )
    with dg.DagsterInstance.ephemeral() as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization("orders"))
        [record] = instance.fetch_materializations(dg.AssetKey("orders"), limit=1).records
        at = record.timestamp
        assert [checks.latest_storage_id(instance, at + seconds) for seconds in (1, 2)] == [
            0,
            record.storage_id,
        ]
