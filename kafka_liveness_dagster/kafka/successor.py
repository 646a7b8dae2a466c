"""Commit the offsets of a predecessor, or of another engine, in a group without members.

Never decides whether a group is a successor: a person does, with ``kafka-liveness adopt``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer

from kafka_liveness_dagster.core.commit_metadata import CATCH_UP_SUFFIX
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.kafka.clients import create_client
from kafka_liveness_dagster.kafka.committer import Committer
from kafka_liveness_dagster.kafka.errors import to_package_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.kafka.admin import Cluster

_REQUEST_SECONDS = 30.0


def require_idle(cluster: Cluster, groups: Sequence[str]) -> None:
    """Check that none of these groups has members.

    Raises:
        InvalidSettingError: a live run of one of them is at work.
    """
    for group in groups:
        if members := cluster.members(group):
            raise InvalidSettingError(
                f"Group {group} has {len(members)} member(s), the first is {members[0].client_id}. Nothing "
                f"was changed. Fix: end the live runs of {group} and stop its sensor, then run the command "
                "again."
            )


def copy_commits(
    cluster: Cluster, from_group: str, to_group: str, topics: Sequence[str]
) -> list[TopicPartition]:
    """Copy both logs of ``from_group``, with metadata, for topics without a commit of ``to_group``.

    The catch-up commit log is copied first. Else the live commit log could claim more than both logs record.

    Returns:
        The partitions whose commit in the live commit log was copied.

    Raises:
        CommitRefusedError: the broker refused the commit; the command can be repeated.
    """
    known = cluster.partitions(topics)
    taken = {tp.topic for tp in cluster.commits(to_group, known)}
    copied: list[TopicPartition] = []
    for suffix in (CATCH_UP_SUFFIX, ""):
        found = cluster.commits(from_group + suffix, [tp for tp in known if tp.topic not in taken])
        offsets = {tp: (commit.offset, commit.metadata) for tp, commit in found.items()}
        if offsets:
            commit_offsets(cluster, to_group + suffix, offsets)
        copied = sorted(offsets)
    return copied


def commit_offsets(cluster: Cluster, group: str, offsets: dict[TopicPartition, tuple[int, str]]) -> None:
    """Commit these offsets with their metadata in a group without members.

    Raises:
        CommitRefusedError: the broker refused.
    """
    kafka = cluster.settings
    client = create_client(Consumer, kafka.committer_config(group, "kafka-liveness/commands"))
    committing = Committer(client, group, kafka.bootstrap_servers, seconds=_REQUEST_SECONDS)
    try:
        error = committing.commit(offsets)
    finally:
        if not committing.timed_out:
            client.close()
    if error is not None:
        raise to_package_error(error, f"committing to {group}", kafka.bootstrap_servers)
