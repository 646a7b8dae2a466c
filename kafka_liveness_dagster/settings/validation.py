"""Check declared settings against their types; report all errors at once, each with the setting's name.

Never changes a value. The declarations themselves are in ``settings`` and in the resources.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, get_origin

import dagster as dg
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import display
from kafka_liveness_dagster.settings.types import CONSTRAINT_ERROR, ENV_VARS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from pydantic.fields import FieldInfo

_Params = ParamSpec("_Params")
_Return = TypeVar("_Return")
_LINE_CHARS = 80


class ValidatedSettings(BaseModel):
    """Declared settings: each field has one of the types of ``settings.types``, and none has a default.

    Raises:
        InvalidSettingError: with every invalid setting, its value and the accepted values.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", arbitrary_types_allowed=True)
    title: ClassVar[str]
    """Name of the declared object in errors."""
    name_field: ClassVar[str] = ""
    """Setting with the object's own name; empty for none."""
    used_fields: ClassVar[Mapping[str, Collection[str]]] = {}
    """Fields that have an effect here, by group, for each group with fields that have none."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise settings_error(error, type(self).model_fields, self.title_of(given)) from None
        if found := [*self._unused_settings(), *self.contradictions()]:
            raise InvalidSettingError("\n".join(found))

    @classmethod
    def title_of(cls, given: Mapping[str, Any]) -> str:
        """Return the name of the declared object for errors, such as ``asset orders``."""
        return title_with_name(cls.title, given.get(cls.name_field)) if cls.name_field else cls.title

    def contradictions(self) -> Iterable[str]:
        """Return an error for each combination of valid settings that no run can work with."""
        return ()

    def _unused_settings(self) -> Iterable[str]:
        for name, used in self.used_fields.items():
            group = getattr(self, name)
            for setting, value in group.non_defaults().items():
                if setting not in used:
                    whose = self.title_of(dict(self))
                    yield (
                        f"{setting} of {name} has no effect on {whose}. Fix: leave "
                        f"{setting}={_display_value(value)} out"
                    )

    @classmethod
    def check_known(cls, given: Mapping[str, Any], whose: str) -> None:
        """Check these settings while others are still unknown.

        A group may be a section of YAML that is no object yet.

        Raises:
            InvalidSettingError: as for the class.
        """
        groups = {name: cls.group(name) for name in cls.model_fields if isinstance(given.get(name), Mapping)}
        sections = {name: group for name, group in groups.items() if group is not None}
        found = _find_errors(cls, {name: one for name, one in given.items() if name not in sections}, whose)
        for name, group in sections.items():
            found += _find_errors(group, given[name], whose, section=name)
        if found:
            raise InvalidSettingError("\n".join(found))

    @staticmethod
    def reject_unknown(given: Iterable[str], known: Collection[str], whose: str) -> None:
        """Refuse names of unknown settings. Each error suggests a setting with a similar name.

        Raises:
            InvalidSettingError: with each unknown name.
        """
        if found := [unknown_setting_message(name, known, whose) for name in given if name not in known]:
            raise InvalidSettingError("\n".join(found))

    @classmethod
    def group(cls, name: str) -> type[ValidatedSettings] | None:
        """Return the class of a group of settings; None for a single setting."""
        field = cls.model_fields.get(name)
        if field is None or get_origin(field.annotation):  # in Python 3.10 list[str] is a type, but no class
            return None
        kind = field.annotation
        return kind if isinstance(kind, type) and issubclass(kind, ValidatedSettings) else None


class CheckedResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A resource with the fields of a settings class.

    The resource's own types stay plain. Dagster makes config of them, and refuses a component if its resource
    has other types.

    Raises:
        InvalidSettingError: as for the settings class.
    """

    # An ignored misspelled field could mean another cluster, or no security. Errors do not show given values
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)
    settings_class: ClassVar[type[ValidatedSettings]]

    def __init__(self, **given: Any) -> None:
        fields = type(self).model_fields
        known = self.settings_class.model_fields
        default = {
            name: fields[name].get_default(call_default_factory=True, validated_data={}) for name in known
        }
        its_own = fields.keys() - known  # the fields of a subclass
        self.settings_class(**default | {name: value for name, value in given.items() if name not in its_own})
        super().__init__(**given)


