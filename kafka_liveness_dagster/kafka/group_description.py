"""Describe a group as its coordinator reports it: commits, members and state. Sends no request."""

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
    """A member as the coordinator reports it."""

    member_id: str
    client_id: str
    host: str
    _: KW_ONLY
    partitions: tuple[TopicPartition, ...]
    group_instance_id: str | None = None


@dataclass(frozen=True)
class GroupDescription:
    """A group as its coordinator describes it.

    ``state`` is the client library's name of the state, ``UNKNOWN`` for one that it lacks.
    """

    state: str
    members: tuple[MemberDescription, ...]


def decode_catch_up_log(commit: CommittedOffset | None) -> CatchUpCommitMetadata:
    """Return the catch-up commit log of one partition; another client's commit is no error."""
    if commit is None:
        return CatchUpCommitMetadata()
    return CatchUpCommitMetadata.read(commit.offset, commit.metadata)


def decode_partition_state(
    live: CommittedOffset | None,
    catch_up: CommittedOffset | None,
    bounds: tuple[int, int] = (0, 0),
) -> PartitionState:
    """Return the state of one partition by both commit logs; commits of other clients are no error.

    Args:
        live: commit in the live commit log, if there is one.
        catch_up: commit in the catch-up commit log, if there is one.
        bounds: log start and log end.
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
        external_live_commit=external,
    )
