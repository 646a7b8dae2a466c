"""How does one ``defs.yaml`` become what ``@kafka_asset`` makes of a function? Reads the settings; decides nothing.

Defaults and descriptions are those of :func:`kafka_asset`.
"""

# No `from __future__ import annotations` here: pydantic reads the annotations of the fields when it makes the class.

import re
from collections.abc import Callable, Sequence
from functools import cache
from inspect import Parameter, signature
from itertools import takewhile
from typing import Annotated, Any, Literal, cast

import dagster as dg
import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo
from typing_extensions import Self

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.declare.asset import kafka_asset
from kafka_liveness_dagster.declare.scaffold import KafkaAssetScaffolder, name_of
from kafka_liveness_dagster.declare.yaml_values import anything_like, function, resource_of, section_of, setting_of
from kafka_liveness_dagster.resources.kafka import KafkaLivenessResource
from kafka_liveness_dagster.resources.spark import SparkConnectResource
from kafka_liveness_dagster.settings.declarations import KafkaAssetSettings
from kafka_liveness_dagster.settings.declared import named, refusal
from kafka_liveness_dagster.settings.kinds import AssetName, several
from kafka_liveness_dagster.spark.query import query

_CODE = ("name", "on_event", "event_jobs", "backfill_policy")  # told otherwise, or only in Python
_SETTINGS = signature(kafka_asset).parameters
_KINDS = {
    **{name: KafkaAssetSettings.model_fields[name] for name in _SETTINGS if name not in ("sink", *_CODE)},
    "name": FieldInfo.from_annotation(AssetName | None),  # type: ignore[arg-type]  # the folder's, unless given
}
_READ = setting_of(KafkaAssetSettings)  # as it is written: Dagster would make a number of the group "5"
_TOLD = {one.arg_name: one.description or "" for one in docstring_parser.parse(kafka_asset.__doc__ or "").params}
_BATCH = re.compile(r"\bbatch\b", re.IGNORECASE)
_TRANSFORMS = "give either sql (a SELECT over `batch`) or transform (`package.module:function`)"


def _setting(name: str) -> Any:
    """A field with the default and the description that ``kafka_asset`` gives this setting."""
    default = _SETTINGS[name].default
    told = _TOLD.get(name, "").replace(":class:", "").replace("``", "`")
    return Field(default=... if default is Parameter.empty else default, description=told)


