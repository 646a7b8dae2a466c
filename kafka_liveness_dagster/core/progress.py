"""When is the run's log told how far Spark is with a batch? Now and then, and never of a batch that is soon done.

>>> log = ProgressLog("orders:3:70-120", began_seconds=100.0)
>>> log.report(2, 40, now_seconds=105.0)
>>> log.report(12, 40, now_seconds=115.0)
'orders:3:70-120: 12 of 40 tasks after 15 s'
>>> log.report(13, 40, now_seconds=117.0)
"""

from __future__ import annotations

from dataclasses import dataclass, field

TELL_EVERY_SECONDS = 10.0


@dataclass
class ProgressLog:
    """What is told of one batch.

    Attributes:
        name: of the batch.
        began_seconds: when Spark was given it.
        every_seconds: at least so long from one line to the next, and from the beginning to the first.
    """

    name: str
    began_seconds: float
    every_seconds: float = TELL_EVERY_SECONDS
    _told_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self._told_seconds = self.began_seconds

    def report(self, completed: int, total: int, now_seconds: float) -> str | None:
        """The line for the run's log, None for none.

        Args:
            completed: tasks of the running operation that have finished.
            total: tasks it has by now; 0 before Spark has planned it.
            now_seconds: on the clock of ``began_seconds``.
        """
        # Rule 1: people read it, so not every two seconds; an operation that is done is followed by the next
        if now_seconds - self._told_seconds < self.every_seconds or completed >= total:
            return None
        self._told_seconds = now_seconds
        return f"{self.name}: {completed:,} of {total:,} tasks after {now_seconds - self.began_seconds:.0f} s"
