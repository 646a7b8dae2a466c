"""What do all witnesses of a group say? Both commit logs, the broker, and last the place that the rows go to.

The seam between the commit logs and the table, which never meet. Asks, and decides nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_metadata import external_commit
from kafka_liveness_dagster.core.ledger import Account
from kafka_liveness_dagster.core.offsets import Span
from kafka_liveness_dagster.core.partition_state import check_groups, check_target, rebuilt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafka_liveness_dagster.core.ledger import Accounts
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.partition_state import PartitionFacts, Witness
    from kafka_liveness_dagster.kafka.admin import Cluster


def witnessed(
    cluster: Cluster, group_id: str, partitions: Sequence[TopicPartition], witness: Witness | None
) -> dict[TopicPartition, PartitionFacts]:
    """Both commit logs, the log bounds, and what the witness says, if it is the one that they are about.

    The witness is asked last: what is committed before it is asked was written before that. In the place of an
    external commit the second log is rebuilt from the witness.

    Raises:
        ForeignCommitError: a commit of the group is not ours, and no witness can rebuild the second log.
        OtherTableError: it is another table's.
        OtherGroupError: the table contains rows of these topics that another group wrote.
    """
    facts = cluster.facts(group_id, partitions)
    if witness is not None:
        check_target(group_id, facts, witness.target)
        facts = believed(facts, witness)
        check_groups(group_id, {tp: one.account for tp, one in facts.items()}, witness.target)
    check_second_log(cluster, group_id, facts)
    return facts


def check_second_log(cluster: Cluster, group_id: str, facts: Mapping[TopicPartition, PartitionFacts]) -> None:
    """Check that no external commit replaced the second log where no ledger can rebuild it.

    Raises:
        ForeignCommitError: with group, partition, offset, text and the command that removes the commit.
    """
    for tp, one in facts.items():
        if one.second.external is not None and not one.is_rebuilt:
            raise external_commit(group_id, tp, one.second.external, cluster.settings.bootstrap_servers)


def believed(facts: Mapping[TopicPartition, PartitionFacts], witness: Witness) -> dict[TopicPartition, PartitionFacts]:
    """The same facts with what the witness says now."""
    if not facts:
        return {}
    accounts = witness.accounts({tp: Span(0, max(one.log_end, one.committed or 0)) for tp, one in facts.items()})
    if accounts is None:
        return dict(facts)
    return with_accounts(facts, accounts)


def with_accounts(
    facts: Mapping[TopicPartition, PartitionFacts], accounts: Accounts
) -> dict[TopicPartition, PartitionFacts]:
    """The same facts with these accounts; the second log is rebuilt from them where it was replaced."""
    known = {tp: replace(one, account=accounts.get(tp, Account())) for tp, one in facts.items()}
    return {tp: replace(one, second=rebuilt(one)) if one.is_rebuilt else one for tp, one in known.items()}
