"""Which offsets of which log are in the table? What the table's own snapshots say: the third witness.

Each commit to the table tells in its snapshot's summary which offsets it wrote, offsets without rows included, and all
that the table had of them as of an earlier snapshot. So the ledger is as atomic as the rows and shares their fate: a
table that is rolled back, dropped or replaced says less. Reads and writes those texts; never asks a table.

>>> text = encode({TopicPartition("orders", 3): Account((Span(0, 70),), start=0, topic_id="2Mq71qnKT1ul7FBvra2xew")})
>>> text
'orders/2Mq71qnKT1ul7FBvra2xew 3@0:0-70'
>>> decode(text)[TopicPartition("orders", 3)].done
(Span(start=0, end=70),)
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.offsets import Span, TopicPartition, union

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

LONG = 1_000
"""Characters from which a text is compressed: a snapshot's summary is copied into every later metadata file."""
_PACKED = "z:"
_TOPIC = re.compile("(?P<topic>[a-zA-Z0-9._-]+)/(?P<topic_id>[a-zA-Z0-9_-]*)")
_PARTITION = re.compile(
    "(?P<partition>[0-9]{1,10})(?:@(?P<start>[0-9]{1,19}))?:(?P<done>[0-9,-]*)(?:!(?P<told>[0-9,-]+))?"
)


class LedgerError(KafkaLivenessError):
    """A snapshot's summary says something that this version does not understand."""


@dataclass(frozen=True)
class Account:
    """What the table says of one partition.

    Attributes:
        done: offsets whose rows are in the table, all of them; offsets without rows included.
        told: offsets that are accounted for without rows: forgiven, or lost and reported.
        start: the first offset that was ever this table's to hold; None while nobody said.
        topic_id: whose offsets they are; empty where no broker told it.
        complete: what is in neither is not in the table. False where snapshots that might say so were expired.
    """

    done: tuple[Span, ...] = ()
    told: tuple[Span, ...] = ()
    start: int | None = None
    topic_id: str = ""
    complete: bool = True

    def __add__(self, other: Account) -> Account:
        """Both together; they are of one log, or the topic was made anew and the later id is the one that is told."""
        starts = [account.start for account in (self, other) if account.start is not None]
        return Account(
            union((*self.done, *other.done)),
            union((*self.told, *other.told)),
            min(starts, default=None),
            other.topic_id or self.topic_id,
            self.complete and other.complete,
        )


Accounts = Mapping[TopicPartition, Account]


def total(all_accounts: Iterable[Accounts]) -> dict[TopicPartition, Account]:
    """What they say together."""
    found: dict[TopicPartition, Account] = {}
    for accounts in all_accounts:
        for tp, account in accounts.items():
            found[tp] = found[tp] + account if tp in found else account
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


def read(snapshots: Mapping[int, Snapshot], found: Lineage) -> dict[TopicPartition, Account]:
    """What the table holds, by the texts of its lineage.

    Raises:
        LedgerError: a newer version wrote one of them.
    """
    texts = [snapshots[i].had for i in found.summed_up] + [snapshots[i].wrote for i in reversed(found.path)]
    accounts = total(map(decode, texts))
    return accounts if found.complete else {tp: replace(one, complete=False) for tp, one in accounts.items()}


def encode(accounts: Accounts) -> str:
    """The accounts as a snapshot's summary holds them: ``orders/<topic id> 0@0:0-70,90-120 1@0:0-66!66-70``.

    What is told without rows stands behind ``!``; a long text is compressed.
    """
    words: list[str] = []
    for topic, partitions in groupby(sorted(accounts), key=lambda tp: tp.topic):
        told = list(partitions)
        words.append(f"{topic}/{next((accounts[tp].topic_id for tp in told if accounts[tp].topic_id), '')}")
        words += [f"{tp.partition}{_account(accounts[tp])}" for tp in told]
    text = " ".join(words)
    return text if len(text) <= LONG else _PACKED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def decode(text: str) -> dict[TopicPartition, Account]:
    """Read what ``encode`` wrote; nothing of an empty text.

    Raises:
        LedgerError: a newer version wrote it.
    """
    accounts: dict[TopicPartition, Account] = {}
    topic = topic_id = ""
    for word in _unpacked(text).split():
        if (named := _TOPIC.fullmatch(word)) is not None:
            topic, topic_id = named["topic"], named["topic_id"]
            continue
        one = _PARTITION.fullmatch(word)
        if one is None or not topic:
            raise _not_understood(text)
        start = None if one["start"] is None else int(one["start"])
        account = Account(_spans(one["done"], text), _spans(one["told"], text), start, topic_id)
        accounts[TopicPartition(topic, int(one["partition"]))] = account
    return accounts


def _ancestors(snapshots: Mapping[int, Snapshot], current: int | None) -> Iterable[int]:
    seen: set[int] = set()
    while current is not None and current in snapshots and current not in seen:
        seen.add(current)
        yield current
        current = snapshots[current].parent_id


def _account(account: Account) -> str:
    start = "" if account.start is None else f"@{account.start}"
    told = f"!{_texts(account.told)}" if account.told else ""
    return f"{start}:{_texts(account.done)}{told}"


def _texts(spans: Collection[Span]) -> str:
    return ",".join(map(str, spans))


def _unpacked(text: str) -> str:
    if not text.startswith(_PACKED):
        return text
    try:
        return zlib.decompress(base64.b64decode(text.removeprefix(_PACKED), validate=True)).decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError):
        raise _not_understood(text) from None


def _spans(text: str | None, whole: str) -> tuple[Span, ...]:
    try:
        pairs = (part.split("-") for part in text.split(",")) if text else ()
        spans = tuple(Span(int(start), int(end)) for start, end in pairs)
    except ValueError:
        raise _not_understood(whole) from None
    if union(spans) != spans:
        raise _not_understood(whole)
    return spans


def _not_understood(text: str) -> LedgerError:
    return LedgerError(
        f"the table's ledger says {text[:80]!r}, which this version does not understand: a newer version of "
        "kafka-liveness-dagster wrote it. Upgrade; nothing was written or committed"
    )
