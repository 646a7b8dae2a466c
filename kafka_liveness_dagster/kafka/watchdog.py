"""Raise the fence and leave the group when a batch exceeds its deadline or its run ends.

Never decides when to raise the fence (``core.fencing`` does), and never commits progress.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from functools import partial
from typing import TYPE_CHECKING

from kafka_liveness_dagster.concurrency import start_daemon_thread
from kafka_liveness_dagster.core.errors import summary_line
from kafka_liveness_dagster.core.fencing import (
    RETRY_OUTCOME,
    FenceReason,
    FenceReport,
    ProcessObservation,
    RunState,
    reason_to_fence,
)
from kafka_liveness_dagster.kafka.errors import FencedError
from kafka_liveness_dagster.kafka.run_context import now_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.fencing import PollTimer
    from kafka_liveness_dagster.kafka.run_context import RunContext


class Fence:
    """The fence of one lane, with the check whether a batch may still be committed.

    Each batch has the epoch in which it was planned. After a fence, batches of earlier epochs stay refused.

    Args:
        watchdog: raises the fence, and takes it down.
        stale_message: message for a batch of a former epoch.
        has_started: whether batches are planned before the first ``start_epoch``; a live lane has to join
            first.

    Attributes:
        epoch: epoch of the batches that are planned now.
    """

    def __init__(self, watchdog: Watchdog, stale_message: str, *, has_started: bool) -> None:
        self._watchdog = watchdog
        self._stale_message = stale_message
        self._has_started = has_started
        self.epoch = 0
        self._epoch_reason = FenceReason.POLL_TIMEOUT

    def check(self) -> None:
        """Raise if this process may not commit any more; call it before any long work.

        Raises:
            FencedError: the fence is up.
        """
        self._watchdog.check()

    def check_batch(self, batch: Batch) -> None:
        """Raise if this batch may not be committed any more, also after a new membership began.

        Raises:
            FencedError: the fence is up, or was up since the batch was planned.
        """
        self.check()
        self._check_epoch(batch)

    def _check_epoch(self, batch: Batch) -> None:
        """Raise if the fence was up since the batch was planned, whether it is up now or not.

        Raises:
            FencedError: the batch is of a former epoch.
        """
        if not self._is_current(batch):
            raise FencedError(self._epoch_reason, self._stale_message, self._watchdog.outcome)

    def is_batch_current(self, batch: Batch) -> bool:
        """Return whether a batch belongs to the current membership; False while the fence is up."""
        return self._watchdog.reason is None and self._is_current(batch)

    def heartbeat(self) -> None:
        """Report progress on the open batch, which restarts the process timeout.

        Raises:
            FencedError: the process timeout passed, or this process may not continue. Stop the work.
        """
        self._watchdog.record_poll()

    def on_fence(self, cancel: Callable[[], None]) -> None:
        """Register a callback that cancels work when the fence goes up, such as a Spark job.

        Caller: a thread of the watchdog, once per fence. The call may come late, after work of the next
        membership began: check ``is_batch_current``. Affects: work in progress.
        """
        self._watchdog.on_fence(cancel)

    def record_poll(self) -> bool:
        """Report a poll; return False if it comes too late, so that batches must be planned again."""
        try:
            self._watchdog.record_poll()
        except FencedError as error:
            if not error.reason.may_rejoin:
                raise
            return False
        return True

    def start_epoch(self, why: FenceReason) -> None:
        """Begin an epoch: batches planned before it may not be committed, batches planned from now on may."""
        self.epoch = self.epoch + 1
        self._has_started = True
        self._epoch_reason = why

    def _is_current(self, batch: Batch) -> bool:
        return self._has_started and batch.membership_epoch == self.epoch


if TYPE_CHECKING:
    Leave = Callable[[FenceReason], FenceReason | None]

CHECK_SECONDS = 0.1
RUN_STATE_SECONDS = 1.0
ATTENTIVE_CHECK_SECONDS = 0.5
ATTENTIVE_RUN_STATE_SECONDS = 3.0
"""The same two while there is no long work to stop: half of an idle run's processor time were these checks.

