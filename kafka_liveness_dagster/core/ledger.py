"""Decide which offsets a table has, from its snapshots' summaries, and encode the summaries' texts.

>>> entry = LedgerEntry((Span(0, 70),), first_offset=0, topic_id="2Mq71qnKT1ul7FBvra2xew")
>>> text = encode_entries({TopicPartition("orders", 3): entry})
>>> text
'orders/2Mq71qnKT1ul7FBvra2xew 3@0:0-70'
>>> decode_entries(text)[TopicPartition("orders", 3)].written
(Span(start=0, end=70),)
>>> entry = LedgerEntry((Span(0, 70),), groups=frozenset({"orders etl"}))
>>> encode_entries({TopicPartition("orders", 3): entry})
'orders//orders%20etl 3:0-70'

Each commit to the table records in its snapshot's summary which offsets it wrote, offsets without rows
included. It also records the offsets that the table had as of an earlier snapshot. The ledger is therefore as
atomic as the rows: a rollback, drop or replacement of the table removes its entries too. Works on summaries
only, and never reads a table.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.offsets import (
    MAX_OFFSET,
    MAX_PARTITION,
    Span,
    TopicPartition,
    difference,
    intersection,
    union,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


ALL_OFFSETS = (Span(0, MAX_OFFSET),)
"""``LedgerEntry.unknown`` of a partition whose ledger expired."""


@dataclass(frozen=True)
class LedgerEntry:
    """The table's entry for one partition.

    Attributes:
        written: all offsets whose rows are in the table; offsets without rows included.
        written_off: offsets that are closed without rows: written off by hand, or lost and reported.
        first_offset: the first offset that this table answers for; None while no commit records it.
        topic_id: id of the topic; empty if no broker returned one.
        unknown: offsets that may be in the table although they are not in ``written``: snapshots that would
            show them expired. All other offsets that are not written are not in the table.
        groups: the consumer groups that wrote rows of the topic; empty if the table was written without a
            group.
    """

    written: tuple[Span, ...] = ()
    written_off: tuple[Span, ...] = ()
    first_offset: int | None = None
    _: KW_ONLY
    topic_id: str = ""
    unknown: tuple[Span, ...] = ()
    groups: frozenset[str] = frozenset()

    @property
    def is_complete(self) -> bool:
        """Whether each offset is known to be in the table or not."""
        return not self.unknown

    def __add__(self, other: LedgerEntry) -> LedgerEntry:
        """Return both entries merged.

        They are of one log, or the topic was recreated; then the later id is kept.
        """
        starts = [entry.first_offset for entry in (self, other) if entry.first_offset is not None]
        written = union((*self.written, *other.written))
        return LedgerEntry(
            written,
            union((*self.written_off, *other.written_off)),
            min(starts, default=None),
            topic_id=other.topic_id or self.topic_id,
            unknown=_unknown_without(union((*self.unknown, *other.unknown)), written),
            groups=self.groups | other.groups,
        )


def _unknown_without(unknown: tuple[Span, ...], known: tuple[Span, ...]) -> tuple[Span, ...]:
    return unknown if unknown == ALL_OFFSETS else difference(unknown, known)


LedgerEntries = Mapping[TopicPartition, LedgerEntry]


def merge_entries(entries: Iterable[LedgerEntries]) -> dict[TopicPartition, LedgerEntry]:
    """Merge the entries of several texts, partition by partition."""
    found: dict[TopicPartition, LedgerEntry] = {}
    for ledger_entries in entries:
        for tp, entry in ledger_entries.items():
            found[tp] = found[tp] + entry if tp in found else entry
    return found


WRITTEN_KEY, TOTAL_KEY, TOTAL_AS_OF_KEY = (
    f"kafka-liveness.{word}" for word in ("written", "total", "total-as-of")
)
"""Keys of the summary texts: the offsets of a commit, the target's total, and the snapshot of that total."""
COMPRESS_ABOVE_CHARS = 1_000
"""Characters from which a text is compressed.

A snapshot's summary is copied into every later metadata file.
"""
MAX_CHARACTERS = 16_000_000
"""Limit of a decompressed text.

10,000 partitions with 100 ranges each need 13 million. Text of another writer may grow a thousandfold: 389 kB
became 300 MB.
"""
MAX_PARTS = 1_100_000
"""Limit of ranges and words together, which those 10,000 partitions have.

20 kB of another writer took 30 s to read.
"""
_COMPRESSED = "z:"
_SPAN = re.compile(r"(?<=[:,!?])([0-9]+)-([0-9]+)")
_START_AND_SIZE = re.compile(r"(?<=[:,!?])([0-9]+)\+([0-9]+)")
_OTHERS_UNKNOWN = "?"
_TOPIC = re.compile(
    "(?P<topic>[a-zA-Z0-9._-]+)/(?P<topic_id>[a-zA-Z0-9_-]*)(?:/(?P<groups>[a-zA-Z0-9._~%/-]+))?"
)
_SNAPSHOT_ID = re.compile("[0-9]{1,19}")
_PARTITION = re.compile(
    r"(?P<partition>[0-9]{1,10})(?P<unknown>\?)?(?:@(?P<start>[0-9]{1,19}))?:(?P<done>[0-9,-]*)(?:!(?P<told>[0-9,-]+))?"
    r"(?:\?(?P<unsure>[0-9,-]+))?"
)


