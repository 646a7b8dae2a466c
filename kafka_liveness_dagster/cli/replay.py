"""Which offsets are of a window of time, and where are the partitions by which they are processed again?

Reads the group and the broker, and adds partitions to Dagster. Processes nothing: a backfill of the
partitions does.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from kafka_liveness_dagster.cli.crash_lag_assets import crash_lag_asset, open_instance
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.partition_keys import replay_key
from kafka_liveness_dagster.core.partition_state import DataExpiredError
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.timestamps import processed_ranges
from kafka_liveness_dagster.metadata import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import dagster as dg

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.kafka.settings import KafkaSettings
    from kafka_liveness_dagster.kafka.timestamps import ProcessedRanges


def find_ranges(
    kafka: KafkaSettings,
    group_id: str,
    topics: Sequence[str],
    begin: datetime,
    end: datetime | None,
    *,
    allow_expired: bool = False,
) -> ProcessedRanges:
    """The processed offsets of a group whose timestamps lie from ``begin`` to before ``end``.

    Args:
        kafka: the cluster.
        group_id: of the live lane.
        topics: only these; all that the group has commits of unless given.
        begin: of the window.
        end: of the window; None for all that is committed.
        allow_expired: take what the broker still has of it.

    Raises:
        InvalidSettingError: the group has committed nothing, or nothing of the window.
        DataExpiredError: the broker has deleted records, maybe some of the window's.
    """
    if end is not None and end <= begin:
        raise InvalidSettingError(f"--to {end.isoformat()} is not after --from {begin.isoformat()}")
    until = None if end is None else _to_ms(end)
    try:
        found = processed_ranges(
            Cluster(kafka),
            group_id,
            topics,
            begin_ms=_to_ms(begin),
            end_ms=until,
            allow_expired=allow_expired,
        )
    except DataExpiredError as error:
        remedy = "Nothing was added; to take what is left of the window, say --allow-expired, or begin later"
        raise DataExpiredError(f"{error}: the window begins at {begin.isoformat()}. {remedy}") from None
    if not found.ranges:
        nothing = f"nothing that group {group_id} has processed is of that time"
        raise InvalidSettingError("\n".join([nothing, *describe_window(found)]))
    return found


def describe_window(found: ProcessedRanges) -> Iterator[str]:
    """A line for each range, and what is left out."""
    for r in found.ranges:
        yield f"{r}  {format_count(r.size, 'offset')}"
    for why in found.excluded_lines():
        yield f"left out, {why}"


def add_partitions(
    group_id: str, asset: str | None, ranges: Sequence[OffsetRange]
) -> tuple[dg.AssetKey, list[str]]:
    """Add a partition of the crash lag asset for each; gives the asset and the keys.

    Raises:
        InvalidSettingError: there is no Dagster, it knows no such asset, or it cannot be told which is the
            group's.
    """
    if (instance := open_instance()) is None:
        raise InvalidSettingError("set DAGSTER_HOME to the instance that has the asset; nothing was added")
    now = datetime.now(timezone.utc)
    keys = [replay_key(r, now) for r in ranges]
    with instance:
        found = crash_lag_asset(instance, group_id, asset, outcome="Nothing was added.")
        instance.add_dynamic_partitions(found.to_python_identifier(), keys)
    return found, keys


def _to_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
