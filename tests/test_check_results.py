"""The sensor's asset checks: which results it stores, and when Dagster shows them as outdated."""

from __future__ import annotations

import dagster as dg
import pytest

from kafka_liveness_dagster.core.departures import GroupSnapshot, GroupState
from kafka_liveness_dagster.core.freshness import ServiceLevel
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError
from kafka_liveness_dagster.sensor.checks import GroupChecks, changed_evaluations, needs_reevaluation
from kafka_liveness_dagster.sensor.observation import GroupObservation

BEGAN = 1_000.0
AT = TopicPartition("orders", 3)
FRESH, LATE = "lag passed, freshness_sla passed", "lag passed, freshness_sla ERROR"
SLA = ServiceLevel(fresh_seconds=30.0, complete_seconds=900.0)


def group_checks(**more):
    """The checks of an asset."""
    return GroupChecks(
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
        **more,
    )


def observed(committed, log_end=120, outstanding=()):
    """A group of one partition."""
    seen = PartitionSnapshot(AT, committed, None, log_end=log_end, outstanding=outstanding)
    return GroupObservation(GroupSnapshot(GroupState.STABLE, (), (seen,)), ())


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
    checks = group_checks()
    with dg.DagsterInstance.ephemeral() as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization("orders"))
        [record] = instance.fetch_materializations(dg.AssetKey("orders"), limit=1).records
        at = record.timestamp
        assert [checks.latest_storage_id(instance, at + seconds) for seconds in (1, 2)] == [
            0,
            record.storage_id,
        ]


@pytest.fixture
def kafka(monkeypatch):
    """The requests for timestamps; offset 70 is 40 s old at ``BEGAN``, offset 100 is 5 s old."""
    requests = []

    def timestamps(_cluster, _group, offsets):
        requests.append(dict(offsets))
        known = {70: 960_000, 100: 995_000, 110: -1}
        return {tp: known[offset] for tp, offset in offsets.items()}

    monkeypatch.setattr("kafka_liveness_dagster.kafka.timestamps.timestamps", timestamps)
    return requests


def test_each_timestamp_is_read_once(kafka):
    """Without lag and crash lag no request is sent, and none for a position that was read before."""
    checks = group_checks(sla=SLA)
    assert group_checks().read_timestamps(None, observed(70)) == {}
    assert checks.read_timestamps(None, observed(120)) == {}
    assert kafka == []
    for _ in range(2):
        assert checks.read_timestamps(None, observed(70)) == {(AT, 70): 960_000}
    pending = observed(100, outstanding=(Span(70, 100),))
    assert checks.read_timestamps(None, pending) == {(AT, 100): 995_000, (AT, 70): 960_000}
    assert checks.read_timestamps(None, observed(110)) == {}, "a record without a timestamp has no age"
    assert kafka == [{AT: 70}, {AT: 100}, {AT: 110}]


def test_a_tick_without_a_request_notices_that_the_freshness_changed(kafka):
    """An unread record becomes too old between two evaluations; a batch is committed."""
    checks = group_checks(sla=SLA)
    behind = observed(70)
    assert not checks.has_freshness_changed(behind, FRESH, BEGAN), "its age is unknown yet"
    checks.read_timestamps(None, behind)
    assert not checks.has_freshness_changed(behind, FRESH, BEGAN - 20)
    assert checks.has_freshness_changed(behind, FRESH, BEGAN)
    assert not checks.has_freshness_changed(behind, LATE, BEGAN)
    assert checks.has_freshness_changed(observed(120), LATE, BEGAN)
    assert not checks.has_freshness_changed(observed(120), "", BEGAN), "nothing is stored yet"
    assert not group_checks().has_freshness_changed(behind, LATE, BEGAN)
    assert len(kafka) == 1


def test_a_freshness_that_no_broker_confirms_is_not_green():
    """A tick that fails stores it once; the next evaluation stores the known freshness again."""
    error = BrokerUnreachableError("no broker responded within 5 s\nlibrdkafka: timed out")
    key = dg.AssetCheckKey(dg.AssetKey("orders"), "freshness_sla")
    checks = group_checks(sla=SLA)
    with dg.DagsterInstance.ephemeral() as instance:

        def stored():
            history = instance.event_log_storage.get_asset_check_execution_history(key, limit=9)
            return [one.event.dagster_event.asset_check_evaluation_data for one in history]

        checks.report_unknown_freshness(instance, error)
        assert stored() == [], "it was never green"
        [*_, fresh] = checks.evaluate(observed(120), instance, [], BEGAN)
        instance.report_runless_asset_event(fresh)
        assert not checks.is_freshness_outdated(instance, FRESH)
        for _ in range(2):
            checks.report_unknown_freshness(instance, error)
        unknown, _ = stored()
        assert (unknown.passed, unknown.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert unknown.description == "unknown: no broker responded within 5 s"
        assert checks.is_freshness_outdated(instance, FRESH)
        assert not group_checks().is_freshness_outdated(instance, FRESH)
        group_checks().report_unknown_freshness(instance, error)
        assert len(stored()) == 2
