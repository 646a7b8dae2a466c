"""Request the runs that a group needs: runs of both lanes, and those of the user's ``on_event``.

Never launches a run itself: Dagster does.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Literal

import dagster as dg

from kafka_liveness_dagster.core.departures import RunFate
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.events import event_identity
from kafka_liveness_dagster.core.names import display, format_count
from kafka_liveness_dagster.core.orphaned_runs import (
    MAX_BACKOFF_SECONDS,
    restart_delay_seconds,
    should_start_live_run,
)
from kafka_liveness_dagster.core.run_ids import short_run_id
from kafka_liveness_dagster.metadata import describe_departures
from kafka_liveness_dagster.runs.tags import (
    CAUSE_CRASH_LAG,
    CAUSE_LAG,
    CAUSE_RUN_TAG,
    CAUSE_TAG,
    NO_RETRIES,
    PARTITION_TAG,
    has_committed,
    in_progress_filter,
    is_active_in_lane,
    lane_tags,
)
from kafka_liveness_dagster.sensor.observation import run_fate, split_by_lane

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Collection, Iterable, Sequence

    from kafka_liveness_dagster.core.events import GroupEvent
    from kafka_liveness_dagster.sensor.cursor import GroupCursor
    from kafka_liveness_dagster.sensor.observation import GroupObservation
    from kafka_liveness_dagster.settings.types import Hook


@dataclass(frozen=True)
class EventHook:
    """The ``on_event`` callback of a sensor.

    Attributes:
        sensor_name: name at the begin of every run key, because two sensors may see the same event.
        job_name: job of requests that name none.
        job_names: jobs that the callback may request. Dagster refuses others only after the tick, which would
            then be lost, in a shared sensor for all groups.
    """

    sensor_name: str
    callback: Hook | None
    job_name: str | None
    job_names: Collection[str]

    def call(
        self, events: Sequence[GroupEvent], cursor: GroupCursor, log: logging.Logger
    ) -> tuple[list[dg.RunRequest], list[str]]:
        """Return the runs to request for the events of one tick, and the errors with their events."""
        requests: list[dg.RunRequest] = []
        failed: list[str] = []
        met: Counter[str] = Counter()
        for event in events if self.callback is not None else ():
            name = event_identity(event)
            met[name] += 1
            # Without the event's position among the others, because a repeated tick may have more of them
            key = f"{self.sensor_name} {cursor.started_at}.{cursor.event_count} {name} {met[name]}"
            try:
                requests += self._requested(event, key)
            except Exception as error:
                log.exception("on_event of %s failed. No run was requested for: %s", self.sensor_name, event)
                why = str(error) if isinstance(error, InvalidSettingError) else type(error).__name__
                failed.append(f"on_event failed with {why}. No run was requested for: {event}")
        return requests, failed

    def _requested(self, event: GroupEvent, key: str) -> list[dg.RunRequest]:
        answer = self.callback(event) if self.callback is not None else None
        several = [answer] if isinstance(answer, dg.RunRequest) else list(answer or ())
        return [
            one._replace(run_key=one.run_key or f"{key}.{number}", job_name=self._requested_job(one))
            for number, one in enumerate(several)
        ]

    def _requested_job(self, request: dg.RunRequest) -> str:
        name = request.job_name or self.job_name
        if name is None or name not in self.job_names:
            what = f"for job {display(name)}" if name else "without a job_name"
            raise InvalidSettingError(
                f"a RunRequest {what}: wanted one of {', '.join(self.job_names)}. Fix: add the job to "
                "event_jobs of kl.Sensor, and name it in the request if there are several"
            )
        return name


_RECENT_RUNS = 20
NOTHING_TO_START = "Nothing to start: "


@dataclass(frozen=True, kw_only=True)
class RunRequests:
    """The run requests of a group's sensor.

    Attributes:
        crash_lag_job_name: job for crash lag; None if people start its runs.
        max_live_runs: number of live runs in progress from which no further one is requested.
    """

    group_id: str
    live_job_name: str
    crash_lag_job_name: str | None
    max_live_runs: int

    def live_run(
        self,
        instance: dg.DagsterInstance,
        observed: GroupObservation,
        now: float,
        orphaned: Collection[str],
        *,
        read_in_progress: Callable[[], Sequence[dg.RunRecord]] | None = None,
    ) -> tuple[list[dg.RunRequest], str]:
        """Return the request for a live run if one is needed, or the reason why none is.

        Args:
            instance: Dagster instance, with the runs in progress.
            observed: the group now.
            now: current time in seconds since the epoch.
            orphaned: runs in progress that do not block a successor.
            read_in_progress: reads the group's runs in progress; None reads them from Dagster.
        """
        seen = observed.snapshot
        wants = partial(
            should_start_live_run,
            seen.partitions,
            seen.owners_without_member,
            max_live_runs=self.max_live_runs,
        )
        in_progress = _without_orphaned((run.run_id for run in observed.live_in_progress), orphaned)
        failures, delayed = _restart_delay(
            [*takewhile(lambda record: not _did_work(record), observed.records)], now
        )
        wanted = wants(in_progress=in_progress)
        if wanted and not delayed:  # a run may have been launched since the observation
            in_progress = self._count_in_progress(instance, "live", orphaned, read_in_progress)
            wanted = wants(in_progress=in_progress)
        if wanted and not delayed:
            tags = {
                **lane_tags(self.group_id, "live"),
                CAUSE_TAG: describe_departures(seen.owners_without_member) or CAUSE_LAG,
            }
            if causes := [gone.run for gone in seen.owners_without_member if not gone.reason.in_good_order]:
                tags[CAUSE_RUN_TAG] = causes[0]
            return [dg.RunRequest(job_name=self.live_job_name, tags=tags)], ""
        lag = sum(p.lag for p in seen.partitions)
        pending = format_count(sum(p.pending_offsets for p in seen.partitions), "offset")
        why = "all records are read"
        if wanted:
            why = f"the last {format_count(failures, 'live run')} failed, so the next one starts later"
        elif in_progress:
            queued = sum(run.status is dg.DagsterRunStatus.QUEUED for run in observed.live_in_progress)
            why = _in_progress(in_progress, queued, self.max_live_runs)
        return [], f"{NOTHING_TO_START}{why}; lag {lag:,}, {pending} pending"

    def catch_up_run(
        self,
        instance: dg.DagsterInstance,
        observed: GroupObservation,
        missing: Callable[[], Sequence[str]],
        now: float,
        orphaned: Collection[str],
        *,
        read_in_progress: Callable[[], Sequence[dg.RunRecord]] | None = None,
    ) -> list[dg.RunRequest]:
        """Return the run of the oldest missing partition, unless a catch-up run works or it fails repeatedly.

        The missing partitions are read last, because that reads all partitions that ever existed.
        """
        if (
            self.crash_lag_job_name is None
            or not observed.pending
            or self._count_in_progress(instance, "catch-up", orphaned, read_in_progress)
        ):
            return []
        tags = lane_tags(self.group_id, "catch-up")
        records = instance.get_run_records(dg.RunsFilter(tags=dict(tags)), limit=_RECENT_RUNS)
        if _restart_delay(records, now)[1]:
            return []
        pending = observed.still_pending(missing(), paused=False)
        if not pending:
            return []
        # A partition that fails every time must not block the younger ones
        failed = Counter(record.dagster_run.tags.get(PARTITION_TAG) for record in _failed_in_a_row(records))
        oldest = min(pending, key=lambda key: failed[key])
        tags |= {CAUSE_TAG: CAUSE_CRASH_LAG, **NO_RETRIES}
        return [dg.RunRequest(job_name=self.crash_lag_job_name, partition_key=oldest, tags=tags)]

    def _count_in_progress(
        self,
        instance: dg.DagsterInstance,
        lane: Literal["live", "catch-up"],
        ghosts: Collection[str],
        read_in_progress: Callable[[], Sequence[dg.RunRecord]] | None,
    ) -> int:
        """Return the number of runs in progress now, without ghosts."""
        if read_in_progress is None:
            runs = instance.get_runs(in_progress_filter([self.group_id], lane))
        else:
            runs = [record.dagster_run for record in split_by_lane(read_in_progress())[lane]]
        return _without_orphaned((run.run_id for run in runs if is_active_in_lane(run)), ghosts)


def _in_progress(count: int, queued: int, max_live_runs: int) -> str:
    """Return how many live runs are in progress, and how many of these wait in Dagster's queue.

    >>> _in_progress(1, queued=0, max_live_runs=1)
    'the live run is in progress'
    >>> _in_progress(1, queued=1, max_live_runs=1)
    "the live run is in Dagster's queue"
    >>> _in_progress(2, queued=1, max_live_runs=3)
    "2 of at most 3 live runs are in progress, 1 of these in Dagster's queue"
    """
    if max_live_runs == 1 == count:
        return "the live run is in Dagster's queue" if queued else "the live run is in progress"
    are = "live run is" if max_live_runs == 1 else "live runs are"
    of_queue = f", {queued} of these in Dagster's queue" if queued else ""
    return f"{count} of at most {max_live_runs} {are} in progress{of_queue}"


def _without_orphaned(run_ids: Iterable[str], ghosts: Collection[str]) -> int:
    return sum(short_run_id(run_id) not in ghosts for run_id in run_ids)


def _restart_delay(records: Sequence[dg.RunRecord], now: float) -> tuple[int, bool]:
    """Return how many of the newest runs failed in a row, and whether the next one must wait."""
    failed = _failed_in_a_row(records)
    # The absolute value, because a failed run may have a later time after the clock was turned back
    since = abs(now - (failed[0].end_time or now)) if failed else 0.0
    return len(failed), since < restart_delay_seconds(len(failed))


def _failed_in_a_row(records: Sequence[dg.RunRecord]) -> list[dg.RunRecord]:
    """Return the newest runs that failed in a row."""
    return list(takewhile(lambda record: run_fate(record.dagster_run) is RunFate.FAILED, records))


def _did_work(record: dg.RunRecord) -> bool:
    """Return whether a run committed something before it ended, or worked longer than the longest delay.

    The cause of its end does not end every run: a host may lose one worker after another without a defect in
    the runs.
    """
    seconds = (record.end_time or 0.0) - (record.start_time or math.inf)
    return has_committed(record.dagster_run) or seconds > MAX_BACKOFF_SECONDS
