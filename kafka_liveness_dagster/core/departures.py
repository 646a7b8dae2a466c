"""Decide which members left a group and why, from two snapshots of the group.

Level-triggered: the same snapshot gives the same answer however often it is asked, so a sensor tick that is
repeated changes nothing. Never asks Kafka or Dagster.

>>> from kafka_liveness_dagster.core.offsets import TopicPartition
>>> running = PartitionSnapshot(TopicPartition("orders", 3), 70, LiveMark(Mark.RUNNING, "0badcafe"), 120)
>>> [gone] = departures([running], members={}, runs={"0badcafe": Run(RunFate.FAILED)})
>>> print(gone)
run 0badcafe crashed; it had orders:3
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING
from zlib import crc32

from kafka_liveness_dagster.core.commit_metadata import ExternalCommit, LiveMark, Mark
from kafka_liveness_dagster.core.events import LeaveReason, MemberLeft
from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.names import listed
from kafka_liveness_dagster.core.offsets import Span, difference, intersection, union
from kafka_liveness_dagster.core.process_status import Word
from kafka_liveness_dagster.core.run_ids import run_mark, run_of_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafka_liveness_dagster.core.fencing import Away
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.partition_state import PartitionFacts


_OLDEST_PARTS = 10
_FENCED = {
    FenceReason.POLL_TIMEOUT: LeaveReason.POLL_TIMEOUT,
    FenceReason.PARTITIONS_LOST: LeaveReason.PARTITIONS_LOST,
    FenceReason.BROKERS_UNAVAILABLE: LeaveReason.BROKERS_UNAVAILABLE,
    FenceReason.REPLACED: LeaveReason.REPLACED,
    FenceReason.MAX_RUNTIME_REACHED: LeaveReason.MAX_RUNTIME_REACHED,
    FenceReason.RUN_CANCELED: LeaveReason.CANCELED,
    FenceReason.ORPHANED: LeaveReason.CRASHED,
    FenceReason.CLOSED: LeaveReason.CRASHED,  # by an error: in good order it would have released its partitions
}


def reason_of(away: Away) -> LeaveReason | None:
    """What others call it that a run left its group for this reason; None for what ends a run as it should."""
    return _FENCED.get(away.reason)


class RunFate(Enum):
    """What became of a Dagster run; ``UNKNOWN`` for a run that Dagster does not list: deleted, or no run at all."""

    IN_PROGRESS = "in progress"
    CANCELING = "being canceled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    UNKNOWN = "unknown"


_OVER = (RunFate.SUCCEEDED, RunFate.FAILED, RunFate.CANCELED)
_UNMARKED = {
    RunFate.SUCCEEDED: LeaveReason.GRACEFUL,
    RunFate.FAILED: LeaveReason.CRASHED,
    RunFate.CANCELED: LeaveReason.CANCELED,
    RunFate.CANCELING: LeaveReason.CANCELED,
}


@dataclass(frozen=True)
class Run:
    """A run as Dagster knows it, and what is known of its process.

    Attributes:
        away: why it left the group, or after which leave it is back, as it told itself; None while it never left, or
            when it could not say.
        started: Dagster says that it is at work, not queued or starting.
        process: of a run in progress; gone says that it was, too, when Dagster was asked again after that.
        beat: its sign of life, another one every half minute; None when it gives none.
        away_seconds: how long it may be out of the group at most: process timeout and session; None before it said so.
        place: of a run before it, in which it is a member now.
        is_over: whether its step in the lane has ended, while other steps of the run go on.
    """

    fate: RunFate
    away: Away | None = None
    started: bool = False
    process: Word = Word.UNKNOWN
    beat: int | None = None
    away_seconds: float | None = None
    is_catch_up: bool = False
    place: str | None = None
    is_over: bool = False

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal ended its process, as it told itself; it released its partitions if the broker answered."""
        return self.away is not None and self.away.reason is FenceReason.INTERRUPTED

    @property
    def is_at_work(self) -> bool:
        """Whether somebody works for it, as far as anybody knows."""
        return self.fate in (RunFate.IN_PROGRESS, RunFate.CANCELING) and self.process is not Word.GONE

    def has_place(self, place: str) -> bool:
        """Whether it goes on under the name of a dead run; one that has not started has it from a run it repeats."""
        return self.place == place and self.started and self.is_at_work


class Expiry(Enum):
    """How near the broker's retention is to an owed range."""

    SAFE = "safe"
    NEAR = "about to expire"
    BEGUN = "partly expired"
    GONE = "expired"