class UnknownLedgerFormatError(KafkaLivenessError):
    """A snapshot's summary has a format that this version cannot read."""


def encode_entries(entries: LedgerEntries, *, complete: bool = True) -> str:
    """Encode the entries for a snapshot's summary.

    An example is ``orders/<topic id>/orders-etl 0@0:0-70,90-120 1@0:0-66!66-70``. The groups that wrote rows
    of a topic follow its id, percent-encoded and separated by slashes. Offsets that are written off follow
    ``!``, unknown offsets follow ``?``. A ``?`` right after a partition means that all its other offsets are
    unknown. A ``?`` before all partitions means that all other partitions are unknown. A long text is
    compressed.
    """
    words: list[str] = [] if complete else [_OTHERS_UNKNOWN]
    for topic, partitions in groupby(sorted(entries), key=lambda tp: tp.topic):
        known = list(partitions)
        topic_id = next((entries[tp].topic_id for tp in known if entries[tp].topic_id), "")
        groups = sorted(frozenset[str]().union(*(entries[tp].groups for tp in known)))
        writers = "/".join(quote(group, safe="") for group in groups)
        words.append(f"{topic}/{topic_id}/{writers}" if writers else f"{topic}/{topic_id}")
        words += [f"{tp.partition}{_encode_entry(entries[tp])}" for tp in known]
    text = " ".join(words)
    return text if len(text) <= COMPRESS_ABOVE_CHARS else _compress(text)


def decode_entries(text: str) -> dict[TopicPartition, LedgerEntry]:
    """Decode the text of ``encode_entries``; an empty text has no entries.

    Raises:
        UnknownLedgerFormatError: a newer version wrote it.
    """
    entries: dict[TopicPartition, LedgerEntry] = {}
    topic = topic_id = ""
    groups = frozenset[str]()
    for word in decompress(text).split():
        if word == _OTHERS_UNKNOWN:
            continue
        if (named := _TOPIC.fullmatch(word)) is not None:
            topic = named["topic"]
            topic_id = named["topic_id"]
            groups = frozenset(map(unquote, filter(None, (named["groups"] or "").split("/"))))
            continue
        one = _PARTITION.fullmatch(word)
        if one is None or not topic:
            raise _unknown_format(text)
        start = None if one["start"] is None else int(one["start"])
        at = TopicPartition(topic, int(one["partition"]))
        if at in entries or at.partition > MAX_PARTITION or (start or 0) > MAX_OFFSET:
            raise _unknown_format(text)
        entries[at] = LedgerEntry(
            written=_decode_spans(one["done"], text),
            written_off=_decode_spans(one["told"], text),
            first_offset=start,
            topic_id=topic_id,
            unknown=ALL_OFFSETS if one["unknown"] else _decode_spans(one["unsure"], text),
            groups=groups,
        )
    return entries


def _encode_entry(entry: LedgerEntry) -> str:
    is_all_unknown = entry.unknown == ALL_OFFSETS
    start = "?" if is_all_unknown else ""
    start += "" if entry.first_offset is None else f"@{entry.first_offset}"
    reported = f"!{_encode_spans(entry.written_off)}" if entry.written_off else ""
    unknown = f"?{_encode_spans(entry.unknown)}" if entry.unknown and not is_all_unknown else ""
    return f"{start}:{_encode_spans(entry.written)}{reported}{unknown}"


def _encode_spans(spans: Collection[Span]) -> str:
    return ",".join(map(str, spans))


