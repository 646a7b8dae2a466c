"""One log, its commits in both groups, and what an oracle of its own knows of them.

A set of offsets is an integer, bit 0 being the live commit log start, and commit metadata is read here by
other code than the core's: an invariant is one line of set algebra, and no mistake in ``core.offsets`` can
hide from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core.commit_metadata import (
    CatchUpCommitMetadata,
    ExternalCommitError,
    LiveCommitMetadata,
)
from kafka_liveness_dagster.core.offsets import Span
from kafka_liveness_dagster.core.partition_state import PartitionState
from tests.simulation.scheduler import clock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafka_liveness_dagster.core.ledger import LedgerEntry
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from tests.simulation.client import MemberClient

FirstLog = tuple[int | None, LiveCommitMetadata | None]  # as the core reads it
EVERYTHING = -1
_OWED = 4  # which word of "kl1 running 0badcafe @0 70-120" holds the owed ranges


@dataclass
class SimulatedPartition:
    """A log, its commits in both groups, and what the table holds of it.

    Attributes:
        base: the offset of bit 0; ``topic_id``: the topic's now, ``born``: that of the life the oracle
            judges.
        live_commit, catch_up_commit: the commits as written; ``live_log``, ``catch_up_log``: as the core
            reads them.
        foreign: what the core says of a live commit log that is another program's.
        holder: the member that has it, by the coordinator; ``adopted_by``: who committed where it goes on.
        acknowledged: the last first-log commit whose author knows of it.
        erased: the live commit log was taken away under its holder, who has not committed since.
        rows: offsets in the table; ``twice``: those in it more than once.
        pending, done: what the commits say.
        waived: what nobody asked to process; ``unknowable_missing``: what is missing and no witness can know
            of; ``lost``: what was told as lost; ``removed_by_fault``: what somebody else made go missing.
        unborn: no witness knows of a life of the group.
        went_back: offsets below an acknowledged commit that a later commit was below.
        wrongly_told: offsets told as lost that have not expired; ``mistaken``: a commit that does not
            say, of a topic made anew, that it is of the old one.
        covered: what came to be a member's to do when it began, or to be owed, and the catch-up commit log
            said is done.
        is_back: the live lane has gone back behind what it had committed, for the table had lost too much to
            owe it.
        given_up: a member committed what it knew that it has no more: the broker lets it.
        unsaid: a live run wrote rows without saying where the group's life began.
        second_at, second_by: when the catch-up commit log was last written, and by which process;
            ``enemy_at``: when an enemy was last here.
        lacked_until: when it last ``lacks`` rows; who looked slowly tells of them later.
        changed: since the invariants were checked.
    """

    tp: TopicPartition
    log_start: int
    log_end: int
    topic_id: str = "T1"
    base: int = 0
    born: str = "T1"
    live_commit: tuple[int, str] | None = None
    catch_up_commit: tuple[int, str] | None = None
    live_log: FirstLog = (None, None)
    catch_up_log: CatchUpCommitMetadata = field(default_factory=CatchUpCommitMetadata)
    foreign: ExternalCommitError | None = None
    holder: Any = None
    adopted_by: Any = None
    acknowledged: int = 0
    erased: bool = False
    rows: int = 0
    twice: int = 0
    pending: int = 0
    done: int = 0
    waived: int = 0
    unknowable_missing: int = 0
    lost: int = 0
    removed_by_fault: int = 0
    unborn: bool = True
    was_paused: bool = False
    foreign_until: float = 0.0
    below_first: int = 0
    below_committed: tuple[Any, int] = (None, 0)
    went_back: int = 0
    wrongly_told: int = 0
    mistaken: int = 0
    covered: int = 0
    given_up: bool = False
    is_back: bool = False
    unsaid: bool = False
    second_at: float = 0.0
    second_by: Any = None
    enemy_at: float = 0.0
    lacked_until: float = 0.0
    changed: bool = True

    def __post_init__(self) -> None:
        self.base = self.log_start

    def below(self, offset: int) -> int:
        """All offsets below this one."""
        return (1 << (offset - self.base)) - 1 if offset > self.base else 0

    def bits(self, start: int, end: int) -> int:
        """The offsets ``[start, end)``."""
        return self.below(end) & ~self.below(start)

    def read(self, spans: Iterable[tuple[int, int]]) -> int:
        """The offsets of these spans."""
        found = 0
        for start, end in spans:
            found |= self.bits(start, end)
        return found

    @property
    def outstanding(self) -> int:
        """What is owed and not done."""
        return self.pending & ~self.done

    @property
    def processed(self) -> int:
        """What is in the table, what nobody asked for, and what was told as lost."""
        return self.rows | self.waived | self.unknowable_missing | self.lost

    @property
    def gap(self) -> int:
        """What lies below the live commit log and is neither in the table nor owed."""
        return self.below_first & ~(self.processed | self.outstanding)

    @property
    def lacks(self) -> bool:
        """Whether the table has lost what no log says is owed."""
        return bool(self.below_first & ~(self.rows | self.lost | self.outstanding | self.waived))

    def facts(self, first: FirstLog | None = None, account: LedgerEntry | None = None) -> PartitionState:
        """What a process reads: the live commit log, perhaps an old read of it, and the rest as it is now."""
        if self.foreign is not None:
            raise self.foreign
        offset, mark = first or self.live_log
        return PartitionState(
            offset,
            mark,
            self.log_start,
            log_end=self.log_end,
            catch_up_log=self.catch_up_log,
            ledger_entry=account,
            topic_id=self.topic_id,
            remembered_pending=(),
        )

    def begin_life(self, start: int) -> None:
        """A member goes on here: it answers for all from here on, and for what was its group's before."""
        self.waived = self.below(start) & (EVERYTHING if self.unborn else self.waived)
        self.unknowable_missing &= self.below(start)
        self.unborn = False

    def hold(self, client: object) -> None:
        """The coordinator gives it to a member."""
        self.holder, self.adopted_by = client, None

    def adopt(self, client: MemberClient, offset: int, metadata: str, account: LedgerEntry) -> None:
        """Before a member's commit.

        The first one since the partition became its own says where it goes on.
        """
        if self.adopted_by is client or self.holder is not client:
            return
        self.adopted_by = client
        self.begin_life(offset if self.live_commit is None else self.live_commit[0])
        if offset < self.acknowledged and (self.removed_by_fault or not account.is_complete):
            # What is missing does not fit: in order from there
            self.acknowledged, self.is_back = offset, True
        at = client.assigned_at  # what an enemy, or another run, has done since then may not have been seen
        if (
            account.is_complete
            and self.enemy_at < at
            and (self.second_at < at or self.second_by is client.process)
        ):
            to_do = self._read(_owed(metadata)) & ~self.pending | ~self.below(offset)
            self.covered |= self.done & to_do & ~self.processed if self.topic_id == self.born else 0

    def commit_first(self, offset: int, metadata: str) -> None:
        """A member writes the live commit log."""
        self.went_back |= 0 if self.erased else self.bits(offset, self.acknowledged)
        if self.topic_id != self.born and f" {self.born}@" not in metadata:
            self.mistaken |= 1
        self.erased = False
        self.put_first((offset, metadata))
        if self.foreign is not None:
            raise RuntimeError(f"{metadata} is our own: {self.foreign!r}")

    def put_first(self, commit: tuple[int, str] | None) -> None:
        """The live commit log is as somebody wrote it, or is gone."""
        offset, metadata = commit or (None, "")
        self.foreign_until = clock.now if self.foreign is not None else self.foreign_until
        self.was_paused = self.was_paused or " paused " in metadata
        self.live_commit, self.foreign = commit, None
        try:
            self.live_log = offset, LiveCommitMetadata.decode(metadata)
        except ExternalCommitError as error:
            self.live_log, self.foreign = (offset, None), error
        self.pending = 0 if self.foreign else self._read(_owed(metadata))
        self.below_first, self.changed = self.below(offset or 0), True

    def commit_second(self, offset: int, metadata: str, by: object = None) -> None:
        """Write the catch-up commit log: anybody may, the last one wins."""
        if self.topic_id != self.born and f" {self.topic_id}@" in metadata:
            self.mistaken |= 1
        self.catch_up_commit, self.catch_up_log = (
            (offset, metadata),
            CatchUpCommitMetadata.decode(offset, metadata),
        )
        self.second_at, self.second_by = clock.now, by
        done, told = _done(metadata)
        self.done = self.below(offset) | self._read(done)
        self.lose(self._read(told))
        self.changed = True

    def expire_second(self) -> None:
        """The broker's offsets retention: nobody committed to the catch-up commit log for a week.

        Or somebody deleted it.
        """
        self.catch_up_commit, self.catch_up_log, self.done, self.changed = (
            None,
            CatchUpCommitMetadata(),
            0,
            True,
        )

    def replace_second(self, offset: int, metadata: str) -> None:
        """Another client writes the catch-up commit log: nothing is done by it."""
        self.expire_second()
        self.catch_up_commit, self.catch_up_log = (
            (offset, metadata),
            CatchUpCommitMetadata.read(offset, metadata),
        )

    def lose(self, bits: int) -> None:
        """These offsets are told as lost, which only those may be that the broker has deleted."""
        new = bits & ~self.lost
        self.wrongly_told |= new & ~self.below(self.log_start)
        self.lost |= bits

    @property
    def begun(self) -> int | None:
        """Where the group's life began, by what the commits say."""
        told = [
            int(text.partition("@")[2])
            for text in (_origin(self.live_commit, 3), _origin(self.catch_up_commit, 2))
            if text
        ]
        return min(told, default=None)

    def unpause(self) -> None:
        """An operator lets both lanes go on."""
        if self.live_commit is not None:
            self.put_first((self.live_commit[0], self.live_commit[1].replace(" paused ", " released ")))

    @property
    def named(self) -> bool:
        """Whether a commit says which topic it is of."""
        return any(
            text and text[0] != "@"
            for text in (_origin(self.live_commit, 3), _origin(self.catch_up_commit, 2))
        )

    def spans(self, bits: int) -> list[Span]:
        """The offsets as spans."""
        spans: list[Span] = []
        for offset in (self.base + n for n in range(bits.bit_length()) if bits >> n & 1):
            if spans and spans[-1].end == offset:
                spans[-1] = Span(spans[-1].start, offset + 1)
            else:
                spans.append(Span(offset, offset + 1))
        return spans

    def names(self, bits: int) -> str:
        """Offsets to be read, like ``70-120,140-190``."""
        return ",".join(map(str, self.spans(bits)))

    def _read(self, spans: str) -> int:
        found = 0
        for span in spans.split(",") if spans else ():
            start, _, end = span.partition("-")
            found |= self.bits(int(start), int(end))
        return found


def _owed(metadata: str) -> str:
    words = metadata.split(" ")
    return words[_OWED] if len(words) > _OWED and words[_OWED] != "reprocess" else ""


def _done(metadata: str) -> tuple[str, str]:
    """What a catch-up commit log says is done, and was told as lost."""
    rest = metadata.split(" ")[3:]
    pairs = dict(pairwise(rest))
    return rest[0] if rest and rest[0][0].isdigit() else "", pairs.get("written-off", "")


def _origin(commit: tuple[int, str] | None, place: int) -> str:
    words = commit[1].split(" ") if commit else []
    return words[place] if len(words) > place and "@" in words[place] and words[place] != "@-" else ""
