"""Build a Kafka asset from ``defs.yaml`` by a Dagster component, and scaffold the file. Decides nothing.

Defaults and descriptions are those of :func:`kafka_asset`.
"""

# No `from __future__ import annotations` here: pydantic reads the fields' annotations when it creates the
# class.

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import Parameter, signature
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo
from typing_extensions import Self

from kafka_liveness_dagster.assets.decorator import kafka_asset
from kafka_liveness_dagster.assets.yaml import (
    AssetAttributes,
    argument_descriptions,
    docstring_as_markdown,
    group_in_yaml,
    load_function,
    permissive_types,
    resource_in_yaml,
    setting_resolver,
)
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.resources.kafka import KafkaLivenessResource
from kafka_liveness_dagster.resources.spark import SparkConnectResource
from kafka_liveness_dagster.settings.asset import KafkaAssetSettings
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
from kafka_liveness_dagster.settings.types import AssetName, as_tuple
from kafka_liveness_dagster.settings.validation import settings_error, title_with_name
from kafka_liveness_dagster.settings.windows import Every
from kafka_liveness_dagster.spark.sql_transform import run_select

_YAML = """\
type: {type}

attributes:
  topics: [{topic}]
  group_id: {topic}-etl
  table: lake.shop.{name}  # Iceberg, catalog.namespace.table; lake is the embedded Spark's catalog; the first batch creates the table
  # The transform: a SELECT over the batch, or `transform: .module:function` from DataFrame to DataFrame.
  # Each row has topic, partition and offset. An offset may give none, one or many rows.
  sql: |
    SELECT topic, partition, offset, CAST(value AS string) AS text
    FROM batch
  max_poll_records: 100000  # largest number of offsets in a batch
  max_batch_seconds: 300  # a slower batch is canceled; it is retried at half its size, or becomes crash lag
  enable_parallel_rebalance: false  # true: after a crash skip to the log end; the pending ranges become partitions
  sensor:
    default_status: STOPPED  # RUNNING: the sensor starts with the code location

  # Resources of the whole project. Omit each one that another component or a resources.py declares.
  kafka:
    bootstrap_servers: embedded  # a real broker on loopback; or "{{{{ env.KAFKA_BOOTSTRAP_SERVERS }}}}"
  spark:
    remote: embedded  # a real Spark Connect server on loopback; or "{{{{ env.SPARK_REMOTE }}}}"
"""  # noqa: E501 - lines of the generated file


class KafkaAssetScaffolder(dg.Scaffolder[Any]):
    """A scaffold with topic, group and table named after the folder."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write ``defs.yaml``, or add a document to an existing one."""
        if request.scaffold_format != "yaml":
            dg.scaffold_component(request)
            return
        folder = request.target_path.parent if request.append else request.target_path
        text = _YAML.format(type=request.type_name, topic=folder.name, name=asset_name_of(folder))
        path = request.target_path if request.append else folder / "defs.yaml"
        before = f"{path.read_text(encoding='utf-8')}---\n" if request.append else ""
        path.write_text(before + text, encoding="utf-8")


def asset_name_of(folder: Path) -> str:
    """Return the folder's name as a valid asset name of Dagster.

    >>> from pathlib import Path
    >>> asset_name_of(Path("defs/web-orders"))
    'web_orders'
    """
    return re.sub(r"\W", "_", folder.name, flags=re.ASCII)


_SETTINGS = {
    k: one for k, one in signature(kafka_asset).parameters.items() if one.kind is Parameter.KEYWORD_ONLY
}
_GROUPS = {name: group for name in _SETTINGS if (group := KafkaAssetSettings.group(name)) is not None}
_FIELD_TYPES = {
    **{name: KafkaAssetSettings.model_fields[name] for name in _SETTINGS if name not in ("sink", "name")},
    "name": FieldInfo.from_annotation(AssetName | None),  # type: ignore[arg-type]  # the folder's name by default
}
# Keeps the group id as text: Dagster would turn the group "5" into a number
_RESOLVER = setting_resolver(KafkaAssetSettings)
_DESCRIPTIONS = argument_descriptions(kafka_asset)
_BATCH_WORD = re.compile(r"\bbatch\b", re.IGNORECASE)
_TRANSFORMS = "either sql (a SELECT over `batch`) or transform (`package.module:function`)"


def _setting_field(name: str) -> Any:
    """Return a field with the default and the description of this setting of ``kafka_asset``."""
    default = _SETTINGS[name].default
    return Field(
        default=... if default is Parameter.empty else default,
        description=docstring_as_markdown(_DESCRIPTIONS.get(name, "")),
    )


