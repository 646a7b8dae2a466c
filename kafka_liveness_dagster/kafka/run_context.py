"""Which Dagster run does this process work for, and how is that run?

A stand-in serves scripts and tests: nobody can cancel them, and nobody knows of other runs.
"""

from __future__ import annotations

import logging
import time
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.run_ids import short_run_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kafka_liveness_dagster.core.fencing import FenceReport, RunState

log = logging.getLogger("kafka_liveness_dagster")


def now_ms() -> int:
    """Monotonic time in milliseconds; it goes on while the process is stopped (SIGSTOP)."""
    return time.monotonic_ns() // 1_000_000


def _no_catch_up_runs(_group_id: str) -> int:
    return 0


def _ignore_fence(_why: FenceReport) -> None:
    pass


def _ignore_first_commit() -> None:
    pass


@dataclass(frozen=True)
class RunContext:
    """The Dagster run this process works for, or a stand-in for a script.

    Attributes:
        run_id: as Dagster writes it; its first 8 digits mark commits.
        client_id: what the broker shows, ``dagster/<job>/<run id>/<step>``.
        state: asks Dagster how the run is; called on the watchdog's thread every second.
        ends_at_ms: when the run's own budget ends on the clock of ``now_ms``, None for never.
        log: where what happens to the consumer is told: the run's own log.
        claim_instance_id: which of these places in a group (``group.instance.id``) nobody works in any more:
            it is this run's from then on; None where nobody knows of other runs.
        catch_up_runs: how many catch-up runs of a group have started and not ended; 0 where nobody knows.
        report_fence: takes why this process is out of its group, or after what it is in it again, for others
            to see; called on the watchdog's thread.
        on_first_commit: told once, in the thread that commits, that a batch is committed; raises nothing.
        is_step: this process was started by its run worker for one step, and ends with it.
    """

    run_id: str
    client_id: str
    state: Callable[[], RunState]
    _: KW_ONLY
    ends_at_ms: int | None = None
    log: logging.Logger = log
    report_fence: Callable[[FenceReport], None] = _ignore_fence
    on_first_commit: Callable[[], None] = _ignore_first_commit
    is_step: bool = False
    claim_instance_id: Callable[[str, Sequence[str]], str | None] | None = None
    catch_up_runs: Callable[[str], int] = _no_catch_up_runs

    @property
    def short_run_id(self) -> str:
        """8 hex digits that name the run in commit metadata."""
        return short_run_id(self.run_id)
