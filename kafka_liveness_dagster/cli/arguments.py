"""What may stand behind a command? A group, a topic, an address, a time; else exit code 2 and a sentence.

Judged before anything is asked: some texts end the process in Kafka's client library. Imports neither it nor Dagster:
``--help`` answers at once.
"""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from kafka_liveness_dagster.core import names
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import Name, shown
from kafka_liveness_dagster.core.partition_keys import range_of

if TYPE_CHECKING:
    from click import Context, Parameter

_DAY = 86_400


class _Named(click.ParamType):  # type: ignore[type-arg]  # of click 8.1 it takes none
    """A text of one kind, or one word; a secret is not shown."""

    def __init__(self, name: str, kind: Name, or_else: str | None = None, *, is_secret: bool = False) -> None:
        self.name, self._kind, self._or_else, self._is_secret = name, kind, or_else, is_secret

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> str:
        if value != self._or_else and not self._kind.fits(value):
            told = "" if self._is_secret else f"{shown(value)}: "
            self.fail(f"{told}wanted {self._kind.wanted}{f', or {self._or_else}' if self._or_else else ''}", param, ctx)
        return value


class _Range(click.ParamType):  # type: ignore[type-arg]  # of click 8.1 it takes none
    """A crash lag range, as Dagster's partitions are called."""

    name = "range"

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> str:
        try:
            range_of(value)
        except InvalidSettingError as error:
            self.fail(str(error), param, ctx)
        return value


class Seconds(click.FloatRange):
    """A time that ends: ``nan`` and ``inf`` are floats to click, and in no range and every one."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(max=_DAY, **limits)

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> Any:  # noqa: D102 - click's
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return found


class _Moment(click.ParamType):  # type: ignore[type-arg]  # of click 8.1 it takes none
    """A time as ISO 8601 has it; without an offset it is UTC."""

    name = "time"

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> datetime:
        try:
            found = datetime.fromisoformat(value[:-1] + "+00:00" if value[-1:] in "zZ" else value)
        except ValueError:
            self.fail(f"{shown(value)}: wanted a time like 2026-11-22T10:00:00Z, or 2026-11-22T11:00+01:00", param, ctx)
        return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


MOMENT = _Moment()
TEXT = _Named("text", names.TEXT)
GROUP = _Named("group", names.GROUP_ID)
TOPIC = _Named("topic", names.TOPIC)
TABLE = _Named("table", names.TABLE)
SERVERS = _Named("host:port", names.SERVERS, "embedded")
REMOTE = _Named("sc://host:port", names.REMOTE, "embedded", is_secret=True)
RANGE = _Range()
