"""Show the progress of ``kafka-liveness produce`` on a terminal. Prints nothing elsewhere."""

from __future__ import annotations

import os
import stat
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self

_REFRESH_SECONDS = 0.1


class ProduceProgress:
    """The progress bar of a file, and the count and rate of its records.

    Use it as a context manager. Standard input has no known size: then there is no bar.

    Args:
        file: input; iterate over ``lines`` instead of it.
        is_shown: whether to show the progress if stderr is a terminal.
    """

    def __init__(self, file: BinaryIO, *, is_shown: bool) -> None:
        self._file = file
        size = _remaining_bytes(file)
        bar = [BarColumn(), TaskProgressColumn()] if size else []
        self._progress = Progress(
            TextColumn("{task.description}"),
            *bar,
            console=Console(stderr=True),
            disable=not (is_shown and sys.stderr.isatty()),
            transient=True,
        )
        self._task = self._progress.add_task("0 records", total=size)
        self._began_at = time.monotonic()
        self._refreshed_at = 0.0
        self._bytes = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._progress.stop()

    @property
    def lines(self) -> Iterator[bytes]:
        """The lines of the file; counts their bytes."""
        for line in self._file:
            self._bytes += len(line)
            yield line

    @property
    def seconds(self) -> float:
        """The seconds since the begin."""
        return time.monotonic() - self._began_at

    def update(self, records: int) -> None:
        """Show the number of records so far; at most ten times a second."""
        now = time.monotonic()
        if self._progress.disable or now - self._refreshed_at < _REFRESH_SECONDS:
            return
        self._refreshed_at = now
        text = f"{records:,} records, {records / max(self.seconds, 0.001):,.0f} per second"
        self._progress.update(self._task, completed=self._bytes, description=text)


def _remaining_bytes(file: BinaryIO) -> int | None:
    """Return the bytes of a regular file from its position on; None for a pipe or a terminal."""
    with suppress(OSError, AttributeError):
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode):
            return found.st_size - file.tell()
    return None
