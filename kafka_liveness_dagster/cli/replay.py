"""Find the offsets of a time window, and add the partitions that reprocess them to Dagster.

Processes no record: a backfill of the partitions does.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from kafka_liveness_dagster.cli.crash_lag_assets import crash_lag_asset, open_instance
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import format_count
from kafka_liveness_dagster.core.partition_keys import replay_key
from kafka_liveness_dagster.core.partition_state import DataExpiredError
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.timestamps import processed_ranges

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
    """Return the processed offsets of a group with timestamps from ``begin`` to before ``end``.

    Args:
        kafka: settings of the cluster.
        group_id: the live lane's group.
        topics: topics to search; none for all that the group has commits of.
        begin: begin of the window.
        end: end of the window; None for all committed offsets.
        allow_expired: whether to return what the broker still has, instead of raising.

    Raises:
        InvalidSettingError: the group has committed nothing, or nothing of the window.
        DataExpiredError: the broker has deleted records, maybe some of the window's.
    """
    if end is not None and end <= begin:
        raise InvalidSettingError(
            f"--to {end.isoformat()} is not after --from {begin.isoformat()}. Nothing was added."
        )
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
        remedy = (
            "Nothing was added. Fix: add --allow-expired to replay the remaining records, or begin later."
        )
        raise DataExpiredError(f"{error}: the window begins at {begin.isoformat()}. {remedy}") from None
    if not found.ranges:
        nothing = f"Group {group_id} has processed no offset of that time. Nothing was added."
        raise InvalidSettingError("\n".join([nothing, *describe_window(found)]))
    return found


def describe_window(found: ProcessedRanges) -> Iterator[str]:
    """Yield a line for each range, and for each reason why offsets are left out."""
    for r in found.ranges:
        yield f"{r}  {format_count(r.size, 'offset')}"
    for why in found.excluded_lines():
        yield f"left out, {why}"


def add_partitions(
    group_id: str, asset: str | None, ranges: Sequence[OffsetRange]
) -> tuple[dg.AssetKey, list[str]]:
    """Add a partition of the crash lag asset for each range; return the asset and the keys.

    Raises:
        InvalidSettingError: there is no Dagster, or it has no crash lag asset or several of this group.
    """
    if (instance := open_instance()) is None:
        raise InvalidSettingError(
            "A replay needs Dagster. Nothing was added. Fix: set DAGSTER_HOME to the instance with the asset."
        )
    now = datetime.now(timezone.utc)
    keys = [replay_key(r, now) for r in ranges]
    with instance:
        found = crash_lag_asset(instance, group_id, asset, outcome="Nothing was added.")
        instance.add_dynamic_partitions(found.to_python_identifier(), keys)
    return found, keys


def _to_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
