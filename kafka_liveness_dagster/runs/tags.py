"""What does Dagster say of the run this op works for: its budget, and whether it is still wanted?

``context`` may be None everywhere: a script or a test is its own run and nobody can cancel it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import dagster as dg

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.heartbeat import Away, FenceReason, RunState
from kafka_liveness_dagster.core.names import shown
from kafka_liveness_dagster.core.processes import Sign
from kafka_liveness_dagster.core.run_marks import run_mark
from kafka_liveness_dagster.core.timeouts import Budget, first_budget
from kafka_liveness_dagster.runs import host

if TYPE_CHECKING:
    from kafka_liveness_dagster.core.processes import Process
    from kafka_liveness_dagster.kafka.link import RunLink

MAX_BATCH_SECONDS = "kafka_liveness/max_batch_seconds"
GROUP_TAG = "kafka_liveness/group"
LANE_TAG = "kafka_liveness/lane"
CAUSE_TAG = "kafka_liveness/cause"  # in words
CAUSE_RUN_TAG = "kafka_liveness/cause_run"  # the 8 digits of the first run that it is about
FENCED_TAG = "kafka_liveness/fenced"
LEFT_TAG = "kafka_liveness/left"  # its consumer was closed: that is how every run ends
WAITS_TAG = "kafka_liveness/waits_for"
PROCESS_TAG = "kafka_liveness/process"
AWAY_TAG = "kafka_liveness/away_seconds"
COMMITTED_TAG = "kafka_liveness/committed"
PARTITION_TAG = "dagster/partition"
_MAX_RUNTIME = "dagster/max_runtime"
_OVER = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}
_telling = threading.Lock()  # Dagster reads all tags and writes them back: what two threads told would be one's
_warned: set[str] = set()  # ids of runs that were told: an op may make several consumers
Context = dg.AssetExecutionContext | dg.OpExecutionContext | None


def lane_tags(group_id: str, lane: Literal["live", "catch-up"]) -> dict[str, str]:
    """Run tags by which the sensor and the UI find the runs of a group."""
    return {GROUP_TAG: group_id, LANE_TAG: lane}


def unfinished(group_id: str, lane: Literal["live", "catch-up"] | None = None) -> dg.RunsFilter:
    """The runs of a group, or of one of its lanes, that are queued, starting or at work."""
    at_work = [status for status in dg.DagsterRunStatus if status not in _OVER]
    return dg.RunsFilter(tags={GROUP_TAG: group_id} if lane is None else lane_tags(group_id, lane), statuses=at_work)


def runs_in_progress(instance: dg.DagsterInstance, group_id: str, lane: Literal["live", "catch-up"]) -> int:
    """How many runs of a lane are queued, starting or at work."""
    return instance.get_runs_count(unfinished(group_id, lane))


def tell(instance: dg.DagsterInstance, run_id: str, tags: dict[str, str]) -> None:
    """Let others see something of a run that goes on."""
    with _telling:
        instance.add_run_tags(run_id, tags)


def link_of(context: Context, *, away_seconds: float | None = None) -> RunLink:
    """The link by which a consumer's watchdog follows its run; says once when only we keep the run's time limit.

    Args:
        context: the op's or asset's.
        away_seconds: how long the run may be out of its group before it must be taken for lost, for others to know.
    """
    from kafka_liveness_dagster.kafka.link import RunLink, now_ms  # noqa: PLC0415 - confluent_kafka stays lazy

    run = _run_of(context)
    if context is None or run is None:
        run_id = uuid4().hex
        return RunLink(run_id, f"kafka-liveness/script/{run_id}", lambda: RunState.IN_PROGRESS)
    # An earlier consumer's, or of the run this one repeats
    tags = {tag: "" for tag in (FENCED_TAG, LEFT_TAG) if run.tags.get(tag)}
    if away_seconds is not None:
        tags[AWAY_TAG] = f"{away_seconds:g}"
    if sign_of(run).process is None:  # an op of the user's own
        tags[PROCESS_TAG] = Sign(run_mark(run.run_id), None, worker_process(context)).encode()
    if tags:
        tell(context.instance, run.run_id, tags)
    remaining = _run_remaining(context)
    if remaining is not None and not context.instance.run_monitoring_enabled:
        _warn_unenforced(context, run)
    return RunLink(
        run.run_id,
        f"dagster/{run.job_name}/{run.run_id}/{_op(context).op_handle}",
        lambda: _state(context.instance, run.run_id),
        None if remaining is None else now_ms() + round(remaining * 1000),
        context.log,
        is_step=_is_step(context),
        tell=lambda why: tell(context.instance, run.run_id, {_tag_of(why): why.encode()}),
        worked=lambda: _tell_work(context.instance, run.run_id),
        catch_up_runs=lambda group_id: runs_in_progress(context.instance, group_id, "catch-up"),
    )


def why_away(run: dg.DagsterRun) -> Away | None:
    """Why it left its group, or after which leave it is back; None while it never left."""
    return Away.decode(run.tags.get(LEFT_TAG) or run.tags.get(FENCED_TAG, ""))


def _tag_of(why: Away) -> str:
    return LEFT_TAG if why.reason is FenceReason.CLOSED else FENCED_TAG


def _tell_work(instance: dg.DagsterInstance, run_id: str) -> None:
    """That a batch of it is committed; who repeats the run gets its tags, hence the name in it."""
    with suppress(Exception):  # records that are away for a moment are no reason to fail
        tell(instance, run_id, {COMMITTED_TAG: run_mark(run_id)})


def has_committed(run: dg.DagsterRun) -> bool:
    """Whether a batch of it is committed, as far as it could say so."""
    return run.tags.get(COMMITTED_TAG) == run_mark(run.run_id)


def sign_of(run: dg.DagsterRun) -> Sign:
    """What a run said of itself, if it did."""
    return Sign.decode(run.tags.get(PROCESS_TAG, ""), run_mark(run.run_id))


def worker_process(context: dg.AssetExecutionContext | dg.OpExecutionContext) -> Process | None:
    """The process whose end is the run's; of a step in a process of its own the one that started it."""
    if not _is_step(context):
        return host.process(os.getpid())
    starter = multiprocessing.parent_process()
    return host.process(starter.pid) if starter is not None and starter.pid else None


