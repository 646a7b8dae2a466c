"""Is every offset in the table once, and by whose word? The witnesses' facts of a group, as a certificate.

Told, never asking: who fetches the facts, the table's snapshots and its rows is outside of here.

>>> from kafka_liveness_dagster.core.commit_metadata import DoneLog, LiveMark, Mark, Origin
>>> from kafka_liveness_dagster.core.ledger import Account
>>> mark = LiveMark(Mark.RELEASED, "0badcafe", (Span(70, 100),), origin=Origin(0))
>>> facts = PartitionFacts(120, mark, 0, 120, account=Account((Span(0, 70), Span(100, 120)), start=0))
>>> print(PartitionCertificate(TopicPartition("orders", 3), facts).sentence)
every offset from 0 to 120 is in the table once, but for 30 pending (70-100)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kafka_liveness_dagster.audit.rows import RowFindings, counted
from kafka_liveness_dagster.core.names import listed
from kafka_liveness_dagster.core.offsets import Span, TopicPartition, difference, intersection, size, union
from kafka_liveness_dagster.core.partition_state import PartitionFacts, TopicRecreatedError, check_identity, check_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kafka_liveness_dagster.audit.snapshots import Write
    from kafka_liveness_dagster.core.commit_metadata import ExternalCommit


@dataclass(frozen=True)
class PartitionCertificate:
    """One partition.

    Attributes:
        facts: what the witnesses say; without an account where there is no table to ask.
        foreign: commits in both logs that are not ours.
        overlaps: offsets that more than one snapshot wrote.
        rows: what the rows say; None where they were not looked at.
        group_id: the group that is audited; empty where only its commits are known.
    """

    at: TopicPartition
    facts: PartitionFacts
    foreign: tuple[ExternalCommit, ...] = ()
    overlaps: tuple[Span, ...] = ()
    rows: RowFindings | None = None
    group_id: str = ""

    @property
    def others(self) -> tuple[str, ...]:
        """The other groups that wrote rows of this topic to the table."""
        groups = self.facts.account.groups if self.facts.account else frozenset[str]()
        return tuple(sorted(groups - {self.group_id})) if self.group_id else ()

    @property
    def start(self) -> int | None:
        """The first offset that the group answers for; None where nobody says."""
        return self.facts.origin.start if self.facts.origin else None

    @cached_property
    def life(self) -> tuple[Span, ...]:
        """What is certified: from the beginning of the group's life on this log to its commit."""
        if self.start is None or self.facts.committed is None:
            return ()
        return union([Span(self.start, self.facts.committed)])

    @cached_property
    def owed(self) -> tuple[Span, ...]:
        """Owed, and not proven done."""
        return self.facts.outstanding

    @property
    def dead(self) -> tuple[Span, ...]:
        """What of it the broker has deleted: no backfill can process it."""
        return intersection(self.owed, [Span(0, self.facts.log_start)])

    @cached_property
    def lost(self) -> tuple[Span, ...]:
        """Written off by hand, or reported as lost."""
        return difference(intersection(self.facts.reported, self.life), self._done)

    @cached_property
    def missing(self) -> tuple[Span, ...]:
        """Committed, and neither in the table nor owed nor told: the table lost it, or the debt was forgotten."""
        if self.facts.account is None:  # both logs alone: where the last commit is a stranger's nobody says anything
            return () if self.facts.mark else difference(self.life, self.facts.reported)
        return () if self.facts.committed is None else self.facts.missing(self.facts.committed)

    @property
    def forgotten(self) -> bool:
        """Whether an external commit replaced the record of what is missing; else the table has lost it."""
        return not self.facts.proves_loss

    @cached_property
    def in_table(self) -> tuple[Span, ...]:
        """What of its life the table says that it holds, and that need not come again."""
        return difference(intersection(self._done, self.life), self.owed)

    @property
    def ahead(self) -> tuple[Span, ...]:
        """In the table and not committed: a batch that is under way, or that comes again and replaces itself."""
        return difference(self._done, [Span(0, self.facts.committed or 0)])

    @cached_property
    def by_word(self) -> tuple[Span, ...]:
        """What only the commit logs say is done."""
        return difference(self.life, (*self._done, *self.owed, *self.lost, *self.missing))

    @property
    def done(self) -> tuple[Span, ...]:
        """What some witness says is done, in the table and beyond the commit too."""
        return union((*self._done, *self.by_word))

    @cached_property
    def faults(self) -> tuple[str, ...]:
        """Why it is not certified, and what helps."""
        return tuple(self._faults())

    @property
    def certified(self) -> bool:
        """Whether all of its life is accounted for."""
        return not self.faults

    @property
    def claim(self) -> str:
        """What is said of a partition without faults."""
        if not self.life:
            return "nothing is committed yet" if self.start is None else f"nothing is committed above {self.start}"
        (life,) = self.life
        if self.facts.account is None:
            sentence = f"both commit logs say that every offset from {life.start} to {life.end} is processed"
        else:
            sentence = f"every offset from {life.start} to {life.end} is in the table once"
        return sentence + _but_for(*((size(spans), texts(spans)) for spans in (self.owed, self.dead, self.lost)))

    @property
    def sentence(self) -> str:
        """The certificate, or why there is none."""
        sentence = f"NOT certified: {'. '.join(self.faults)}" if self.faults else self.claim
        return "; ".join((sentence, *self._notes()))

    @property
    def _done(self) -> tuple[Span, ...]:
        return self.facts.account.done if self.facts.account else ()

    def _faults(self) -> Iterator[str]:
        facts = self.facts
        try:
            check_identity(self.at, facts)
            check_log(self.at, facts.committed or 0, 0, facts.log_end)
        except TopicRecreatedError as error:
            yield str(error)
            return
        if facts.committed is None and self.start is not None:
            yield (
                f"nothing is committed, though the group began at {self.start} and the table has {texts(self._done)}: "
                "its offsets were deleted, or expired. The next live run goes on from the table"
            )
        if facts.committed is not None and self.start is None:
            yield (
                "nobody says where the group's life on it began: a lane without a table or another program committed "
                "last, or this is not the group's table. Run the live lane once; name the table with --table"
            )
        if self.others:
            yield (
                f"Group {', '.join(self.others)} wrote rows of topic {self.at.topic} to this table too, and the rows "
                "of two groups replace each other. Fix: give each group its own table, or run `kafka-liveness adopt` "
                "for a deliberate successor"
            )
        if self.missing:
            yield self._missing()
        yield from self.rows.faults() if self.rows else ()

    def _missing(self) -> str:
        sentence = f"{counted(size(self.missing))} missing ({texts(self.missing)})"
        if not self.forgotten:
            return (
                f"{sentence}: they were committed after their rows were written, and the table has lost them: it was "
                "dropped, replaced or rolled back. Restore it, or set on_missing_rows='crash_lag'"
            )
        unknown = self.facts.account is None or not self.facts.account.complete
        why = ", and the table cannot tell" if unknown else ""
        return f"{sentence}: forgotten by a commit that is not this package's{why}. The next live run owes them again"

    def _notes(self) -> Iterator[str]:
        for one in self.foreign:
            if one.log == "first":
                yield f"another program's metadata is committed: {one.metadata[:80]!r}"
            else:
                by = "a newer version" if one.is_newer else "an external commit"
                rewritten = "" if one.is_newer or self.facts.account is None else ", which the next run rewrites"
                yield f"{by} replaced the second commit log ({one}){rewritten}"
        if self.by_word and self.facts.account is not None:
            sentence = "the table's history that would say so was expired"
            yield f"{texts(self.by_word)} by the commit logs' word alone: {sentence}"
        if self.ahead:
            yield f"the table has {texts(self.ahead)} above the commit already"
        if self.facts.committed is not None and (unread := Span(self.facts.committed, self.facts.log_start)).size > 0:
            yield f"{unread} expired before anybody read it"
        yield from self.rows.notes() if self.rows else ()


