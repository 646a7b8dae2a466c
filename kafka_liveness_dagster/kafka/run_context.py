"""Describe the Dagster run that this process works for, or stand in for one in a script.

Imports no Dagster. Scripts and tests use the stand-in, which cannot be canceled and has no other runs.
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
    """Return monotonic time in milliseconds; it continues while the process is stopped (SIGSTOP)."""
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
        run_id: the run's id in Dagster; its first 8 digits mark commits.
        client_id: client id that the broker shows, ``dagster/<job>/<run id>/<step>``.
        state: reads the run's state from Dagster; called on the watchdog's thread every second.
        ends_at_ms: end of the run's own budget on the clock of ``now_ms``; None without one.
        log: the run's own log, for events of the consumer.
        claim_instance_id: takes over, for this run, one of these ``group.instance.id`` whose run is gone, and
            returns it; None if other runs are unknown.
        catch_up_runs: returns how many catch-up runs of a group have started and not ended; 0 if unknown.
        report_fence: stores for others why this process left its group, or that it is back; called on the
            watchdog's thread.
        on_first_commit: called once, in the thread that commits, after the first commit; raises nothing.
        is_step: whether the run worker started this process for one step, with which it ends.
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
        """The 8 hex digits that name the run in commit metadata."""
        return short_run_id(self.run_id)
