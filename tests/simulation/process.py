"""What dies of SIGKILL and stands still with SIGSTOP? A simulated process; and what ends a history."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.scheduler import Task


class Killed(BaseException):
    """The process is dead; what unwinds must not do anything that others could see."""


class RunsOnError(Exception):
    """The history does not come to an end."""


class StandsStillError(Exception):
    """Nobody can go on: each waits for another, and no timer is set."""


class Process:
    """What SIGKILL, SIGSTOP and SIGCONT act on: some threads.

    Attributes:
        dead: killed or ended. ``stopped``: none of its threads has a turn.
        fuse: after so many of its points something befalls it; 0 for never.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tasks: list[Task] = []
        self.parked: list[Task] = []
        self.dead = self.stopped = False
        self.fuse = 0

    def blow(self) -> None:
        """That happens now."""

    def died(self) -> None:
        """Whoever kept track of it hears of it."""
