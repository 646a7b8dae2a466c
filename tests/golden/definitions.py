"""Describe a Dagster code location as plain data: everything that this package defines in it.

The description must not contain names of this package's modules, absolute paths, versions or times.
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import yaml

import kafka_liveness_dagster as kl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path(__file__).parents[2]
_MODULE = re.compile(rf"\b{kl.__name__}(?:\.\w+)*\.(?=[A-Za-z_])")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class _Dumper(yaml.SafeDumper):
    """A dumper that writes each line of a longer text as a line."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal parts each time: no anchors."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_text(data: Any) -> str:
    """Return the data as YAML."""
    return without_places(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))


def without_places(text: str) -> str:
    """Remove the package's module paths, and replace the checkout's folder and the package's version."""
    text = _ADDRESS.sub("", _MODULE.sub("", text))
    return text.replace(str(ROOT), "ROOT").replace(kl.__version__, "VERSION")


def described(defs: dg.Definitions) -> dict[str, Any]:
    """Describe a code location."""
    repository = defs.get_repository_def()
    graph = repository.asset_graph
    checks = {id(one): one for one in repository.asset_checks_defs_by_key.values()}.values()
    return {
        "assets": {
            key.to_user_string(): _asset(graph.get(key)) for key in sorted(graph.get_all_asset_keys())
        },
        "checks": _by_name(_check(spec) for one in checks for spec in one.check_specs),
        "ops": _ops(repository.get_all_jobs()),
        "jobs": _by_name(map(_job, repository.get_all_jobs())),
        "sensors": _by_name(map(_sensor, repository.sensor_defs)),
        "schedules": _by_name(map(_schedule, repository.schedule_defs)),
        "resources": {
            name: {
                "class": type(one).__name__,
                "config": _defaults(repository.get_top_level_resources()[name].config_field),
            }
            for name, one in sorted((defs.resources or {}).items())
        },
        "executor": _value(getattr(defs.executor, "name", None)),
    }


def _ops(jobs: Iterable[Any]) -> dict[str, Any]:
    """Describe the ops of all jobs; one that differs between jobs is described for each."""
    found: dict[str, dict[str, Any]] = {}
    for job in sorted(jobs, key=lambda job: str(job.name)):
        for op in sorted(job.all_node_defs, key=lambda op: str(op.name)):
            if isinstance(op, dg.OpDefinition) and found.setdefault(op.name, _op(op)) != _op(op):
                found[f"{op.name} in {job.name}"] = _op(op)
    return {name: _without_empty(found[name]) for name in sorted(found)}


def _defaults(config: Any) -> dict[str, str]:
    """Return the values that a resource was declared with."""
    fields = sorted(config.config_type.fields.items())
    return {name: repr(one.default_value) for name, one in fields if one.default_provided}