def names_all_partitions(text: str) -> bool:
    """Return whether the table has no offsets of partitions that the text does not name."""
    return not decompress(text).startswith(_OTHERS_UNKNOWN)


def _compress(text: str) -> str:
    """Encode spans by their sizes, which are alike in a batch: the compressed text is a third shorter."""
    sizes = _SPAN.sub(lambda span: f"{span[1]}+{int(span[2]) - int(span[1])}", text)
    return _COMPRESSED + base64.b64encode(zlib.compress(sizes.encode(), 9)).decode()


def decompress(text: str) -> str:
    """Return the words of a text, compressed or not.

    Raises:
        UnknownLedgerFormatError: a newer version wrote it, or it is longer than ``MAX_CHARACTERS``.
    """
    if not text.startswith(_COMPRESSED):
        if not _is_within_limits(text):
            raise _unknown_format(text)
        return text
    try:
        unpacking = zlib.decompressobj()
        found = unpacking.decompress(
            base64.b64decode(text.removeprefix(_COMPRESSED), validate=True), MAX_CHARACTERS
        )
        words = found.decode()
        # Cut off, too long, or followed by something else
        if not unpacking.eof or unpacking.unused_data or not _is_within_limits(words):
            raise _unknown_format(text)
        return _START_AND_SIZE.sub(lambda span: f"{span[1]}-{int(span[1]) + int(span[2])}", words)
    except (ValueError, zlib.error):  # no base64, no UTF-8, or more digits than Python reads
        raise _unknown_format(text) from None


def _is_within_limits(words: str) -> bool:
    return len(words) <= MAX_CHARACTERS and sum(map(words.count, " ,:!")) <= MAX_PARTS


def _decode_spans(text: str | None, whole: str) -> tuple[Span, ...]:
    try:
        spans = tuple(Span(*map(int, part.split("-"))) for part in text.split(",")) if text else ()
    except (ValueError, TypeError):
        raise _unknown_format(whole) from None
    if union(spans) != spans or (spans and spans[-1].end > MAX_OFFSET):
        raise _unknown_format(whole)
    return spans


def decode_summary(snapshot_id: int | str, text: str) -> dict[TopicPartition, LedgerEntry]:
    """Decode a snapshot's summary, like ``decode_entries``.

    Raises:
        UnknownLedgerFormatError: the summary cannot be read; the message names the snapshot.
    """
    try:
        return decode_entries(text)
    except UnknownLedgerFormatError:
        raise unreadable_summary_error(snapshot_id, text) from None


def decode_total_as_of(snapshot_id: int, text: str | None) -> int | None:
    """Return the snapshot whose total a summary repeats; None if it repeats none.

    Raises:
        UnknownLedgerFormatError: the text is no snapshot id.

    >>> decode_total_as_of(7, "5"), decode_total_as_of(7, None)
    (5, None)
    """
    if not text:
        return None
    if _SNAPSHOT_ID.fullmatch(text) is None or int(text) > MAX_OFFSET:
        raise unreadable_summary_error(snapshot_id, text)
    return int(text)


def unreadable_summary_error(snapshot_id: int | str, text: str) -> UnknownLedgerFormatError:
    """Return the error for a snapshot whose summary cannot be read."""
    return UnknownLedgerFormatError(
        f"snapshot {snapshot_id} has a summary of an unknown format: {text[:80]!r}, {len(text):,} "
        "characters. Nothing was written or committed. Fix: upgrade, if a newer version of "
        "kafka-liveness-dagster wrote it. If another program wrote it, add a newer snapshot to the "
        "table and expire this one; its rows stay: `CALL catalog.system.expire_snapshots(table => "
        f"'namespace.table', snapshot_ids => ARRAY({snapshot_id}))`"
    )


def _unknown_format(text: str) -> UnknownLedgerFormatError:
    return UnknownLedgerFormatError(
        f"the table's ledger has an unknown format: {text[:80]!r}. A newer version of "
        "kafka-liveness-dagster wrote it. Nothing was written or committed. Fix: upgrade "
        "kafka-liveness-dagster"
    )


