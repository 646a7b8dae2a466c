"""How does one decorated function become a live asset, a crash lag asset, their jobs and their sensor?"""

from __future__ import annotations

import functools
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from kafka_liveness_dagster.assets.definitions import KafkaAsset
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import display
from kafka_liveness_dagster.settings.asset import KafkaAssetSettings
from kafka_liveness_dagster.settings.asset_arguments import AssetArguments
from kafka_liveness_dagster.settings.groups import (
    Batching,
    Completeness,
    CrashLag,
    Iceberg,
    Maintenance,
    Membership,
    Offsets,
    ResourceKeys,
    Sensor,
    Sla,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Unpack

    from kafka_liveness_dagster.spark.sink import Sink

_Decorator = TypeVar("_Decorator", bound="Callable[..., Any]")
_DAGSTER_ARGUMENTS = "of_dagster"
DEFAULT_MAX_POLL_RECORDS = 100_000  # above KIP-62's 500: Spark reads them, no record passes through Python


def _require_call(decorator: _Decorator) -> _Decorator:
    """Require that the decorator is called with settings, and refuse unknown ones by name.

    Used without brackets, as a decorator that takes no settings, it says what is missing.
    """
    known = {*signature(decorator).parameters, *AssetArguments.__annotations__} - {_DAGSTER_ARGUMENTS}

    @functools.wraps(decorator)
    def checked(*args: Any, **settings: Any) -> Any:
        if args:
            given = getattr(args[0], "__name__", display(args[0]))
            raise InvalidSettingError(
                f"{decorator.__name__} needs brackets with settings before it decorates {given}: "
                f'@{decorator.__name__}(topics=["orders"], group_id="orders-etl", table="lake.shop.orders")'
            )

        def decorate(transform: Callable[..., Any]) -> Any:
            name = settings.get("name") or getattr(transform, "__name__", None)
            KafkaAssetSettings.reject_unknown(settings, known, KafkaAssetSettings.title_of({"name": name}))
            return decorator(**settings)(transform)

        return decorate

    return checked  # type: ignore[return-value]


@_require_call
def kafka_asset(
    *,
    topics: Sequence[str],
    group_id: str,
    table: str | None = None,
    sink: Sink | None = None,
    name: str | None = None,
    max_poll_records: int | Literal["auto"] = DEFAULT_MAX_POLL_RECORDS,
    max_batch_seconds: float | None = None,
    enable_parallel_rebalance: bool = False,
    idle_seconds: float = 10.0,
    materialize_interval_seconds: float = 60.0,
    include_headers: bool = False,
    complete_every: Literal["15min", "1h", "1d"] | None = None,
    completeness: Completeness = Completeness(),
    batching: Batching = Batching(),
    crash_lag: CrashLag = CrashLag(),
    offsets: Offsets = Offsets(),
    membership: Membership = Membership(),
    sensor: Sensor = Sensor(),
    sla: Sla = Sla(),
    iceberg: Iceberg = Iceberg(),
    maintenance: Maintenance = Maintenance(),
    resources: ResourceKeys = ResourceKeys(),
    group_name: str | None = None,
    **of_dagster: Unpack[AssetArguments],
) -> Callable[[Callable[..., Any]], KafkaAsset]:
    """Turn a function from batch DataFrame to row DataFrame into assets, jobs and a sensor.

    The function gets a Spark DataFrame of exactly one batch (key, value, topic, partition, offset, timestamp,
    timestampType) and returns rows with ``topic``, ``partition`` and ``offset`` and whatever else the table
    has; none, one or many rows an offset. The same function serves both lanes. As an asset's it may ask for
    more, by name: ``context`` before the batch, and behind it resources (by their annotation) and what other
    assets have.

    Args:
        topics: Kafka topics to subscribe to.
        group_id: the consumer group of the live lane; ``<group_id>.catch-up`` is its catch-up commit log.
        table: Iceberg table ``catalog.namespace.table``; created from the first batch when it is missing.
        sink: instead of ``table``, a callable of your own that writes each batch: see :class:`Sink`.
        name: of the live asset, the function's unless given; the other definitions are named after it.
        max_poll_records: at most this many offsets in a batch (KIP-41). With ``auto`` it is as large as is
            expected to take half of its budget, by what the batches before it took; at most 5,000,000.
        max_batch_seconds: the budget of a batch, kept as asset metadata so that backfills have it too. An op
            tag ``kafka_liveness/max_batch_seconds`` on the run's op comes first.
        enable_parallel_rebalance: after a crash the live lane goes on at the log end and the skipped range
            becomes a partition of the crash lag asset (KIP-333). Off by default: order across lanes is not
            kept.
        idle_seconds: a live run that sees no new data for so long ends; the sensor starts the next one.
        materialize_interval_seconds: how often a live run with new data materializes the asset. It does so
            after its first batch and at its end, too. Each materialization reports what is new since the one
            before.
        include_headers: the batch has a column more, ``headers``: for each record an array of ``key`` (a
            string) and ``value`` (binary), empty where it has none. Spark's ``includeHeaders``.
        complete_every: ``15min``, ``1h`` or ``1d``: gives one asset more, ``<name>_by_hour``, of which the
            sensor materializes a partition when every record of the hour is in the table.
        completeness: which hour is the first one, in which time zone, and how late its records may come.
        batching: how batches are cut and written: fair (from 50,000 offsets on, so by default, over four
            batches) or greedy, one or two at a time, what happens to slow and bad records.
        crash_lag: what is pending after a crash: from how many offsets on, who catches it up, when the check
            warns.
        offsets: what to do where offsets, or the rows of committed ones, are missing.
        membership: how a live run is a member of its group: when it counts as alive, and under which name.
        sensor: how often the sensor ticks, which runs it starts, and when its checks warn.
        sla: how fresh and how complete the table has to be; the check ``freshness_sla`` watches it.
        iceberg: whether streams can read the table, and how it is partitioned and sorted when it is created.
        maintenance: when the table's files are compacted and its old snapshots expired.
        resources: under which keys the code location has the Kafka and the Spark resource.
        group_name: Dagster's asset group.
        of_dagster: what ``dg.asset`` takes too, for both assets: :class:`AssetArguments`.

    Raises:
        InvalidSettingError: settings that no run could work with, all of them, by name.
    """

    def decorate(transform: Callable[..., Any]) -> KafkaAsset:
        return KafkaAsset(
            KafkaAssetSettings(
                transform=transform,
                name=getattr(transform, "__name__", None) if name is None else name,  # type: ignore[arg-type]  # checked
                topics=topics,  # type: ignore[arg-type]  # any collection becomes a tuple
                group_id=group_id,
                table=table,
                sink=sink,
                max_poll_records=max_poll_records,
                max_batch_seconds=max_batch_seconds,
                enable_parallel_rebalance=enable_parallel_rebalance,
                idle_seconds=idle_seconds,
                materialize_interval_seconds=materialize_interval_seconds,
                include_headers=include_headers,
                complete_every=complete_every,
                completeness=completeness,
                batching=batching,
                crash_lag=crash_lag,
                offsets=offsets,
                membership=membership,
                sensor=sensor,
                sla=sla,
                iceberg=iceberg,
                maintenance=maintenance,
                resources=resources,
                group_name=group_name,
                arguments={name: value for name, value in of_dagster.items() if value is not None},
            )
        )

    return decorate
