"""Who says that a group's rows are in another table now? A person does, with ``kafka-liveness move``.

A run whose table is not the one of the group's commits is refused; a table that was renamed is the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import check_group_id
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.catch_up.commit_log import CatchUpCommitLog
from kafka_liveness_dagster.metadata import format_count

if TYPE_CHECKING:
    from kafka_liveness_dagster.kafka.settings import KafkaSettings


def change_target(kafka: KafkaSettings, group_id: str, target: str) -> list[str]:
    """Have the catch-up commit log say ``target``; gives what to tell.

    Raises:
        InvalidSettingError: the name has a blank, the group is at work, or its commits name no other table.
    """
    check_group_id(group_id)
    if not target or any(map(str.isspace, target)):
        raise InvalidSettingError(
            f"{target!r} is no table: wanted catalog.namespace.table, or the name of a sink"
        )
    cluster = Cluster(kafka)
    if members := cluster.members(group_id):
        raise InvalidSettingError(
            f"group {group_id} has {format_count(len(members), 'member')} ({members[0].client_id}): they "
            "write to the table of its commits. End the live runs, then say it again; nothing was changed"
        )
    second = CatchUpCommitLog(kafka, group_id, "kafka-liveness/move")
    try:
        moved = second.change_target(cluster.partitions(cluster.topics()), target)
    finally:
        second.close()
    if not moved:
        raise InvalidSettingError(
            f"no commit of group {group_id} is about another table than {target}: nothing was changed"
        )
    return [f"{tp}: {was} -> {target}" for tp, was in sorted(moved.items())]
