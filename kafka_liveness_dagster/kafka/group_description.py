"""What does a coordinator answer of a group? Its commits, its members and its state."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_metadata import (
    CatchUpCommitMetadata,
    ExternalCommit,
    ExternalCommitError,
    LiveCommitMetadata,
)

if TYPE_CHECKING:
    from kafka_liveness_dagster.core.offsets import TopicPartition


@dataclass(frozen=True)
class CommittedOffset:
    """A committed offset with its metadata."""

    offset: int
    metadata: str


@dataclass(frozen=True)
class MemberDescription:
    """One member as the coordinator sees it."""

    member_id: str
    client_id: str
    host: str
    _: KW_ONLY
    partitions: tuple[TopicPartition, ...]
    group_instance_id: str | None = None


@dataclass(frozen=True)
class GroupDescription:
    """A group as its coordinator describes it.

    ``state`` is the client's word, ``UNKNOWN`` for one it does not know.
    """

    state: str
    members: tuple[MemberDescription, ...]


def decode_both_logs(
    first: CommittedOffset | None, second: CommittedOffset | None
) -> tuple[LiveCommitMetadata | None, CatchUpCommitMetadata, tuple[ExternalCommit, ...]]:
    """What both logs say of a partition, and the commits that are not ours.

    A look at a group refuses nobody's.
    """
    mark = None
    external = []
    if first is not None:
        try:
            mark = LiveCommitMetadata.decode(first.metadata)
        except ExternalCommitError:
            external.append(ExternalCommit("first", first.offset, first.metadata))
    log = CatchUpCommitMetadata.read(second.offset, second.metadata) if second else CatchUpCommitMetadata()
    if log.external is not None:
        external.append(log.external)
    return mark, log, tuple(external)