With the check and the leave, a cancel ends an idle run within 5 s.
"""
_STOP_SECONDS = 30.0
_STOPPED_REPORT_SECONDS = 5.0
_FENCED_REPORT_SECONDS = 1.0
log = logging.getLogger("kafka_liveness_dagster")


class Watchdog:
    """The fence of one consumer, and the thread that raises it.

    A second thread reads the run's state from Dagster, so that a slow response delays no deadline. A third
    thread answers rebalances. For the same reason none of them writes to the run's log. The first two check
    less often while the owner polls often (``PollTimer.is_attentive``).

    Args:
        timer: the poll timer; ``record_poll`` reports polls to it.
        run_context: the run to watch.
        leave: gives up the partitions; called once per fence, on the watchdog's thread or the one that
            noticed. It may wait for the thread that uses the client, so no lock of this class is held
            meanwhile. It may return another reason, which the client reported during the leave.
        serve: answers the group (``liveness="progress"``); called repeatedly until the fence goes up, on its
            own thread. None if only the owner's polls answer the group.
        outcome: outcome of a batch that may not be committed any more, as a clause of the error.

    Attributes:
        outcome: the same clause.
    """

    def __init__(
        self,
        timer: PollTimer,
        run_context: RunContext,
        leave: Leave,
        serve: Callable[[], None] | None = None,
        outcome: str = RETRY_OUTCOME,
    ) -> None:
        self.outcome = outcome
        self._timer = timer
        self._run_context = run_context
        self._leave = leave
        self._serve = serve
        self._serve_error: Exception | None = None
        self._cancels: list[Callable[[], None]] = []
        self._fence_lock = threading.Lock()
        self._reason: FenceReason | None = None
        self._parent = os.getppid()
        self._starter = multiprocessing.parent_process()
        self._run_state = RunState.IN_PROGRESS
        self._is_orphaned = False
        self._stopped = threading.Event()
        self._watch_ended = threading.Event()
        self._wake = threading.Event()
        self._report_lock = threading.Lock()
        self._last_reason: FenceReason | None = None
        self._reported: FenceReport | None = None
        self._thread = threading.Thread(target=self._watch, name="kafka-liveness-watchdog", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        threading.Thread(target=self._poll_run_state, name="kafka-liveness-run-state", daemon=True).start()
        if self._serve is not None:
            threading.Thread(target=self._serve_group, name="kafka-liveness-heartbeat", daemon=True).start()

    def stop(self, why: FenceReason = FenceReason.CLOSED) -> None:
        """Stop the threads for good: the consumer is closed, and commits raise from now on."""
        with self._fence_lock:
            self._reason = self._reason or why
            self._stopped.set()
        self._wake.set()
        # Before the leave, so that the sensor has the reason when the member is missing in the group
        if not self._report_in_time(_STOPPED_REPORT_SECONDS):
            self._report()
        with self._fence_lock:
            if self._reason.may_rejoin:  # the clients are closed, so a rejoin would fail
                self._reason = FenceReason.CLOSED
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._watch_ended.wait(_STOP_SECONDS)  # not Thread.join: Dagster may interrupt the wait

    def on_fence(self, cancel: Callable[[], None]) -> None:
        """Register a callback that cancels work when the fence goes up; called at once if it is up."""
        self._cancels.append(cancel)
        if self._reason is not None and not self._cancel([cancel]):
            self._call_all([cancel])

    def record_poll(self) -> None:
        """Report that the owner of this consumer polled, or made progress otherwise.

        Raises:
            FencedError: the fence is up.
            KafkaLivenessError: error of the thread that answers rebalances since the last poll.
        """
        self.check()
        self._timer.poll(now_ms())
        met, self._serve_error = self._serve_error, None
        if met is not None:
            raise met

    def check(self) -> None:
        """Raise if this process may not commit any more, even if the thread has not checked yet.

        Raises:
            FencedError: the fence is up.
        """
        if self._reason is None and self._timer.has_expired(now_ms()):
            self._raise_fence(FenceReason.POLL_TIMEOUT)
        if self._reason is not None:
            seconds = self._timer.elapsed_ms(now_ms()) / 1000
            limit = self._timer.process_ms / 1000
            timed_out = self._reason is FenceReason.POLL_TIMEOUT
            raise FencedError(
                self._reason, f"{seconds:.1f} s of {limit:g} s" if timed_out else "", self.outcome
            )

    def fence(self, reason: FenceReason, leave: Leave) -> None:
        """Raise the fence, unless it is up, for a reason that the watchdog cannot detect.

        Args:
            reason: reason that the caller detected.
            leave: leaves the membership that the caller means; if another one began since, nothing is done.
        """
        self._raise_fence(reason, leave)

    @property
    def reason(self) -> FenceReason | None:
        """The reason why the fence is up; None while it is down."""
        return self._reason

    def reset(self, leave: Leave | None = None) -> None:
        """Take the fence down after its member has left, so that a new member can join.

        Args:
            leave: leaves the new membership; None for the same as before.
        """
        with self._fence_lock:
            self._timer.poll(now_ms())
            self._reason = None
            self._leave = leave or self._leave
        self._wake.set()

    def _watch(self) -> None:
        try:
            while not self._stopped.wait(self._interval(CHECK_SECONDS, ATTENTIVE_CHECK_SECONDS)):
                if not (self._parent_is_alive() or self._is_orphaned):
                    self._is_orphaned = True
                    self._wake.set()
                seen = ProcessObservation(
                    not self._is_orphaned, self._run_state, is_step=self._run_context.is_step
                )
                reason = reason_to_fence(self._timer, seen, now_ms())
                if reason is not None and self._reason is None:
                    self._raise_fence(reason)
        finally:
            self._watch_ended.set()

    def _interval(self, seconds: float, attentive_seconds: float) -> float:
        return attentive_seconds if self._timer.is_attentive(now_ms()) else seconds

    def _serve_group(self) -> None:
        while not self._stopped.wait(CHECK_SECONDS):
            try:
                # After a sleep past the deadline the client may have lost its membership: a poll would rejoin
                if self._serve is not None and self._reason is None and not self._timer.has_expired(now_ms()):
                    self._serve()
            except Exception as error:  # noqa: BLE001 - raised where the owner polls next
                self._serve_error = error

    def _poll_run_state(self) -> None:
        asked_at_ms = now_ms()
        was_orphaned = False
        failed = False
        while True:
            due_ms = 1000 * self._interval(RUN_STATE_SECONDS, ATTENTIVE_RUN_STATE_SECONDS)
            self._wake.wait(max(0.0, asked_at_ms + due_ms - now_ms()) / 1000)
            self._wake.clear()
            if self._stopped.is_set():
                return  # stop() reports the last reason
            self._report()
            has_just_lost_parent = self._is_orphaned and not was_orphaned
            if now_ms() - asked_at_ms < due_ms and not has_just_lost_parent:
                continue
            was_orphaned = self._is_orphaned
            asked_at_ms = now_ms()
            try:
                self._run_state = self._run_context.state()
                failed = False
            except Exception as error:  # noqa: BLE001 - Dagster's storage is unavailable: the run goes on
                if not failed:
                    told = (
                        "Could not read the run's state from Dagster; it counts as %s until Dagster "
                        "responds: %s"
                    )
                    log.warning(told, self._run_state.value, summary_line(error))
                failed = True

    def _report_in_time(self, seconds: float, fenced: FenceReason | None = None) -> bool:
        """Report in another thread: a database that does not respond must not keep the member in its group.

        Args:
            seconds: longest time to wait for the report.
            fenced: reason to log too, there, because Dagster may store the lines of this log.

        Returns:
            False if no thread could be started, so that nothing was reported.
        """
        is_told = threading.Event()

        def tell() -> None:
            self._report(fenced)
            is_told.set()

        if not start_daemon_thread(tell, "kafka-liveness-tell"):
            return False
        if not is_told.wait(seconds):
            # In another thread: if Dagster stores the lines of this log, this line would block too
            told = "Dagster did not respond within %g s: it may not have the reason why this process left"
            start_daemon_thread(partial(log.warning, told, seconds), "kafka-liveness-tell")
        return True

    def _report(self, fenced: FenceReason | None = None) -> None:
        """Report to Dagster why this process left its group; without it the process looks frozen."""
        if fenced is not None:
            log.warning("Fenced: %s", fenced.value, extra={"fence": fenced})
        with self._report_lock:
            self._last_reason = self._reason or self._last_reason
            why = (
                None
                if self._last_reason is None
                else FenceReport(self._last_reason, is_back=self._reason is None)
            )
            if why is None or why == self._reported:
                return
            try:
                self._run_context.report_fence(why)
            except Exception:  # without it only the reason of the departure is unknown
                log.exception("Could not report the fence to Dagster: %s", why)
            self._reported = why

    def _raise_fence(self, reason: FenceReason, leave_of: Leave | None = None) -> None:
        with self._fence_lock:
            outdated = reason is FenceReason.POLL_TIMEOUT and not self._timer.has_expired(now_ms())
            if self._reason is not None or outdated or (leave_of is not None and leave_of != self._leave):
                return
            self._reason = reason  # first the fence, then everything that takes time
            leave = self._leave
        is_sure = reason is not FenceReason.PARTITIONS_LOST
        is_cancelled = self._cancel(self._cancels)
        # Before the leave too, as in stop(); with a shorter limit, because the partitions wait for the leave
        is_told = self._report_in_time(_FENCED_REPORT_SECONDS, reason if is_sure else None)
        try:
            named = leave(reason) or reason
        except Exception:  # the session timeout ends what could not be left
            log.exception("Could not leave the group")
            named = reason
        if named is not reason:
            with self._fence_lock:
                if self._reason is reason:
                    self._reason = named
                    self._wake.set()  # the run-state thread reports the new reason to Dagster
        if not is_sure:
            log.warning("Fenced: %s", named.value, extra={"fence": named})
        # No thread could be started; the member has left its group, so this thread may take its time
        if not is_cancelled:
            self._call_all(self._cancels)
        if not is_told:
            self._report(named if is_sure else None)

    def _cancel(self, cancels: list[Callable[[], None]]) -> bool:
        """Cancel in another thread: an unresponsive Spark server must not keep the member in its group.

        Returns:
            False if no thread could be started, so that nothing was canceled.
        """
        return start_daemon_thread(partial(self._call_all, list(cancels)), "kafka-liveness-cancel")

    def _call_all(self, cancels: list[Callable[[], None]]) -> None:
        for cancel in cancels:
            try:
                cancel()
            except Exception:
                log.exception("Could not cancel the work in progress")

    def _parent_is_alive(self) -> bool:
        # The parent's id is not enough: the starter may have died before we read it, or a fork server may be
        # our parent
        return os.getppid() == self._parent and (self._starter is None or self._starter.is_alive())
