"""What does a value in ``defs.yaml`` stand for: which function, which resource? Opens nothing."""

# No `from __future__ import annotations` here: pydantic reads the annotations of the sections it makes.

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from importlib import import_module
from importlib.util import resolve_name
from typing import Annotated, Any, get_args

import dagster as dg
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, WithJsonSchema, create_model
from pydantic.fields import FieldInfo

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.settings.declared import CheckedResource, Declared

_TEMPLATE = re.compile(r"\{[{%#]")
_ENV = re.compile(r"\s*\{\{\s*env\.(\w+)\s*\}\}\s*")


def function(context: dg.ResolutionContext, path: str) -> Callable[..., Any]:
    """The function that ``package.module:function`` names; a leading dot is the folder of the ``defs.yaml``.

    Raises:
        InvalidSettingError: there is no such module, or nothing to call by this name in it.
    """
    module_name, _, name = path.rpartition(":" if ":" in path else ".")
    if not module_name.strip(".") or not name:
        raise InvalidSettingError(
            f"{path!r} names no function: write package.module:function, or .module:function for a module beside "
            "this file"
        )
    if module_name.startswith("."):
        here = dg.ComponentLoadContext.from_resolution_context(context)
        module_name = resolve_name(module_name, here.defs_relative_module_name(here.path))
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and lacks what it imports
        raise InvalidSettingError(f"{path!r} names a function of {module_name}, but there is no such module") from None
    found = getattr(module, name, None)
    if not callable(found):
        raise InvalidSettingError(f"{path!r} names {name!r} of {module_name}, which has no such function")
    return found  # type: ignore[no-any-return]


def anything_like(fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """For each field a type that takes every value, to be refused by name later. Editors and ``dg`` are told more."""
    kinds: dict[str, Any] = {name: (field.rebuild_annotation(), ...) for name, field in fields.items()}
    asked: type[BaseModel] = create_model("Wanted", **kinds)
    told = asked.model_json_schema(ref_template="{model}")
    wanted = {name: told["$defs"][one["$ref"]] if "$ref" in one else one for name, one in told["properties"].items()}
    either = {name: {"anyOf": [one, {"type": "string"}]} for name, one in wanted.items()}  # text may be a template
    return {name: Annotated[Any, WithJsonSchema(one)] for name, one in either.items()}


def setting_of(settings: type[Declared]) -> dg.Resolver:
    """How YAML gives a setting: as it is written, or as a template says."""

    def read(context: dg.ResolutionContext, value: Any) -> Any:
        return value_of(context, settings.model_fields[str(context.path[-1])], value)

    return dg.Resolver(read, inject_before_resolve=False)


def value_of(context: dg.ResolutionContext, field: FieldInfo, value: Any) -> Any:
    """What YAML says of a field. A template gives text, also where a number is wanted; other text stays text."""
    found = _given(context, value)
    is_word = isinstance(field.annotation, type) and issubclass(field.annotation, Enum)
    if isinstance(value, str) and (_TEMPLATE.search(value) or is_word):
        with suppress(ValidationError):
            return TypeAdapter(field.rebuild_annotation()).validate_python(found)
    return found


def _given(context: dg.ResolutionContext, value: Any) -> Any:
    """Dagster makes a number of every text that looks like one; here templates alone are its."""
    if isinstance(value, dict):
        return {key: _given(context.at_path(key), inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_given(context.at_path(number), inner) for number, inner in enumerate(value)]
    return context.resolve_value(value) if isinstance(value, str) and _TEMPLATE.search(value) else value


def _is_of_text(kind: Any) -> bool:
    return kind is str or any(_is_of_text(part) for part in get_args(kind))


def section_of(resource: type[CheckedResource]) -> type[BaseModel]:
    """The fields of a resource as a section of YAML: each may also be a template."""
    types = anything_like(resource.checked_by.model_fields)
    fields: dict[str, Any] = {
        name: (
            types[name],
            Field(default=field.get_default(call_default_factory=True), description=field.description),
        )
        for name, field in resource.model_fields.items()
    }
    return create_model(resource.__name__, __base__=dg.Model, __doc__=resource.__doc__, **fields)


def resource_of(resource: type[CheckedResource]) -> Callable[[dg.ResolutionContext, Any], Any]:
    """Makes the resource of its section, or takes the one that a template gives."""

    def resolve(context: dg.ResolutionContext, section: Any) -> Any:
        if not isinstance(section, BaseModel):
            return context.resolve_value(section)
        told: dict[str, Any] = {}
        for name, value in section.model_dump(exclude_unset=True).items():
            field, at = resource.checked_by.model_fields[name], context.at_path(name)
            told[name] = _by_name(at, value) if _is_of_text(field.annotation) else value_of(at, field, value)
        return resource(**told)

    return resolve


def _by_name(context: dg.ResolutionContext, value: Any) -> Any:
    """A value in which ``{{ env.NAME }}`` stays a name until a run needs it: the UI shows the name, not the secret."""
    if isinstance(value, dict):
        return {key: _by_name(context.at_path(key), inner) for key, inner in value.items()}
    env = _ENV.fullmatch(value) if isinstance(value, str) else None
    return dg.EnvVar(env[1]) if env else _given(context, value)
