"""Define the windows of time of an asset: hours, quarters of an hour or days.

They are Dagster's own time-window partitions. Never decides whether a window is complete.
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

_MAX_REPEATED_KEYS = 8  # quarters of the repeated hour when summer time ends: its keys are not in order


class Window(NamedTuple):
    """A half-open window of time, from ``begin`` to before ``end``, in seconds since the epoch.

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
    """The windows of an asset, and the rules that mark one as complete.

    Attributes:
        of: key of the live asset.
        every: length of a window.
        start: begin of the first window in the time zone: ``YYYY-MM-DD``, optionally with ``-HH:MM``.
        timezone: an IANA name.
        allowed_lateness_seconds: time after the end of a window in which its records may arrive.
        reopen_on_late: whether later records let the window be marked complete again.
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
        """The key of the asset with the windows as its partitions."""
        return dg.AssetKey([*self.of.path[:-1], f"{self.of.path[-1]}{_KEY_SUFFIXES[self.every]}"])

    @cached_property
    def definition(self) -> dg.TimeWindowPartitionsDefinition:
        """The windows as Dagster partitions, which downstream assets may use, too."""
        start = datetime.strptime(self.start, start_format(self.start))  # noqa: DTZ007 - in the zone
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
        """The text that distinguishes these windows from other windows of the same asset."""
        return f"{self.every} {self.start} {self.timezone}"

    @property
    def begin(self) -> float:
        """The begin of the first window, in seconds since the epoch."""
        return self.definition.start_timestamp

    def window_of_key(self, key: str) -> Window:
        """Return the window of a partition key."""
        found = self.definition.time_window_for_partition_key(key)
        return Window(key, found.start.timestamp(), found.end.timestamp())

    def window_at(self, moment: float) -> Window:
        """Return the window that contains a moment, in seconds since the epoch.

        The window may be before the first one of the asset.
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
        """Return the end of the newest window that Dagster has as materialized; minus infinity for none."""
        newest = nlargest(_MAX_REPEATED_KEYS, instance.get_materialized_partitions(self.key))
        return max((self.window_of_key(key).end for key in newest), default=-math.inf)


def start_format(start: str) -> str:
    """Return the format of a text with the begin of the first window."""
    return _TIME_FORMAT if len(start) > len("2026-11-01") else _DAY_FORMAT


def is_window_start(text: str) -> bool:
    """Return whether the text is a valid begin of the first window."""
    try:
        return datetime.strptime(text, form := start_format(text)).strftime(form) == text  # noqa: DTZ007 - it has no zone
    except ValueError:
        return False


def is_timezone(text: str) -> bool:
    """Return whether Dagster accepts it as a time zone; an empty name is not replaced by a default."""
    try:
        dg.DailyPartitionsDefinition(start_date="2026-11-01", timezone=text).get_first_partition_window()
    except Exception:  # noqa: BLE001 - zoneinfo raises several
        return False
    return bool(text)