@dataclass(frozen=True)
class Certificate:
    """All of a group.

    Attributes:
        target: the table, or a sink of the user's own.
        is_table: whether it could be asked.
        snapshot_id: the table's, at the time; None where it has none, or is none.
        history: the table's visible snapshots, the newest first.
    """

    group_id: str
    target: str
    is_table: bool
    snapshot_id: int | None
    partitions: tuple[PartitionCertificate, ...]
    history: Sequence[Write] = ()

    @property
    def certified(self) -> bool:
        """Whether every partition is."""
        return all(p.certified for p in self.partitions)

    @property
    def sentence(self) -> str:
        """The certificate, or why there is none."""
        failed = [p for p in self.partitions if not p.certified]
        of = f"group {self.group_id}, {'table' if self.is_table else 'sink'} {self.target}"
        if failed:
            first = f"{failed[0].at}: {'. '.join(failed[0].faults)}"
            return f"NOT certified: {of}: {len(failed)} of {len(self.partitions)} partitions. {first}"
        certain = sum(size(difference(p.life, (*p.owed, *p.lost))) for p in self.partitions)
        how = "is in the table once" if self.is_table else "is processed, as both commit logs say"
        count = f"{len(self.partitions)} partition{'s' if self.partitions[1:] else ''}"
        sentence = f"certified: {of}: every committed offset of {count} {how}, {certain:,} in all"
        sentence += _but_for(self._all("owed"), self._all("dead"), self._all("lost"))
        empty = sum(one.offsets for p in self.partitions if p.rows for one in p.rows.without_rows)
        return sentence + (f"; {empty:,} of them have a record, but no row" if empty else "")

    def _all(self, name: str) -> tuple[int, str]:
        """How many offsets, and which, of all partitions."""
        found = [(p.at, span) for p in self.partitions for span in getattr(p, name)]
        return sum(span.size for _, span in found), listed([f"{at}:{span}" for at, span in found])


def texts(spans: Iterable[Span]) -> str:
    """The first of them."""
    return listed(list(spans)) or "nothing"


def _but_for(owed: tuple[int, str], dead: tuple[int, str], lost: tuple[int, str]) -> str:
    """What is excepted: how many offsets, and which."""
    parts = []
    if owed[0]:
        expired = f", {dead[0]:,} of them expired at the broker" if dead[0] else ""
        parts.append(f"{owed[0]:,} pending ({owed[1]}{expired})")
    if lost[0]:
        parts.append(f"{lost[0]:,} written off ({lost[1]})")
    return f", but for {' and '.join(parts)}" if parts else ""
