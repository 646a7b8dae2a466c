"""Decide which offsets a table has, from its snapshots' summaries, and encode the summaries' texts.

>>> text = encode({TopicPartition("orders", 3): Account((Span(0, 70),), start=0, topic_id="2Mq71qnKT1ul7FBvra2xew")})
>>> text
'orders/2Mq71qnKT1ul7FBvra2xew 3@0:0-70'
>>> decode(text)[TopicPartition("orders", 3)].done
(Span(start=0, end=70),)
>>> encode({TopicPartition("orders", 3): Account((Span(0, 70),), groups=frozenset({"orders etl"}))})
'orders//orders%20etl 3:0-70'

Each commit to the table tells in its snapshot's summary which offsets it wrote, offsets without rows included, and all
that the table had of them as of an earlier snapshot. So the ledger is as atomic as the rows and shares their fate: a
table that is rolled back, dropped or replaced says less. Follows the snapshots; never asks a table.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.offsets import MAX_OFFSET, MAX_PARTITION, Span, TopicPartition, union

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


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


LONG = 1_000
"""Characters from which a text is compressed: a snapshot's summary is copied into every later metadata file."""
MAX_CHARACTERS = 16_000_000
"""Limit of a decompressed text: 10,000 partitions with 100 ranges each need 13 million. Text of another writer may
grow a thousandfold: 389 kB became 300 MB."""
MAX_PARTS = 1_100_000
"""Limit of ranges and words together, which those 10,000 partitions have. 20 kB of another writer took 30 s to read."""
_PACKED = "z:"
_SPAN, _SIZED = re.compile(r"(?<=[:,!])([0-9]+)-([0-9]+)"), re.compile(r"(?<=[:,!])([0-9]+)\+([0-9]+)")
_REST_UNKNOWN = "?"
_TOPIC = re.compile("(?P<topic>[a-zA-Z0-9._-]+)/(?P<topic_id>[a-zA-Z0-9_-]*)(?:/(?P<groups>[a-zA-Z0-9._~%/-]+))?")
_SNAPSHOT_ID = re.compile("[0-9]{1,19}")
_PARTITION = re.compile(
    r"(?P<partition>[0-9]{1,10})(?P<unknown>\?)?(?:@(?P<start>[0-9]{1,19}))?:(?P<done>[0-9,-]*)(?:!(?P<told>[0-9,-]+))?"
)


class LedgerError(KafkaLivenessError):
    """A snapshot's summary says something that this version does not understand."""


def encode(accounts: Accounts, *, complete: bool = True) -> str:
    """The accounts as a snapshot's summary holds them: ``orders/<topic id>/orders-etl 0@0:0-70,90-120 1@0:0-66!66-70``.

    The groups that wrote rows of a topic stand behind its id, percent-encoded and separated by slashes. What is told
    without rows stands behind ``!``; ``?`` stands behind a partition of which more may be there, and before all where
    there may be more partitions. A long text is compressed.
    """
    words: list[str] = [] if complete else [_REST_UNKNOWN]
    for topic, partitions in groupby(sorted(accounts), key=lambda tp: tp.topic):
        known = list(partitions)
        topic_id = next((accounts[tp].topic_id for tp in known if accounts[tp].topic_id), "")
        groups = sorted(frozenset[str]().union(*(accounts[tp].groups for tp in known)))
        writers = "/".join(quote(group, safe="") for group in groups)
        words.append(f"{topic}/{topic_id}/{writers}" if writers else f"{topic}/{topic_id}")
        words += [f"{tp.partition}{_account(accounts[tp])}" for tp in known]
    text = " ".join(words)
    return text if len(text) <= LONG else _packed(text)


def decode(text: str) -> dict[TopicPartition, Account]:
    """Read what ``encode`` wrote; nothing of an empty text.

    Raises:
        LedgerError: a newer version wrote it.
    """
    accounts: dict[TopicPartition, Account] = {}
    topic = topic_id = ""
    groups = frozenset[str]()
    for word in unpacked(text).split():
        if word == _REST_UNKNOWN:
            continue
        if (named := _TOPIC.fullmatch(word)) is not None:
            topic, topic_id = named["topic"], named["topic_id"]
            groups = frozenset(map(unquote, filter(None, (named["groups"] or "").split("/"))))
            continue
        one = _PARTITION.fullmatch(word)
        if one is None or not topic:
            raise _not_understood(text)
        start = None if one["start"] is None else int(one["start"])
        at = TopicPartition(topic, int(one["partition"]))
        if at in accounts or at.partition > MAX_PARTITION or (start or 0) > MAX_OFFSET:
            raise _not_understood(text)
        spans = (_spans(one["done"], text), _spans(one["told"], text))
        accounts[at] = Account(*spans, start, topic_id, complete=not one["unknown"], groups=groups)
    return accounts