@dg.scaffold_with(KafkaAssetScaffolder)
class KafkaAssetComponent(AssetAttributes, dg.Component):
    """A pipeline from a Kafka topic to an Iceberg table: live asset, crash lag asset, jobs and sensor.

    `sql` or `transform` turns each batch of the topic into rows of the table. Every setting of `kafka_asset`
    is an attribute. So is every asset attribute that `dg` supports in YAML. The sections `kafka` and `spark`
    declare the two resources, if the project does not.
    """

    topics: Annotated[str | Sequence[str], _RESOLVER] = _setting_field("topics")
    group_id: Annotated[str, _RESOLVER] = _setting_field("group_id")
    table: Annotated[str | None, _RESOLVER] = _setting_field("table")
    sink: Annotated[Callable[..., Any], dg.Resolver(load_function, model_field_type=str)] | None = (
        _setting_field("sink")
    )
    sql: str | None = Field(
        default=None,
        description=(
            "The transform as a SELECT over `batch`. Its columns are key, value, topic, partition, "
            "offset, timestamp and timestampType. The rows must keep topic, partition and offset. An offset "
            "may give none, one or many rows."
        ),
        examples=["SELECT topic, partition, offset, CAST(value AS string) AS order_json FROM batch"],
    )
    transform: Annotated[Callable[..., Any], dg.Resolver(load_function, model_field_type=str)] | None = Field(
        default=None,
        description="The transform as a Python function from batch DataFrame to row DataFrame: "
        "`package.module:function`, or `.module:function` for a module in this folder.",
        examples=[".transform:rows"],
    )
    name: Annotated[str | None, _RESOLVER] = Field(
        default=None,
        description="Name of the live asset; by default the folder's name. The other definitions are named "
        "after it.",
    )
    max_poll_records: Annotated[int | Literal["auto"], _RESOLVER] = _setting_field("max_poll_records")
    max_batch_seconds: Annotated[float | None, _RESOLVER] = _setting_field("max_batch_seconds")
    enable_parallel_rebalance: Annotated[bool, _RESOLVER] = _setting_field("enable_parallel_rebalance")
    idle_seconds: Annotated[float, _RESOLVER] = _setting_field("idle_seconds")
    materialize_interval_seconds: Annotated[float, _RESOLVER] = _setting_field("materialize_interval_seconds")
    include_headers: Annotated[bool, _RESOLVER] = _setting_field("include_headers")
    complete_every: Annotated[Every | None, _RESOLVER] = _setting_field("complete_every")
    completeness: Annotated[Completeness, group_in_yaml(Completeness)] = _setting_field("completeness")
    batching: Annotated[Batching, group_in_yaml(Batching)] = _setting_field("batching")
    crash_lag: Annotated[CrashLag, group_in_yaml(CrashLag)] = _setting_field("crash_lag")
    offsets: Annotated[Offsets, group_in_yaml(Offsets)] = _setting_field("offsets")
    membership: Annotated[Membership, group_in_yaml(Membership)] = _setting_field("membership")
    sensor: Annotated[Sensor, group_in_yaml(Sensor)] = _setting_field("sensor")
    sla: Annotated[Sla, group_in_yaml(Sla)] = _setting_field("sla")
    iceberg: Annotated[Iceberg, group_in_yaml(Iceberg)] = _setting_field("iceberg")
    maintenance: Annotated[Maintenance, group_in_yaml(Maintenance)] = _setting_field("maintenance")
    resources: Annotated[ResourceKeys, group_in_yaml(ResourceKeys)] = _setting_field("resources")
    group_name: Annotated[str | None, _RESOLVER] = _setting_field("group_name")
    kafka: Annotated[KafkaLivenessResource | None, resource_in_yaml(KafkaLivenessResource)] = Field(
        default=None,
        repr=False,
        description="The project's Kafka resource. Omit it if the project declares it elsewhere.",
    )
    spark: Annotated[SparkConnectResource | None, resource_in_yaml(SparkConnectResource)] = Field(
        default=None,
        repr=False,
        description="The project's Spark resource. Omit it if the project declares it elsewhere.",
    )

    def __init__(self, **given: Any) -> None:
        whose = _title_of(given)
        KafkaAssetSettings.reject_unknown(given, type(self).model_fields, whose)
        known = _FIELD_TYPES.keys() - ({"name"} if given.get("name") is None else ())
        KafkaAssetSettings.check_known({one: given[one] for one in given if one in known}, whose)
        made = {
            name: _GROUPS[name](**one)
            for name, one in given.items()
            if name in _GROUPS and isinstance(one, dict)
        }
        try:
            super().__init__(**{**given, **made})
        except ValidationError as error:
            raise settings_error(error, type(self).model_fields, whose) from None

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return the model of the YAML; ``dg check yaml`` reports file and line of each violation."""
        return _yaml_model(cls)

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return the tags for ``dg list components`` and Dagster's docs."""
        return dg.ComponentTypeSpec(tags=["kafka", "spark", "iceberg"])

    @model_validator(mode="after")
    def _require_one_transform(self) -> Self:
        _check_transform(self.sql, self.transform)
        return self

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of the asset, and of the resources that are declared here.

        If several components of a project declare the same topic or resource, only the first one's is used.

        Raises:
            InvalidSettingError: no run can work with a setting, or two components declare one resource
                differently.
        """
        settings = {key: getattr(self, key) for key in _SETTINGS if key != "name"}
        folder = context.path.parent if context.path.is_file() else context.path
        asset = kafka_asset(name=self.name or asset_name_of(folder), **settings, **self.dagster_arguments())(
            self.transform or _SelectTransform(self.sql or "")
        )
        before = list(
            takewhile(
                lambda one: one is not self, context.component_tree.get_all_components(KafkaAssetComponent)
            )
        )
        parts = asset.definitions_alongside({topic for one in before for topic in as_tuple(one.topics)})
        return dg.Definitions.merge(parts, dg.Definitions(resources=self._resources_to_add(before)))

    def _resources_to_add(self, before: "Sequence[KafkaAssetComponent]") -> dict[str, Any]:
        declared = {
            key: (one, resource)
            for one in reversed(before)
            for key, resource in one.declared_resources.items()
        }
        for key, resource in self.declared_resources.items():
            if key in declared and declared[key][1] != resource:
                raise InvalidSettingError(
                    f"Components of groups {declared[key][0].group_id!r} and {self.group_id!r} declare "
                    f"different resources under one key, {key!r}. Fix: declare it in one of them, or set "
                    "another key in the section resources"
                )
        return {key: resource for key, resource in self.declared_resources.items() if key not in declared}

    @property
    def declared_resources(self) -> dict[str, Any]:
        """The resources of ``kafka`` and ``spark``, under the keys that runs use."""
        declared = {self.resources.kafka: self.kafka, self.resources.spark: self.spark}
        return {key: resource for key, resource in declared.items() if resource is not None}


class _SelectTransform:
    """Rows of a SELECT over each batch: see *sql* in the metadata."""

    def __init__(self, sql: str) -> None:
        self.sql = sql.strip()

    def __call__(self, batch: Any) -> Any:
        return run_select(batch, self.sql)


def _title_of(given: Mapping[str, Any]) -> str:
    name = given.get("name")
    if name is not None:
        return title_with_name("asset", name)
    return title_with_name("the component of group", given.get("group_id"))


def _check_transform(sql: str | None, transform: object) -> None:
    if sql is not None and transform is not None:
        raise InvalidSettingError(f"sql and transform are both set. Fix: keep {_TRANSFORMS}")
    if sql is None and transform is None:
        raise InvalidSettingError(f"sql and transform are both missing. Fix: set {_TRANSFORMS}")
    if sql is not None and not _BATCH_WORD.search(sql):
        raise InvalidSettingError(f"sql does not read the batch: {sql.strip()!r}. Fix: write FROM batch")


@cache
def _yaml_model(component: type[KafkaAssetComponent]) -> type[BaseModel]:
    """Return the model of the YAML; it requires exactly one transform.

    ``KafkaAssetSettings`` checks the settings.
    """
    model = component.model()
    # In JSON Schema, for `dg check yaml` and editors: sql is required without transform, and excludes it
    one_transform = [
        {"if": {"required": ["transform"]}, "else": {"required": ["sql"]}},
        {"if": {"required": ["sql"]}, "then": {"properties": {"transform": {"type": "null"}}}},
    ]
    extra = {
        **cast("dict[str, Any]", model.model_config.get("json_schema_extra", {})),
        "allOf": one_transform,
    }

    class WithOneTransform(model):  # type: ignore[misc, valid-type]
        model_config = ConfigDict(json_schema_extra=extra)

        @model_validator(mode="after")
        def _one_transform(self) -> Self:
            _check_transform(self.sql, self.transform)
            return self

    kinds = permissive_types({name: field for name, field in _FIELD_TYPES.items() if name not in _GROUPS})
    settings: dict[str, Any] = {}
    for name, field in model.model_fields.items():  # Dagster's model has no descriptions
        section: Any = {"default": {}} if name in _GROUPS else None  # replaces Dagster's placeholder default
        given = component.model_fields[name].description
        kind = kinds.get(name, field.rebuild_annotation())
        settings[name] = (kind, Field(default=field.default, description=given, json_schema_extra=section))
    return create_model("KafkaAssetComponentModel", __base__=WithOneTransform, **settings)