def _is_step(context: dg.AssetExecutionContext | dg.OpExecutionContext) -> bool:
    """Whether a run worker started this process for its step alone, as the multiprocess executor does."""
    events = context.instance.all_logs(_op(context).run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTED)
    pids = (entry.dagster_event.engine_event_data.metadata.get("pid") for entry in events if entry.dagster_event)
    return str(os.getpid()) in {str(getattr(pid, "value", pid)) for pid in pids}


def budget_of(context: Context, *, argument: float | None, default: float | None) -> Budget:
    """How long one batch may take, and who said so (``first_budget`` has the order)."""
    known = _run_of(context) is not None and context is not None
    return first_budget(
        argument=argument,
        op_tag=_seconds(_op(context).op_def.tags, "op tag") if known and context else None,
        asset_metadata=_seconds(_asset_metadata(context), "asset metadata") if known else None,
        run_remaining=_run_remaining(context) if known else None,
        default=default,
    )


def _run_of(context: Context) -> dg.DagsterRun | None:
    """The run, None for a context that was built by hand: nothing of it is in the instance."""
    return context.instance.get_run_by_id(_op(context).run_id) if context is not None else None


def _op(context: dg.AssetExecutionContext | dg.OpExecutionContext) -> dg.OpExecutionContext:
    return context.op_execution_context if isinstance(context, dg.AssetExecutionContext) else context


def _run_remaining(context: Context) -> float | None:
    """Seconds left of ``dagster/max_runtime``, None when the run has none."""
    record = context.instance.get_run_record_by_id(_op(context).run_id) if context is not None else None
    if record is None or not (limit := _seconds(record.dagster_run.tags, "run tag", _MAX_RUNTIME)):
        return None  # 0 is Dagster's word for no limit
    return limit - (time.time() - (record.start_time or time.time()))


def _warn_unenforced(context: dg.AssetExecutionContext | dg.OpExecutionContext, run: dg.DagsterRun) -> None:
    if run.run_id not in _warned:
        _warned.add(run.run_id)
        context.log.warning(
            "%s is %s s and Dagster's run monitoring is off: the consumer leaves its group when the time is up, but "
            "nobody ends the run. Set `run_monitoring: enabled: true` in dagster.yaml",
            _MAX_RUNTIME,
            run.tags[_MAX_RUNTIME],
        )


def _asset_metadata(context: Context) -> dict[str, Any]:
    if isinstance(context, dg.AssetExecutionContext) and context.has_assets_def:
        return {name: value for found in context.assets_def.metadata_by_key.values() for name, value in found.items()}
    return {}


def _seconds(source: Any, owner: str, name: str = MAX_BATCH_SECONDS) -> float | None:
    value = source.get(name)
    value = getattr(value, "value", value)  # metadata may be wrapped in a MetadataValue
    try:
        seconds = None if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if seconds is not None and not math.isfinite(seconds):
        raise InvalidSettingError(f"{owner} {name} is {shown(value)}: wanted a number of seconds")
    return seconds


def _state(instance: dg.DagsterInstance, run_id: str) -> RunState:
    run = instance.get_run_by_id(run_id)
    if run is None:
        return RunState.ENDED  # deleted while it ran
    if run.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED):
        return RunState.CANCELED
    return RunState.ENDED if run.is_finished else RunState.IN_PROGRESS