def expiry(owed: Span, log_start: int, log_end: int) -> Expiry:
    """Whether owed data still exists, and whether it will for long.

    >>> from kafka_liveness_dagster.core.offsets import Span
    >>> expiry(Span(70, 120), log_start=100, log_end=190).value
    'partly expired'
    """
    # Rule 1: below the log start the broker has deleted it
    if owed.end <= log_start:
        return Expiry.GONE
    if owed.start < log_start:
        return Expiry.BEGUN
    # Rule 2: retention is at work, and this is in the oldest tenth of what it has left
    near = log_start > 0 and (owed.start - log_start) * _OLDEST_PARTS < log_end - log_start
    return Expiry.NEAR if near else Expiry.SAFE


@dataclass(frozen=True)
class PartitionSnapshot:
    """One partition as both commit logs, the broker and the table show it.

    Attributes:
        outstanding: what is owed and not proven done by table and second log both, what was forgotten included.
        forgotten: what of it no commit says any more.
        missing: what was committed and the table has lost.
        origin: the first offset that the group answers for; None where nobody knows.
        reported: what is accounted for without rows: forgiven, or lost and told.
        external: the commit of another client that replaced the second log.
        unrecorded: what of ``outstanding`` is in the table: a run died before it recorded that.
        is_upper_bound: no ledger says what of ``outstanding`` is done since: it is at most that.
    """

    topic_partition: TopicPartition
    committed: int | None
    mark: LiveMark | None
    log_end: int
    outstanding: tuple[Span, ...] = ()
    log_start: int = 0
    forgotten: tuple[Span, ...] = ()
    missing: tuple[Span, ...] = ()
    origin: int | None = None
    reported: tuple[Span, ...] = ()
    external: ExternalCommit | None = None
    is_upper_bound: bool = False
    unrecorded: tuple[Span, ...] = ()

    @classmethod
    def of(cls, tp: TopicPartition, facts: PartitionFacts) -> PartitionSnapshot:
        """The snapshot that these facts give."""
        missing = () if facts.committed is None else facts.missing(facts.committed)
        forgotten, unrecorded = () if facts.proves_loss else missing, facts.recordable
        return cls(
            tp,
            facts.committed,
            facts.mark,
            facts.log_end,
            intersection((*facts.outstanding, *unrecorded, *forgotten), (Span(0, facts.log_end),)),
            log_start=facts.log_start,
            forgotten=forgotten,
            missing=missing if facts.proves_loss else (),
            origin=facts.origin.start if facts.origin else None,
            reported=facts.reported,
            external=facts.second.external,
            is_upper_bound=facts.second.external is not None and not facts.is_rebuilt,
            unrecorded=unrecorded,
        )

    @property
    def pending(self) -> tuple[Span, ...]:
        """Offsets below the first log that are not proven done: crash lag, and rows that the table has lost."""
        return union((*self.outstanding, *self.missing))

    @property
    def unprocessed(self) -> tuple[Span, ...]:
        """What of ``outstanding`` needs its records."""
        return difference(self.outstanding, self.unrecorded) if self.unrecorded else self.outstanding

    @property
    def lag(self) -> int:
        """Offsets the live lane has not committed; all of the log while nothing is committed."""
        return max(0, self.log_end - (self.log_start if self.committed is None else self.committed))

    @property
    def paused(self) -> bool:
        """Whether both lanes are held: no run would process it."""
        return self.mark is not None and self.mark.mark is Mark.PAUSED

    @property
    def owed(self) -> int:
        """Offsets the live lane jumped over that are not done."""
        return sum(span.size for span in self.outstanding)


def replaced_logs(partitions: Iterable[PartitionSnapshot]) -> list[str]:
    """Return a line for each partition whose second log an external commit replaced, with what repairs it.

    >>> from kafka_liveness_dagster.core.offsets import TopicPartition
    >>> at, found = TopicPartition("orders", 3), ExternalCommit("second", 120, "")
    >>> print(*replaced_logs([PartitionSnapshot(at, 120, None, 120, external=found)]))
    orders:3: an external commit replaced the second commit log (offset 120, metadata ''). The next run of either la...
    """
    return [f"{seen.topic_partition}: {_replaced(seen)}" for seen in partitions if seen.external is not None]


