"""Mark the lines of a report as passed or failed, in characters that its reader's terminal has."""

from __future__ import annotations

import sys
from typing import NamedTuple

import click


class Marks(NamedTuple):
    """The marks of one output."""

    passed: str
    failed: str


_SYMBOLS = Marks("\u2713", "\u2717")
_WORDS = Marks("ok  ", "FAIL")


def marks() -> Marks:
    """Return symbols for a terminal that can show them, and words for a pipe, a file or another terminal."""
    out = sys.stdout
    if not out.isatty():
        return _WORDS
    try:
        "".join(_SYMBOLS).encode(out.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return _WORDS
    return _SYMBOLS


def marked_line(text: str, *, passed: bool) -> str:
    """Return a line with its mark, in color; ``click.echo`` drops the color in a pipe."""
    mark = marks().passed if passed else marks().failed
    return f"{click.style(mark, fg='green' if passed else 'red', bold=not passed)} {text}"
