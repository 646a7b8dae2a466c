"""How does a history end?

All come to an end by themselves, or die; then everything is caught up, and must be there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation import invariants
from tests.simulation.events import sensor_tick
from tests.simulation.faults import remove_foreign_commits, start_over_with_new_table
from tests.simulation.run_workers import LiveRun
from tests.simulation.scheduler import clock

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

DRAINED = "when all is caught up, everything up to the log end is in the table, and nothing waits"
ENDS = "without trouble everybody comes to an end"
CALM_SECONDS = 200.0


def drain(world: Simulation) -> None:
    """Everybody comes to an end.

    One live run without trouble, and backfills of all that is missing, remain.
    """
    _calm_down(world)
    if world.chance(0.5):
        for process in (*world.runs, *world.catch_ups):
            process.fuse = 0
            world.wake(process)
        _until_over(world, clock.now + CALM_SECONDS)
    world.note("draining")
    for process in (*world.runs, *world.catch_ups):
        world.kill(process)
    clock.block(world.scenario.process_ms / 1000 * 1.6)  # sessions end, and what is on its way lands
    start_over_with_new_table(world)
    remove_foreign_commits(world)
    for p in world.partitions.values():
        p.unpause()
    world.max_poll_records = 10_000
    world.policy = replace(world.policy, on_missing_rows="crash_lag", on_data_loss="write_off")
    until = clock.now + CALM_SECONDS
    for _ in range(6):
        world.runs.append(LiveRun(world, "live"))
        _until_over(world, until)
        for _ in sensor_tick(world):
            pass
        if keys := world.waiting():
            world.catch_up(keys)
            _until_over(world, until)
        if _is_drained(world):
            break
    invariants.check(world)
    if not _is_drained(world):
        raise world.violation(DRAINED, f"(waiting: {world.waiting()})")


def _calm_down(world: Simulation) -> None:
    world.note("calm")
    world.calm, world.broker.failure_rate, world.poison = True, 0.0, []
    clock.slow = 0.0


def _until_over(world: Simulation, until: float) -> None:
    while world.runs or world.catch_ups:
        clock.block(0.5)
        if clock.now > until:
            raise world.violation(ENDS)


def _is_drained(world: Simulation) -> bool:
    return not world.waiting() and not any(
        p.below(p.log_end) & ~p.processed
        or p.below(p.log_end) != p.below_first
        or p.outstanding & ~p.processed
        for p in world.partitions.values()
    )