@dg.scaffold_with(KafkaAssetScaffolder)
class KafkaAssetComponent(dg.Component, dg.Model, dg.Resolvable):
    """A Kafka topic on its way into an Iceberg table: live asset, crash lag asset, their jobs and a sensor.

    Each batch of the topic goes through `sql` or `transform` into the table. Every setting of `kafka_asset` is an
    attribute. `kafka` and `spark` declare the two resources where the project has not.
    """

    topics: Annotated[str | Sequence[str], _READ] = _setting("topics")
    group_id: Annotated[str, _READ] = _setting("group_id")
    table: Annotated[str | None, _READ] = _setting("table")
    sink: Annotated[Callable[..., Any], dg.Resolver(function, model_field_type=str)] | None = _setting("sink")
    sql: str | None = Field(
        default=None,
        description="The transform as a SELECT over `batch`, whose columns are key, value, topic, partition, offset, "
        "timestamp and timestampType. It keeps topic, partition and offset; none, one or many rows an offset.",
        examples=["SELECT topic, partition, offset, CAST(value AS string) AS order_json FROM batch"],
    )
    transform: Annotated[Callable[..., Any], dg.Resolver(function, model_field_type=str)] | None = Field(
        default=None,
        description="The transform as a Python function from batch DataFrame to row DataFrame: "
        "`package.module:function`, or `.module:function` beside this file.",
        examples=[".transform:rows"],
    )
    name: Annotated[str | None, _READ] = Field(
        default=None, description="Of the live asset, its folder's unless given; the others are named after it."
    )
    max_poll_records: Annotated[int | Literal["auto"], _READ] = _setting("max_poll_records")
    batching: Annotated[Literal["fair", "greedy"], _READ] = _setting("batching")
    batches_in_flight: Annotated[int | None, _READ] = _setting("batches_in_flight")
    max_batch_seconds: Annotated[float | None, _READ] = _setting("max_batch_seconds")
    enable_parallel_rebalance: Annotated[bool, _READ] = _setting("enable_parallel_rebalance")
    min_crash_lag: Annotated[int, _READ] = _setting("min_crash_lag")
    max_owed_ranges: Annotated[int | None, _READ] = _setting("max_owed_ranges")
    on_data_loss: Annotated[Literal["raise", "skip"], _READ] = _setting("on_data_loss")
    on_missing_rows: Annotated[Literal["raise", "owe"], _READ] = _setting("on_missing_rows")
    auto_offset_reset: Annotated[Literal["earliest", "latest", "error"], _READ] = _setting("auto_offset_reset")
    liveness: Annotated[Literal["poll", "progress"], _READ] = _setting("liveness")
    on_poison: Annotated[Literal["raise", "quarantine"], _READ] = _setting("on_poison")
    group_instance_id: Annotated[str | None, _READ] = _setting("group_instance_id")
    max_lag: Annotated[int | None, _READ] = _setting("max_lag")
    max_crash_lag_age_seconds: Annotated[float | None, _READ] = _setting("max_crash_lag_age_seconds")
    idle_seconds: Annotated[float, _READ] = _setting("idle_seconds")
    max_live_runs: Annotated[int, _READ] = _setting("max_live_runs")
    auto_catch_up: Annotated[bool, _READ] = _setting("auto_catch_up")
    ghost_after_seconds: Annotated[float, _READ] = _setting("ghost_after_seconds")
    fail_ghost_runs: Annotated[bool, _READ] = _setting("fail_ghost_runs")
    sensor_interval_seconds: Annotated[int, _READ] = _setting("sensor_interval_seconds")
    sensor_status: Annotated[dg.DefaultSensorStatus, _READ] = _setting("sensor_status")
    group_name: Annotated[str | None, _READ] = _setting("group_name")
    kafka_resource_key: Annotated[str, _READ] = _setting("kafka_resource_key")
    spark_resource_key: Annotated[str, _READ] = _setting("spark_resource_key")
    kafka: Annotated[
        KafkaLivenessResource | None,
        dg.Resolver(
            resource_of(KafkaLivenessResource),
            model_field_type=section_of(KafkaLivenessResource) | None,
            inject_before_resolve=False,
        ),
    ] = Field(
        default=None,
        repr=False,
        description="Declares the project's Kafka resource; left out, it is declared elsewhere.",
    )
    spark: Annotated[
        SparkConnectResource | None,
        dg.Resolver(
            resource_of(SparkConnectResource),
            model_field_type=section_of(SparkConnectResource) | None,
            inject_before_resolve=False,
        ),
    ] = Field(
        default=None,
        repr=False,
        description="Declares the project's Spark resource; left out, it is declared elsewhere.",
    )

    def __init__(self, **told: Any) -> None:
        name = told.get("name")
        whose = named("asset", name) if name is not None else named("the component of group", told.get("group_id"))
        known = _KINDS.keys() - ({"name"} if name is None else ())
        KafkaAssetSettings.check_some({one: told[one] for one in told if one in known}, whose)
        try:
            super().__init__(**told)
        except ValidationError as error:
            raise refusal(error, type(self).model_fields, whose) from None

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """What the YAML may hold; ``dg check yaml`` tells file and line of what it may not."""
        return _yaml_of(cls.model())

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """For ``dg list components`` and Dagster's docs."""
        return dg.ComponentTypeSpec(tags=["kafka", "spark", "iceberg"])

    @model_validator(mode="after")
    def _one_transform(self) -> Self:
        _check_transform(self.sql, self.transform)
        return self

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions of the asset, and of the resources declared here.

        What several components of a project declare alike, a topic or a resource, the first of them declares.

        Raises:
            InvalidSettingError: a setting no run could work with, or a resource two components declare differently.
        """
        settings = {key: getattr(self, key) for key in _SETTINGS if key not in _CODE}
        folder = context.path.parent if context.path.is_file() else context.path
        asset = kafka_asset(name=self.name or name_of(folder), **settings)(self.transform or _Select(self.sql or ""))
        before = list(takewhile(lambda one: one is not self, _components(context)))
        parts = asset.definitions_beside({topic for one in before for topic in several(one.topics)})
        return dg.Definitions.merge(parts, dg.Definitions(resources=self._new_resources(before)))

    def _new_resources(self, before: "Sequence[KafkaAssetComponent]") -> dict[str, Any]:
        declared = {key: (one, resource) for one in reversed(before) for key, resource in one.resources.items()}
        for key, resource in self.resources.items():
            if key in declared and declared[key][1] != resource:
                raise InvalidSettingError(
                    f"the components of groups {declared[key][0].group_id!r} and {self.group_id!r} declare different "
                    f"resources under one key, {key!r}: declare it in one of them, or name another in "
                    "kafka_resource_key or spark_resource_key"
                )
        return {key: resource for key, resource in self.resources.items() if key not in declared}

    @property
    def resources(self) -> dict[str, Any]:
        """What ``kafka`` and ``spark`` declare, under the keys by which runs ask for it."""
        declared = {self.kafka_resource_key: self.kafka, self.spark_resource_key: self.spark}
        return {key: resource for key, resource in declared.items() if resource is not None}


def _components(context: dg.ComponentLoadContext) -> list[KafkaAssetComponent]:
    """The Kafka assets of the project, those declared in Python aside."""
    return context.component_tree.get_all_components(KafkaAssetComponent)


class _Select:
    """Rows by a SELECT over each batch: see *sql* in the metadata."""

    def __init__(self, sql: str) -> None:
        self.sql = sql.strip()

    def __call__(self, batch: Any) -> Any:
        return query(batch, self.sql)


def _check_transform(sql: str | None, transform: object) -> None:
    if sql is not None and transform is not None:
        raise InvalidSettingError(f"{_TRANSFORMS}, found both")
    if sql is None and transform is None:
        raise InvalidSettingError(f"{_TRANSFORMS}, found neither")
    if sql is not None and not _BATCH.search(sql):
        raise InvalidSettingError(f"sql reads nothing of the batch: write FROM batch in {sql.strip()!r}")


@cache
def _yaml_of(model: type[BaseModel]) -> type[BaseModel]:
    """The model of the YAML, refusing what has no transform or two; ``KafkaAssetSettings`` checks the settings."""
    # in JSON Schema, for `dg check yaml` and editors: without transform an sql, and beside sql no transform
    one_transform = [
        {"if": {"required": ["transform"]}, "else": {"required": ["sql"]}},
        {"if": {"required": ["sql"]}, "then": {"properties": {"transform": {"type": "null"}}}},
    ]
    extra = {**cast("dict[str, Any]", model.model_config["json_schema_extra"]), "allOf": one_transform}

    class WithOneTransform(model):  # type: ignore[misc, valid-type]
        model_config = ConfigDict(json_schema_extra=extra)

        @model_validator(mode="after")
        def _one_transform(self) -> Self:
            _check_transform(self.sql, self.transform)
            return self

    settings: dict[str, Any] = {name: (kind, model.model_fields[name]) for name, kind in anything_like(_KINDS).items()}
    return create_model("KafkaAssetComponentModel", __base__=WithOneTransform, **settings)
