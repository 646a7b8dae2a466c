"""What a run's budget is and what is said about it, asked of real Dagster runs."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.fencing import FenceReason, FenceReport, RunState
from kafka_liveness_dagster.core.run_ids import instance_id_for_run, short_run_id
from kafka_liveness_dagster.core.timeouts import MaxRuntimeReachedError
from kafka_liveness_dagster.runs.run_context import _run_state, run_context_of
from kafka_liveness_dagster.runs.tags import (
    FENCED_TAG,
    LEFT_TAG,
    MAX_BATCH_SECONDS,
    budget_of,
    fence_report_of,
    instance_id_tag,
)

REMAINING = "the rest of dagster/max_runtime"
CAPPED = f"capped by {REMAINING}"
SPENT = 5.0  # seconds a test's run may have spent before it asks


@pytest.fixture(scope="module")
def instance():
    """A Dagster instance with its own files; run monitoring is off, as by default."""
    with dg.instance_for_test() as instance:
        yield instance


def limit(seconds):
    """The run tag that limits a run."""
    return {"dagster/max_runtime": str(seconds)}


def budget_in_asset(instance, *, argument=None, op_tag=None, metadata=None, tags=None):
    """The budget that an asset's run finds."""
    found = []

    @dg.asset(
        op_tags={} if op_tag is None else {MAX_BATCH_SECONDS: op_tag},
        metadata={} if metadata is None else {MAX_BATCH_SECONDS: metadata},
    )
    def orders(context):
        found.append(budget_of(context, argument=argument, default=300))

    dg.materialize([orders], instance=instance, tags=tags)
    return found[0]


@pytest.mark.parametrize(
    ("said", "seconds", "source"),
    [
        pytest.param({}, 300, "default_max_batch_seconds of the Kafka resource", id="nobody said anything"),
        pytest.param({"tags": limit(900)}, 900, REMAINING, id="the run's limit says more than a default"),
        pytest.param(
            {"metadata": 200, "tags": limit(900)},
            200,
            "max_batch_seconds of the asset",
            id="asset metadata before that",
        ),
        pytest.param(
            {"op_tag": "100", "metadata": 200, "tags": limit(900)},
            100,
            "op tag kafka_liveness/max_batch_seconds",
            id="an op tag before both",
        ),
        pytest.param(
            {"argument": 50, "op_tag": "100", "metadata": 200, "tags": limit(900)},
            50,
            "argument max_batch_seconds",
            id="code before all",
        ),
        pytest.param(
            {"argument": 50, "op_tag": "100", "tags": limit(30)},
            30,
            f"argument max_batch_seconds, {CAPPED}",
            id="the run caps code too",
        ),
        pytest.param(
            {"metadata": 200, "tags": limit(30)},
            30,
            f"max_batch_seconds of the asset, {CAPPED}",
            id="and metadata",
        ),
        pytest.param(
            {"tags": limit(0)},
            300,
            "default_max_batch_seconds of the Kafka resource",
            id="Dagster takes a limit of 0 for none",
        ),
        pytest.param(
            {"metadata": dg.MetadataValue.float(1.5)},
            1.5,
            "max_batch_seconds of the asset",
            id="metadata in Dagster's type",
        ),
    ],
)
def test_the_first_who_says_it_gives_the_budget(instance, said, seconds, source):
    """Argument > op tag > asset metadata > what is left of the run > default, and the run caps them all."""
    budget = budget_in_asset(instance, **said)
    assert budget.source == source
    assert seconds - (SPENT if REMAINING in source else 0) <= budget.seconds <= seconds


def test_a_plain_op_has_a_budget_too(instance):
    """No asset is needed: the tag on the op counts."""
    found = []

    @dg.op(tags={MAX_BATCH_SECONDS: "90"})
    def consume(context):
        found.append(budget_of(context, argument=None, default=300))

    @dg.job
    def consuming() -> None:
        consume()

    consuming.execute_in_process(instance=instance)
    assert str(found[0]) == "90 s (op tag kafka_liveness/max_batch_seconds)"


