"""Read the budget of an op's Dagster run, and define the tags through which runs and the sensor communicate.

``context`` may be None everywhere: a script or a test is its own run, and cannot be canceled. Never writes a
tag.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any, Literal
from zlib import crc32

import dagster as dg

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.fencing import FenceReport
from kafka_liveness_dagster.core.names import display
from kafka_liveness_dagster.core.process_status import HeartbeatTag
from kafka_liveness_dagster.core.run_ids import short_run_id
from kafka_liveness_dagster.core.timeouts import RunBudget, resolve_budget
from kafka_liveness_dagster.runs import proc
from kafka_liveness_dagster.runs.storage import call_with_retries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.core.process_status import Process

MAX_BATCH_SECONDS = "kafka_liveness/max_batch_seconds"
GROUP_TAG = "kafka_liveness/group"
LANE_TAG = "kafka_liveness/lane"
CAUSE_TAG = "kafka_liveness/started_because"  # the cause as text
CAUSE_LAG = "lag"  # the cause of a live run that was not started because a member left
CAUSE_CRASH_LAG = "crash lag"  # the cause of a catch-up run
WAITS_TAG = "kafka_liveness/waiting_for"
# The key of the lane's step. Not hidden: a re-execution of selected steps in the UI loses hidden tags
STEP_TAG = "kafka_liveness/step"
# Dagster's UI hides keys with this prefix. A key has one namespace, so a dot follows the package's name
_HIDDEN = ".dagster/kafka_liveness."
CAUSE_RUN_TAG = f"{_HIDDEN}started_because_of_run"  # the 8 digits of the first run in the cause
FENCED_TAG = f"{_HIDDEN}fence_reason"
LEFT_TAG = f"{_HIDDEN}leave_reason"  # its consumer was closed, as at the end of every run
PROCESS_TAG = f"{_HIDDEN}heartbeat"
AWAY_TAG = f"{_HIDDEN}max_absence_seconds"
COMMITTED_TAG = f"{_HIDDEN}committed"
SESSION_TAG = f"{_HIDDEN}spark_session"  # id of the run's Spark session, which the sensor ends after a crash
PARTITION_TAG = "dagster/partition"
PARTITION_RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
BACKFILL_TAG = "dagster/backfill"
MAX_RUNTIME = "dagster/max_runtime"
MAX_RETRIES = "dagster/max_retries"
PRIORITY = "dagster/priority"
# A live run overtakes a backfill's queue; all other runs have priority 0 by default
LIVE_PRIORITY = {PRIORITY: "10"}
NO_RETRIES = {MAX_RETRIES: "0"}  # the sensor starts the next live run, so a retry would be a second one
DATA_STATE_AT_START = "this run has read and committed nothing yet"
DATA_STATE_AT_END = (
    "each batch that this run committed is in the table once, and the others are retried. Partitions of "
    "this run stay missing until another run materializes them, which reads nothing twice"
)
_FINISHED_STATUSES = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}
Context = dg.AssetExecutionContext | dg.OpExecutionContext | None


def lane_tags(group_id: str, lane: Literal["live", "catch-up"]) -> dict[str, str]:
    """Return the run tags by which the sensor and the UI find the runs of a group."""
    return {GROUP_TAG: group_id, LANE_TAG: lane}


def instance_id_tag(group_id: str) -> str:
    """Return the tag in which a run stores the instance id that it has claimed; empty when it lost it.

    Each group has its own tag, because a run may consume for several. Dagster refuses keys with some of the
    characters that a group id may have.
    """
    return f"{_HIDDEN}instance_id-{crc32(group_id.encode()):08x}"


def in_progress_filter(
    group_ids: Sequence[str], lane: Literal["live", "catch-up"] | None = None
) -> dg.RunsFilter:
    """Return the filter for runs of groups, or of one lane, that are queued, starting or running."""
    at_work = [status for status in dg.DagsterRunStatus if status not in _FINISHED_STATUSES]
    tags: dict[str, str | list[str]] = {GROUP_TAG: list(group_ids)}
    return dg.RunsFilter(tags=tags if lane is None else {**tags, LANE_TAG: lane}, statuses=at_work)


def fence_report_of(run: dg.DagsterRun) -> FenceReport | None:
    """Return why a run left its group, or after which leave it is back; None if it never left."""
    return FenceReport.decode(run.tags.get(LEFT_TAG) or run.tags.get(FENCED_TAG, ""))


def has_committed(run: dg.DagsterRun) -> bool:
    """Return whether the run's tag records a committed batch; the tag may not be stored yet."""
    return run.tags.get(COMMITTED_TAG) == short_run_id(run.run_id)


