"""Generate the reference pages (settings, commands, events, errors, classes) from the code itself.

A page is a function that gives its Markdown, and a line in ``PAGES``; ``mkdocs.yml`` has its place in the
navigation.
"""

from __future__ import annotations

import re
from enum import Enum
from html import escape
from inspect import Parameter, getdoc, signature
from typing import TYPE_CHECKING, Any, get_args

import click
import docstring_parser
from pydantic_core import PydanticUndefined

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.assets.yaml import AssetAttributes, docstring_as_markdown
from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.settings.asset import KafkaAssetSettings
from kafka_liveness_dagster.settings.groups import SettingsGroup
from website.messages import said

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kafka_liveness_dagster.settings.validation import CheckedResource, ValidatedSettings

_RESOURCES = (kl.KafkaLivenessResource, kl.SparkConnectResource, kl.SchemaRegistryResource)
_ALL = "\n    options:\n      show_if_no_docstring: true"  # a field may say by its name what it is
_COLUMNS = 76  # that a page of the site has room for
_GROUPS = {
    name: group
    for name in KafkaAssetSettings.model_fields
    if (group := KafkaAssetSettings.group(name)) is not None and issubclass(group, SettingsGroup)
}
_TOLD_ELSEWHERE = {
    "AssetArguments",
    "GroupEvent",
    "LeaveReason",
    *(group.__name__ for group in _GROUPS.values()),
}
_TOLD_ELSEWHERE |= {event.__name__ for event in get_args(kl.GroupEvent)}


def settings() -> str:
    """Every setting: what it means, what it wants, its default; each under a heading of its own."""
    return "\n\n".join([
        "# Settings",
        "Of `@kl.kafka_asset`, and by the same names of the [component](../component.md).",
        *_of_the_asset(),
        *(part for name, group in _GROUPS.items() for part in _of_a_group(name, group)),
        (
            "## What `dg.asset` takes\n\nOf both assets where it is not said otherwise; Dagster says what "
            "each wants."
        ),
        *(f"### {name}\n\n{_sentence(told)}" for name, told in _told(kl.AssetArguments).items()),
        "## Of the component alone",
        *(f"### {name}\n\n{_sentence(told)}" for name, told in _of_the_component()),
        *(part for resource in _RESOURCES for part in _of_a_resource(resource)),
    ])  # fmt: skip


def commands() -> str:
    """Every command, as its ``--help`` says it."""
    return "\n\n".join(["# Command options", *_of_a_command(main, "kafka-liveness")])


def events() -> str:
    """What the sensor tells of a group."""
    return "\n\n".join([
        "# Events",
        (
            "What [the sensor](../sensor.md) tells of a group, also to `on_event` of `sensor`: each is a "
            "`kl.GroupEvent`."
        ),
        *(_member(event.__name__) + _ALL for event in get_args(kl.GroupEvent)),
        _member("LeaveReason") + _ALL,
    ])  # fmt: skip


def errors() -> str:
    """Every error, and under it every text that it may have."""
    texts = said()
    return "\n\n".join([
        "# Errors",
        "All that each error may say; `…` is what varies, and what to do stands behind it.",
        *(part for name in kl.__all__ if name.endswith("Error")
          for part in _of_an_error(name, texts.get(name, []))),
    ])  # fmt: skip


def classes() -> str:
    """What is public and neither an event nor an error nor a group of settings."""
    names = [name for name in kl.__all__ if name not in _TOLD_ELSEWHERE and not name.endswith("Error")]
    which = "[Which names are stable, and which are previews](../upgrading.md#stable-and-preview-names)."
    return "\n\n".join(["# Python", "`import kafka_liveness_dagster as kl`", which, *map(_member, names)])


PAGES: dict[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
    "events": events,
    "errors": errors,
    "python": classes,
}


def wanted(declared: type[ValidatedSettings], name: str) -> str:
    """What a setting wants, in the words by which another value is refused."""
    try:
        declared.check_known({name: object()}, "it")
    except kl.InvalidSettingError as error:
        return " or ".join(dict.fromkeys(line.partition(": wanted ")[2] for line in str(error).splitlines()))
    return "anything"


def _of_the_asset() -> Iterator[str]:
    told = _told(kl.kafka_asset)
    for name, one in signature(kl.kafka_asset).parameters.items():
        if one.kind is Parameter.KEYWORD_ONLY:
            yield _setting(name, wanted(KafkaAssetSettings, name), one.default, told[name])


def _of_a_group(name: str, group: type[SettingsGroup]) -> Iterator[str]:
    yield f"## {name}: kl.{group.__name__}\n\n{docstring_as_markdown(_doc(group).partition('Raises:')[0])}"
    for field, one in group.fields_with_descriptions().items():
        yield _setting(f"{name}.{field}", wanted(group, field), one.default, one.description or "")


def _of_a_resource(resource: type[CheckedResource]) -> Iterator[str]:
    yield f"## kl.{resource.__name__}\n\n{docstring_as_markdown(_doc(resource))}"
    for name in resource.settings_class.model_fields:
        one = resource.model_fields[name]
        default = one.get_default(call_default_factory=True, validated_data={})
        yield _setting(name, wanted(resource.settings_class, name), default, one.description or "")


def _of_the_component() -> Iterator[tuple[str, str]]:
    known = {*signature(kl.kafka_asset).parameters, *AssetAttributes.model_fields} - {"name"}
    for name, field in kl.KafkaAssetComponent.model_fields.items():
        if name not in known:
            yield name, field.description or ""


def _of_a_command(command: click.Command, name: str) -> Iterator[str]:
    told = command.get_help(click.Context(command, info_name=name, terminal_width=_COLUMNS))
    yield f"## {name}\n\n```text\n{told}\n```"
    if isinstance(command, click.Group):
        for below in command.commands:
            yield from _of_a_command(command.commands[below], f"{name} {below}")


def _setting(name: str, wants: str, default: Any, told: str) -> str:
    needed = default is Parameter.empty or default is PydanticUndefined
    otherwise = "It has to be given." if needed else f"Default: `{_value(default)}`."
    return f"### {name}\n\n{_sentence(told)}\n\nWanted: {wants}. {otherwise}"


def _value(default: Any) -> str:
    return f"dg.{default}" if isinstance(default, Enum) else repr(default)


def _sentence(told: str) -> str:
    text = docstring_as_markdown(told)
    return text[:1].upper() + text[1:]


def _told(thing: Any) -> dict[str, str]:
    """The docstring's words for each argument or attribute."""
    return {one.arg_name: one.description or "" for one in docstring_parser.parse(_doc(thing)).params}


def _of_an_error(name: str, texts: Sequence[str]) -> Iterator[str]:
    told = docstring_as_markdown(_doc(getattr(kl, name)).partition("\n\n")[0])
    yield f"## {name}\n\n{told}" + (f" [What to do](../errors.md#{name.lower()})." if texts else "")
    yield from (f"#### {_literally(text)}" for text in texts)


def _doc(thing: Any) -> str:
    return getdoc(thing) or ""


def _literally(text: str) -> str:
    """Text in which nothing is Markdown."""
    return re.sub(r"([*_`\[\]{}#])", r"\\\1", escape(text, quote=False))


def _member(name: str) -> str:
    return f"::: {getattr(kl, name).__module__}.{name}"
