"""Resolve the values of ``defs.yaml``: settings, functions and resources. Opens no connection."""

# No `from __future__ import annotations` here: pydantic and Dagster read the annotations.
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from importlib import import_module
from importlib.util import resolve_name
from typing import Annotated, Any, get_args

import dagster as dg
import docstring_parser
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.settings.asset_arguments import AssetArguments
from kafka_liveness_dagster.settings.groups import ONLY_IN_PYTHON, SettingsGroup
from kafka_liveness_dagster.settings.validation import CheckedResource, ValidatedSettings


def argument_descriptions(documented: Any) -> dict[str, str]:
    """Return the description of each argument in a docstring, each as one line."""
    found = docstring_parser.parse(documented.__doc__ or "").params
    return {one.arg_name: " ".join((one.description or "").split()) for one in found}


_DESCRIPTIONS = argument_descriptions(AssetArguments)
_Template = dg.Resolver.default(model_field_type=str | None)


def _described_field(name: str) -> Any:
    return Field(default=None, description=_DESCRIPTIONS[name][:1].upper() + _DESCRIPTIONS[name][1:])


def _tags_as_text(context: dg.ResolutionContext, tags: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Return the tags as text, which Dagster requires; YAML has a number in ``tier: 1``."""
    return None if tags is None else {name: str(one) for name, one in context.resolve_value(tags).items()}


def _version_as_text(context: dg.ResolutionContext, version: str | None) -> str | None:
    """Return the version as text, because Dagster turns ``"7"`` into a number."""
    return None if version is None else str(context.resolve_value(version))


_Version = dg.Resolver(_version_as_text, model_field_type=str | None, inject_before_resolve=False)


class RetryPolicyModel(dg.Model):
    """The fields of ``dg.RetryPolicy`` that YAML can express."""

    max_retries: int = 1
    delay: float | None = None


def _retry_policy(context: dg.ResolutionContext, told: RetryPolicyModel | None) -> dg.RetryPolicy | None:
    return None if told is None else dg.RetryPolicy(**context.resolve_value(dict(told)))


_Tags = Annotated[
    Mapping[str, str] | None,
    dg.Resolver(_tags_as_text, model_field_type=Mapping[str, str | int | float | bool] | None),
]


class AssetAttributes(dg.Model, dg.Resolvable):
    """Attributes of the live asset and the crash lag asset.

    They are those of :class:`AssetArguments`, without ``ins`` and ``hooks``, which only Python can express.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    key_prefix: str | Sequence[str] | None = _described_field("key_prefix")
    description: str | None = _described_field("description")
    owners: Sequence[str] | None = _described_field("owners")
    tags: _Tags = _described_field("tags")
    metadata: Mapping[str, Any] | None = _described_field("metadata")
    kinds: Sequence[str] | None = _described_field("kinds")
    deps: Sequence[dg.ResolvedAssetKey] | None = _described_field("deps")
    automation_condition: Annotated[dg.AutomationCondition | None, _Template] = _described_field(  # type: ignore[type-arg]
        "automation_condition"
    )
    freshness_policy: Annotated[dg.FreshnessPolicy | None, _Template] = _described_field("freshness_policy")
    code_version: Annotated[str | None, _Version] = _described_field("code_version")
    retry_policy: Annotated[
        dg.RetryPolicy | None, dg.Resolver(_retry_policy, model_field_type=RetryPolicyModel | None)
    ] = _described_field("retry_policy")
    op_tags: Mapping[str, Any] | None = _described_field("op_tags")
    pool: str | None = _described_field("pool")
    run_tags: _Tags = _described_field("run_tags")

    def dagster_arguments(self) -> dict[str, Any]:
        """Return the attributes that are set, by name."""
        given = {name: getattr(self, name) for name in AssetAttributes.model_fields}
        return {name: set(one) if name == "kinds" else one for name, one in given.items() if one is not None}


_TEMPLATE = re.compile(r"\{[{%#]")
_ENV = re.compile(r"\s*\{\{\s*env\.(\w+)\s*\}\}\s*")


def load_function(context: dg.ResolutionContext, path: str) -> Callable[..., Any]:
    """Return the function ``package.module:function``; a leading dot means the folder of the ``defs.yaml``.

    Raises:
        InvalidSettingError: there is no such module, or it has no callable of this name.
    """
    module_name, _, name = path.rpartition(":" if ":" in path else ".")
    if not module_name.strip(".") or not name:
        raise InvalidSettingError(
            f"{path!r} names no function. Fix: write package.module:function, or .module:function for a "
            "module in this folder"
        )
    if module_name.startswith("."):
        here = dg.ComponentLoadContext.from_resolution_context(context)
        module_name = resolve_name(module_name, here.defs_relative_module_name(here.path))
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its own imports is missing
        raise InvalidSettingError(
            f"{path!r} names a function of {module_name}, but there is no such module. Fix: correct the name"
        ) from None
    found = getattr(module, name, None)
    if not callable(found):
        raise InvalidSettingError(
            f"{path!r} names {name!r} of {module_name}, which has no such function. Fix: correct the name"
        )
    return found  # type: ignore[no-any-return]


def permissive_types(fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """Return a type for each field that accepts every value; a later check refuses it by name.

    The JSON Schema for editors and ``dg`` has the field's real type.
    """
    kinds: dict[str, Any] = {name: (field.rebuild_annotation(), ...) for name, field in fields.items()}
    asked: type[BaseModel] = create_model("Wanted", **kinds)
    given = asked.model_json_schema(ref_template="{model}")
    wanted = {
        name: given["$defs"][one["$ref"]] if "$ref" in one else one
        for name, one in given["properties"].items()
    }
    # The text of any field may be a template
    either = {name: {"anyOf": [one, {"type": "string"}]} for name, one in wanted.items()}
    return {name: Annotated[Any, WithJsonSchema(one)] for name, one in either.items()}


def setting_resolver(settings: type[ValidatedSettings]) -> dg.Resolver:
    """Return the resolver of a setting in YAML: its value, or the value of its template."""

    def read(context: dg.ResolutionContext, value: Any) -> Any:
        return resolve_value(context, settings.model_fields[str(context.path[-1])], value)

    return dg.Resolver(read, inject_before_resolve=False)


def resolve_value(context: dg.ResolutionContext, field: FieldInfo, value: Any) -> Any:
    """Return the value of a field in YAML.

    The text of a template is converted to the field's type. Other text stays text.
    """
    found = _resolve(context, value)
    is_word = isinstance(field.annotation, type) and issubclass(field.annotation, Enum)
    if isinstance(value, str) and (_TEMPLATE.search(value) or is_word):
        with suppress(ValidationError):
            return TypeAdapter(field.rebuild_annotation()).validate_python(found)
    return found


def _resolve(context: dg.ResolutionContext, value: Any) -> Any:
    """Let Dagster resolve templates only, because it turns every text that looks like a number into one."""
    if isinstance(value, dict):
        return {key: _resolve(context.at_path(key), inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_resolve(context.at_path(number), inner) for number, inner in enumerate(value)]
    return context.resolve_value(value) if isinstance(value, str) and _TEMPLATE.search(value) else value


def _is_text_type(kind: Any) -> bool:
    return kind is str or any(_is_text_type(part) for part in get_args(kind))


def resource_in_yaml(resource: type[CheckedResource]) -> dg.Resolver:
    """Return the resolver of a resource in YAML: a section with its fields, or a template."""
    kinds = resource.settings_class.model_fields

    def read(context: dg.ResolutionContext, name: str, value: Any) -> Any:
        kind = kinds[name]
        return (
            _env_var(context, value)
            if _is_text_type(kind.annotation)
            else resolve_value(context, kind, value)
        )

    def made(context: dg.ResolutionContext, section: Any) -> Any:
        given = _resolve_section(context, section, read)
        return resource(**given) if isinstance(section, BaseModel) else given

    fields = {name: (kinds[name], field) for name, field in resource.model_fields.items()}
    section = _section_model(resource, fields, dg.Model)
    return dg.Resolver(made, model_field_type=section | None, inject_before_resolve=False)


def group_in_yaml(group: type[SettingsGroup]) -> dg.Resolver:
    """Return the resolver of a group of settings in YAML, which has its own section.

    The component creates the group, so that one error lists all invalid settings.
    """

    def read(context: dg.ResolutionContext, name: str, value: Any) -> Any:
        return resolve_value(context, group.model_fields[name], value)

    def given(context: dg.ResolutionContext, section: Any) -> Any:
        return _resolve_section(context, section, read)

    fields = {
        name: (field, field)
        for name, field in group.fields_with_descriptions().items()
        if name not in ONLY_IN_PYTHON
    }
    return dg.Resolver(
        given, model_field_type=_section_model(group, fields, _StrictModel), inject_before_resolve=False
    )


def _section_model(
    of: type[BaseModel], fields: Mapping[str, tuple[FieldInfo, FieldInfo]], base: type[BaseModel]
) -> type[BaseModel]:
    """Return the model of a YAML section with these fields, each with its default and description.

    A value may be a template.
    """
    types = permissive_types({name: kind for name, (kind, _) in fields.items()})
    made: dict[str, Any] = {
        name: (
            types[name],
            Field(
                default=field.get_default(call_default_factory=True, validated_data={}),
                description=docstring_as_markdown(field.description or ""),
            ),
        )
        for name, (_, field) in fields.items()
    }
    return create_model(of.__name__, __base__=base, __doc__=of.__doc__, **made)


class _StrictModel(dg.Model):
    @model_validator(mode="before")
    @classmethod
    def _reject_unknown(cls, given: Any) -> Any:
        if isinstance(given, dict):
            ValidatedSettings.reject_unknown(given, cls.model_fields, cls.__name__)
        return given


def docstring_as_markdown(text: str) -> str:
    """Return a docstring as Markdown, which editors show."""
    return " ".join(re.sub(r":(class|func|meth):", "", text).replace("``", "`").split())


def _resolve_section(context: dg.ResolutionContext, section: Any, read: Callable[..., Any]) -> Any:
    """Return the values of a section, or the value of a template in its place."""
    if not isinstance(section, BaseModel):
        return context.resolve_value(section)
    values = section.model_dump(exclude_unset=True)
    return {name: read(context.at_path(name), name, value) for name, value in values.items()}


def _env_var(context: dg.ResolutionContext, value: Any) -> Any:
    """Return a value with each ``{{ env.NAME }}`` as a variable that a run resolves.

    The UI shows the name, not the secret.
    """
    if isinstance(value, dict):
        return {key: _env_var(context.at_path(key), inner) for key, inner in value.items()}
    env = _ENV.fullmatch(value) if isinstance(value, str) else None
    return dg.EnvVar(env[1]) if env else _resolve(context, value)
