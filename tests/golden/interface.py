"""Describe the package's interface outside of Dagster: names, commands, YAML and metrics."""

from __future__ import annotations

import inspect
import json
import re
from copy import copy
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from enum import Enum
from inspect import Parameter
from typing import TYPE_CHECKING, Any, ForwardRef, get_args, is_typeddict

import click
from pydantic import BaseModel

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.telemetry.metrics import METRICS
from tests.golden.definitions import as_text, fields, without_places

if TYPE_CHECKING:
    from collections.abc import Iterator

_COLUMNS = 100
_FUNCTION = re.compile(r", (?:matches=<function .*?>(?=[,)])|BeforeValidator\(func=.*?\))")
"""The function that judges a setting: its name is the package's own."""
_SHOWN = {"builtins", "enum", "typing"}
_DUNDERS = {"__call__", "__enter__", "__iter__", "__len__", "__str__"}
_RESOURCES = (kl.KafkaLivenessResource, kl.SparkConnectResource, kl.SchemaRegistryResource)


def commands() -> str:
    """Return the help of every command."""
    return without_places("\n".join(_help(main, "kafka-liveness")))


def metrics() -> str:
    """Return the table of metrics."""
    return as_text({
        metric.name: {
            "prometheus": metric.prometheus,
            "instrument": metric.instrument,
            "unit": metric.unit,
            "labels": list(metric.labels),
            "told by": metric.recorded_by,
            "description": metric.description,
        }
        for metric in sorted(METRICS, key=lambda metric: metric.name)
    })  # fmt: skip


def component() -> str:
    """Return the JSON schema of the component's YAML."""
    schema = kl.KafkaAssetComponent.get_model_cls().model_json_schema()
    return without_places(json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False)) + "\n"


def resources() -> str:
    """Return what Dagster shows of each resource's configuration."""
    return as_text({
        resource.__name__: fields(resource.to_config_schema().as_field().config_type)
        for resource in _RESOURCES
    })  # fmt: skip


def names() -> str:
    """Return all public names with their signatures."""
    text = "\n".join(line for name in kl.__all__ for line in _public(name, getattr(kl, name)))
    return _FUNCTION.sub("", without_places(text)) + "\n"


def _help(known: click.Command, name: str, above: click.Context | None = None) -> Iterator[str]:
    command = copy(known)
    command._help_option = None  # click keeps that of the first context, which may be another test's
    context = click.Context(
        command, above, name, terminal_width=_COLUMNS, max_content_width=_COLUMNS, **command.context_settings
    )
    hidden = " (hidden)" if command.hidden else ""
    yield f"$ {context.command_path} --help{hidden}\n{command.get_help(context)}\n"
    if isinstance(command, click.Group):
        for below in sorted(command.commands):
            yield from _help(command.commands[below], below, context)


def _public(name: str, it: Any) -> Iterator[str]:
    if kinds := get_args(it):
        yield f"{name} = {' | '.join(kind.__name__ for kind in kinds)}"
    elif not inspect.isclass(it):
        yield from _call(name, it)
    else:
        bases = [
            base.__name__
            for base in it.__mro__[1:-1]
            if base.__module__ in _SHOWN or base.__name__ in kl.__all__
        ]
        yield f"class {name}({', '.join(bases)})"
        yield from (f"    {line}" for line in (*_made(name, it), *_members(it)))


def _made(name: str, it: type) -> Iterator[str]:
    """Describe how an object is made."""
    if issubclass(it, Enum):
        yield from (f"{member.name} = {member.value!r}" for member in it)
    elif is_typeddict(it):
        yield from (f"{key}: {_annotation(kind)}" for key, kind in it.__annotations__.items())
    elif not issubclass(it, Exception) or any(
        _is_ours(base) and "__init__" in vars(base) for base in it.__mro__
    ):
        yield from _call(name, it)


def _members(it: type) -> Iterator[str]:
    """Describe methods and properties, but for those that a public base class has."""
    is_model = issubclass(it, BaseModel)
    bases = [base for base in it.__mro__ if _is_ours(base) and (base is it or not is_model)]
    found = {name for base in bases if base is it or base.__name__ not in kl.__all__ for name in vars(base)}
    found -= {field.name for field in dataclass_fields(it)} if is_dataclass(it) else set()
    found -= {*it.model_fields, "model_post_init"} if is_model else set()
    for name in sorted(found):
        if (name.startswith("_") and name not in _DUNDERS) or (
            issubclass(it, Enum) and name in it.__members__
        ):
            continue
        value = inspect.getattr_static(it, name)
        if isinstance(value, property):
            yield f"{name}: {_annotation(inspect.signature(value.fget).return_annotation)}"  # type: ignore[arg-type]
        elif callable(member := getattr(it, name)) and not inspect.isclass(member):
            yield from _call(name, member)
        elif not is_model:
            yield name


def _call(name: str, it: Any) -> Iterator[str]:
    """Describe a call, with a line for each parameter where one line is too long."""
    signature = inspect.signature(it)
    parameters = [
        one.replace(annotation=_annotation(one.annotation)) for one in signature.parameters.values()
    ]
    signature = signature.replace(
        parameters=parameters, return_annotation=_annotation(signature.return_annotation)
    )
    if len(line := f"{name}{signature}") <= _COLUMNS:
        yield line
        return
    yield f"{name}("
    for before, one in zip([None, *parameters], parameters, strict=False):
        if one.kind is Parameter.KEYWORD_ONLY and (before is None or before.kind < Parameter.VAR_POSITIONAL):
            yield "    *"
        yield f"    {one}"
    yield f") -> {signature.return_annotation}"


class _Annotation(str):
    """An annotation that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _annotation(annotation: Any) -> Any:
    if annotation is Parameter.empty:
        return annotation
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _Annotation(text.strip('"'))


def _is_ours(it: type) -> bool:
    return it.__module__.split(".")[0] == kl.__name__
