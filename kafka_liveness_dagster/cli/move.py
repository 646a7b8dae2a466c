"""Record that a group's rows are in another table: ``kafka-liveness move``, for a table that was renamed.

Must not change a row or an offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import check_group_id, format_count
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.catch_up.commit_log import CatchUpCommitLog

if TYPE_CHECKING:
    from kafka_liveness_dagster.kafka.settings import KafkaSettings


def change_target(kafka: KafkaSettings, group_id: str, target: str) -> dict[str, str]:
    """Write the table's name to the catch-up commit log; return the former name of each changed partition.

    Raises:
        InvalidSettingError: the name has a blank, the group has members, or its commits name no other table.
    """
    check_group_id(group_id)
    if not target or any(map(str.isspace, target)):
        raise InvalidSettingError(
            f"{target!r} is not a table: wanted catalog.namespace.table, or the name of a sink. Nothing was "
            "changed."
        )
    cluster = Cluster(kafka)
    if members := cluster.members(group_id):
        raise InvalidSettingError(
            f"Group {group_id} has {format_count(len(members), 'member')} ({members[0].client_id}), which "
            "write to the former table. Nothing was changed. Fix: end the live runs, then repeat the command."
        )
    second = CatchUpCommitLog(kafka, group_id, "kafka-liveness/move")
    try:
        moved = second.change_target(cluster.partitions(None), target)
    finally:
        second.close()
    if not moved:
        raise InvalidSettingError(
            f"No commit of group {group_id} names another table than {target}. Nothing was changed."
        )
    return {str(tp): former for tp, former in sorted(moved.items())}
