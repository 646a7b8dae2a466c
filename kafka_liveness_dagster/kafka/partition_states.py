"""Read the states of a group's partitions: both commit logs, the log bounds, and last the ledger.

Only this module reads both the commit logs and the table's ledger. Never decides where a lane resumes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_metadata import external_commit_error
from kafka_liveness_dagster.core.ledger import LedgerEntry
from kafka_liveness_dagster.core.offsets import Span
from kafka_liveness_dagster.core.partition_state import check_groups, check_target, rebuild_catch_up_log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafka_liveness_dagster.core.ledger import LedgerEntries
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.partition_state import PartitionState
    from kafka_liveness_dagster.core.sink_ledger import ReadableLedger
    from kafka_liveness_dagster.kafka.admin import Cluster


def partition_states_with_ledger(
    cluster: Cluster, group_id: str, partitions: Sequence[TopicPartition], ledger: ReadableLedger | None
) -> dict[TopicPartition, PartitionState]:
    """Return both commit logs, the log bounds and the ledger; check that the commits name its target.

    The ledger is read last, because rows are written before their offsets are committed. If an external
    commit replaced the catch-up commit log, the log is rebuilt from the ledger.

    Raises:
        ExternalCommitError: the group has an external commit, and no ledger can rebuild the catch-up commit
            log.
        TableMismatchError: the commits name another table.
        GroupMismatchError: the table contains rows of these topics that another group wrote.
    """
    states = cluster.partition_states(group_id, partitions)
    if ledger is not None:
        check_target(group_id, states, ledger.target)
        states = with_ledger(states, ledger)
        check_groups(group_id, {tp: one.ledger_entry for tp, one in states.items()}, ledger.target)
    check_catch_up_log(cluster, group_id, states)
    return states


def check_catch_up_log(
    cluster: Cluster, group_id: str, states: Mapping[TopicPartition, PartitionState]
) -> None:
    """Check that a ledger can rebuild each catch-up commit log that an external commit replaced.

    Raises:
        ExternalCommitError: with group, partition, offset, text and the command that removes the commit.
    """
    for tp, one in states.items():
        if one.catch_up_log.external is not None and not one.is_catch_up_log_rebuilt:
            raise external_commit_error(
                group_id, tp, one.catch_up_log.external, servers=cluster.settings.bootstrap_servers
            )


def with_ledger(
    states: Mapping[TopicPartition, PartitionState], ledger: ReadableLedger
) -> dict[TopicPartition, PartitionState]:
    """Return the states with the current ledger."""
    if not states:
        return {}
    entries = ledger.read({tp: Span(0, max(one.log_end, one.committed or 0)) for tp, one in states.items()})
    if entries is None:
        return dict(states)
    return with_ledger_entries(states, entries)


def with_ledger_entries(
    states: Mapping[TopicPartition, PartitionState], entries: LedgerEntries
) -> dict[TopicPartition, PartitionState]:
    """Return the states with these ledger entries; a replaced catch-up commit log is rebuilt from them."""
    known = {tp: replace(one, ledger_entry=entries.get(tp, LedgerEntry())) for tp, one in states.items()}
    return {
        tp: replace(one, catch_up_log=rebuild_catch_up_log(one)) if one.is_catch_up_log_rebuilt else one
        for tp, one in known.items()
    }
