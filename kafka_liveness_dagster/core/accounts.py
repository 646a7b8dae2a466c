"""What does a table say of one partition, and of several? Told; asks nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.offsets import Span, TopicPartition, union

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Account:
    """What the table says of one partition.

    Attributes:
        done: offsets whose rows are in the table, all of them; offsets without rows included.
        reported: offsets that are accounted for without rows: forgiven, or lost and reported.
        start: the first offset that was ever this table's to hold; None while nobody said.
        topic_id: whose offsets they are; empty where no broker told it.
        complete: what is in neither is not in the table. False where snapshots that might say so were expired.
        groups: the consumer groups that wrote rows of the topic; empty where the table was written without a group.
    """

    done: tuple[Span, ...] = ()
    reported: tuple[Span, ...] = ()
    start: int | None = None
    topic_id: str = ""
    complete: bool = True
    groups: frozenset[str] = frozenset()

    def __add__(self, other: Account) -> Account:
        """Both together; they are of one log, or the topic was made anew and the later id is the one that is told."""
        starts = [account.start for account in (self, other) if account.start is not None]
        return Account(
            union((*self.done, *other.done)),
            union((*self.reported, *other.reported)),
            min(starts, default=None),
            other.topic_id or self.topic_id,
            self.complete and other.complete,
            self.groups | other.groups,
        )


Accounts = Mapping[TopicPartition, Account]


def total(all_accounts: Iterable[Accounts]) -> dict[TopicPartition, Account]:
    """What they say together."""
    found: dict[TopicPartition, Account] = {}
    for accounts in all_accounts:
        for tp, account in accounts.items():
            found[tp] = found[tp] + account if tp in found else account
    return found
