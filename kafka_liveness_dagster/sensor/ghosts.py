"""What becomes of runs for which nobody works? Their end is told to Dagster, and what they held comes free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.ghosts import ghost, is_over, uncounted

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

    from kafka_liveness_dagster.core.ghosts import Absence
    from kafka_liveness_dagster.sensor.look import GroupLook

_KEPT_SECONDS = 60.0  # a run that ends gives its slots back itself, a little later


@dataclass(frozen=True)
class Ghosts:
    """Runs in progress that keep no place, at one look.

    Attributes:
        after_seconds: a run that gives no sign of life is no ghost before that.
        always: report every ghost as failed; else only one whose end is certain.
    """

    look: GroupLook
    absent: Mapping[str, Absence]
    now: float
    after_seconds: float
    always: bool

    def live(self, max_live_runs: int) -> list[str]:
        """Those of the live lane."""
        return uncounted(self.look.snapshot.runs, self.absent, self.now, self.after_seconds, max_live_runs)

    def catch_up(self) -> list[str]:
        """Those of the catch-up lane."""
        return uncounted(self.look.snapshot.catch_up, self.absent, self.now, self.after_seconds)

    def end(self, instance: dg.DagsterInstance, by: str, log: logging.Logger) -> bool:
        """Tell Dagster which of them are over; whether any was. At every look while it is so."""
        ended = False
        runs = {**self.look.snapshot.runs, **self.look.snapshot.catch_up}
        for mark, absence in self.absent.items():
            if is_over(runs[mark], absence, self.now, self.after_seconds, always=self.always):
                why = f"{ghost(mark, runs[mark], absence, self.now)}: reported by {by}"
                try:
                    ended |= _end(instance, self.look.run(mark), why)
                except Exception:  # the next look tries again; the successor must not wait for that
                    log.exception("could not tell Dagster that run %s is over", mark)
        return ended


def _end(instance: dg.DagsterInstance, known: dg.DagsterRun | None, why: str) -> bool:
    run = instance.get_run_by_id(known.run_id) if known is not None else None
    if run is None or run.is_finished:  # it ended since the look
        return False
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, why)
    else:
        instance.report_run_failed(run, why)
    if instance.event_log_storage.supports_global_concurrency_limits:
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return True


def free_slots(instance: dg.DagsterInstance, asset: dg.AssetsDefinition, now: float) -> None:
    """Give back what runs that are over left taken of an asset's pool: a run worker that was killed cannot."""
    storage, pool = instance.event_log_storage, getattr(asset.node_def, "pool", None)
    if pool is None or not storage.supports_global_concurrency_limits:
        return
    info = storage.get_concurrency_info(pool)
    for run_id in {*(slot.run_id for slot in info.claimed_slots), *(step.run_id for step in info.pending_steps)}:
        record = instance.get_run_record_by_id(run_id)
        is_over = record is None or record.dagster_run.is_finished
        if is_over and now - ((record.end_time if record else None) or 0.0) >= _KEPT_SECONDS:
            storage.free_concurrency_slots_for_run(run_id)
