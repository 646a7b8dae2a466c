"""Decide whether this process may still hold its partitions: the poll timer and the reasons to fence.

A pure function of time and facts; the watchdog's thread calls it. librdkafka sends the heartbeats, which show
that the process is alive. This module judges whether it makes progress (KIP-62, Motivation).

>>> timer = PollTimer(process_ms=60_000, polled_at_ms=0)
>>> timer.has_expired(59_999), timer.has_expired(60_000)
(False, True)
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum

from kafka_liveness_dagster.core.events import LeaveReason
from kafka_liveness_dagster.core.names import StoredByName


class FenceReason(StoredByName):
    """A reason why this process may not commit any more; the value is the sentence that users read."""

    POLL_TIMEOUT = "the batch took longer than its process timeout"
    PARTITIONS_LOST = "the broker removed this consumer from the group and reassigned its partitions"
    REPLACED = "another consumer uses the same group.instance.id"
    MAX_RUNTIME_REACHED = "the run has reached its dagster/max_runtime"
    RUN_CANCELED = "the Dagster run was canceled"
    RUN_ENDED = "the Dagster run is no longer in progress"
    ORPHANED = "the run worker that started this step is gone"
    CLOSED = "the consumer was closed"
    BROKERS_UNAVAILABLE = "no broker answered this member for longer than its session timeout"
    HANDED_OVER = "its partitions were handed over to another member"
    INTERRUPTED = "a signal ended the process"

    @property
    def leave(self) -> LeaveReason | None:
        """The leave reason that others report while the run is in progress; None if no member left."""
        return _RULES[self].leave

    @property
    def may_rejoin(self) -> bool:
        """Whether the next poll joins as a new member; otherwise this process may not rejoin the group."""
        return _RULES[self].may_rejoin

    @property
    def releases_partitions(self) -> bool:
        """Whether the partitions are released; otherwise they are left as after a crash."""
        return _RULES[self].releases_partitions

    @property
    def is_orderly_close(self) -> bool:
        """Whether the process closed its consumer itself, as each run does that ends by itself."""
        return _RULES[self].is_orderly_close

    @property
    def remedy(self) -> str:
        """The fix if the fence repeats; empty if none is needed."""
        return _RULES[self].remedy


@dataclass(frozen=True)
class _Rule:
    """The property values of one reason; see ``FenceReason``."""

    leave: LeaveReason | None
    _: KW_ONLY
    may_rejoin: bool = False
    releases_partitions: bool = False
    is_orderly_close: bool = False
    remedy: str = ""


_RULES = {
    FenceReason.POLL_TIMEOUT: _Rule(
        LeaveReason.POLL_TIMEOUT,
        may_rejoin=True,
        remedy="Fix: lower max_poll_records, or raise max_batch_seconds",
    ),
    FenceReason.PARTITIONS_LOST: _Rule(
        LeaveReason.PARTITIONS_LOST,
        may_rejoin=True,
        remedy=(
            "The process sent no heartbeat for longer than its session timeout: the machine was paused, "
            "or the network was down. Fix: raise session_timeout_seconds if such pauses are common"
        ),
    ),
    FenceReason.BROKERS_UNAVAILABLE: _Rule(
        LeaveReason.BROKERS_UNAVAILABLE,
        may_rejoin=True,
        remedy=(
            "The member rejoins by itself. Fix: check the brokers and the network, or raise "
            "session_timeout_seconds above the usual outages"
        ),
    ),
    FenceReason.HANDED_OVER: _Rule(None, may_rejoin=True),
    FenceReason.REPLACED: _Rule(
        LeaveReason.REPLACED, remedy="Fix: set another group_instance_id for each consumer of the group"
    ),
    FenceReason.MAX_RUNTIME_REACHED: _Rule(LeaveReason.MAX_RUNTIME_REACHED),
    FenceReason.RUN_CANCELED: _Rule(LeaveReason.CANCELED, releases_partitions=True),
    FenceReason.RUN_ENDED: _Rule(None),
    FenceReason.ORPHANED: _Rule(LeaveReason.CRASHED),
    # Others only report a close after an error: a normal close releases the partitions
    FenceReason.CLOSED: _Rule(LeaveReason.CRASHED, is_orderly_close=True),
    FenceReason.INTERRUPTED: _Rule(None, is_orderly_close=True),
}
REJOINING_LEAVES = frozenset(rule.leave for rule in _RULES.values() if rule.may_rejoin and rule.leave)
"""Leaves after which the run joins again with its next poll."""
RETRY_OUTCOME = "the batch is retried with the next poll, or by the next owner of its partitions"
"""The outcome of a batch that its member could not commit, if no live lane skips ahead."""


_BACK_SUFFIX = "back"
_ATTENTIVE_MS = 1_000


@dataclass(frozen=True)
class FenceReport:
    """The reason why a process left its group, and whether it has joined again since.

    A tag of its run shows it to others.

    >>> FenceReport(FenceReason.POLL_TIMEOUT, is_back=True).encode()
    'poll-timeout back'
    """

    reason: FenceReason
    is_back: bool = False

    def encode(self) -> str:
        """Return the text of the tag: a code, and whether the process is back."""
        return f"{self.reason.code} {_BACK_SUFFIX}" if self.is_back else self.reason.code

    @classmethod
    def decode(cls, text: str) -> FenceReport | None:
        """Read the value of a tag.

        Return None for an empty text, and for a code that this version does not have.

        >>> FenceReport.decode("poll-timeout back").is_back, FenceReport.decode("abducted")
        (True, None)
        """
        code, _, back = text.partition(" ")
        reason = FenceReason.of_code(code)
        return None if reason is None or back not in ("", _BACK_SUFFIX) else cls(reason, is_back=bool(back))


class RunState(Enum):
    """The state in Dagster of the run that this process works for."""

    IN_PROGRESS = "in progress"
    CANCELED = "canceled"
    ENDED = "ended"


@dataclass
class PollTimer:
    """A timer from one report of progress to the next, like ``max.poll.interval.ms`` (KIP-62).

    See the KIP's Proposed Changes. A poll reports progress; so does the op's own heartbeat, or a finished
    Spark task (``liveness="progress"``).

    Attributes:
        process_ms: process timeout, the longest time between two reports.
        polled_at_ms: time of the last report.
        run_ends_at_ms: end of the run's own budget; None without one.
    """

    process_ms: int
    polled_at_ms: int
    run_ends_at_ms: int | None = None

    def poll(self, now_ms: int) -> None:
        """Record that the process polled, which shows progress."""
        self.polled_at_ms = now_ms

    def elapsed_ms(self, now_ms: int) -> int:
        """Return the milliseconds since the last poll."""
        return now_ms - self.polled_at_ms

    def remaining_ms(self, now_ms: int) -> int:
        """Return the milliseconds that a batch which starts now may take.

        This is the process timeout, at most the remaining time of the run.
        """
        run_left_ms = self.process_ms if self.run_ends_at_ms is None else self.run_ends_at_ms - now_ms
        return max(0, min(self.process_ms, run_left_ms))

    def has_expired(self, now_ms: int) -> bool:
        """Return whether the process timeout has passed since the last poll."""
        return self.elapsed_ms(now_ms) >= self.process_ms

    def is_attentive(self, now_ms: int) -> bool:
        """Return whether the process polled within the last second and nothing ends within the next.

        Such a process is idle, or has short batches: there is no long work to stop.

        >>> timer = PollTimer(process_ms=60_000, polled_at_ms=0, run_ends_at_ms=5_000)
        >>> timer.is_attentive(999), timer.is_attentive(1_000)
        (True, False)
        """
        elapsed_ms = self.elapsed_ms(now_ms)
        left_ms = min(self.process_ms - elapsed_ms, self.remaining_ms(now_ms))
        return elapsed_ms < _ATTENTIVE_MS < left_ms

    def has_run_expired(self, now_ms: int) -> bool:
        """Return whether the run's own budget has passed."""
        return self.run_ends_at_ms is not None and now_ms >= self.run_ends_at_ms


