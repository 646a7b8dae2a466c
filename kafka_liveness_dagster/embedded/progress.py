"""What is being started, for whoever waits: one changing line on a terminal, plain lines elsewhere.

Always on standard error: standard output belongs to ``up --json``.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is done now; it prints nothing when it is told nothing."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _each_once(console)
        return
    with console.status("starting") as status:
        yield status.update


def _each_once(console: Console) -> Callable[[str], None]:
    """Lines without their counters, so that a log gets one line per step and not per jar."""
    shown: set[str] = set()

    def show(text: str) -> None:
        step = text.partition(" (")[0]
        if step not in shown:
            shown.add(step)
            console.print(step, markup=False, soft_wrap=True)

    return show