@pytest.mark.parametrize(
    ("said", "error", "says"),
    [
        pytest.param(
            {"op_tag": "2 min"}, InvalidSettingError, "op tag .* is '2 min': wanted a number", id="op tag"
        ),
        pytest.param(
            {"op_tag": "nan"}, InvalidSettingError, "op tag .* is 'nan': wanted a number", id="no number"
        ),
        pytest.param(
            {"tags": limit("1e999")}, InvalidSettingError, "is '1e999': wanted a number", id="endless"
        ),
        pytest.param({"metadata": "soon"}, InvalidSettingError, "asset metadata .* is 'soon'", id="metadata"),
        pytest.param(
            {"tags": limit("1h")}, InvalidSettingError, "run tag dagster/max_runtime is '1h'", id="run tag"
        ),
        pytest.param(
            {"metadata": 300_000},
            InvalidSettingError,
            "300,000 s .max_batch_seconds of the asset.*24 h",
            id="milliseconds",
        ),
        pytest.param(
            {"tags": limit(0.001)}, MaxRuntimeReachedError, "No further batch was started", id="nothing left"
        ),
    ],
)
def test_a_budget_nobody_could_mean_is_refused_by_its_owner(instance, said, error, says):
    """The error names who said it and what."""
    with pytest.raises(error, match=says):
        budget_in_asset(instance, **said)


def test_a_script_has_no_run_to_ask():
    """Without a context the argument and the default are all there is."""
    assert (
        str(budget_of(None, argument=None, default=300))
        == "300 s (default_max_batch_seconds of the Kafka resource)"
    )


def test_a_context_built_by_hand_is_a_script(instance):
    """A unit test of an asset needs no run: nothing of it is in the instance."""
    with dg.build_asset_context(instance=instance) as context:
        assert (
            str(budget_of(context, argument=None, default=300))
            == "300 s (default_max_batch_seconds of the Kafka resource)"
        )
        assert run_context_of(context).client_id.startswith("kafka-liveness/script/")


class AskedError(Exception):
    """Ends a run before it needs a broker."""


class AskedForBudget:
    """Stands where the Kafka resource is: finds the budget as that does, and has no broker."""

    default_max_batch_seconds = 300

    def __init__(self) -> None:
        self.budgets: list[Any] = []

    def ask(self, **settings):
        self.budgets.append(
            budget_of(settings["context"], argument=settings.get("max_batch_seconds"), default=300)
        )
        raise AskedError

    consumer = catch_up = ask


@pytest.mark.parametrize("lane", ["orders", "orders_crash_lag"])
@pytest.mark.parametrize(
    ("max_batch_seconds", "found"),
    [
        pytest.param(120, "120 s (max_batch_seconds of the asset)", id="the asset's own"),
        pytest.param(
            None, "300 s (default_max_batch_seconds of the Kafka resource)", id="an asset that says nothing"
        ),
    ],
)
def test_a_run_from_the_ui_has_the_assets_budget(instance, lane, max_batch_seconds, found):
    """A backfill's run is one of Dagster's own job over assets: no op tags, only the asset's metadata."""
    made = kl.kafka_asset(
        name="orders",
        topics=["orders.v1-raw"],
        group_id="orders-etl",
        table="lake.shop.orders",
        max_batch_seconds=max_batch_seconds,
    )(lambda batch: batch)
    kafka = AskedForBudget()
    spark = SimpleNamespace(open_ahead=lambda: None, next_session_id="")
    defs = dg.Definitions.merge(made.definitions, dg.Definitions(resources={"kafka": kafka, "spark": spark}))
    partition = None
    if lane == "orders_crash_lag":
        partition = "p3:orders.v1-raw:70-120"
        instance.add_dynamic_partitions(lane, [partition])
    job = defs.resolve_implicit_global_asset_job_def()
    with pytest.raises(AskedError):
        job.execute_in_process(
            instance=instance,
            asset_selection=[dg.AssetKey(lane)],
            partition_key=partition,
            tags={"dagster/backfill": "fxapuzpu"},
        )
    assert list(map(str, kafka.budgets)) == [found]


