"""Wait for an event of a test; when it never comes, report what, for how long, and the last value seen.

Never decides whether a deadline of the product held: see ``tests.timeouts``.
"""

from __future__ import annotations

import inspect
import linecache
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tests.timeouts import seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PATIENCE = 180.0
"""Seconds at factor 1. With 25 processes on two cores a run needs a minute to begin."""
_LONGEST = 1_000  # characters of a value
_LONGEST_PAUSE = 0.5
_ROOT = Path(__file__).parents[1]
_Found = TypeVar("_Found")


class NeverCameError(AssertionError):
    """A condition that did not hold in time."""


def wait_for(
    find: Callable[[], _Found],
    patience: float = PATIENCE,
    *,
    what: str = "",
    details: Callable[[], object] | None = None,
    pause: float = 0.02,
) -> _Found:
    """Call ``find`` until it returns a true value; return this value.

    Args:
        find: what to look at; an exception of it ends the wait.
        patience: seconds at factor 1. Patience costs nothing in a test that passes.
        what: a description for the failure; the source of the call when it is empty.
        details: what else the failure reports, such as the end of a log.
        pause: seconds between two calls at least. The pause after a slow call is six times as long as the
            call, up to 0.5 s: tests that wait leave the cores to those that work.

    Raises:
        NeverCameError: ``find`` returned no true value in time.
    """
    began, looks, patience = time.monotonic(), 0, seconds(patience)
    while True:
        looked = time.monotonic()
        found = find()
        if found:
            return found
        looks += 1
        now = time.monotonic()
        waited = now - began
        if waited > patience:
            what = what or _source(inspect.currentframe())
            told = f"waited {waited:.1f} s for {what}; last saw {_short(found)} after {looks:,} looks"
            more = f"\n{details()}" if details else ""
            raise NeverCameError(f"{told}; load average {os.getloadavg()[0]:.1f}{more}")
        time.sleep(max(pause, min(6 * (now - looked), _LONGEST_PAUSE)))


def seconds_until(find: Callable[[], object], patience: float = PATIENCE, *, what: str = "") -> float:
    """Wait as ``wait_for`` does, with short pauses; return how long it took."""
    began = time.monotonic()
    wait_for(find, patience, what=what or _source(inspect.currentframe()), pause=0.005)
    return time.monotonic() - began


def _source(frame: FrameType | None) -> str:
    """Return the place and the source of the call that led into this module."""
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    if frame is None:
        return "a condition"
    found = inspect.getframeinfo(frame)
    positions = getattr(found, "positions", None)  # from Python 3.11 on; before it the line alone
    first, last = (positions.lineno, positions.end_lineno) if positions else (found.lineno, found.lineno)
    lines = (linecache.getline(found.filename, number).strip() for number in range(first, last + 1))
    file = Path(found.filename)
    shown = file.relative_to(_ROOT) if file.is_relative_to(_ROOT) else file
    return f"`{' '.join(lines)}` ({shown}:{first})"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"