def _by_name(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {one["name"]: _without_empty(one) for one in sorted(found, key=lambda one: str(one["name"]))}


def _without_empty(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in data.items() if key != "name" and value not in (None, {}, [], "", ())
    }


def _asset(node: Any) -> dict[str, Any]:
    definition = node.assets_def
    return _without_empty({
        "group": node.group_name,
        "kinds": sorted(node.kinds),
        "execution": node.execution_type.name,
        "op": definition.op.name if definition.is_executable else None,
        "deps": {
            dep.asset_key.to_user_string(): repr(dep.partition_mapping)
            for dep in sorted(node.to_asset_spec().deps, key=lambda one: one.asset_key)
        },
        "description": node.description,
        "metadata": _metadata(node.metadata),
        "tags": dict(sorted(node.tags.items())),
        "owners": list(node.owners),
        "partitions": _value(node.partitions_def),
        "backfill policy": _value(node.backfill_policy),
        "automation": _condition(node.automation_condition),
        "freshness policy": _value(node.freshness_policy),
        "code version": node.code_version,
        "io manager": node.io_manager_key if definition.is_executable else None,
    })  # fmt: skip


def _op(op: Any) -> dict[str, Any]:
    return {
        "name": op.name,
        "description": op.description,
        "tags": dict(sorted(op.tags.items())),
        "config": fields(op.config_schema.config_type),
        "resources": sorted(op.required_resource_keys),
        "inputs": {one.name: one.dagster_type.display_name for one in op.input_defs},
        "outputs": {
            one.name: f"{one.dagster_type.display_name}{'' if one.is_required else ', optional'}"
            for one in op.output_defs
        },
        "pool": op.pool,
        "retry policy": _value(op.retry_policy),
    }


def _check(spec: dg.AssetCheckSpec) -> dict[str, Any]:
    return {
        "name": f"{spec.asset_key.to_user_string()}: {spec.name}",
        "description": spec.description,
        "blocking": spec.blocking,
        "metadata": _metadata(spec.metadata),
        "deps": sorted(dep.asset_key.to_user_string() for dep in spec.additional_deps),
        "automation": _condition(spec.automation_condition),
    }


def _job(job: Any) -> dict[str, Any]:
    layer = job.asset_layer
    return {
        "name": job.name,
        "description": job.description,
        "tags": dict(sorted(job.tags.items())),
        "run tags": dict(sorted(job.run_tags.items())),
        "metadata": _metadata(job.metadata),
        "assets": sorted(key.to_user_string() for key in layer.executable_asset_keys),
        "checks": sorted(key.name for key in layer.asset_graph.asset_check_keys),
        "ops": sorted(node.name for node in job.nodes),
        "partitions": _value(job.partitions_def),
        "executor": job.executor_def.name,
        "hooks": sorted(hook.name for hook in job.hook_defs),
        "run config": _value(job.run_config),
        "owners": list(job.owners or ()),
    }


def _sensor(sensor: Any) -> dict[str, Any]:
    return {
        "name": sensor.name,
        "description": sensor.description,
        "type": sensor.sensor_type.name,
        "interval": sensor.minimum_interval_seconds,
        "default status": sensor.default_status.name,
        "jobs": [job.name for job in sensor.jobs] if sensor.has_jobs else [],
        "assets": _value(sensor.asset_selection),
        "resources": sorted(sensor.required_resource_keys),
        "tags": dict(sorted(sensor.tags.items())),
        "metadata": _metadata(sensor.metadata),
    }


def _schedule(schedule: Any) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "description": schedule.description,
        "cron": schedule.cron_schedule,
        "time zone": schedule.execution_timezone,
        "default status": schedule.default_status.name,
        "job": schedule.job_name,
        "resources": sorted(schedule.required_resource_keys),
        "tags": dict(sorted(schedule.tags.items())),
        "metadata": _metadata(schedule.metadata),
    }


def _metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(value) for name, value in sorted(metadata.items())}


def _condition(condition: Any) -> Any:
    """Return its label where Dagster gives one: its parts are Dagster's then."""
    if condition is None:
        return None
    label = condition.get_label()
    return label or {type(condition).__name__: [_condition(one) for one in condition.children]}


def fields(kind: Any) -> Any:
    """Describe a type of Dagster's configuration."""
    if hasattr(kind, "fields"):
        return {
            name: _without_empty({
                "type": fields(field.config_type),
                "default": repr(field.default_value) if field.default_provided else None,
                "required": field.is_required or None,
                "description": field.description,
            })
            for name, field in sorted(kind.fields.items())
        }  # fmt: skip
    if hasattr(kind, "inner_type"):
        return {type(kind).__name__: fields(kind.inner_type)}
    if hasattr(kind, "config_values"):
        return {"enum": [one.config_value for one in kind.enum_values]}
    return kind.given_name or str(kind.key)


def _value(value: Any) -> Any:
    """Return what YAML can contain."""
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, dg.MetadataValue):
        return f"{type(value).__name__} {value.value!r}"
    if isinstance(value, dict):
        return {str(key): _value(one) for key, one in sorted(value.items())}
    if type(value) in {list, tuple}:  # no record of Dagster's, which is a tuple, too
        return [_value(one) for one in value]
    return str(value)