def warnings_of(instance, *, tags, links=1):
    """What a run's log warns of when its op makes so many consumers."""

    @dg.op
    def consume(context):
        for _ in range(links):
            run_context_of(context)

    @dg.job
    def consuming() -> None:
        consume()

    run = consuming.execute_in_process(instance=instance, tags=tags)
    entries = instance.all_logs(run.run_id)
    return [entry.user_message for entry in entries if entry.level == logging.WARNING]


def test_a_limit_that_nobody_enforces_is_told_in_the_runs_log(instance):
    """Without Dagster's run monitoring the group is left at the limit, but the run goes on.

    Said, with the remedy.
    """
    (warning,) = warnings_of(instance, tags=limit(600))
    assert "dagster/max_runtime is 600 s and Dagster's run monitoring is off" in warning
    assert "set `run_monitoring: enabled: true` in dagster.yaml" in warning


def test_it_is_told_once_in_a_run_and_again_in_the_next(instance):
    """An op may make a consumer for each lane."""
    assert [len(warnings_of(instance, tags=limit(600), links=3)) for _ in range(2)] == [1, 1]


def test_a_limit_that_dagster_enforces_is_not_told():
    """With run monitoring all is as it should be."""
    with dg.instance_for_test(overrides={"run_monitoring": {"enabled": True}}) as instance:
        assert warnings_of(instance, tags=limit(600)) == []


@pytest.mark.parametrize("tags", [{}, limit(0)])
def test_a_run_without_a_limit_has_nothing_to_enforce(instance, tags):
    """Run monitoring is nobody's business then."""
    assert warnings_of(instance, tags=tags) == []


FIRST, LATER = str(UUID(int=1)), str(UUID(int=2))
PLACE, OWN = instance_id_for_run(FIRST, "00c0ffee"), instance_id_for_run(LATER, "0badcafe")
FAILED, AT_WORK = dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED
WAITS = dg.DagsterRunStatus.STARTING


@pytest.mark.parametrize(
    ("runs", "taken"),
    [
        pytest.param({FIRST: (FAILED, "")}, PLACE, id="of a run that failed"),
        pytest.param({FIRST: (AT_WORK, "")}, None, id="somebody may work for it"),
        pytest.param({}, None, id="nobody knows the run: it was deleted, or is another instance's"),
        pytest.param({FIRST: (FAILED, ""), LATER: (AT_WORK, PLACE)}, None, id="its successor is there"),
        pytest.param({FIRST: (FAILED, ""), LATER: (FAILED, PLACE)}, PLACE, id="its successor failed too"),
        pytest.param({FIRST: (FAILED, ""), LATER: (WAITS, PLACE)}, PLACE, id="its heir is to be repeated"),
        pytest.param(
            {LATER: (FAILED, PLACE)}, OWN, id="its successor alone does not say that the first one is gone"
        ),
        pytest.param({FIRST: (AT_WORK, ""), LATER: (FAILED, "")}, OWN, id="the other one's"),
    ],
)
def test_only_the_place_of_runs_that_are_gone_is_taken(runs, taken):
    """And it is told at once, so that others see who is there."""
    with dg.instance_for_test() as instance:
        for run_id, (status, place) in runs.items():
            tags = {instance_id_tag("g"): place} if place else {}
            instance.add_run(dg.DagsterRun(job_name="once", run_id=run_id, status=status, tags=tags))
        assert takes(instance, [PLACE, OWN], times=1) == ([taken], taken or "")


def test_who_was_put_out_of_a_place_says_so():
    """The sensor would take the one who is there now for it."""
    with dg.instance_for_test() as instance:
        instance.add_run(dg.DagsterRun(job_name="once", run_id=FIRST, status=FAILED))
        assert takes(instance, [PLACE], times=2) == ([PLACE, None], "")


def test_a_run_has_a_place_in_each_of_its_groups():
    """Its other group's consumer, or one that has no place, says nothing of it."""
    with dg.instance_for_test() as instance:
        instance.add_run(dg.DagsterRun(job_name="once", run_id=FIRST, status=FAILED))
        assert takes(instance, [PLACE], times=1, group="another") == (
            [PLACE],
            "kafka-liveness.another.00c0ffee",
        )