def _replaced(seen: PartitionSnapshot) -> str:
    if seen.external is not None and seen.external.is_newer:
        return f"a newer version wrote the second commit log ({seen.external}). Fix: upgrade kafka-liveness-dagster"
    sentence = f"an external commit replaced the second commit log ({seen.external})"
    if not seen.is_upper_bound:
        return f"{sentence}. The next run of either lane rewrites it from the table's ledger"
    return (
        f"{sentence}. Some of the {seen.owed:,} pending offsets may be done. With a table, the next run of either lane "
        "rewrites the commit. Without one, both lanes refuse to run until it is deleted (ForeignCommitError)"
    )


def ignored(partitions: Iterable[PartitionSnapshot]) -> list[str]:
    """Return a line for each partition whose first log lists pending offsets that cannot be pending."""
    found = {seen.topic_partition: (seen.mark.owed if seen.mark else (), seen.committed or 0) for seen in partitions}
    above = {tp: difference(owed, (Span(0, committed),)) for tp, (owed, committed) in found.items()}
    return [
        f"{tp}: pending offsets at or above the committed offset are ignored: {listed(spans)}"
        for tp, spans in above.items()
        if spans
    ]


def departures(
    partitions: Iterable[PartitionSnapshot], members: Mapping[str, bool], runs: Mapping[str, Run]
) -> list[MemberLeft]:
    """The runs whose marks stand on partitions that they do not work on any more, and why.

    Args:
        partitions: the group's partitions now.
        members: runs (8 hex digits) the coordinator lists now, and whether as static members.
        runs: the live runs Dagster knows.
    """
    marked: dict[str, dict[Mark, list[TopicPartition]]] = {}
    for seen in partitions:
        if seen.mark is not None and seen.mark.mark is not Mark.PAUSED:
            marked.setdefault(seen.mark.run, {}).setdefault(seen.mark.mark, []).append(seen.topic_partition)
    left = []
    for run in sorted(marked):
        running, released = (marked[run].get(mark) for mark in (Mark.RUNNING, Mark.RELEASED))
        known = runs.get(run, Run(RunFate.UNKNOWN))
        reason = _reason(known, members.get(run)) if running else _good_order(known, members.get(run))
        if reason is not None:
            left.append(MemberLeft(run, reason, tuple(sorted(running or released or ()))))
    return left


def _reason(run: Run, static: bool | None) -> LeaveReason | None:  # noqa: FBT001 - None: not a member
    """Why a run's ``running`` mark stands alone."""
    # Rule 1: a run that is over owns nothing, though the broker may list it until its session times out
    if run.fate is RunFate.SUCCEEDED:
        return LeaveReason.PARTITIONS_LOST
    if run.fate in (RunFate.FAILED, RunFate.CANCELED) or run.process is Word.GONE:
        by_signal = run.is_interrupted and run.fate is not RunFate.CANCELED
        return LeaveReason.UNRELEASED if by_signal else LeaveReason.CRASHED
    # Rule 2: the coordinator's word counts for the living
    if static is not None:
        return None
    # Rule 3: at work but not a member. Its watchdog took it out and said so, or it could not say anything
    if run.fate in (RunFate.IN_PROGRESS, RunFate.CANCELING):
        if run.away is None or run.away.is_back:
            return LeaveReason.UNRESPONSIVE
        return _FENCED.get(run.away.reason, LeaveReason.UNRESPONSIVE)
    # Rule 4: no such run, no such member: deleted, or a script that died
    return LeaveReason.CRASHED


def _good_order(run: Run, static: bool | None) -> LeaveReason | None:  # noqa: FBT001 - None: not a member
    """What became of a run that gave up all it had."""
    # Rule 1: a static member sends no LeaveGroup: the coordinator keeps its place after its run
    if static is not None:
        return LeaveReason.STATIC if static and run.fate in _OVER else None
    # Rule 2: nobody else is at work for it
    if run.fate in (RunFate.CANCELED, RunFate.CANCELING):
        return LeaveReason.CANCELED
    return LeaveReason.INTERRUPTED if run.is_interrupted else LeaveReason.GRACEFUL


def reason_without_marks(run: Run, *, is_back: bool) -> LeaveReason:
    """Why a run left whose partitions others have marked as theirs since, or which is back itself."""
    # Rule 1: what became of the run says it, unless the run goes on, or a signal ended it
    if run.is_interrupted and run.fate in (RunFate.FAILED, RunFate.IN_PROGRESS):
        return LeaveReason.INTERRUPTED
    if run.process is Word.GONE:
        return LeaveReason.CRASHED
    if run.fate in _UNMARKED:
        return _UNMARKED[run.fate]
    # Rule 2: it said why
    why = run.away.reason if run.away else None
    if why is FenceReason.CLOSED:
        return LeaveReason.GRACEFUL
    if why is not None and why in _FENCED:
        return _FENCED[why]
    # Rule 3: a run that is away and says nothing cannot; of one that is back, and of scripts, nobody knows
    return LeaveReason.UNRESPONSIVE if run.fate is RunFate.IN_PROGRESS and not is_back else LeaveReason.UNEXPLAINED


