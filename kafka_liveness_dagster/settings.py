"""What was declared of a Kafka asset, and can a run work with it? Checks; builds nothing.

The words are explained where they are given: :func:`kafka_asset`.
"""

# No `from __future__ import annotations` here: what inherits from this is read by Dagster.

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin

import dagster as dg

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.group_ids import check_group_id
from kafka_liveness_dagster.core.pace import AUTO_CEILING
from kafka_liveness_dagster.hooks import Hook
from kafka_liveness_dagster.spark.sink import Sink, name_of

MOST_IN_FLIGHT = 2
_TABLE = re.compile(r"[^.\s]+(\.[^.\s]+){2,}")


@dataclass(frozen=True, kw_only=True)
class KafkaAssetSettings:
    """The settings of one ``@kafka_asset``.

    Raises:
        InvalidSettingError: a setting that no run could work with.
    """

    transform: Callable[..., Any]
    name: str
    topics: tuple[str, ...]
    group_id: str
    table: str | None
    sink: Sink | None
    max_poll_records: int | Literal["auto"]
    batching: Literal["fair", "greedy"]
    batches_in_flight: int | None
    max_batch_seconds: float | None
    enable_parallel_rebalance: bool
    min_crash_lag: int
    max_owed_ranges: int | None
    on_data_loss: Literal["raise", "skip"]
    on_missing_rows: Literal["raise", "owe"]
    auto_offset_reset: Literal["earliest", "latest", "error"]
    liveness: Literal["poll", "progress"]
    on_poison: Literal["raise", "quarantine"]
    group_instance_id: str | None
    max_lag: int | None
    max_crash_lag_age_seconds: float | None
    idle_seconds: float
    max_live_runs: int
    auto_catch_up: bool
    ghost_after_seconds: float
    fail_ghost_runs: bool
    on_event: Hook | None
    event_jobs: tuple[Any, ...]
    backfill_policy: dg.BackfillPolicy | None
    sensor_interval_seconds: int
    sensor_status: dg.DefaultSensorStatus
    group_name: str | None
    kafka_resource_key: str
    spark_resource_key: str

    def __post_init__(self) -> None:
        check_group_id(self.group_id)
        if not self.topics:
            raise InvalidSettingError(f"asset {self.name} consumes no topic: name at least one in topics=[…]")
        self._check_target()
        self._check_words()
        if self.max_batch_seconds is not None and self.max_batch_seconds <= 0:
            raise InvalidSettingError(
                f"max_batch_seconds of asset {self.name} is {self.max_batch_seconds:g}: a batch needs more than 0 s"
            )
        for name, value in (
            ("max_poll_records", self.most_records),
            ("max_live_runs", self.max_live_runs),
            ("batches_in_flight", self.most_in_flight),
            ("min_crash_lag", self.min_crash_lag),
        ):
            if value < 1:
                raise InvalidSettingError(f"{name} of asset {self.name} is {value}: wanted at least 1")
        if self.most_in_flight > MOST_IN_FLIGHT:
            raise InvalidSettingError(
                f"batches_in_flight of asset {self.name} is {self.batches_in_flight}: wanted 1 or {MOST_IN_FLIGHT}; "
                "more would keep Spark no busier, and a crash would repeat them all"
            )
        if self.most_in_flight > 1 and self.sink is not None:
            raise InvalidSettingError(
                f"asset {self.name} has a sink of its own, which is called with one batch at a time: leave "
                f"batches_in_flight={self.batches_in_flight} out"
            )
        if self.group_instance_id is not None and self.max_live_runs > 1:
            raise InvalidSettingError(
                f"asset {self.name} has one group_instance_id for {self.max_live_runs} live runs: each would put the "
                "other out of the group. Leave group_instance_id out, or set max_live_runs=1"
            )

    @property
    def target(self) -> str:
        """Where the rows go: the table's name, or the sink's."""
        return self.table or name_of(self.sink)

    @property
    def crash_lag_key(self) -> dg.AssetKey:
        """Of the asset whose partitions are the owed ranges."""
        return dg.AssetKey(f"{self.name}_crash_lag")

    @property
    def most_records(self) -> int:
        """How many offsets no batch exceeds."""
        return AUTO_CEILING if self.max_poll_records == "auto" else self.max_poll_records

    @property
    def most_in_flight(self) -> int:
        """How many batches are written at a time: a user's sink is called in the run's thread, so with one."""
        if self.batches_in_flight is None:
            return MOST_IN_FLIGHT if self.sink is None else 1
        return self.batches_in_flight

    def _check_words(self) -> None:
        """A misspelt policy must not quietly be another one."""
        for field in fields(self):
            value, words = getattr(self, field.name), get_args(field.type)
            if get_origin(field.type) is Literal and value not in words:
                raise InvalidSettingError(
                    f"{field.name} of asset {self.name} is {value!r}: wanted {' or '.join(words)}"
                )
        if isinstance(self.max_poll_records, str) and self.max_poll_records != "auto":
            raise InvalidSettingError(
                f"max_poll_records of asset {self.name} is {self.max_poll_records!r}: wanted a number, or 'auto'"
            )

    def _check_target(self) -> None:
        if (self.table is None) == (self.sink is None):
            raise InvalidSettingError(
                f"asset {self.name} has {'neither' if self.sink is None else 'both'} of table and sink: give one, "
                "table='catalog.namespace.table' for Iceberg or sink=… for a sink of your own"
            )
        if self.table is not None and not _TABLE.fullmatch(self.table):
            raise InvalidSettingError(f"table {self.table!r} must be catalog.namespace.table, like lake.shop.orders")
        if self.sink is not None and not callable(self.sink):
            raise InvalidSettingError(f"sink {self.sink!r} must be callable: docs/sinks.md has examples")
