"""Which offsets of which log are in the table? What the table's own snapshots say: the third witness.

Each commit to the table tells in its snapshot's summary which offsets it wrote, offsets without rows included, and all
that the table had of them as of an earlier snapshot. So the ledger is as atomic as the rows and shares their fate: a
table that is rolled back, dropped or replaced says less. Follows the snapshots; never asks a table.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from kafka_liveness_dagster.core.accounts import Account, total
from kafka_liveness_dagster.core.ledger_text import decode_of, is_all

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from kafka_liveness_dagster.core.accounts import Accounts
    from kafka_liveness_dagster.core.offsets import TopicPartition


@dataclass(frozen=True)
class Ledger:
    """What a table holds.

    Attributes:
        complete: nothing is in the table of partitions that are not named here.
    """

    accounts: Accounts = field(default_factory=dict)
    complete: bool = True

    def of(self, tp: TopicPartition) -> Account:
        """What the table says of a partition, also where that is nothing; with all groups that wrote its topic."""
        topic_id, groups = self._topics.get(tp.topic, ("", frozenset[str]()))
        if tp in self.accounts:
            return replace(self.accounts[tp], groups=groups)
        return Account(topic_id=topic_id, complete=self.complete, groups=groups)

    @cached_property
    def _topics(self) -> Mapping[str, tuple[str, frozenset[str]]]:
        """The id of each topic, and the groups that wrote rows of any of its partitions."""
        found: dict[str, tuple[str, frozenset[str]]] = {}
        for tp, account in self.accounts.items():
            topic_id, groups = found.get(tp.topic, (account.topic_id, frozenset[str]()))
            found[tp.topic] = topic_id, groups | account.groups
        return found


@dataclass(frozen=True)
class Snapshot:
    """One snapshot of the table, as far as the ledger is concerned.

    Attributes:
        wrote: what its commit wrote; empty for somebody else's commit.
        had: all that the table had as of ``since``; empty where it does not say.
        since: an ancestor; None where ``had`` is empty for that.
    """

    snapshot_id: int
    parent_id: int | None
    wrote: str = ""
    had: str = ""
    since: int | None = None


@dataclass(frozen=True)
class Lineage:
    """The snapshots that tell what the table holds: from the current one back to what one of them summed up.

    Attributes:
        path: those whose ``wrote`` counts, the current one first.
        summed_up: those whose ``had`` counts.
        complete: nothing is missing between them and the beginning of the table.
    """

    path: tuple[int, ...]
    summed_up: tuple[int, ...]
    complete: bool


class Reading(NamedTuple):
    """What the table said as of a snapshot; it says so as long as that is the current one."""

    snapshot_id: int | None = None
    ledger: Ledger = Ledger()
    chain: tuple[int, ...] = ()


NOTHING_READ = Reading()


def chain(snapshots: Mapping[int, Snapshot], current: int | None) -> tuple[int, ...]:
    """The current snapshot and all before it, as far back as the table can name them: the last may be expired."""
    found = list(_ancestors(snapshots, current))
    oldest = snapshots[found[-1]].parent_id if found else None
    return (*found, oldest) if oldest is not None and oldest not in found else tuple(found)


def is_set_back(now: Sequence[int], before: Sequence[int]) -> bool:
    """Whether the table goes on from an ancestor of what was current before, and not from that: it was rolled back.

    That all of before is gone from the table proves nothing: it may have been expired.

    Args:
        now: the ``chain`` of the table.
        before: what was seen to be current since the chain of before, the newest first, and then that.

    >>> is_set_back(now=(7, 5, 4), before=(6, 5, 4)), is_set_back(now=(8, 7, 6), before=(6, 5))
    (True, False)
    """
    oldest = max((place for place, snapshot_id in enumerate(before) if snapshot_id in now), default=0)
    return not set(before[:oldest]) <= set(now)


def written_since(snapshots: Mapping[int, Snapshot], current: int | None, before: int | None) -> Accounts | None:
    """Return the offsets that were written after snapshot ``before``; None where the snapshots in between expired.

    >>> sorted(written_since({1: Snapshot(1, None, "t/ 0:0-5"), 2: Snapshot(2, 1, "t/ 0:5-9")}, 2, 1).popitem()[1].done)
    [Span(start=5, end=9)]
    """
    new = list(takewhile(lambda one: one != before, _ancestors(snapshots, current)))
    last = snapshots[new[-1]].parent_id if new else current
    return total(decode_of(i, snapshots[i].wrote) for i in new) if last == before else None


def goes_on(now: Collection[int], known: Collection[int | None]) -> bool:
    """Whether what was known of the table as of these snapshots is known of it still: by its ``chain``, as of now.

    Where one of them is expired nobody can tell whether it was rolled away first, and other commits came on top.

    >>> goes_on((8, 7, 6), {6, 7}), goes_on((8, 7), {6, 7})
    (True, False)
    """
    return set(known) <= set(now)


def lineage(snapshots: Mapping[int, Snapshot], current: int | None) -> Lineage:
    """Walk back from the current snapshot; needs no texts, ``had`` need only be empty or not.

    A sum is believed when its ``since`` is an ancestor, or is gone from the table. Where it is there and no ancestor,
    the table was rolled back under the writer: what it had summed up is not in the table any more.
    """
    if current is not None and current not in snapshots:
        return Lineage((), (), complete=False)
    ancestors = list(_ancestors(snapshots, current))
    places = {snapshot_id: place for place, snapshot_id in enumerate(ancestors)}
    path: list[int] = []
    sums: dict[int, int] = {}  # since -> who summed up
    for place, snapshot_id in enumerate(ancestors):
        if snapshot_id in sums:
            return Lineage(tuple(path), (sums[snapshot_id],), complete=True)
        path.append(snapshot_id)
        one = snapshots[snapshot_id]
        if one.since is not None and (places.get(one.since, -1) > place or one.since not in snapshots):
            sums.setdefault(one.since, snapshot_id)
    last = snapshots[path[-1]].parent_id if path else None
    if last is None:
        return Lineage(tuple(path), (), complete=True)
    if last in sums:  # expired itself, and summed up by its child
        return Lineage(tuple(path), (sums[last],), complete=True)
    return Lineage(tuple(path), tuple(sums.values()), complete=False)


def read(snapshots: Mapping[int, Snapshot], found: Lineage) -> Ledger:
    """What the table holds, by the texts of its lineage.

    Raises:
        LedgerError: one of them cannot be read.
    """
    sums = [decode_of(i, snapshots[i].had) for i in found.summed_up]
    complete = found.complete and all(is_all(snapshots[i].had) for i in found.summed_up)
    had = Ledger(total(sums), complete)
    accounts = dict(had.accounts)
    for tp, wrote in total(decode_of(i, snapshots[i].wrote) for i in reversed(found.path)).items():
        accounts[tp] = had.of(tp) + wrote
    if not found.complete:
        accounts = {tp: replace(one, complete=False) for tp, one in accounts.items()}
    return Ledger(accounts, complete)


def _ancestors(snapshots: Mapping[int, Snapshot], current: int | None) -> Iterable[int]:
    seen: set[int] = set()
    while current is not None and current in snapshots and current not in seen:
        seen.add(current)
        yield current
        current = snapshots[current].parent_id
