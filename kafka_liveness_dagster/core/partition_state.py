"""What do the witnesses say of one partition: both commit logs, the broker, and the table? And what does it prove?

An offset is done because a witness says so, never because nobody remembers that it is owed. Told, never asking: who
decides what follows is ``core.resume``.

>>> from kafka_liveness_dagster.core.ledger import Account
>>> erased = PartitionFacts(120, None, 0, 120, DoneLog(origin=Origin(0), target="t"), Account((Span(0, 70),)))
>>> erased.missing(120)  # a stranger's commit at 120 has replaced what said that 70-120 is owed
(Span(start=70, end=120),)
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from kafka_liveness_dagster.core.commit_metadata import DoneLog, LiveMark, Mark, Origin
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.names import listed
from kafka_liveness_dagster.core.offsets import MAX_OFFSET, OffsetRange, Span, difference, intersection, size, union

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kafka_liveness_dagster.core.ledger import Account, Accounts
    from kafka_liveness_dagster.core.offsets import TopicPartition


class DataExpiredError(KafkaLivenessError):
    """Committed offsets lie below the log start: the broker's retention deleted unprocessed records."""


class TopicRecreatedError(KafkaLivenessError):
    """This is not the log the offsets were committed for: the topic was deleted and made anew."""


class OtherTableError(KafkaLivenessError):
    """The group's commits are about another table: two assets have one group, or the table was given another name."""


class OtherGroupError(KafkaLivenessError):
    """The table contains rows of the topic that another consumer group wrote."""


class RowsMissingError(KafkaLivenessError):
    """The table has lost rows of offsets that were committed: it was dropped, replaced or rolled back.

    Attributes:
        ranges: the offsets; the run records them in the second log before it ends.
    """

    def __init__(self, message: str, ranges: Collection[OffsetRange] = ()) -> None:
        super().__init__(message)
        self.ranges = tuple(ranges)


class Witness(Protocol):
    """A table's ledger, or what a sink of the user's own says."""

    @property
    def target(self) -> str:
        """The table's name, or the sink's."""

    def accounts(self, asked: Mapping[TopicPartition, Span]) -> Accounts | None:
        """What is there of these offsets, as of now; nothing is there of a partition that is left out.

        None: it cannot be asked now, which says nothing of what is there.
        """

    def learn(self, accounts: Accounts) -> None:
        """What the lane knows besides, to be told with its next writes: where its life began, what was lost."""

    def believe(self, accounts: Accounts) -> None:
        """All that is there of these partitions, by the commit logs: the witness could not tell."""


