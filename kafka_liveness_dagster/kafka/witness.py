"""What do all witnesses of a group say? Both commit logs, the broker, and last the place that the rows go to.

The seam between the commit logs and the table, which never meet. Asks, and decides nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.accounts import Account
from kafka_liveness_dagster.core.offsets import Span
from kafka_liveness_dagster.core.witnesses import check_groups, check_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.witnesses import PartitionFacts, Witness
    from kafka_liveness_dagster.kafka.admin import Cluster


def witnessed(
    cluster: Cluster, group_id: str, partitions: Sequence[TopicPartition], witness: Witness | None
) -> dict[TopicPartition, PartitionFacts]:
    """Both commit logs, the log bounds, and what the witness says, if it is the one that they are about.

    The witness is asked last: what is committed before it is asked was written before that.

    Raises:
        ForeignCommitError: a commit of the group is not ours.
        OtherTableError: it is another table's.
        OtherGroupError: the table contains rows of these topics that another group wrote.
    """
    facts = cluster.facts(group_id, partitions)
    if witness is None:
        return facts
    check_target(group_id, facts, witness.target)
    found = believed(facts, witness)
    check_groups(group_id, {tp: one.account for tp, one in found.items()}, witness.target)
    return found


def believed(facts: Mapping[TopicPartition, PartitionFacts], witness: Witness) -> dict[TopicPartition, PartitionFacts]:
    """The same facts with what the witness says now."""
    if not facts:
        return {}
    accounts = witness.accounts({tp: Span(0, max(one.log_end, one.committed or 0)) for tp, one in facts.items()})
    if accounts is None:
        return dict(facts)
    return {tp: replace(one, account=accounts.get(tp, Account())) for tp, one in facts.items()}
