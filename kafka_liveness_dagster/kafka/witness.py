"""Whom can a lane ask what is really there? The place the rows go to: both commit logs can be erased by anybody.

The seam between the commit logs and the table, which never meet: a lane asks, and tells what it knows besides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from kafka_liveness_dagster.core.accounts import Account
from kafka_liveness_dagster.core.offsets import Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafka_liveness_dagster.core.accounts import Accounts
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.witnesses import PartitionFacts
    from kafka_liveness_dagster.kafka.admin import Cluster


class Witness(Protocol):
    """A table's ledger, or what a sink of the user's own says."""

    @property
    def target(self) -> str:
        """The table's name, or the sink's."""

    def accounts(self, asked: Mapping[TopicPartition, Span]) -> Accounts | None:
        """What is there of these offsets, as of now; nothing is there of a partition that is left out.

        None: it cannot be asked now, which says nothing of what is there.
        """

    def learn(self, accounts: Accounts) -> None:
        """What the lane knows besides, to be told with its next writes: where its life began, what was lost."""

    def believe(self, accounts: Accounts) -> None:
        """All that is there of these partitions, by the commit logs: the witness could not tell."""


def witnessed(
    cluster: Cluster, group_id: str, partitions: Sequence[TopicPartition], witness: Witness | None
) -> dict[TopicPartition, PartitionFacts]:
    """Both commit logs, the log bounds, and what the witness says.

    The witness is asked last: what is committed before it is asked was written before that.

    Raises:
        ForeignCommitError: a commit of the group is not ours.
    """
    facts = cluster.facts(group_id, partitions)
    return facts if witness is None else believed(facts, witness)


def believed(facts: Mapping[TopicPartition, PartitionFacts], witness: Witness) -> dict[TopicPartition, PartitionFacts]:
    """The same facts with what the witness says now."""
    if not facts:
        return {}
    accounts = witness.accounts({tp: Span(0, max(one.log_end, one.committed or 0)) for tp, one in facts.items()})
    if accounts is None:
        return dict(facts)
    return {tp: replace(one, account=accounts.get(tp, Account())) for tp, one in facts.items()}