def heartbeat_of(run: dg.DagsterRun) -> HeartbeatTag:
    """Return the heartbeat tag of a run; empty without one."""
    return HeartbeatTag.decode(run.tags.get(PROCESS_TAG, ""), short_run_id(run.run_id))


def is_active_in_lane(run: dg.DagsterRun) -> bool:
    """Return whether a run is queued for its lane, starts, or works there.

    Its other steps may outlast the lane's. A re-execution of only those steps has the tags of the first run.
    """
    steps = run.step_keys_to_execute
    step = run.tags.get(STEP_TAG)
    is_left_out = steps is not None and step is not None and step not in steps
    return not (run.is_finished or heartbeat_of(run).has_ended or is_left_out)


def worker_process(context: dg.AssetExecutionContext | dg.OpExecutionContext) -> Process | None:
    """Return the process whose end is the run's end; for a step in its own process, the parent."""
    if not is_step_process(context):
        return proc.process(os.getpid())
    starter = multiprocessing.parent_process()
    return proc.process(starter.pid) if starter is not None and starter.pid else None


def is_step_process(context: dg.AssetExecutionContext | dg.OpExecutionContext) -> bool:
    """Return whether a run worker started this process only for its step (multiprocess executor)."""
    started = dg.DagsterEventType.STEP_WORKER_STARTED
    run_id = op_context_of(context).run_id
    events = call_with_retries(
        lambda: context.instance.all_logs(run_id, of_type=started),
        "the events of the run",
        DATA_STATE_AT_START,
    )
    pids = (
        entry.dagster_event.engine_event_data.metadata.get("pid") for entry in events if entry.dagster_event
    )
    return str(os.getpid()) in {str(getattr(pid, "value", pid)) for pid in pids}


def budget_of(context: Context, *, argument: float | None, default: float | None) -> RunBudget:
    """Return the run budget of one batch, with its source; ``resolve_budget`` has the order."""
    known = dagster_run_of(context) is not None and context is not None
    return resolve_budget(
        argument=argument,
        op_tag=_seconds(op_context_of(context).op_def.tags, "op tag") if known and context else None,
        asset_metadata=_seconds(_asset_metadata(context), "asset metadata") if known else None,
        run_remaining=run_remaining(context) if known else None,
        default=default,
    )


def dagster_run_of(context: Context) -> dg.DagsterRun | None:
    """Return the Dagster run; None for a context built by hand, because its run is not in the instance."""
    if context is None:
        return None
    return call_with_retries(
        lambda: context.instance.get_run_by_id(op_context_of(context).run_id),
        "the record of the run",
        DATA_STATE_AT_START,
    )


def op_context_of(context: dg.AssetExecutionContext | dg.OpExecutionContext) -> dg.OpExecutionContext:
    """Return the op's own context, also of an asset's context."""
    return context.op_execution_context if isinstance(context, dg.AssetExecutionContext) else context


def run_remaining(context: Context) -> float | None:
    """Return the seconds left of ``dagster/max_runtime``, or of the instance's limit.

    None when the run has none.
    """
    if context is None:
        return None
    asked = op_context_of(context).run_id
    record = call_with_retries(
        lambda: context.instance.get_run_record_by_id(asked), "the record of the run", DATA_STATE_AT_START
    )
    if record is None:
        return None
    limit = _seconds(record.dagster_run.tags, "run tag", MAX_RUNTIME)
    if limit is None and context.instance.run_monitoring_enabled:
        limit = float(context.instance.run_monitoring_max_runtime_seconds)
    if not limit:
        return None  # in Dagster 0 means no limit
    return limit - (time.time() - (record.start_time or time.time()))


def _asset_metadata(context: Context) -> dict[str, Any]:
    if isinstance(context, dg.AssetExecutionContext) and context.has_assets_def:
        return {
            name: value
            for found in context.assets_def.metadata_by_key.values()
            for name, value in found.items()
        }
    return {}


def _seconds(source: Any, owner: str, name: str = MAX_BATCH_SECONDS) -> float | None:
    value = source.get(name)
    value = getattr(value, "value", value)  # metadata may be wrapped in a MetadataValue
    try:
        seconds = None if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if seconds is not None and not math.isfinite(seconds):
        raise InvalidSettingError(f"{owner} {name} is {display(value)}: wanted a number of seconds")
    return seconds
