"""How does one decorated function become a live asset, a crash lag asset, their jobs and their sensor?"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import dagster as dg

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import shown
from kafka_liveness_dagster.declare.definitions import KafkaAsset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kafka_liveness_dagster.sensor.hooks import Hook
    from kafka_liveness_dagster.spark.sink import Sink

_Decorator = TypeVar("_Decorator", bound="Callable[..., Any]")
DEFAULT_MAX_POLL_RECORDS = 100_000  # above KIP-62's 500: Spark reads them, no record passes through Python


def _with_brackets(decorator: _Decorator) -> _Decorator:
    """A decorator that says what is missing when it is used as one that takes no settings."""

    @functools.wraps(decorator)
    def checked(*args: Any, **settings: Any) -> Any:
        if args:
            given = getattr(args[0], "__name__", shown(args[0]))
            raise InvalidSettingError(
                f"{decorator.__name__} needs brackets with settings before it decorates {given}: "
                f'@{decorator.__name__}(topics=["orders"], group_id="orders-etl", table="lake.shop.orders")'
            )
        return decorator(**settings)

    return checked  # type: ignore[return-value]


@_with_brackets
def kafka_asset(
    *,
    topics: Sequence[str],
    group_id: str,
    table: str | None = None,
    sink: Sink | None = None,
    name: str | None = None,
    max_poll_records: int | Literal["auto"] = DEFAULT_MAX_POLL_RECORDS,
    batching: Literal["fair", "greedy"] = "fair",
    batches_in_flight: int | None = None,
    max_batch_seconds: float | None = None,
    enable_parallel_rebalance: bool = False,
    min_crash_lag: int = 1,
    max_owed_ranges: int | None = None,
    on_data_loss: Literal["raise", "skip"] = "raise",
    on_missing_rows: Literal["raise", "owe"] = "raise",
    auto_offset_reset: Literal["earliest", "latest", "error"] = "earliest",
    liveness: Literal["poll", "progress"] = "poll",
    on_poison: Literal["raise", "quarantine"] = "raise",
    group_instance_id: str | None = None,
    max_lag: int | None = None,
    max_crash_lag_age_seconds: float | None = None,
    idle_seconds: float = 10.0,
    max_live_runs: int = 1,
    auto_catch_up: bool = False,
    ghost_after_seconds: float = 120.0,
    fail_ghost_runs: bool = False,
    on_event: Hook | None = None,
    event_jobs: Sequence[Any] = (),
    backfill_policy: dg.BackfillPolicy | None = None,
    sensor_interval_seconds: int = 5,
    sensor_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    group_name: str | None = None,
    kafka_resource_key: str = "kafka",
    spark_resource_key: str = "spark",
) -> Callable[[Callable[..., Any]], KafkaAsset]:
    """Turn a function from batch DataFrame to row DataFrame into assets, jobs and a sensor.

    The function gets a Spark DataFrame of exactly one batch (key, value, topic, partition, offset, timestamp,
    timestampType) and returns rows with ``topic``, ``partition`` and ``offset`` and whatever else the table has;
    none, one or many rows an offset. The same function serves both lanes.

    Args:
        topics: Kafka topics to subscribe to.
        group_id: the consumer group of the live lane; ``<group_id>.catch-up`` is its second commit log.
        table: Iceberg table ``catalog.namespace.table``; created from the first batch when it is missing.
        sink: instead of ``table``, a callable of your own that writes each batch: see :class:`Sink`.
        name: of the live asset, the function's unless given; the other definitions are named after it.
        max_poll_records: at most this many offsets in a batch (KIP-41). With ``auto`` it is as large as is expected
            to take half of its budget, by what the batches before it took; at most 5,000,000.
        batching: ``fair`` shares a live batch equally over the partitions, so that none waits for another; ``greedy``
            fills it from one after the other: fewer, longer ranges (KIP-41 has both).
        batches_in_flight: how many batches are written at a time, 1 or 2: with 2, while Spark writes one, the next is
            planned and begun, if there is enough data to fill it. Offsets are committed in order all the same. 2 for a
            table unless set; a ``sink`` of your own is called with one at a time.
        max_batch_seconds: the budget of a batch, kept as asset metadata so that backfills have it too. An op tag
            ``kafka_liveness/max_batch_seconds`` on the run's op comes first.
        enable_parallel_rebalance: after a crash the live lane goes on at the log end and the skipped range becomes
            a partition of the crash lag asset (KIP-333). Off by default: order across lanes is not kept.
        min_crash_lag: with fewer offsets behind, resume in order instead.
        max_owed_ranges: with more ranges owed on a topic's partition, resume in order instead.
        on_data_loss: offsets that expired before they were processed end the run (``raise``), or are passed and
            reported as lost (``skip``).
        on_missing_rows: when the table has lost rows of committed offsets (it was dropped, replaced or rolled back) the
            run ends with their names (``raise``); or what the broker still has of them becomes crash lag partitions and
            the rest is reported as lost (``owe``): roll a table back and backfill to repair what a transform did.
        auto_offset_reset: where to begin while nothing is committed.
        liveness: ``poll`` as in KIP-62: a rebalance waits for the open batch. ``progress``: rebalances are answered
            while Spark works, and the process timeout begins anew with every finished Spark task.
        on_poison: a batch that exceeds its budget comes again at half its size. An offset that exceeds it alone ends
            the run with its name (``raise``), or is owed like crash lag while the others go on (``quarantine``).
        group_instance_id: makes the live run a static member (KIP-345): a restart within the session timeout moves no
            partitions. For one live run at a time.
        max_lag: with more offsets to read than this the asset check ``lag`` warns; without it the check only reports.
        max_crash_lag_age_seconds: with a range owed for longer the asset check ``crash_lag_age`` warns; without it the
            check only reports.
        idle_seconds: a live run that sees no new data for so long ends; the sensor starts the next one.
        max_live_runs: how many live runs may share the topic's partitions; more than partitions are never started.
        auto_catch_up: the sensor starts a run for each crash lag partition by itself, one at a time, oldest first.
        ghost_after_seconds: a live run that is at work but no member of its group for so long is reported.
        fail_ghost_runs: such a run is reported to Dagster as failed, too, and another one takes its place.
        on_event: told each event of the group (``MemberLeft``, ``CrashLagFound``, …) when the sensor first sees it; the
            RunRequests it returns are started.
        event_jobs: jobs that ``on_event`` may request; with a single one, requests need not name it.
        backfill_policy: into how many runs Dagster cuts a backfill of crash lag: ``multi_run(n)`` for ``n`` partitions
            a run; one run for each stretch of neighbouring partitions unless set.
        sensor_interval_seconds: how often the sensor looks at the group.
        sensor_status: ``RUNNING`` starts the sensor with the code location; else switch it on in the UI.
        group_name: Dagster's asset group.
        kafka_resource_key: of the :class:`KafkaLivenessResource`.
        spark_resource_key: of the :class:`SparkConnectResource`.

    Raises:
        InvalidSettingError: settings that no run could work with, all of them, by name.
    """
    settings = dict(locals())

    def decorate(transform: Callable[..., Any]) -> KafkaAsset:
        return KafkaAsset(
            **{**settings, "name": getattr(transform, "__name__", None) if name is None else name}, transform=transform
        )

    return decorate
