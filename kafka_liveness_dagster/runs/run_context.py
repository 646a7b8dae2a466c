"""Connect a consumer with its Dagster run: read the run's state, and store tags for others.

``context`` may be None, for scripts and tests: they cannot be canceled, and have no other runs. Never moves
offsets.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING
from uuid import uuid4

import dagster as dg

from kafka_liveness_dagster.core.fencing import FenceReport, RunState
from kafka_liveness_dagster.core.process_status import HeartbeatTag, ProcessStatus
from kafka_liveness_dagster.core.run_ids import run_id_of_instance, short_run_id
from kafka_liveness_dagster.runs.heartbeat import process_status_of
from kafka_liveness_dagster.runs.storage import add_tags, call_with_retries, storage_of
from kafka_liveness_dagster.runs.tags import (
    AWAY_TAG,
    COMMITTED_TAG,
    DATA_STATE_AT_START,
    FENCED_TAG,
    GROUP_TAG,
    LANE_TAG,
    LEFT_TAG,
    MAX_RUNTIME,
    PROCESS_TAG,
    Context,
    dagster_run_of,
    heartbeat_of,
    instance_id_tag,
    is_active_in_lane,
    is_step_process,
    lane_tags,
    op_context_of,
    run_remaining,
    worker_process,
)
from kafka_liveness_dagster.telemetry import otel as telemetry
from kafka_liveness_dagster.telemetry.metrics import FENCES, GROUP, LANE, REASON

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.kafka.run_context import RunContext
    from kafka_liveness_dagster.runs.storage import RunStorage

_STARTED_STATUSES = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
_WORKING_STATUSES = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED]
_MAX_CLAIMANTS = 20  # the newest; those that have not started are left out
log = logging.getLogger("kafka_liveness_dagster")
_warned: set[str] = set()  # ids of warned runs, because an op may create several consumers


def run_context_of(context: Context, *, away_seconds: float | None = None) -> RunContext:
    """Return the run context by which a consumer's watchdog follows its run.

    Logs once if only this package enforces the run's time limit.

    Args:
        context: context of the op or asset.
        away_seconds: time after which others take the run for lost if it is not in its group.
    """
    from kafka_liveness_dagster.kafka.run_context import RunContext, now_ms  # noqa: PLC0415 - confluent_kafka stays lazy

    run = dagster_run_of(context)
    if context is None or run is None:
        run_id = uuid4().hex
        return RunContext(run_id, f"kafka-liveness/script/{run_id}", lambda: RunState.IN_PROGRESS)
    storage = storage_of(context)
    # Tags of an earlier consumer, or of the run that this one re-executes
    tags = {tag: "" for tag in (FENCED_TAG, LEFT_TAG) if run.tags.get(tag)}
    if away_seconds is not None:
        tags[AWAY_TAG] = f"{away_seconds:g}"
    sign = heartbeat_of(run)
    if sign.process is None or sign.has_ended:  # a user's op without heartbeats
        tags[PROCESS_TAG] = HeartbeatTag(short_run_id(run.run_id), None, worker_process(context)).encode()
    if tags:
        call_with_retries(
            lambda: add_tags(context.instance, run.run_id, tags), "the tags of the run", DATA_STATE_AT_START
        )
    remaining = run_remaining(context)
    if remaining is not None and not context.instance.run_monitoring_enabled:
        _warn_budget_unenforced(storage.log, run)
    return RunContext(
        run.run_id,
        f"dagster/{run.job_name}/{run.run_id}/{op_context_of(context).op_handle}",
        lambda: _run_state(context.instance, run.run_id),
        ends_at_ms=None if remaining is None else now_ms() + round(remaining * 1000),
        log=storage.log,
        is_step=is_step_process(context),
        report_fence=lambda why: _tag_fence_report(storage, run, why),
        on_first_commit=lambda: _tag_first_commit(storage, run.run_id),
        claim_instance_id=lambda group_id, places: _claim_instance_id(
            context.instance,
            run.run_id,
            instance_id_tag(group_id),
            group_instance_ids=places,
            log=storage.log,
        ),
        catch_up_runs=lambda group_id: _count_catch_up_runs(context.instance, group_id),
    )


def _claim_instance_id(
    instance: dg.DagsterInstance,
    run_id: str,
    tag: str,
    group_instance_ids: Sequence[str],
    log: logging.Logger,
) -> str | None:
    """Claim the first instance id of which no run works any more: neither its own, nor a later claimant.

    The claim is stored before this run joins, so that no other run claims the same id. A run that has not
    started yet counts as no claimant, because Dagster copies all tags to a re-execution.
    """
    now = time.time()
    for place in group_instance_ids:
        first = instance.get_run_record_by_id(run_id_of_instance(place) or "")
        later = instance.get_run_records(dg.RunsFilter(tags={tag: place}, statuses=_STARTED_STATUSES))
        known = [*later, *([first] if first else [])]
        if first and all(
            not is_active_in_lane(one.dagster_run)
            or process_status_of(instance, one, now, fence_report=True) is ProcessStatus.GONE
            for one in known
        ):
            add_tags(instance, run_id, {tag: place})
            log.info(
                "Took over the group membership of dead run %s without waiting for its session timeout",
                short_run_id(_last_claimant(instance, run_id, {tag: place}) or first.dagster_run.run_id),
            )
            return place
    this = instance.get_run_by_id(run_id)
    # Another member has replaced this one, or the tag is from the run that this one re-executes
    if this is not None and this.tags.get(tag):
        add_tags(instance, run_id, {tag: ""})
    return None


def _last_claimant(instance: dg.DagsterInstance, run_id: str, tags: dict[str, str]) -> str | None:
    """Return the newest other run that started with these tags; None without one.

    The instance id contains its first run only. A run that has not started has only copied the tags.
    """
    claimed = instance.get_run_records(dg.RunsFilter(tags=tags), limit=_MAX_CLAIMANTS)
    others = (one.dagster_run.run_id for one in claimed if one.start_time is not None)
    return next((other for other in others if other != run_id), None)


def _count_catch_up_runs(instance: dg.DagsterInstance, group_id: str) -> int:
    """Count the catch-up runs that have started, without those whose process is gone from this host.

    A run that is STARTING has no process yet, and a run that waits for a pool is queued.
    """
    started = dg.RunsFilter(tags=lane_tags(group_id, "catch-up"), statuses=[dg.DagsterRunStatus.STARTED])
    now = time.time()
    at_work = [one for one in instance.get_run_records(started) if is_active_in_lane(one.dagster_run)]
    return sum(
        process_status_of(instance, one, now, fence_report=False) is not ProcessStatus.GONE for one in at_work
    )


def _tag_fence_report(storage: RunStorage, run: dg.DagsterRun, why: FenceReport) -> None:
    is_closed = why.reason.is_orderly_close
    if not (is_closed or why.is_back) and GROUP_TAG in run.tags:
        of = {GROUP: run.tags[GROUP_TAG], LANE: run.tags.get(LANE_TAG, ""), REASON: why.reason.code}
        telemetry.record(FENCES, 1, of)
    storage.add_tags({LEFT_TAG if is_closed else FENCED_TAG: why.encode()})


def _tag_first_commit(storage: RunStorage, run_id: str) -> None:
    """Tag the run with its first commit; the tag contains the run, because re-executions get its tags."""
    try:
        storage.add_tags({COMMITTED_TAG: short_run_id(run_id)})
    except Exception:  # the run was deleted; its watchdog ends it
        log.exception(
            "Could not tag run %s: Dagster lacks the record that one of its batches is committed", run_id
        )


def _warn_budget_unenforced(log: logging.Logger, run: dg.DagsterRun) -> None:
    if run.run_id not in _warned:
        _warned.add(run.run_id)
        log.warning(
            "%s is %s s and Dagster's run monitoring is off: the consumer leaves its group when the time "
            "is up, but nothing ends the run. Fix: set `run_monitoring: enabled: true` in dagster.yaml",
            MAX_RUNTIME,
            run.tags[MAX_RUNTIME],
        )


def _run_state(instance: dg.DagsterInstance, run_id: str) -> RunState:
    """Return a run's state; running ones are only counted, which costs half as much as reading a record."""
    if instance.get_runs_count(dg.RunsFilter(run_ids=[run_id], statuses=_WORKING_STATUSES)):
        return RunState.IN_PROGRESS
    run = instance.get_run_by_id(run_id)
    if run is None:
        return RunState.ENDED  # deleted while it ran
    if run.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED):
        return RunState.CANCELED
    return RunState.ENDED if run.is_finished else RunState.IN_PROGRESS
