"""How is a declaration held against its kinds? All that is wrong is told at once and by name; nothing is changed by it.

The declarations themselves are in ``settings`` and in the resources.
"""

from __future__ import annotations

import difflib
import functools
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import dagster as dg
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import shown
from kafka_liveness_dagster.settings.kinds import VARIABLES, WANTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pydantic.fields import FieldInfo

_Told = ParamSpec("_Told")
_Made = TypeVar("_Made")
_LINE = 80


class Declared(BaseModel):
    """Settings as somebody declared them: each field is of one of the ``kinds``, and none has a default.

    Raises:
        InvalidSettingError: with every setting that is wrong, its value, and what was wanted.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", arbitrary_types_allowed=True)
    of: ClassVar[str]
    """Whose settings they are, as errors name them."""
    named_by: ClassVar[str] = ""
    """The setting that tells it from others."""

    def __init__(self, **told: Any) -> None:
        try:
            super().__init__(**told)
        except ValidationError as error:
            whose = named(self.of, told.get(self.named_by)) if self.named_by else self.of
            raise refusal(error, type(self).model_fields, whose) from None
        if found := list(self.contradictions()):
            raise InvalidSettingError("\n".join(found))

    def contradictions(self) -> Iterable[str]:
        """What no run could work with, although each setting alone is as it should be."""
        return ()

    @classmethod
    def check_some(cls, told: Mapping[str, Any], whose: str) -> None:
        """Check these settings while others are still unknown.

        Raises:
            InvalidSettingError: as the class does.
        """
        try:
            _each_alone(cls)(**told)
        except ValidationError as error:
            raise refusal(error, cls.model_fields, whose) from None


class CheckedResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A resource whose fields are those of a declaration.

    Its own types stay plain: Dagster makes config of them, and refuses a component whose resource has others.

    Raises:
        InvalidSettingError: as the declaration does.
    """

    # a misspelt field would quietly be another cluster's, or no security; errors do not show what was given
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)
    checked_by: ClassVar[type[Declared]]

    def __init__(self, **told: Any) -> None:
        fields, known = type(self).model_fields, self.checked_by.model_fields
        default = {name: fields[name].get_default(call_default_factory=True) for name in known}
        its_own = fields.keys() - known  # of a class made of ours
        self.checked_by(**default | {name: value for name, value in told.items() if name not in its_own})
        super().__init__(**told)


def checked(by: type[Declared]) -> Callable[[Callable[_Told, _Made]], Callable[_Told, _Made]]:
    """A function whose arguments of these names are checked before anything is done with them; lists become tuples.

    Raises:
        InvalidSettingError: as the declaration does.
    """

    def check(make: Callable[_Told, _Made]) -> Callable[_Told, _Made]:
        parameters = signature(make)

        @functools.wraps(make)
        def checked_make(*args: _Told.args, **kwargs: _Told.kwargs) -> _Made:
            told = parameters.bind(*args, **kwargs)
            told.apply_defaults()
            found = by(**{name: told.arguments[name] for name in by.model_fields})
            told.arguments.update({name: getattr(found, name) for name in by.model_fields})
            return make(*told.args, **told.kwargs)

        return checked_make

    return check


def resolved(value: Any) -> Any:
    """The value of a resource's field: Dagster looks environment variables up in a run, and nobody has in a script.

    Raises:
        InvalidSettingError: the variable is not set.
    """
    if not isinstance(value, dg.EnvVar):
        return value
    if (found := value.get_value()) is None:
        raise InvalidSettingError(f"environment variable {value.env_var_name} is not set, and a resource needs it")
    return found


@functools.cache
def _each_alone(settings: type[Declared]) -> type[BaseModel]:
    """The same settings, none of which has to be there."""
    each: dict[str, Any] = {name: (field.rebuild_annotation(), None) for name, field in settings.model_fields.items()}
    return create_model(settings.__name__, __config__=settings.model_config, **each)


def named(what: str, name: Any) -> str:
    """Whose settings they are, also where the name is one of those that are wrong."""
    is_fine = isinstance(name, str) and name.isprintable() and 0 < len(name) <= _LINE
    return f"{what} {name if is_fine and not isinstance(name, VARIABLES) else _value(name)}"


def refusal(error: ValidationError, fields: Mapping[str, FieldInfo], whose: str) -> InvalidSettingError:
    """What pydantic found wrong in these fields, a line each."""
    return InvalidSettingError("\n".join(dict.fromkeys(_sentence(detail, fields, whose) for detail in error.errors())))


def _sentence(detail: Any, fields: Mapping[str, FieldInfo], whose: str) -> str:
    if detail["type"] == "value_error":  # said by a rule of ours for several settings
        return str(detail["ctx"]["error"])
    name, *inside = detail["loc"]
    if detail["type"] == "missing":
        return f"{name} of {whose} is missing"
    if detail["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(name), fields, n=1)
        return f"{shown(name)} is no setting of {whose}{f': did you mean {near[0]}?' if near else ''}"
    setting = "".join((str(name), *(f"[{part!r}]" for part in inside if part != "[key]")))
    wanted = detail["msg"] if detail["type"] == WANTED else detail.get("ctx", {}).get("expected")
    wanted = wanted or detail["msg"].removeprefix("Input should be ")
    if isinstance(detail["input"], VARIABLES):
        wanted += ", and not an environment variable, which nobody looks up here"
    told = "refused" if fields[name].repr is False else _value(detail["input"])
    return f"{setting} of {whose} is {told}: wanted {wanted}"


def _value(value: Any) -> str:
    return f"dg.EnvVar({value.env_var_name!r})" if isinstance(value, VARIABLES) else shown(value)
