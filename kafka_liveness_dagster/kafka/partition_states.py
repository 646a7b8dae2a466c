"""What do all witnesses of a group say? Both commit logs, the broker, and last the place that the rows go to.

The seam between the commit logs and the table, which never meet. Asks, and decides nothing.
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
    from kafka_liveness_dagster.core.partition_state import PartitionState, SinkLedger
    from kafka_liveness_dagster.kafka.admin import Cluster


def partition_states_with_ledger(
    cluster: Cluster, group_id: str, partitions: Sequence[TopicPartition], witness: SinkLedger | None
) -> dict[TopicPartition, PartitionState]:
    """Both commit logs, the log bounds, and what the witness says, if it is the one that they are about.

    The witness is asked last: what is committed before it is asked was written before that. In the place of
    an external commit the second log is rebuilt from the witness.

    Raises:
        ExternalCommitError: a commit of the group is not ours, and no witness can rebuild the second log.
        TableMismatchError: it is another table's.
        GroupMismatchError: the table contains rows of these topics that another group wrote.
    """
    facts = cluster.partition_states(group_id, partitions)
    if witness is not None:
        check_target(group_id, facts, witness.target)
        facts = with_ledger(facts, witness)
        check_groups(group_id, {tp: one.ledger_entry for tp, one in facts.items()}, witness.target)
    check_catch_up_log(cluster, group_id, facts)
    return facts


def check_catch_up_log(
    cluster: Cluster, group_id: str, facts: Mapping[TopicPartition, PartitionState]
) -> None:
    """Check that no external commit replaced the second log where no ledger can rebuild it.

    Raises:
        ExternalCommitError: with group, partition, offset, text and the command that removes the commit.
    """
    for tp, one in facts.items():
        if one.catch_up_log.external is not None and not one.is_catch_up_log_rebuilt:
            raise external_commit_error(
                group_id, tp, one.catch_up_log.external, servers=cluster.settings.bootstrap_servers
            )


def with_ledger(
    facts: Mapping[TopicPartition, PartitionState], witness: SinkLedger
) -> dict[TopicPartition, PartitionState]:
    """The same facts with what the witness says now."""
    if not facts:
        return {}
    accounts = witness.entries(
        {tp: Span(0, max(one.log_end, one.committed or 0)) for tp, one in facts.items()}
    )
    if accounts is None:
        return dict(facts)
    return with_ledger_entries(facts, accounts)


def with_ledger_entries(
    facts: Mapping[TopicPartition, PartitionState], accounts: LedgerEntries
) -> dict[TopicPartition, PartitionState]:
    """The same facts with these accounts; the second log is rebuilt from them where it was replaced."""
    known = {tp: replace(one, ledger_entry=accounts.get(tp, LedgerEntry())) for tp, one in facts.items()}
    return {
        tp: replace(one, catch_up_log=rebuild_catch_up_log(one)) if one.is_catch_up_log_rebuilt else one
        for tp, one in known.items()
    }