def _account(account: Account) -> str:
    start = "" if account.complete else "?"
    start += "" if account.start is None else f"@{account.start}"
    reported = f"!{_texts(account.reported)}" if account.reported else ""
    return f"{start}:{_texts(account.done)}{reported}"


def _texts(spans: Collection[Span]) -> str:
    return ",".join(map(str, spans))


def is_all(text: str) -> bool:
    """Whether nothing is in the table of partitions that the text does not name."""
    return not unpacked(text).startswith(_REST_UNKNOWN)


def _packed(text: str) -> str:
    """Spans by their sizes, which are much alike in a batch: a third less of it is left."""
    sizes = _SPAN.sub(lambda span: f"{span[1]}+{int(span[2]) - int(span[1])}", text)
    return _PACKED + base64.b64encode(zlib.compress(sizes.encode(), 9)).decode()


def unpacked(text: str) -> str:
    """The words of a text, compressed or not.

    Raises:
        LedgerError: a newer version wrote it, or it is longer than ``MAX_CHARACTERS``.
    """
    if not text.startswith(_PACKED):
        if not _is_bounded(text):
            raise _not_understood(text)
        return text
    try:
        unpacking = zlib.decompressobj()
        found = unpacking.decompress(base64.b64decode(text.removeprefix(_PACKED), validate=True), MAX_CHARACTERS)
        words = found.decode()
        # Cut off, too long, or followed by something else
        if not unpacking.eof or unpacking.unused_data or not _is_bounded(words):
            raise _not_understood(text)
        return _SIZED.sub(lambda span: f"{span[1]}-{int(span[1]) + int(span[2])}", words)
    except (ValueError, zlib.error):  # no base64, no UTF-8, or more digits than Python reads
        raise _not_understood(text) from None


def _is_bounded(words: str) -> bool:
    return len(words) <= MAX_CHARACTERS and sum(map(words.count, " ,:!")) <= MAX_PARTS


def _spans(text: str | None, whole: str) -> tuple[Span, ...]:
    try:
        spans = tuple(Span(*map(int, part.split("-"))) for part in text.split(",")) if text else ()
    except (ValueError, TypeError):
        raise _not_understood(whole) from None
    if union(spans) != spans or (spans and spans[-1].end > MAX_OFFSET):
        raise _not_understood(whole)
    return spans


def decode_of(snapshot_id: int, text: str) -> dict[TopicPartition, Account]:
    """Read what a snapshot's summary says, like ``decode``.

    Raises:
        LedgerError: it cannot be read; with the snapshot.
    """
    try:
        return decode(text)
    except LedgerError:
        raise unreadable(snapshot_id, text) from None


def since_of(snapshot_id: int, text: str | None) -> int | None:
    """Return the snapshot whose offsets a summary repeats; None where it repeats none.

    Raises:
        LedgerError: it is no snapshot id.

    >>> since_of(7, "5"), since_of(7, None)
    (5, None)
    """
    if not text:
        return None
    if _SNAPSHOT_ID.fullmatch(text) is None or int(text) > MAX_OFFSET:
        raise unreadable(snapshot_id, text)
    return int(text)


def unreadable(snapshot_id: int, text: str) -> LedgerError:
    """Return the error for a snapshot whose summary cannot be read."""
    return LedgerError(
        f"snapshot {snapshot_id} says {text[:80]!r}, {len(text):,} characters, which this version does not understand. "
        "Nothing was written or committed. Fix: upgrade, if a newer version of kafka-liveness-dagster wrote it. If "
        "another program wrote it, add a newer snapshot to the table and expire this one; its rows stay: `CALL "
        f"catalog.system.expire_snapshots(table => 'namespace.table', snapshot_ids => ARRAY({snapshot_id}))`"
    )


def _not_understood(text: str) -> LedgerError:
    return LedgerError(
        f"the table's ledger says {text[:80]!r}, which this version does not understand: a newer version of "
        "kafka-liveness-dagster wrote it. Upgrade; nothing was written or committed"
    )


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


def read_ledger(snapshots: Mapping[int, Snapshot], found: Lineage) -> Ledger:
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
