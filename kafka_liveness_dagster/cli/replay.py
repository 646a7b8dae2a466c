"""Which offsets are of a window of time, and where are the partitions by which they are processed again?

Reads the group and the broker, and adds partitions to Dagster. Processes nothing: a backfill of the partitions does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, difference, intersection
from kafka_liveness_dagster.core.partition_keys import replay_key
from kafka_liveness_dagster.core.witnesses import DataExpiredError
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.times import offsets_at
from kafka_liveness_dagster.metadata import number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.witnesses import PartitionFacts
    from kafka_liveness_dagster.kafka.config import KafkaSettings

_ENDING = "_crash_lag"


@dataclass(frozen=True)
class Window:
    """What of a group's offsets lies between two times.

    Attributes:
        ranges: processed once, to be processed again.
        owed: not processed yet: their partitions are there, or the sensor adds them.
        ahead: how many the live lane has still to read.
    """

    ranges: tuple[OffsetRange, ...]
    owed: tuple[OffsetRange, ...]
    ahead: int

    def told(self) -> Iterator[str]:
        """A line each, and what is left out."""
        for r in self.ranges:
            yield f"{r}  {number(r.size, 'offset')}"
        if self.owed:
            yield f"left out, since they are owed and have partitions of their own: {', '.join(map(str, self.owed))}"
        if self.ahead:
            yield f"left out, since the live lane comes to them: {number(self.ahead, 'offset')}"


def window(
    kafka: KafkaSettings,
    group_id: str,
    topics: Sequence[str],
    begin: datetime,
    end: datetime | None,
    *,
    what_is_left: bool = False,
) -> Window:
    """The processed offsets of a group whose timestamps lie from ``begin`` to before ``end``.

    Args:
        kafka: the cluster.
        group_id: of the live lane.
        topics: only these; all that the group has commits of unless given.
        begin: of the window.
        end: of the window; None for all that is committed.
        what_is_left: take what the broker still has of it.

    Raises:
        InvalidSettingError: the group has committed nothing, or nothing of the window.
        DataExpiredError: the broker has deleted records, maybe some of the window's.
    """
    if end is not None and end <= begin:
        raise InvalidSettingError(f"--to {end.isoformat()} is not after --from {begin.isoformat()}")
    cluster = Cluster(kafka)
    known = cluster.partitions(list(topics) or cluster.topics())
    facts = cluster.facts(group_id, sorted(cluster.commits(group_id, known)))
    if not facts:
        raise InvalidSettingError(f"group {group_id} has committed nothing{' of these topics' if topics else ''}")
    first = offsets_at(cluster, facts, _ms(begin))
    behind = offsets_at(cluster, facts, _ms(end)) if end is not None else dict.fromkeys(facts)
    spans = {tp: _span(first[tp], behind[tp], one.log_end) for tp, one in facts.items()}
    if not what_is_left:
        _check_whole(facts, spans, begin)
    found = Window(
        tuple(OffsetRange(*tp, *span) for tp, one in facts.items() for span in _done(one, spans[tp])),
        tuple(OffsetRange(*tp, *s) for tp, one in facts.items() for s in intersection(one.outstanding, (spans[tp],))),
        sum(max(0, spans[tp].end - max(spans[tp].start, one.committed or 0)) for tp, one in facts.items()),
    )
    if not found.ranges:
        nothing = f"nothing that group {group_id} has processed is of that time"
        raise InvalidSettingError("\n".join([nothing, *found.told()]))
    return found


def add_partitions(group_id: str, asset: str | None, ranges: Sequence[OffsetRange]) -> tuple[dg.AssetKey, list[str]]:
    """Add a partition of the crash lag asset for each; gives the asset and the keys.

    Raises:
        InvalidSettingError: there is no Dagster, it knows no such asset, or it cannot be told which is the group's.
    """
    if not os.environ.get("DAGSTER_HOME"):
        raise InvalidSettingError("set DAGSTER_HOME to the instance that has the asset; nothing was added")
    now = datetime.now(timezone.utc)
    keys = [replay_key(r, now) for r in ranges]
    with dg.DagsterInstance.get() as instance:
        found = _crash_lag_of(instance, group_id) if asset is None else _known(instance, asset)
        instance.add_dynamic_partitions(found.to_python_identifier(), keys)
    return found, keys


def _crash_lag_of(instance: dg.DagsterInstance, group_id: str) -> dg.AssetKey:
    """By the events of the live asset, or of its own."""
    found = set()
    for key in instance.all_asset_keys():
        record = instance.get_latest_materialization_event(key)
        made = record.asset_materialization if record else None
        if made is not None and "group" in made.metadata and made.metadata["group"].value == group_id:
            name = key.path[-1].removesuffix(_ENDING) + _ENDING
            found.add(dg.AssetKey([*key.path[:-1], name]))
    if len(found) != 1:
        names = ", ".join(sorted(key.to_user_string() for key in found)) or "none"
        raise InvalidSettingError(
            f"Dagster has {len(found)} assets that group {group_id} has materialized ({names}): name the crash lag "
            "asset with --asset; nothing was added"
        )
    return found.pop()


def _known(instance: dg.DagsterInstance, asset: str) -> dg.AssetKey:
    """An asset that has an event, or whose live asset has one: partitions of another would be nobody's."""
    found = dg.AssetKey.from_user_string(asset)
    live = dg.AssetKey([*found.path[:-1], found.path[-1].removesuffix(_ENDING)])
    if {found, live}.isdisjoint(instance.all_asset_keys()):
        raise InvalidSettingError(
            f"Dagster has no event of {asset}, nor of {live.to_user_string()}: look at the name, and whether "
            "DAGSTER_HOME is the instance of your runs; nothing was added"
        )
    return found


def _check_whole(
    facts: dict[TopicPartition, PartitionFacts], spans: dict[TopicPartition, Span], begin: datetime
) -> None:
    cut = [tp for tp, one in facts.items() if 0 < one.log_start == spans[tp].start]
    if cut:
        raise DataExpiredError(
            f"the broker has deleted the first {facts[cut[0]].log_start:,} offsets of {cut[0]}"
            f"{f' and of {len(cut) - 1} more partitions' if cut[1:] else ''}, and nobody can tell whether some of them "
            f"are not older than {begin.isoformat()}. Nothing was added; to take what is left of the window, say "
            "--what-is-left, or begin later"
        )


def _span(first: int | None, behind: int | None, log_end: int) -> Span:
    """Of one partition; there may be no record of the window, or none behind it."""
    start = log_end if first is None else first
    return Span(start, max(start, log_end if behind is None else behind))


def _done(one: PartitionFacts, asked: Span) -> tuple[Span, ...]:
    """What of these offsets the group has processed."""
    below = intersection((asked,), (Span(one.log_start, one.committed or 0),))
    return difference(below, (*one.outstanding, *one.reported))


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
