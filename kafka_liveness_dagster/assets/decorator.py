"""Turn one decorated function into a live asset, a crash lag asset, their jobs and their sensor.

Never reads Kafka, Spark or the table: runs and the sensor do.
"""

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
DEFAULT_MAX_POLL_RECORDS = 100_000  # above KIP-62's 500, because Spark reads the records, not Python


def _require_call(decorator: _Decorator) -> _Decorator:
    """Return a decorator that must be called with settings, and refuses unknown ones by name.

    Without parentheses Python would pass the decorated function as the only argument.
    """
    known = {*signature(decorator).parameters, *AssetArguments.__annotations__} - {_DAGSTER_ARGUMENTS}

    @functools.wraps(decorator)
    def checked(*args: Any, **settings: Any) -> Any:
        if args:
            given = getattr(args[0], "__name__", display(args[0]))
            raise InvalidSettingError(
                f"{decorator.__name__} needs settings in parentheses before it decorates {given}. Fix: "
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

    The function gets a Spark DataFrame of exactly one batch: key, value, topic, partition, offset, timestamp,
    timestampType. It returns rows with ``topic``, ``partition``, ``offset`` and the table's other columns. An
    offset may give none, one or many rows. Both lanes call the same function. It may have further parameters,
    like the function of an asset. A parameter ``context`` comes before the batch. Resources (by their
    annotation) and values of other assets come after it.

    Args:
        topics: Kafka topics to subscribe to.
        group_id: consumer group of the live lane; ``<group_id>.catch-up`` is its catch-up commit log.
        table: Iceberg table ``catalog.namespace.table``; the first batch creates it if it is missing.
        sink: custom callable that writes each batch, instead of ``table``: see :class:`Sink`.
        name: name of the live asset; by default the function's. The other definitions are named after it.
        max_poll_records: largest number of offsets in a batch (KIP-41). With ``auto`` each batch is sized to
            take half of its run budget, by the times of earlier batches, up to 5,000,000 offsets.
        max_batch_seconds: run budget of a batch. It is stored as asset metadata, so that backfills have it
            too. An op tag ``kafka_liveness/max_batch_seconds`` on the run's op overrides it.
        enable_parallel_rebalance: whether the live lane skips ahead to the log end after a crash. The range
            in between becomes a partition of the crash lag asset (KIP-333). Off by default, because records
            are then not processed in order across lanes.
        idle_seconds: time without new data after which a live run ends; the sensor starts the next one.
        materialize_interval_seconds: interval at which a live run with new data materializes the asset. The
            run also does so after its first batch and at its end. Each materialization reports the changes
            since the one before.
        include_headers: whether the batch has a column ``headers``, by Spark's ``includeHeaders``. It is an
            array of ``key`` (a string) and ``value`` (binary) for each record, null for one without headers.
        complete_every: ``15min``, ``1h`` or ``1d``; adds an asset ``<name>_by_hour``. The sensor materializes
            one of its partitions when every record of the hour is in the table.
        completeness: first hour, time zone, and the time that records may be late.
        batching: size, order and writes of batches. They are ``fair`` (from 50,000 offsets on, so by default,
            over four batches) or ``greedy``, and written one or two at a time. Also the reaction to slow and
            bad records.
        crash_lag: smallest number of pending offsets after a crash, start of their processing, and limit of
            the check.
        offsets: reactions to missing offsets, and to missing rows of committed offsets.
        membership: membership of a live run in its group: its liveness, and its id.
        sensor: interval of the sensor, the runs that it starts, and the limits of its checks.
        sla: limits of the freshness and the completeness of the table, for the check ``freshness_sla``.
        iceberg: whether streams can read the table; its partitions and sort order when it is created.
        maintenance: times and limits for compacting the table's files and expiring its old snapshots.
        resources: keys of the Kafka and the Spark resource in the code location.
        group_name: Dagster's asset group.
        of_dagster: arguments that ``dg.asset`` accepts too, for both assets: :class:`AssetArguments`.

    Raises:
        InvalidSettingError: no run can work with these settings; it has all invalid ones by name.
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
