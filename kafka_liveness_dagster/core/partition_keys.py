"""Convert between crash lag ranges and Dagster partition keys such as ``p3:orders:70-120``.

Never removes a key: a materialized key stays, and the same range gets ``@2`` if it is pending again. The key
of a replay, which is processed whatever is pending, has the time of the request:
``@replay-20261122T100000Z``. Dagster also keeps the keys of earlier versions, such as ``orders:3:70-120``:
never compare the texts of keys from different sources, compare their ``current_key``.

>>> parse_key("p3:orders:70-120@2")
OffsetRange(topic='orders', partition=3, start=70, end=120)
>>> new_keys([parse_key("p3:orders:70-190")], existing=["orders:3:70-120"], materialized=[])
['p3:orders:120-190']
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import (
    RANGE_FORM,
    OffsetRange,
    Span,
    TopicPartition,
    difference,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_KEY = re.compile(r"(?P<range>[^@]+)(?P<suffix>@(?:[2-9]|[1-9]\d+|(?P<replay>replay-\d{8}T\d{6}Z)))?")
_AMBIGUOUS = "..."  # Dagster's partition range separator


def partition_key(pending: OffsetRange, repetition: int = 1) -> str:
    """Return the partition key of a range; ``repetition`` counts how often the range became pending.

    Raises:
        InvalidSettingError: Dagster would read the key as a range of keys.
    """
    if _AMBIGUOUS in pending.topic:
        raise InvalidSettingError(
            f"topic {pending.topic!r} contains {_AMBIGUOUS!r}, which Dagster reads as a range of "
            "partitions. Crash lag of this topic cannot become partitions. Fix: rename the topic, or "
            "set enable_parallel_rebalance=False"
        )
    return f"{pending}@{repetition}" if repetition > 1 else str(pending)


def replay_key(processed: OffsetRange, requested_at: datetime) -> str:
    """Return the partition key by which a range is processed again.

    >>> from datetime import timezone
    >>> replay_key(parse_key("p3:orders:70-120"), datetime(2026, 11, 22, 10, tzinfo=timezone.utc))
    'p3:orders:70-120@replay-20261122T100000Z'

    Raises:
        InvalidSettingError: Dagster would read the key as a range of keys.
    """
    return f"{partition_key(processed)}@replay-{requested_at.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}"


def is_replay(key: str) -> bool:
    """Return whether a key is of a replay, which processes done offsets again.

    >>> is_replay("p3:orders:70-120"), is_replay("p3:orders:70-120@replay-20261122T100000Z")
    (False, True)
    """
    found = _KEY.fullmatch(key)
    return found is not None and found["replay"] is not None


def parse_key(key: str) -> OffsetRange:
    """Return the range of a partition key.

    Raises:
        InvalidSettingError: the key has another form.
    """
    return _range_and_suffix(key)[0]


def current_key(key: str) -> str:
    """Return the key of the same partition in the current form, which is equal for equal partitions.

    >>> current_key("orders:3:70-120@2"), current_key("p3:orders:70-120@2")
    ('p3:orders:70-120@2', 'p3:orders:70-120@2')

    Raises:
        InvalidSettingError: the key has another form.
    """
    return "{}{}".format(*_range_and_suffix(key))


def stored_keys(keys: Iterable[str], existing: Collection[str]) -> list[str]:
    """Return the keys as Dagster has them, each once; a key that Dagster lacks stays as it is.

    >>> stored_keys(["p3:orders:70-120", "orders:4:0-9"], existing=["orders:3:70-120"])
    ['orders:3:70-120', 'orders:4:0-9']
    """
    stored = {current_key(key): key for key in existing if is_key(key)}
    exact = set(existing)
    return list(dict.fromkeys(key if key in exact else stored.get(current_key(key), key) for key in keys))


def _range_and_suffix(key: str) -> tuple[OffsetRange, str]:
    found = _KEY.fullmatch(key)
    if found is None:
        raise _invalid_key_error(key)
    try:
        return OffsetRange.parse(found["range"]), found["suffix"] or ""
    except InvalidSettingError:
        raise _invalid_key_error(key) from None


def _invalid_key_error(key: str) -> InvalidSettingError:
    return InvalidSettingError(f"{key!r} is not a crash lag key: wanted {RANGE_FORM}")


def is_key(key: str) -> bool:
    """Return whether the key names a range; users can add other partitions in Dagster's dialog."""
    try:
        parse_key(key)
    except InvalidSettingError:
        return False
    return True


def new_keys(
    pending: Iterable[OffsetRange], existing: Collection[str], materialized: Collection[str]
) -> list[str]:
    """Return the keys to add so that each pending offset has a partition that is not materialized yet.

    Ranges that have merged keep their old keys; only the uncovered rest gets new ones.
    """
    known = set(existing)
    waiting = _ranges_by_partition(parse_key(key) for key in known.difference(materialized) if is_key(key))
    return [
        _unused_key(OffsetRange(*tp, *span), known)
        for tp, spans in _ranges_by_partition(pending).items()
        for span in difference(spans, waiting.get(tp, ()))
    ]


def _ranges_by_partition(ranges: Iterable[OffsetRange]) -> dict[TopicPartition, list[Span]]:
    found: dict[TopicPartition, list[Span]] = {}
    for pending in sorted(ranges):
        found.setdefault(pending.topic_partition, []).append(pending.span)
    return found


def _unused_key(pending: OffsetRange, existing: Collection[str]) -> str:
    """Return the first key that is new in both forms: parsing all keys would take 5 µs for each of them."""
    again = 1
    while not {key := partition_key(pending, again), _former_key(pending, again)}.isdisjoint(existing):
        again += 1
    return key


def _former_key(pending: OffsetRange, repetition: int) -> str:
    return pending.former_text + (f"@{repetition}" if repetition > 1 else "")