@dataclass(frozen=True)
class PartitionFacts:
    """What the witnesses say of one partition; offsets of ``read_committed``.

    Attributes:
        committed, mark: the first log.
        second: the second log.
        account: what the table says, None where there is none to ask (a sink of the user's own, a plain consumer).
        topic_id: the topic's, as the broker tells it now; empty where it does not.
        remembered: what the asker knows to be owed since it wrote it itself.
    """

    committed: int | None
    mark: LiveMark | None
    log_start: int
    log_end: int
    second: DoneLog = field(default_factory=DoneLog)
    account: Account | None = None
    topic_id: str = ""
    remembered: tuple[Span, ...] = ()

    @property
    def owed(self) -> tuple[Span, ...]:
        """What the first log says is owed; under a stranger's commit, what the asker remembers of it.

        Without ``beyond``, which the live lane reads anyway.
        """
        if self.mark is None:
            return self.remembered
        return difference(self.mark.owed, self.beyond) if self.beyond else self.mark.owed

    @property
    def beyond(self) -> tuple[Span, ...]:
        """Pending offsets in the first log at or above its own commit: no live lane skipped them."""
        owed = self.mark.owed if self.mark else ()
        return difference(owed, (Span(0, self.committed or 0),)) if owed else ()

    @property
    def is_rebuilt(self) -> bool:
        """Whether the ledger takes the place of an external commit in the second log."""
        external = self.second.external
        return external is not None and not external.is_newer and self.account is not None

    @property
    def outstanding(self) -> tuple[Span, ...]:
        """What of it is not proven done."""
        return self.left_of(self.owed)

    @property
    def unrecorded(self) -> tuple[Span, ...]:
        """Owed offsets whose rows are in the table, but which no catch-up run has recorded in the second log.

        Their writer died in between, so it may have skipped whatever comes after the table's commit. A second log that
        was deleted or has expired proves nothing.
        """
        if self.account is None or self.second.origin is None:
            return ()
        in_table = intersection(self.second.outstanding(self.owed), self.account.done)
        return difference(in_table, (*self.reported, *self.outstanding))

    @property
    def rebuilt_done(self) -> tuple[Span, ...]:
        """Owed offsets that are done in a rebuilt second log: their writer may have died before it recorded them."""
        return () if self.second.external is None else difference(self.owed, self.second.outstanding(self.owed))

    @property
    def recordable(self) -> tuple[Span, ...]:
        """The unrecorded offsets, if the metadata limit of the second log allows a record of them; else none.

        Without a record they would stay owed indefinitely, though they are done.
        """
        found = self.unrecorded
        return found if found and self.can_record(found) else ()

    def recovered(self, asked: tuple[Span, ...]) -> tuple[Span, ...]:
        """Return the unrecorded offsets of these; all unrecorded ones where only a record of them all has room."""
        found = intersection(self.unrecorded, asked)
        return found if not found or self.can_record(found) else self.recordable or found

    def can_record(self, done: tuple[Span, ...]) -> bool:
        """Whether the metadata limit allows a record in the second log that these owed offsets are done."""
        log = self.second.record(self.owed, done)
        log = replace(log, origin=log.origin or self.origin)
        return DoneLog.decode(log.watermark, log.encode()).done == log.done

    @property
    def is_paused(self) -> bool:
        """Whether neither lane may process the partition."""
        return self.mark is not None and self.mark.mark is Mark.PAUSED

    @property
    def origin(self) -> Origin | None:
        """Where the group's life on this log began: its own word, else the witness's who knows the longest."""
        if self.mark is not None and self.mark.origin is not None:
            return self.mark.origin
        # Of a lane that could not ask the table nothing is held against it
        second = self.second.origin if self.second.target or self.account is None else None
        known = [] if second is None else [second]
        if self.account is not None and self.account.start is not None:
            known.append(Origin(self.account.start, self.account.topic_id))
        return min(known, key=lambda origin: origin.start, default=None)

    @property
    def vouched(self) -> bool:
        """Whether the last commit is of a lane with a table: made after the rows of all it does not owe were there."""
        return self.mark is not None and self.mark.origin is not None

    @property
    def proves_loss(self) -> bool:
        """Whether missing rows prove that the table lost them; else they are owed again.

        An external commit may have replaced the only record that offsets were forgiven, or lost and reported.
        """
        return self.vouched and self.second.external is None

    @property
    def reported(self) -> tuple[Span, ...]:
        """Offsets that are accounted for without rows: forgiven, or lost and reported."""
        return union((*self.second.reported, *(self.account.reported if self.account else ())))

    @property
    def judged(self) -> tuple[Span, ...]:
        """Of what the table's word counts: the group's life on this log, if it can tell all of it."""
        return (Span(self.origin.start, MAX_OFFSET),) if self._table_tells and self.origin else ()

    def left_of(self, asked: tuple[Span, ...]) -> tuple[Span, ...]:
        """What of these offsets is not proven done: by the table where it can tell, else by the two logs.

        Nothing is done because nobody remembers that it is owed.
        """
        in_table, judged = self.account.done if self.account else (), self.judged
        by_table = difference(intersection(asked, judged), in_table)
        elsewhere = difference(asked, (*judged, *in_table))
        owed = self.second.outstanding(intersection(elsewhere, self.owed))
        forgotten = difference(elsewhere, (*self.owed, *self._word))
        again = (self.mark.again,) if self.mark and self.mark.again else ()
        redone = self.second.outstanding(intersection(intersection(asked, self.owed), again))
        return difference((*by_table, *owed, *forgotten, *redone), self.reported)

    def missing(self, position: int) -> tuple[Span, ...]:
        """What lies below ``position``, in the group's life, and is neither in the table nor owed nor told as lost.

        Where ``proves_loss`` the table has lost it; else nobody remembers what became of it. A table that cannot tell
        disproves nothing that is vouched for, but what an earlier run found missing stays so until its rows are there.
        """
        if self.account is None or self.origin is None:
            return ()
        without = (*self.account.done, *self.reported, *self.owed)
        found = difference(intersection(self.second.missing, (Span(0, position),)), without)
        if self.vouched and not self._table_tells:
            return found
        return union((*found, *difference((Span(self.origin.start, position),), without)))

    def said_done(self, without: tuple[Span, ...]) -> tuple[Span, ...]:
        """What the last commit says is in the table: all of the group's life below it but what is owed, or told."""
        if self.mark is None or self.mark.origin is None or self.committed is None:
            return ()
        return difference((Span(self.mark.origin.start, self.committed),), (*without, *self.reported))

    @property
    def _table_tells(self) -> bool:
        return self.account is not None and self.account.complete

    @property
    def _word(self) -> tuple[Span, ...]:
        """What the last commit says is done: all of the group's life below it but what it owes.

        A lane without a table does not say where that began.
        """
        if self.mark is None or self.committed is None:
            return ()
        begun = self.mark.origin or self.second.origin
        return difference((Span(begun.start if begun else 0, self.committed),), self.owed)


def rebuilt(facts: PartitionFacts) -> DoneLog:
    """Return the second log as the table's ledger has it, in the place of an external commit.

    Pending offsets whose rows are in the table are done, unless the group was reset below them. A newer version's log
    stays as it is.
    """
    if not facts.is_rebuilt or facts.account is None:
        return facts.second
    again = (facts.mark.again,) if facts.mark and facts.mark.again else ()
    done = difference(intersection(facts.owed, facts.account.done), again)
    empty = DoneLog(reported=facts.account.reported, origin=facts.origin, external=facts.second.external)
    return empty.record(facts.owed, done)


