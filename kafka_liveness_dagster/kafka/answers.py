"""What does a coordinator answer of a group? Its commits, its members and its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_log import DoneLog, ForeignCommitError, LiveMark

if TYPE_CHECKING:
    from kafka_liveness_dagster.core.offsets import TopicPartition


@dataclass(frozen=True)
class Commit:
    """A committed offset with its metadata."""

    offset: int
    metadata: str


@dataclass(frozen=True)
class GroupMember:
    """One member as the coordinator sees it."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    group_instance_id: str | None = None


@dataclass(frozen=True)
class Group:
    """A group as its coordinator describes it; ``state`` is the client's word, ``UNKNOWN`` for one it does not know."""

    state: str
    members: tuple[GroupMember, ...]


def both_logs(first: Commit | None, second: Commit | None) -> tuple[LiveMark | None, DoneLog, str | None]:
    """What both logs say of a partition, and the metadata that is not ours: a look at a group refuses nobody's."""
    mark, log, foreign = None, DoneLog(), None
    try:
        mark = LiveMark.decode(first.metadata) if first else None
    except ForeignCommitError:
        foreign = first.metadata if first else None
    try:
        log = DoneLog.decode(second.offset, second.metadata) if second else log
    except ForeignCommitError:
        foreign = second.metadata if second else None
    return mark, log, foreign
