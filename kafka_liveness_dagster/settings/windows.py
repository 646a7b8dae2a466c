"""Which windows of time does an asset have: hours, quarters of an hour, days?

Dagster's own time-window partitions.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timezone
from functools import cached_property
from heapq import nlargest
from typing import Literal, NamedTuple

import dagster as dg

Every = Literal["15min", "1h", "1d"]
_DAY_FORMAT = "%Y-%m-%d"
_TIME_FORMAT = "%Y-%m-%d-%H:%M"
_KEY_SUFFIXES = {"15min": "_by_15min", "1h": "_by_hour", "1d": "_by_day"}
_QUARTERS = "*/15 * * * *"
_MAX_WINDOW_SECONDS = {"15min": 900, "1h": 3_600, "1d": 90_000}

_MAX_REPEATED_KEYS = 8  # quarters of the hour that comes twice when summer ends: keys are not in order there


class Window(NamedTuple):
    """From ``begin`` to before ``end``, in seconds since the epoch.

    Attributes:
        key: Dagster's partition key.
    """

    key: str
    begin: float
    end: float

    def __str__(self) -> str:
        return self.key


@dataclass(frozen=True)
class Windows:
    """The windows of an asset, and when one is told.

    Attributes:
        of: the live asset's key.
        every: how long one is.
        start: when the first one begins, as ``YYYY-MM-DD``, maybe with ``-HH:MM``, in the time zone.
        timezone: an IANA name.
        allowed_lateness_seconds: how long behind its end records of a window may come.
        reopen_on_late: what comes later still lets it be told again.
        mark_empty: whether a window without records is marked complete.
    """

    of: dg.AssetKey
    every: Every
    start: str
    _: KW_ONLY
    timezone: str
    allowed_lateness_seconds: float
    reopen_on_late: bool
    mark_empty: bool = True

    @property
    def key(self) -> dg.AssetKey:
        """Of the asset whose partitions they are."""
        return dg.AssetKey([*self.of.path[:-1], f"{self.of.path[-1]}{_KEY_SUFFIXES[self.every]}"])

    @cached_property
    def definition(self) -> dg.TimeWindowPartitionsDefinition:
        """As downstream assets may have them, too."""
        start = datetime.strptime(self.start, start_format(self.start))  # noqa: DTZ007 - of the zone
        zone = self.timezone
        if self.every == "1h":
            return dg.HourlyPartitionsDefinition(start_date=start, timezone=zone)
        if self.every == "1d":
            return dg.DailyPartitionsDefinition(start_date=start, timezone=zone)
        return dg.TimeWindowPartitionsDefinition(
            start=start, fmt=_TIME_FORMAT, cron_schedule=_QUARTERS, timezone=zone
        )

    @property
    def identity(self) -> str:
        """What tells these windows from others of the same asset."""
        return f"{self.every} {self.start} {self.timezone}"

    @property
    def begin(self) -> float:
        """Of the first one, in seconds since the epoch."""
        return self.definition.start_timestamp

    def window_of_key(self, key: str) -> Window:
        """The window of a partition."""
        found = self.definition.time_window_for_partition_key(key)
        return Window(key, found.start.timestamp(), found.end.timestamp())

    def window_at(self, moment: float) -> Window:
        """The window in which something happened, in seconds since the epoch.

        It may lie before the first one.
        """
        return self.window_of_key(self.definition.get_partition_key_for_timestamp(moment))

    def ended_windows(self, since: float, until: float, max_windows: int) -> list[Window]:
        """Return the oldest windows that begin at or after ``since``, and have ended by ``until``.

        ``since`` is a moment at which a window begins.
        """
        since = max(since, self.begin)
        until = min(until, since + max_windows * _MAX_WINDOW_SECONDS[self.every])
        if since >= until:
            return []
        asked = dg.TimeWindow(*(datetime.fromtimestamp(at, timezone.utc) for at in (since, until)))
        found = map(self.window_of_key, self.definition.get_partition_keys_in_time_window(asked))
        return [one for one in found if one.begin >= since and one.end <= until][:max_windows]

    def materialized_until(self, instance: dg.DagsterInstance) -> float:
        """When the newest window ends that Dagster has as materialized; minus infinity where it has none."""
        newest = nlargest(_MAX_REPEATED_KEYS, instance.get_materialized_partitions(self.key))
        return max((self.window_of_key(key).end for key in newest), default=-math.inf)


def start_format(start: str) -> str:
    """The form of a text that says when the first window begins."""
    return _TIME_FORMAT if len(start) > len("2026-11-01") else _DAY_FORMAT


def is_window_start(text: str) -> bool:
    """Whether it is such a text."""
    try:
        return datetime.strptime(text, form := start_format(text)).strftime(form) == text  # noqa: DTZ007 - no zone in it
    except ValueError:
        return False


def is_timezone(text: str) -> bool:
    """Dagster decides; without a name it would take its own."""
    try:
        dg.DailyPartitionsDefinition(start_date="2026-11-01", timezone=text).get_first_partition_window()
    except Exception:  # noqa: BLE001 - of zoneinfo there are several
        return False
    return bool(text)
