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
from kafka_liveness_dagster.core.partition_state import PartitionState

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


def decode_catch_up_log(commit: CommittedOffset | None) -> CatchUpCommitMetadata:
    """Return what the catch-up commit log says of one partition; another client's commit is no error."""
    if commit is None:
        return CatchUpCommitMetadata()
    return CatchUpCommitMetadata.read(commit.offset, commit.metadata)


def decode_partition_state(
    live: CommittedOffset | None,
    catch_up: CommittedOffset | None,
    bounds: tuple[int, int] = (0, 0),
    topic_id: str = "",
) -> PartitionState:
    """Return what both commit logs say of one partition; commits of other clients are no error.

    Args:
        live: the commit in the live commit log, if there is one.
        catch_up: the commit in the catch-up commit log.
        bounds: log start and log end.
        topic_id: of the topic, as the broker tells it.
    """
    live_metadata = None
    external = None
    if live is not None:
        try:
            live_metadata = LiveCommitMetadata.decode(live.metadata)
        except ExternalCommitError:
            external = ExternalCommit("first", live.offset, live.metadata)
    log_start, log_end = bounds
    return PartitionState(
        live.offset if live else None,
        live_metadata,
        log_start,
        log_end=log_end,
        catch_up_log=decode_catch_up_log(catch_up),
        topic_id=topic_id,
        external_live_commit=external,
    )