@pytest.mark.parametrize(
    ("later", "died"),
    [
        pytest.param([], FIRST, id="the first run has died"),
        pytest.param([(UUID(int=2), FAILED)], str(UUID(int=2)), id="its successor died last"),
        pytest.param([(UUID(int=2), FAILED), (UUID(int=3), FAILED)], str(UUID(int=3)), id="two successors"),
    ],
)
def test_the_log_names_the_run_that_died_last(later, died):
    """The instance id names the first run of the membership, which may be over for days."""
    with dg.instance_for_test() as instance:
        instance.add_run(dg.DagsterRun(job_name="once", run_id=FIRST, status=FAILED))
        for run_id, status in later:
            run = instance.add_run(
                dg.DagsterRun(job_name="once", run_id=str(run_id), tags={instance_id_tag("g"): PLACE})
            )
            instance.report_dagster_event(
                dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, "once"), run.run_id
            )
            instance.report_run_failed(run)
            assert instance.get_run_by_id(run.run_id).status is status
        repeated = {"job_name": "once", "run_id": str(UUID(int=4)), "tags": {instance_id_tag("g"): PLACE}}
        instance.add_run(dg.DagsterRun(**repeated, status=WAITS))
        assert takes(instance, [PLACE], times=1)[0] == [PLACE]
        newest = instance.get_runs(limit=1)[0].run_id
        log = " ".join(entry.user_message for entry in instance.all_logs(newest))
    assert f"Took over the group membership of dead run {short_run_id(died)} " in log


def takes(instance, places, times, group="g"):
    """What a run takes of these places, which repeats another one with a place; and its tag after that."""
    taken = []

    @dg.op
    def work(context):
        link = run_context_of(context)
        taken.extend(link.claim_instance_id(group, places) for _ in range(times))

    @dg.job
    def once():
        work()

    run = once.execute_in_process(
        instance=instance, tags={instance_id_tag("g"): "kafka-liveness.another.00c0ffee"}
    )
    return taken, instance.get_run_by_id(run.run_id).tags[instance_id_tag("g")]


def test_a_run_says_why_it_left_its_group_in_codes(instance):
    """Tags are read by sensors, of other versions too; people read the words that these make of them."""
    told = []

    @dg.op
    def work(context):
        link = run_context_of(context)
        for why in (
            FenceReport(FenceReason.POLL_TIMEOUT),
            FenceReport(FenceReason.POLL_TIMEOUT, is_back=True),
        ):
            link.report_fence(why)
            run = instance.get_run_by_id(context.run_id)
            told.append((run.tags[FENCED_TAG], fence_report_of(run)))
        link.report_fence(FenceReport(FenceReason.CLOSED))

    @dg.job
    def once():
        work()

    run = instance.get_run_by_id(once.execute_in_process(instance=instance).run_id)
    left = FenceReport(FenceReason.POLL_TIMEOUT)
    assert told == [("poll-timeout", left), ("poll-timeout back", FenceReport(left.reason, is_back=True))]
    assert (run.tags[LEFT_TAG], fence_report_of(run)) == ("closed", FenceReport(FenceReason.CLOSED))


def test_what_dagster_says_of_a_run_is_what_its_watchdog_hears(instance):
    """Of each status there is, and of a run that was deleted; one that is at work is not read for that."""
    heard, canceled = {}, (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
    every = set(dg.DagsterRunStatus) - {dg.DagsterRunStatus.QUEUED}  # which only a code location's can be
    for status in every:
        run = instance.add_run(dg.DagsterRun(job_name="any", status=status))
        heard[status] = _run_state(instance, run.run_id)
        instance.delete_run(run.run_id)
        assert _run_state(instance, run.run_id) is RunState.ENDED
    ended = {dg.DagsterRunStatus.SUCCESS: RunState.ENDED, dg.DagsterRunStatus.FAILURE: RunState.ENDED}
    others = dict.fromkeys(every, RunState.IN_PROGRESS)
    assert heard == {**others, **ended, **dict.fromkeys(canceled, RunState.CANCELED)}
    with patch.object(instance, "get_run_by_id", side_effect=AssertionError):
        run = instance.add_run(dg.DagsterRun(job_name="any", status=dg.DagsterRunStatus.STARTED))
        assert _run_state(instance, run.run_id) is RunState.IN_PROGRESS