@dataclass(frozen=True)
class Ledger:
    """The ledger of a table.

    Attributes:
        is_complete: whether the table has no offsets of partitions that are not named here.
    """

    entries: LedgerEntries = field(default_factory=dict)
    is_complete: bool = True

    def entry(self, tp: TopicPartition) -> LedgerEntry:
        """Return the entry of a partition, with all groups that wrote its topic; empty if there is none."""
        topic_id, groups = self._topics.get(tp.topic, ("", frozenset[str]()))
        if tp in self.entries:
            return replace(self.entries[tp], groups=groups)
        unknown = () if self.is_complete else ALL_OFFSETS
        return LedgerEntry(topic_id=topic_id, unknown=unknown, groups=groups)

    @cached_property
    def _topics(self) -> Mapping[str, tuple[str, frozenset[str]]]:
        """Id of each topic, and the groups that wrote rows of any of its partitions."""
        found: dict[str, tuple[str, frozenset[str]]] = {}
        for tp, entry in self.entries.items():
            topic_id, groups = found.get(tp.topic, (entry.topic_id, frozenset[str]()))
            found[tp.topic] = topic_id, groups | entry.groups
        return found


@dataclass(frozen=True)
class SnapshotSummary:
    """One snapshot of the table, as far as the ledger is concerned.

    Attributes:
        written: text of the offsets that its commit wrote; empty for a commit of another writer.
        total: text of all offsets that the table had as of ``total_as_of``; empty if it is not recorded.
        total_as_of: id of an ancestor; None if the summary has no ``total``.
    """

    snapshot_id: int
    parent_id: int | None
    written: str = ""
    _: KW_ONLY
    total: str = ""
    total_as_of: int | None = None


@dataclass(frozen=True)
class Lineage:
    """The snapshots whose summaries make up the ledger, from the current one back to the last usable total.

    Attributes:
        path: snapshots whose ``written`` counts, the current one first.
        totals: snapshots whose ``total`` counts.
        is_complete: whether no snapshot is missing back to the beginning of the table.
        rolled_back: see ``_rolled_back``.
    """

    path: tuple[int, ...]
    totals: tuple[int, ...]
    _: KW_ONLY
    is_complete: bool
    rolled_back: tuple[int, ...] = ()


class LedgerSnapshot(NamedTuple):
    """The ledger of a table as of one snapshot; valid while that snapshot is the current one."""

    snapshot_id: int | None = None
    ledger: Ledger = Ledger()
    ancestor_ids: tuple[int, ...] = ()


EMPTY_LEDGER_SNAPSHOT = LedgerSnapshot()


def ancestor_ids(snapshots: Mapping[int, SnapshotSummary], current: int | None) -> tuple[int, ...]:
    """Return the current snapshot and all before it, as far back as the table names them.

    The last one may be expired.
    """
    found = list(ancestors(snapshots, current))
    oldest = snapshots[found[-1]].parent_id if found else None
    return (*found, oldest) if oldest is not None and oldest not in found else tuple(found)


def was_rolled_back(now: Sequence[int], before: Sequence[int]) -> bool:
    """Return whether the table was rolled back.

    After a rollback the table continues from an ancestor of the earlier current snapshot, not from that
    snapshot. If all snapshots of ``before`` are gone, nothing is proven: they may have expired.

    Args:
        now: the ``ancestor_ids`` of the table.
        before: the current snapshots that were observed since, the newest first; then the earlier chain.

    >>> was_rolled_back(now=(7, 5, 4), before=(6, 5, 4)), was_rolled_back(now=(8, 7, 6), before=(6, 5))
    (True, False)
    """
    oldest = max((place for place, snapshot_id in enumerate(before) if snapshot_id in now), default=0)
    return not set(before[:oldest]) <= set(now)


def written_since(
    snapshots: Mapping[int, SnapshotSummary], current: int | None, before: int | None
) -> LedgerEntries | None:
    """Return the offsets that were written after snapshot ``before``.

    None if the snapshots in between expired.

    >>> snapshots = {1: SnapshotSummary(1, None, "t/ 0:0-5"), 2: SnapshotSummary(2, 1, "t/ 0:5-9")}
    >>> sorted(written_since(snapshots, 2, 1).popitem()[1].written)
    [Span(start=5, end=9)]
    """
    new = list(takewhile(lambda one: one != before, ancestors(snapshots, current)))
    last = snapshots[new[-1]].parent_id if new else current
    return merge_entries(decode_summary(i, snapshots[i].written) for i in new) if last == before else None


