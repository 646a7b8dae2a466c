"""What does a value in ``defs.yaml`` stand for: which function, which resource? Opens nothing."""

# No `from __future__ import annotations` here: pydantic reads the annotations of the sections it makes.

import re
from collections.abc import Callable
from importlib import import_module
from importlib.util import resolve_name
from typing import Any, get_args

import dagster as dg
from pydantic import BaseModel, Field, create_model

from kafka_liveness_dagster.core.errors import InvalidSettingError

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


def section_of(resource: type[dg.ConfigurableResource[Any]]) -> type[BaseModel]:
    """The fields of a resource as a section of YAML: each may also be a template."""
    fields: dict[str, Any] = {
        name: (
            field.rebuild_annotation() | str,
            Field(default=field.get_default(call_default_factory=True), description=field.description),
        )
        for name, field in resource.model_fields.items()
    }
    return create_model(resource.__name__, __base__=dg.Model, __doc__=resource.__doc__, **fields)


def resource_of(resource: type[dg.ConfigurableResource[Any]]) -> Callable[[dg.ResolutionContext, Any], Any]:
    """Makes the resource of its section, or takes the one that a template gives."""

    def resolve(context: dg.ResolutionContext, section: Any) -> Any:
        if not isinstance(section, BaseModel):
            return context.resolve_value(section)
        told: dict[str, Any] = {}
        for name, value in section.model_dump(exclude_unset=True).items():
            annotation, at = resource.model_fields[name].annotation, context.at_path(name)
            is_text = str in (annotation, *get_args(annotation))
            told[name] = _by_name(at, value) if is_text else at.resolve_value(value)
        return resource(**told)

    return resolve


def _by_name(context: dg.ResolutionContext, value: Any) -> Any:
    """A value in which ``{{ env.NAME }}`` stays a name until a run needs it: the UI shows the name, not the secret."""
    if isinstance(value, dict):
        return {key: _by_name(context.at_path(key), inner) for key, inner in value.items()}
    env = _ENV.fullmatch(value) if isinstance(value, str) else None
    return dg.EnvVar(env[1]) if env else context.resolve_value(value)