@dataclass(frozen=True)
class ProcessObservation:
    """The watchdog's observation of this process's environment.

    ``is_step`` is True for a step in its own process, which ends with the run worker that started it. It is
    False for a run worker, which outlives the code server that started it.
    """

    parent_is_alive: bool = True
    run: RunState = RunState.IN_PROGRESS
    is_step: bool = False


def reason_to_fence(timer: PollTimer, observation: ProcessObservation, now_ms: int) -> FenceReason | None:
    """Return the most severe reason to fence now; None without one."""
    rules = (
        # Rule 1: a canceled run stops on request, so it releases its partitions
        (observation.run is RunState.CANCELED, FenceReason.RUN_CANCELED),
        # Rule 2: the run worker is dead, so nothing waits for this step; Dagster may never report that the
        # run ended
        (
            not observation.parent_is_alive and (observation.is_step or observation.run is RunState.ENDED),
            FenceReason.ORPHANED,
        ),
        # Rule 3: a run that ended or was deleted owns nothing
        (observation.run is RunState.ENDED, FenceReason.RUN_ENDED),
        # Rule 4: Dagster is about to end the run, so leave before that
        (timer.has_run_expired(now_ms), FenceReason.MAX_RUNTIME_REACHED),
        # Rule 5: KIP-62
        (timer.has_expired(now_ms), FenceReason.POLL_TIMEOUT),
    )
    return next((reason for holds, reason in rules if holds), None)
