"""Declare and check the settings of a Kafka asset and of the resources. Builds nothing.

Each setting is one line here, with its type. Its meaning is documented where users set it:
:func:`kafka_asset` and its ``groups``, :class:`KafkaLivenessResource`, :class:`SparkConnectResource`.
"""

# No `from __future__ import annotations` here: pydantic reads the annotations.

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

import dagster as dg
from pydantic import Field

from kafka_liveness_dagster.core.batch_size import AUTO_MAX_OFFSETS
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import sink_name
from kafka_liveness_dagster.core.table_layout import TableLayout
from kafka_liveness_dagster.core.table_properties import (
    describe_refused,
    format_set_properties,
    refused_new_table_properties,
)
from kafka_liveness_dagster.kafka.security import (
    HOST_NAME_CHECKS,
    MECHANISMS,
    PROTOCOLS,
    SETTING_DEFAULTS,
    contradictions,
)
from kafka_liveness_dagster.kafka.settings import refused_settings
from kafka_liveness_dagster.settings import types
from kafka_liveness_dagster.settings.asset_arguments import key_prefix_of, refused_arguments
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
from kafka_liveness_dagster.settings.transform import TransformSignature, signature_of
from kafka_liveness_dagster.settings.validation import ValidatedSettings
from kafka_liveness_dagster.settings.windows import Every, Windows

DEFAULT_IN_FLIGHT = 2


class KafkaAssetSettings(ValidatedSettings):
    """The settings of one ``@kafka_asset``.

    Raises:
        InvalidSettingError: settings that no run could work with.
    """

    title: ClassVar[str] = "asset"
    name_field: ClassVar[str] = "name"

    transform: types.AnyCallable
    name: types.AssetName
    topics: types.OwedTopics
    group_id: types.GroupId
    table: types.Table | None
    sink: types.SinkCallable | None
    max_poll_records: types.Records
    max_batch_seconds: types.Budget | None
    enable_parallel_rebalance: types.Flag
    idle_seconds: types.Seconds
    materialize_interval_seconds: types.Seconds
    include_headers: types.Flag
    complete_every: Every | None
    completeness: Annotated[Completeness, types.INSTANCE]
    batching: Annotated[Batching, types.INSTANCE]
    crash_lag: Annotated[CrashLag, types.INSTANCE]
    offsets: Annotated[Offsets, types.INSTANCE]
    membership: Annotated[Membership, types.INSTANCE]
    sensor: Annotated[Sensor, types.INSTANCE]
    sla: Annotated[Sla, types.INSTANCE]
    iceberg: Annotated[Iceberg, types.INSTANCE]
    maintenance: Annotated[Maintenance, types.INSTANCE]
    resources: Annotated[ResourceKeys, types.INSTANCE]
    group_name: types.GroupName | None
    arguments: dict[str, Any]
    """Arguments that ``dg.asset`` accepts too: see :class:`AssetArguments`."""

    def contradictions(self) -> Iterator[str]:
        """Yield an error for each combination of valid settings that no run can work with."""
        if (self.table is None) == (self.sink is None):
            yield (
                f"Asset {self.name} has {'neither' if self.sink is None else 'both'} of table and sink. "
                "Fix: set one of them, table='catalog.namespace.table' for Iceberg, or sink=… for a custom "
                "sink"
            )
        if self.sink is not None:
            yield from self._sink_contradictions()
        yield from self._window_contradictions()
        if found := refused_new_table_properties(self.layout):
            yield (
                f"Asset {self.name} has table_properties of iceberg that batches cannot be written with: "
                f"{describe_refused(found)}. Fix: set "
                f"table_properties={{{format_set_properties(found).replace('=', ': ')}}}, or leave them out"
            )
        if self.membership.group_instance_id is not None and self.sensor.max_live_runs > 1:
            yield (
                f"Asset {self.name} has one group_instance_id for {self.sensor.max_live_runs} live runs: "
                "they would remove each other from the group. Fix: leave group_instance_id of membership "
                "out, or set max_live_runs of sensor to 1"
            )
        if self.resources.kafka == self.resources.spark:
            yield (
                f"resources.kafka and resources.spark of asset {self.name} are both "
                f"{self.resources.kafka!r}. Fix: give each of the two resources its own key"
            )
        if wrong := [*refused_arguments(self.arguments)]:
            yield from (
                f"{name} of asset {self.name} is {value}. Dagster refuses it: {why}"
                for name, value, why in wrong
            )
            return
        try:
            _ = self.transform_signature
        except InvalidSettingError as error:
            yield f"asset {self.name}: {error}"
        own = [
            f"{self.identifier}{ending}"
            for ending in ("_job", "_crash_lag_job", "_checks_job", "_maintenance_job")
        ]
        if twice := [job.name for job in self.sensor.event_jobs if job.name in own]:
            its = " and ".join(twice)
            yield (
                f"sensor.event_jobs of asset {self.name} has {its}, a name of the asset's own jobs. Fix: "
                "rename the job"
            )

    def _window_contradictions(self) -> Iterator[str]:
        if self.complete_every is None and (changed := self.completeness.non_defaults()):
            yield (
                f"Asset {self.name} has {', '.join(changed)} of completeness, but no complete_every. Fix: "
                "set complete_every='1h' too, or leave completeness out"
            )
        if self.complete_every is not None and self.completeness.start is None:
            yield (
                f"Asset {self.name} has complete_every={self.complete_every!r}, but no first window. Fix: "
                "set completeness=kl.Completeness(start='2026-11-01')"
            )

    def _sink_contradictions(self) -> Iterator[str]:
        """Yield an error for each setting that a custom sink does not support."""
        if self.max_in_flight > 1:
            yield (
                f"Asset {self.name} has a custom sink, which is called with one batch at a time. Fix: leave "
                f"in_flight={self.batching.in_flight} of batching out"
            )
        if self.batching.on_bad_record == "dead_letter":
            yield (
                f"Asset {self.name} has a custom sink, but dead letters need a table. Fix: leave "
                "on_bad_record='dead_letter' of batching out"
            )
        if self.complete_every is not None:
            yield (
                f"Asset {self.name} has a custom sink, but only a table can show that a window is complete. "
                f"Fix: leave complete_every={self.complete_every!r} out"
            )
        for group in ("iceberg", "maintenance"):
            if changed := getattr(self, group).non_defaults():
                known = ", ".join(changed)
                yield (
                    f"Asset {self.name} has a custom sink, but {known} of {group} are for a table. Fix: "
                    "leave them out"
                )

    @property
    def target(self) -> str:
        """The name of the table or of the sink."""
        return self.table or sink_name(self.sink)

    @property
    def key(self) -> dg.AssetKey:
        """The key of the live asset."""
        return dg.AssetKey([*key_prefix_of(self.arguments), self.name])

    @property
    def crash_lag_key(self) -> dg.AssetKey:
        """The key of the asset with the pending ranges as its partitions."""
        return dg.AssetKey([*key_prefix_of(self.arguments), f"{self.name}_crash_lag"])

    @property
    def partitioned_keys(self) -> list[dg.AssetKey]:
        """The keys of the assets that process the partitions of a run."""
        return [self.crash_lag_key, *([self.windows.key] if self.windows else [])]

    @property
    def identifier(self) -> str:
        """The live asset's key as one word; jobs, the sensor and the pool are named after it."""
        return self.key.to_python_identifier()

    @property
    def transform_signature(self) -> TransformSignature:
        """The parameters of the transform besides its batch."""
        return signature_of(self.transform, tuple(self.arguments.get("ins", ())))

    @property
    def windows(self) -> Windows | None:
        """The windows of time that the sensor marks as complete; None without ``complete_every``."""
        start = self.completeness.start
        told = self.completeness
        if self.complete_every is None or start is None:
            return None
        return Windows(
            of=self.key,
            every=self.complete_every,
            start=start,
            timezone=told.timezone,
            allowed_lateness_seconds=told.allowed_lateness_seconds,
            reopen_on_late=told.reopen_on_late,
            mark_empty=told.mark_empty,
        )

    @property
    def layout(self) -> TableLayout:
        """The layout of the table, and the kind of its commits."""
        return TableLayout(**dict(self.iceberg))

    @property
    def source_options(self) -> dict[str, str]:
        """The options of Spark's Kafka source."""
        return {"includeHeaders": "true"} if self.include_headers else {}

    @property
    def max_records(self) -> int:
        """The largest number of offsets of a batch."""
        return AUTO_MAX_OFFSETS if self.max_poll_records == "auto" else self.max_poll_records

    @property
    def max_in_flight(self) -> int:
        """The number of batches that are written at a time.

        It is 1 for a custom sink, because the run's own thread calls the sink.
        """
        if self.batching.in_flight is None:
            return DEFAULT_IN_FLIGHT if self.sink is None else 1
        return self.batching.in_flight


