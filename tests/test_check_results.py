"""The sensor's asset checks: which results it stores, and when Dagster shows them as outdated."""

from __future__ import annotations

import dagster as dg
import pytest

from kafka_liveness_dagster.core.departures import GroupSnapshot, GroupState
from kafka_liveness_dagster.core.freshness import ServiceLevel
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError
from kafka_liveness_dagster.sensor.checks import (
    GroupChecks,
    StoredResults,
    changed_evaluations,
    needs_reevaluation,
    outcome_of,
)
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


def results(*passed, texts=("", "")):
    """Results of checks, as an evaluation gives them."""
    return [
        dg.AssetCheckEvaluation(
            asset_key=dg.AssetKey("orders"),
            check_name=f"check_{number}",
            passed=one,
            description=texts[number],
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
    _, first = changed_evaluations(results(True, True), StoredResults(), BEGAN)
    found, now = changed_evaluations(results(*passed), first, BEGAN + seconds)
    assert len(found) == stored
    assert now.stored_at == (BEGAN + seconds if stored else BEGAN)
    assert (now.outcomes == first.outcomes) is all(passed)


def stored_over_time(passed, texts, tick_seconds=5.0):
    """When, and how many results of two checks are stored, if one check has these texts tick by tick."""
    stored = StoredResults()
    found = []
    for number, text in enumerate(texts):
        now = BEGAN + tick_seconds * number
        these, stored = changed_evaluations(results(passed, True, texts=(text, "fine")), stored, now)
        found += [(now - BEGAN, len(these))] if these else []
    return found


PENDING = "{} offsets in 1 range are pending, the oldest for 6,230 s, longer than 60 s. Fix: materialize"


@pytest.mark.parametrize(
    ("passed", "texts", "stored"),
    [
        pytest.param(False, ["no member"] * 100, [(0, 2)], id="idle"),
        pytest.param(
            False,
            [f"{PENDING.format(50)}"] * 20 + [f"{PENDING.format(80)}"] * 20,
            [(0, 2), (100, 1)],
            id="more offsets are pending",
        ),
        pytest.param(
            False,
            [PENDING.format(50 + number) for number in range(100)],
            [(60.0 * minute, 1 if minute else 2) for minute in range(9)],
            id="more at each tick: once a minute",
        ),
        pytest.param(
            False,
            [f"lag {600 + 7 * (number % 9)} is above max_lag=20" for number in range(100)],
            [(0, 2)],
            id="a lag that jiggles",
        ),
        pytest.param(
            False,
            ["lag 600 is above max_lag=20"] * 20 + ["lag 90,000 is above max_lag=20"] * 20,
            [(0, 2), (100, 1)],
            id="a lag that grows",
        ),
        pytest.param(
            True,
            [f"1 member at work, lag {4 ** (number % 9)}" for number in range(100)],
            [(0, 2)],
            id="a lag that is fine",
        ),
        pytest.param(
            True,
            ["nothing is pending"] * 20 + [f"{PENDING.format(80)}"] * 20,
            [(0, 2), (100, 1)],
            id="a check that only reports",
        ),
        pytest.param(
            False,
            ["run 0badcafe hangs"] * 3 + ["run 0000beef hangs"] * 20,
            [(0, 2), (60, 1)],
            id="another run, within a minute",
        ),
    ],
)
def test_a_text_with_other_facts_is_stored_once_a_minute(passed, texts, stored):
    """A warning that stays a warning has today's numbers; numbers that move with each record are no facts."""
    assert stored_over_time(passed, texts) == stored


def test_results_that_a_materialization_hides_are_stored_again():
    """Dagster shows checks as not evaluated after a materialization; 20 s are between two such rows."""
    assert needs_reevaluation(8, 7, BEGAN, BEGAN + 20)
    assert not needs_reevaluation(8, 7, BEGAN, BEGAN + 19)
    assert not needs_reevaluation(7, 7, BEGAN, BEGAN + 20)
    stored = StoredResults("check_0 passed", BEGAN)
    found, _ = changed_evaluations(results(True), stored, BEGAN + 20, must_repeat=True)
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
        [*others, fresh] = checks.evaluate(observed(120), instance, [], BEGAN)
        outcomes = ", ".join(map(outcome_of, [*others, fresh]))
        assert checks.are_results_outdated(instance, outcomes), "nothing is stored yet"
        for one in (*others, fresh):
            instance.report_runless_asset_event(one)
        assert not checks.are_results_outdated(instance, outcomes)
        for _ in range(2):
            checks.report_unknown_freshness(instance, error)
        unknown, _ = stored()
        assert (unknown.passed, unknown.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert unknown.description == "unknown: no broker responded within 5 s"
        assert checks.are_results_outdated(instance, outcomes)
        assert not checks.are_results_outdated(instance, ""), "the first tick stores all of them anyway"
        group_checks().report_unknown_freshness(instance, error)
        assert len(stored()) == 2


@pytest.mark.parametrize(("succeeds", "in_progress"), [(True, False), (False, False), (False, True)])
def test_a_run_of_the_checks_job_does_not_hide_the_results_of_the_sensor(succeeds, in_progress):
    """A run that failed a check, or that failed itself: the next evaluation stores the present result."""
    checks = group_checks()
    lag = next(one for one in checks.specs if one.name == "lag")
    with dg.DagsterInstance.ephemeral() as instance:
        verdicts = checks.evaluate(observed(120), instance, [], BEGAN)
        for one in verdicts:
            instance.report_runless_asset_event(one)
        outcomes = ", ".join(map(outcome_of, verdicts))
        assert not checks.are_results_outdated(instance, outcomes)

        @dg.asset_check(asset=lag.asset_key, name="lag")
        def by_run():
            if in_progress:
                assert not checks.are_results_outdated(instance, outcomes), "it will store its result"
            if not succeeds:
                raise ValueError
            return dg.AssetCheckResult(passed=False)

        job = dg.define_asset_job("checks", selection=dg.AssetSelection.all_asset_checks())
        defs = dg.Definitions([dg.AssetSpec("orders")], asset_checks=[by_run], jobs=[job])
        defs.resolve_job_def("checks").execute_in_process(instance=instance, raise_on_error=False)
        assert checks.are_results_outdated(instance, outcomes)
        found, _ = changed_evaluations(
            verdicts,
            StoredResults(outcomes, BEGAN),
            BEGAN + 1,
            must_repeat=checks.are_results_outdated(instance, outcomes),
        )
        for one in found:
            instance.report_runless_asset_event(one)
        assert not checks.are_results_outdated(instance, outcomes), "Dagster shows the sensor's result"
