"""How is a consumer group, in both lanes? Both commit logs, the log's ends and the members, at one look (KIP-333).

Never joins and never commits. What another program committed is shown as such.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kafka_liveness_dagster.core import commit_log
from kafka_liveness_dagster.core.commit_log import CATCH_UP_SUFFIX, DoneLog, ForeignCommitError, LiveMark, Mark
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.membership import Expiry, PartitionSnapshot, expiry
from kafka_liveness_dagster.core.run_marks import run_of_client
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafka_liveness_dagster.core.offsets import Span, TopicPartition
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.answers import Commit, GroupMember

_SHOWN_RANGES = 6
_WARNING = {Expiry.NEAR: "about to expire", Expiry.BEGUN: "partly expired", Expiry.GONE: "expired"}


class NoSuchGroupError(InvalidSettingError):
    """Nobody is in the group and nothing is committed for it."""


@dataclass(frozen=True)
class PartitionStatus:
    """One partition: what both logs say, and the metadata that is not ours, None where all of it is."""

    seen: PartitionSnapshot
    second: DoneLog
    foreign: str | None

    @property
    def committed(self) -> int | None:
        """Every offset before it is processed, in whichever lane (KIP-333)."""
        return commit_log.committed(self.seen.committed, self.seen.outstanding)

    def expiry(self, owed: Span) -> Expiry:
        """How near the broker's retention is to an owed range."""
        return expiry(owed, self.seen.log_start, self.seen.log_end)

    def as_json(self) -> dict[str, Any]:
        """Both logs apart, then what they mean together."""
        seen, mark = self.seen, self.seen.mark
        return {
            "topic": seen.topic_partition.topic,
            "partition": seen.topic_partition.partition,
            "log_start": seen.log_start,
            "log_end": seen.log_end,
            "first_log": {
                "committed": seen.committed,
                "mark": mark.mark.value if mark else None,
                "run": mark.run if mark else None,
            },
            "second_log": {"watermark": self.second.watermark, "done_above": [list(s) for s in self.second.done]},
            "foreign_metadata": self.foreign,
            "lag": seen.lag,
            "committed": self.committed,
            "owed_offsets": seen.owed,
            "owed": [
                {"start": s.start, "end": s.end, "offsets": s.size, "expiry": self.expiry(s).value}
                for s in seen.outstanding
            ],
        }


@dataclass(frozen=True)
class MemberStatus:
    """One member, and the runs it works for (8 hex digits); none for a program that is not ours."""

    seen: GroupMember
    runs: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """As the coordinator sees it."""
        return {
            "client_id": self.seen.client_id,
            "member_id": self.seen.member_id,
            "group_instance_id": self.seen.group_instance_id,
            "host": self.seen.host,
            "runs": list(self.runs),
            "partitions": sorted(map(str, self.seen.partitions)),
        }


@dataclass(frozen=True)
class GroupStatus:
    """A group at one moment."""

    group_id: str
    partitions: tuple[PartitionStatus, ...]
    members: tuple[MemberStatus, ...]

    def as_json(self) -> dict[str, Any]:
        """One object; offsets are half-open ranges."""
        return {
            "group": self.group_id,
            "catch_up_group": self.group_id + CATCH_UP_SUFFIX,
            "lag": sum(p.seen.lag for p in self.partitions),
            "owed_offsets": sum(p.seen.owed for p in self.partitions),
            "members": [member.as_json() for member in self.members],
            "partitions": [partition.as_json() for partition in self.partitions],
        }


def look(cluster: Cluster, group_id: str, topics: Sequence[str] = ()) -> GroupStatus:
    """The group now, of these topics or of all it has committed to or is assigned.

    Raises:
        NoSuchGroupError: no member and no commit was found.
        BrokerUnreachableError: no broker answered within seconds.
    """
    commit_log.check_group_id(group_id)
    members = cluster.members(group_id)
    asked = cluster.partitions(topics or cluster.topics())
    first, second = (cluster.commits(group, asked) for group in (group_id, group_id + CATCH_UP_SUFFIX))
    if not (members or first or second):
        of = f" for {', '.join(topics)}" if topics else ""
        raise NoSuchGroupError(
            f"group {group_id!r} does not exist at {cluster.settings.bootstrap_servers}: it has no member, and nothing "
            f"is committed{of}. A group begins with its first member; commits of an empty group expire "
            "(offsets.retention.minutes, 7 days unless changed)"
        )
    named = set(topics) or {tp.topic for tp in chain(first, second, *(member.partitions for member in members))}
    wanted = [tp for tp in asked if tp.topic in named]
    bounds = cluster.log_bounds(wanted)
    partitions = tuple(_partition(tp, first.get(tp), second.get(tp), bounds[tp]) for tp in wanted)
    marks = {p.seen.topic_partition: p.seen.mark for p in partitions}
    return GroupStatus(group_id, partitions, tuple(MemberStatus(m, _runs(m, marks)) for m in members))