def check_identity(tp: TopicPartition, facts: PartitionFacts) -> None:
    """Whether the topic is still the one whose offsets were committed, or are in the table.

    Raises:
        TopicRecreatedError: it was made anew, however many records it has by now; with both ids and the remedy.
    """
    origins = (
        (facts.mark.origin if facts.mark else None, "the first commit log"),
        (facts.second.origin, "the second commit log"),
    )
    ids = [(origin.topic_id, where) for origin, where in origins if origin is not None]
    if facts.account is not None:
        ids.append((facts.account.topic_id, "the table"))
    for topic_id, where in ids:
        if topic_id and facts.topic_id and topic_id != facts.topic_id:
            raise TopicRecreatedError(recreated(tp, topic_id, facts.topic_id, where))


def check_target(group_id: str, facts: Mapping[TopicPartition, PartitionFacts], target: str) -> None:
    """Whether the group's commits are about the table that this run writes to.

    Raises:
        OtherTableError: each of two tables would get a part of the records, and both would look whole.
    """
    others = {one.second.target: tp for tp, one in facts.items() if one.second.target not in {None, target}}
    if others:
        theirs, tp = next(iter(others.items()))
        raise OtherTableError(
            f"this run writes to {target}, but the commits of group {group_id} are about {theirs} ({tp}): two assets, "
            "here or in two Dagster instances, would get a part of the records each. Nothing was written or committed. "
            f"Give one of them a group_id of its own. If {theirs} was renamed or moved to {target}, end its runs and "
            f"say so: `kafka-liveness move {group_id} {target}`"
        )


def check_groups(group_id: str, accounts: Mapping[TopicPartition, Account | None], target: str) -> None:
    """Check that no other group wrote rows of these topics to the table.

    The rows of two groups have the same topic, partition and offset, so each write replaces the other group's rows.

    Raises:
        OtherGroupError: with the groups, the offsets, and the command for a deliberate successor.
    """
    for tp, account in sorted(accounts.items()):
        others = sorted(account.groups - {group_id}) if account else []
        if account and others:
            groups = ", ".join(others)
            offsets = f", among them {tp}:{', '.join(map(str, account.done[:3]))}" if account.done else ""
            raise OtherGroupError(
                f"Table {target} contains rows of topic {tp.topic} that group {groups} wrote{offsets}. "
                f"Rows of group {group_id} would replace them. "
                "This run wrote and committed nothing more. "
                f"Fix: give the asset of {group_id} its own table. If {group_id} is the successor of {groups}, end the "
                f"runs of {groups} and run `kafka-liveness adopt {shlex.quote(group_id)} {target}`."
            )


def recreated(
    tp: TopicPartition, was: str, now: str, where: str, outcome: str = "nothing was written or committed"
) -> str:
    """What to say of a topic made anew, and what to do about it."""
    return (
        f"topic {tp.topic} was deleted and made anew: {where} has offsets of {tp} with topic id {was}, the broker's is "
        f"{now}. Offsets begin again, so the new records would take the place of the old rows: {outcome}. "
        "To keep the old rows give the asset another table and another group_id; to begin anew drop the "
        "table and delete the offsets of the group and of its .catch-up (kafka-consumer-groups --delete-offsets)"
    )


def check_log(tp: TopicPartition, offset: int, log_start: int, log_end: int) -> None:
    """Whether the log is still the one in which ``offset`` is the next to process.

    Raises:
        DataExpiredError, TopicRecreatedError: it is not; with both offsets and the remedy.
    """
    if offset > log_end:
        raise TopicRecreatedError(
            f"{tp} is committed at {offset} but its log ends at {log_end}: the topic was deleted and created again, or "
            "somebody committed what is not there. "
            "Reset the group's offsets (kafka-consumer-groups --reset-offsets) once you know why"
        )
    if offset < log_start:
        raise DataExpiredError(
            f"{tp} is committed at {offset} but its log starts at {log_start}: {log_start - offset} offsets were "
            "deleted before they were processed. Raise the topic's retention; to go on without them, and have them "
            "reported as lost, set on_data_loss='write_off'"
        )


def rows_missing(
    tp: TopicPartition,
    facts: PartitionFacts,
    missing: tuple[Span, ...],
    outcome: str = "Nothing was written or committed",
) -> RowsMissingError:
    """The error for a table that has lost what was committed, with what to do about it."""
    gone = size(intersection(missing, (Span(0, facts.log_start),)))
    ranges = [OffsetRange(*tp, *span) for span in missing]
    return RowsMissingError(
        f"the table lacks {listed(ranges)}, {size(missing):,} offsets that were committed after their rows were "
        f"written (committed {facts.committed}): it was dropped, replaced or rolled back. "
        f"The broker still has {size(missing) - gone:,} of them. {outcome}. Restore the table, "
        "or set on_missing_rows='crash_lag': what the broker has becomes crash lag partitions, the rest is "
        "reported as lost",
        ranges,
    )
