"""How much may one OffsetCommit carry? As much as the broker can append to its offsets topic at once: 1 MB by default.

With 30 bytes of metadata each, 10,000 partitions were refused as "Unknown broker error"; with 4,000 bytes 300 would be.

>>> from confluent_kafka import TopicPartition
>>> tokens = [TopicPartition("orders", p, 120, "kl1 running 0badcafe @- 70-120" + ",140-190" * 450) for p in range(300)]
>>> [len(portion) for portion in portions(tokens, "orders-etl")]
[133, 133, 34]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from confluent_kafka import TopicPartition

_MOST_BYTES = 500_000  # half of message.max.bytes: what surrounds a record is an estimate
_AROUND_BYTES = 100


def portions(commits: Iterable[TopicPartition], group_id: str) -> Iterator[list[TopicPartition]]:
    """The commits in as many requests as they need; each partition's offset and metadata stay together."""
    portion: list[TopicPartition] = []
    left = _MOST_BYTES
    for one in commits:
        size = _AROUND_BYTES + len(group_id) + len(one.topic) + len(one.metadata or "")
        if portion and size > left:
            yield portion
            portion, left = [], _MOST_BYTES
        portion.append(one)
        left -= size
    if portion:
        yield portion