class KafkaResourceSettings(ValidatedSettings):
    """The fields of :class:`KafkaLivenessResource`. A text may be an environment variable."""

    title: ClassVar[str] = "KafkaLivenessResource"

    security_protocol: Annotated[str, types.one_of(PROTOCOLS)]
    sasl_mechanism: Annotated[str, types.one_of(MECHANISMS)] | None
    sasl_username: types.Text | None
    sasl_password: types.Text | None = Field(repr=False)
    ssl_ca_location: types.Text | None
    ssl_certificate_location: types.Text | None
    ssl_key_location: types.Text | None
    ssl_key_password: types.Text | None = Field(repr=False)
    ssl_endpoint_identification_algorithm: Annotated[str, types.one_of(HOST_NAME_CHECKS)]
    sasl_oauthbearer_client_id: types.Text | None
    sasl_oauthbearer_client_secret: types.Text | None = Field(repr=False)
    sasl_oauthbearer_token_endpoint_url: types.Text | None
    sasl_oauthbearer_scope: types.Text | None
    sasl_oauthbearer_extensions: types.Text | None
    https_ca_location: types.Text | None
    bootstrap_servers: types.Servers
    session_timeout_seconds: types.Budget | None
    heartbeat_interval_seconds: types.Budget | None
    group_protocol: Literal["classic", "consumer"]
    default_max_batch_seconds: types.Budget | None
    extra: types.Extra = Field(repr=False)

    def contradictions(self) -> Iterator[str]:
        """Yield an error for each contradiction. The value of a variable is known only in a run."""
        yield from refused_settings(self.extra)
        given = {name: getattr(self, name) for name in SETTING_DEFAULTS}
        variables = {name for name, value in given.items() if isinstance(value, dg.EnvVar)}
        if not variables & {"security_protocol", "sasl_mechanism", "ssl_endpoint_identification_algorithm"}:
            yield from contradictions(given, variables)


class SparkResourceSettings(ValidatedSettings):
    """The fields of :class:`SparkConnectResource`."""

    title: ClassVar[str] = "SparkConnectResource"

    remote: types.Remote = Field(repr=False)  # the address may contain the token
    ui_url: types.Url | None
    connect_timeout_seconds: types.Budget
