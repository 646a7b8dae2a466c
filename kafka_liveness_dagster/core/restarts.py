"""Does the live lane need a run, and when is it started after others failed?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.events import LeaveReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.core.events import MemberLeft
    from kafka_liveness_dagster.core.membership import PartitionSnapshot

_PATIENT_FAILURES = 3
MAX_BACKOFF_SECONDS = 300.0
_FIRST_BACKOFF_SECONDS = 10.0


def wants_live_run(
    partitions: Sequence[PartitionSnapshot], left: Sequence[MemberLeft], *, in_progress: int, max_live_runs: int
) -> bool:
    """Whether to start a live run: there is lag, or a crash to recover from, and room for one more run."""
    if in_progress >= min(max_live_runs, len(partitions)):
        return False
    return any(seen.lag for seen in partitions if not seen.paused) or any(
        gone.reason in (LeaveReason.CRASHED, LeaveReason.UNRELEASED) for gone in left
    )


def restart_delay_seconds(failures_in_a_row: int) -> float:
    """No delay after a crash; a run that fails every time is started more and more rarely, at last every 5 min."""
    if failures_in_a_row < _PATIENT_FAILURES:
        return 0.0
    doubled = min(failures_in_a_row - _PATIENT_FAILURES, 10)
    return min(MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * float(2**doubled))