def is_due_a_partition(partitions: int, others: Iterable[int]) -> bool:
    """Whether a member that has no partition will be given one: there are more of them than others that work.

    Args:
        partitions: of all topics of the group.
        others: how many partitions each of the other members has.

    >>> is_due_a_partition(4, [4]), is_due_a_partition(2, [1, 1]), is_due_a_partition(2, [1, 1, 0])
    (True, False, False)
    """
    return partitions > sum(1 for held in others if held)


class GroupState(Enum):
    """What the coordinator says of a group; the classic protocol's and KIP-848's states come to these four."""

    STABLE = "stable"
    REBALANCING = "rebalancing"
    EMPTY = "empty"
    DEAD = "dead"


@dataclass(frozen=True)
class MemberSeen:
    """One member as the coordinator lists it.

    Attributes:
        name: the run's 8 hex digits; of a foreign member words for people.
        is_foreign: it is no run of this package.
        is_static: it has a ``group.instance.id`` of the user's.
        place: its ``group.instance.id`` when that was made for its run: after its death another run may be there.
        is_elsewhere: a Dagster run that this instance does not have.
    """

    member_id: str
    name: str
    partitions: tuple[TopicPartition, ...]
    is_foreign: bool = False
    is_static: bool = False
    place: str | None = None
    is_elsewhere: bool = False

    @property
    def key(self) -> str:
        """Enough of the member id to know it again."""
        return f"{crc32(self.member_id.encode()):08x}"

    @property
    def is_heir(self) -> bool:
        """Whether it goes on under the name of another run."""
        first = run_of_place(self.place)
        return first is not None and run_mark(first) != self.name


@dataclass(frozen=True)
class GroupSnapshot:
    """A group at one look: the coordinator's, the commit logs' and Dagster's word.

    Attributes:
        runs: of the live lane, the newest first.
        catch_up: runs of the other lane, those in progress.
    """

    state: GroupState
    members: tuple[MemberSeen, ...]
    partitions: tuple[PartitionSnapshot, ...]
    runs: Mapping[str, Run] = field(default_factory=dict)
    catch_up: Mapping[str, Run] = field(default_factory=dict)

    @cached_property
    def known(self) -> tuple[MemberSeen, ...]:
        """The members in a lasting order, each under the run that it is.

        Of a member with a ``group.instance.id`` the coordinator shows the client id that joined first: who commits a
        static one's partitions is it, and who took over a place has said so; where nobody has that this Dagster knows
        of, and the one it was made for does not work either, commits tell here too.
        """
        return tuple(self._named(member) for member in sorted(self.members, key=lambda member: member.member_id))

    @property
    def size(self) -> int:
        """How many work: a run that lost its broker, and joined again, is listed twice until its session times out."""
        return len({member.name for member in self.known})

    def _named(self, member: MemberSeen) -> MemberSeen:
        if not (member.is_static or member.place):
            return member
        heirs = [name for name, run in self.runs.items() if member.place and run.has_place(member.place)]
        first = self.runs.get(member.name)
        marks = [self._marks[tp] for tp in member.partitions if tp in self._marks]
        marked = min(((mark.mark is not Mark.RUNNING, mark.run) for mark in marks), default=(True, ""))[1]
        if heirs:
            return replace(member, name=marked if marked in heirs else heirs[0], is_elsewhere=False)
        if marked and (member.is_static or not (first and first.is_at_work)):
            return replace(member, name=marked, is_foreign=False)
        return member

    @cached_property
    def _marks(self) -> dict[TopicPartition, LiveMark]:
        return {seen.topic_partition: seen.mark for seen in self.partitions if seen.mark is not None}

    @property
    def listed(self) -> dict[str, bool]:
        """The runs that the coordinator lists, and whether as static members."""
        return {member.name: member.is_static for member in self.known if not member.is_foreign}

    @property
    def left(self) -> list[MemberLeft]:
        """Who stands in the commit log and does not work any more."""
        return departures(self.partitions, self.listed, self.runs)

    @property
    def dealt(self) -> str:
        """Who has which partitions, in 8 digits."""
        shares = sorted((member.member_id, *map(str, sorted(member.partitions))) for member in self.members)
        return f"{crc32(repr(shares).encode()):08x}"