def is_continuation_of(now: Collection[int], known_snapshot_ids: Collection[int | None]) -> bool:
    """Return whether the ledger as of these snapshots still holds.

    The current ``ancestor_ids`` must contain all of them. If one of them is expired, it is unknown whether
    the table was rolled back before it and other commits followed.

    >>> is_continuation_of((8, 7, 6), {6, 7}), is_continuation_of((8, 7), {6, 7})
    (True, False)
    """
    return set(known_snapshot_ids) <= set(now)


def lineage(snapshots: Mapping[int, SnapshotSummary], current: int | None) -> Lineage:
    """Walk back from the current snapshot; reads no text, only whether a summary has a total.

    A total counts if its ``total_as_of`` is an ancestor, or is gone from the table. If that snapshot is there
    and no ancestor, the table was rolled back during the write. Then the table lacks the offsets of the
    total.
    """
    if current is not None and current not in snapshots:
        return Lineage((), (), is_complete=False)
    newest_first = list(ancestors(snapshots, current))
    found = partial(Lineage, rolled_back=_rolled_back(snapshots, newest_first))
    places = {snapshot_id: place for place, snapshot_id in enumerate(newest_first)}
    path: list[int] = []
    sums: dict[int, int] = {}  # total_as_of -> the snapshot with that total
    for place, snapshot_id in enumerate(newest_first):
        if snapshot_id in sums:
            return found(tuple(path), (sums[snapshot_id],), is_complete=True)
        path.append(snapshot_id)
        one = snapshots[snapshot_id]
        if one.total_as_of is not None and (
            places.get(one.total_as_of, -1) > place or one.total_as_of not in snapshots
        ):
            sums.setdefault(one.total_as_of, snapshot_id)
    last = snapshots[path[-1]].parent_id if path else None
    if last is None:
        return found(tuple(path), (), is_complete=True)
    if last in sums:  # it is expired, and a later snapshot has its total
        return found(tuple(path), (sums[last],), is_complete=True)
    return found(tuple(path), tuple(sums.values()), is_complete=False)


def _rolled_back(snapshots: Mapping[int, SnapshotSummary], line: Collection[int]) -> tuple[int, ...]:
    """Return the snapshots that descend from this line and are not part of it.

    The commits that replaced them are in the line, after the common ancestor.
    """
    grew = dict.fromkeys(line, True)
    off_line: list[int] = []
    for snapshot_id in snapshots:
        branch = list(takewhile(partial(_is_not_in, grew), ancestors(snapshots, snapshot_id)))
        root = snapshots[branch[-1]].parent_id if branch else None
        grew |= dict.fromkeys(branch, root is not None and grew.get(root, False))
        off_line += branch
    return tuple(one for one in off_line if grew[one])


def _is_not_in(known: Collection[int], snapshot_id: int) -> bool:
    return snapshot_id not in known


def read_ledger(snapshots: Mapping[int, SnapshotSummary], found: Lineage) -> Ledger:
    """Return the table's ledger, from the texts of its lineage.

    Raises:
        UnknownLedgerFormatError: one of the texts cannot be read.
    """
    sums = [decode_summary(i, snapshots[i].total) for i in found.totals]
    complete = found.is_complete and all(names_all_partitions(snapshots[i].total) for i in found.totals)
    had = Ledger(merge_entries(sums), complete)
    entries = dict(had.entries)
    for tp, wrote in merge_entries(
        decode_summary(i, snapshots[i].written) for i in reversed(found.path)
    ).items():
        entries[tp] = had.entry(tp) + wrote
    if not found.is_complete:
        entries = {tp: replace(one, unknown=ALL_OFFSETS) for tp, one in entries.items()}
    ledger = Ledger(entries, complete)
    # What was rolled back is then known to be missing, and its texts may be unreadable.
    if complete and all(one.is_complete for one in entries.values()):
        return ledger
    for tp, wrote in merge_entries(
        decode_summary(i, snapshots[i].written) for i in found.rolled_back
    ).items():
        one = ledger.entry(tp)
        if gone := intersection(difference(wrote.written, one.written), one.unknown):
            entries[tp] = replace(one, unknown=difference(one.unknown, gone))
    return Ledger(entries, complete)


def ancestors(snapshots: Mapping[int, SnapshotSummary], current: int | None) -> Iterable[int]:
    """Yield the current snapshot and all before it that the table still has."""
    seen: set[int] = set()
    while current is not None and current in snapshots and current not in seen:
        seen.add(current)
        yield current
        current = snapshots[current].parent_id