def validated(
    by: type[ValidatedSettings],
) -> Callable[[Callable[_Params, _Return]], Callable[_Params, _Return]]:
    """Return a decorator that first checks the arguments with these names; lists become tuples.

    Raises:
        InvalidSettingError: as for the settings class.
    """

    def check(make: Callable[_Params, _Return]) -> Callable[_Params, _Return]:
        parameters = signature(make)

        @functools.wraps(make)
        def checked_make(*args: _Params.args, **kwargs: _Params.kwargs) -> _Return:
            by.reject_unknown(kwargs, parameters.parameters, by.title_of(kwargs))
            given = parameters.bind(*args, **kwargs)
            given.apply_defaults()
            found = by(**{name: given.arguments[name] for name in by.model_fields})
            given.arguments.update({name: getattr(found, name) for name in by.model_fields})
            return make(*given.args, **given.kwargs)

        return checked_make

    return check


def resolve_env_vars(value: Any) -> Any:
    """Return the value of a resource's field, with its environment variable resolved.

    Dagster resolves variables in a run, but not in a script.

    Raises:
        InvalidSettingError: the variable is not set.
    """
    if not isinstance(value, dg.EnvVar):
        return value
    if (found := value.get_value()) is None:
        raise InvalidSettingError(
            f"Environment variable {value.env_var_name} is not set, but a resource needs it. Fix: export "
            "it before the start"
        )
    return found


@functools.cache
def _with_optional_fields(settings: type[ValidatedSettings]) -> type[BaseModel]:
    """Return a model of the same settings, all of them optional."""
    each: dict[str, Any] = {
        name: (field.rebuild_annotation(), None) for name, field in settings.model_fields.items()
    }
    return create_model(settings.__name__, __config__=settings.model_config, **each)


def _find_errors(
    settings: type[ValidatedSettings], given: Mapping[str, Any], whose: str, section: str = ""
) -> list[str]:
    try:
        _with_optional_fields(settings).model_validate(given)
    except ValidationError as error:
        return _sentences(error, settings.model_fields, whose, section=section)
    return []


def title_with_name(what: str, name: Any) -> str:
    """Return the name of the declared object for errors, even if the name itself is invalid."""
    is_fine = isinstance(name, str) and name.isprintable() and 0 < len(name) <= _LINE_CHARS
    return f"{what} {name if is_fine and not isinstance(name, ENV_VARS) else _display_value(name)}"


def settings_error(
    error: ValidationError, fields: Mapping[str, FieldInfo], whose: str
) -> InvalidSettingError:
    """Return pydantic's errors for these fields as one error, with a line for each."""
    return InvalidSettingError("\n".join(_sentences(error, fields, whose)))


def unknown_setting_message(name: object, known: Iterable[str], whose: str) -> str:
    """Return the message for an unknown setting, with a setting of a similar name if there is one."""
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"{display(name)} is no setting of {whose}{f': did you mean {near[0]}?' if near else ''}"


def _sentences(
    error: ValidationError, fields: Mapping[str, FieldInfo], whose: str, section: str = ""
) -> list[str]:
    return list(dict.fromkeys(_sentence(detail, fields, whose, section=section) for detail in error.errors()))


def _sentence(detail: Any, fields: Mapping[str, FieldInfo], whose: str, section: str) -> str:
    if detail["type"] == "value_error":  # raised by a check of several settings
        return str(detail["ctx"]["error"])
    if not detail["loc"]:  # the name is no valid text: half of a character
        return unknown_setting_message(detail["input"], fields, f"{section} of {whose}" if section else whose)
    name, *inside = detail["loc"]
    if detail["type"] == "missing":
        return f"{name} of {whose} is missing"
    if detail["type"] in ("extra_forbidden", "invalid_key"):
        return unknown_setting_message(name, fields, f"{section} of {whose}" if section else whose)
    setting = "".join(
        (f"{section}." * bool(section), str(name), *(f"[{p!r}]" for p in inside if p != "[key]"))
    )
    wanted = detail["msg"] if detail["type"] == CONSTRAINT_ERROR else detail.get("ctx", {}).get("expected")
    wanted = wanted or detail["msg"].removeprefix("Input should be ")
    if isinstance(detail["input"], ENV_VARS):
        wanted += ", and no environment variable, because this setting does not resolve variables"
    given = "refused" if fields[name].repr is False else _display_value(detail["input"])
    return f"{setting} of {whose} is {given}: wanted {wanted}"


def _display_value(value: Any) -> str:
    return f"dg.EnvVar({value.env_var_name!r})" if isinstance(value, ENV_VARS) else display(value)
