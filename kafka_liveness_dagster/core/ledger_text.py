"""How does a snapshot's summary hold what a table says? Texts that people can read, compressed when they are long.

>>> text = encode({TopicPartition("orders", 3): Account((Span(0, 70),), start=0, topic_id="2Mq71qnKT1ul7FBvra2xew")})
>>> text
'orders/2Mq71qnKT1ul7FBvra2xew 3@0:0-70'
>>> decode(text)[TopicPartition("orders", 3)].done
(Span(start=0, end=70),)
>>> encode({TopicPartition("orders", 3): Account((Span(0, 70),), groups=frozenset({"orders etl"}))})
'orders//orders%20etl 3:0-70'
"""

from __future__ import annotations

import base64
import re
import zlib
from itertools import groupby
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from kafka_liveness_dagster.core.accounts import Account
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.offsets import MAX_OFFSET, MAX_PARTITION, Span, TopicPartition, union

if TYPE_CHECKING:
    from collections.abc import Collection

    from kafka_liveness_dagster.core.accounts import Accounts

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