def show(found: GroupStatus) -> Group:
    """The same for a terminal."""
    numbers = found.as_json()
    told = f"lag {numbers['lag']:,}, {numbers['owed_offsets']:,} offsets owed, members: {len(found.members)}"
    title = Text(f"group {found.group_id}: {told}", "bold")
    warnings = [
        Text(f"{p.seen.topic_partition}: not this package's metadata: {p.foreign[:80]!r}", "yellow")
        for p in found.partitions
        if p.foreign is not None
    ]
    return Group(title, _partitions_table(found), *warnings, *([_members_table(found)] if found.members else []))


def watch(cluster: Cluster, group_id: str, topics: Sequence[str], seconds: float) -> None:
    """Look again and again until Ctrl-C; a broker that is away for a while is waited for."""
    with Live(show(look(cluster, group_id, topics)), console=Console(highlight=False), auto_refresh=False) as live:
        live.refresh()
        while True:
            time.sleep(seconds)
            try:
                live.update(show(look(cluster, group_id, topics)), refresh=True)
            except BrokerUnreachableError as error:
                live.update(Text(str(error), "red"), refresh=True)


def _partition(
    tp: TopicPartition, first: Commit | None, second: Commit | None, bounds: tuple[int, int]
) -> PartitionStatus:
    mark, log, foreign = None, DoneLog(), None
    try:
        mark = LiveMark.decode(first.metadata) if first else None
    except ForeignCommitError:
        foreign = first.metadata if first else None
    try:
        log = DoneLog.decode(second.offset, second.metadata) if second else log
    except ForeignCommitError:
        foreign = second.metadata if second else None
    outstanding = log.outstanding(mark.owed) if mark else ()
    seen = PartitionSnapshot(tp, first.offset if first else None, mark, bounds[1], outstanding, log_start=bounds[0])
    return PartitionStatus(seen, log, foreign)


def _runs(member: GroupMember, marks: Mapping[TopicPartition, LiveMark | None]) -> tuple[str, ...]:
    """Of a static member the coordinator shows the client id that joined first: its commits know better."""
    if member.group_instance_id is not None:
        found = (marks.get(tp) for tp in member.partitions)
        return tuple(sorted({mark.run for mark in found if mark is not None and mark.mark is not Mark.RELEASED}))
    run = run_of_client(member.client_id)
    return () if run is None else (run,)


def _partitions_table(found: GroupStatus) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("partition", "log", "committed", "mark", "lag", "owed", "done above", "both lanes"):
        table.add_column(column, overflow="fold", no_wrap=column not in ("partition", "owed", "done above"))
    for p in found.partitions:
        seen, mark = p.seen, p.seen.mark
        table.add_row(
            str(seen.topic_partition),
            f"{seen.log_start}-{seen.log_end}",
            _or_none(seen.committed),
            f"{mark.mark.value} {mark.run}" if mark else ("none" if p.foreign is None else "foreign"),
            f"{seen.lag:,}",
            _owed(p),
            _several([str(s) for s in p.second.done]),
            _or_none(p.committed),
            style="dim" if mark and mark.mark is Mark.PAUSED else "",
        )
    return table


def _members_table(found: GroupStatus) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("member", "run", "host", "static id", "partitions"):
        table.add_column(column, overflow="fold")
    for m in found.members:
        held = _several(sorted(map(str, m.seen.partitions)))
        runs = " ".join(m.runs) or "not ours"
        table.add_row(m.seen.client_id, runs, m.seen.host, m.seen.group_instance_id or "", held)
    return table


def _owed(p: PartitionStatus) -> Text:
    warnings = [_WARNING.get(p.expiry(span), "") for span in p.seen.outstanding]
    told = [f"{span} {warning}".rstrip() for span, warning in zip(p.seen.outstanding, warnings, strict=True)]
    return Text(_several(told), "red" if any(warnings) else "")


def _several(told: list[str]) -> str:
    rest = len(told) - _SHOWN_RANGES
    return ", ".join(told[:_SHOWN_RANGES]) + (f" and {rest} more" if rest > 0 else "")


def _or_none(offset: int | None) -> str:
    return "none" if offset is None else str(offset)
