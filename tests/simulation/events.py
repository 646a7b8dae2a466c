"""What may befall a simulated group?

Each event is a function of the world; ``WEIGHTS`` says how often it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.commit_metadata import (
    CatchUpCommitMetadata,
    GroupOrigin,
    LiveCommitMetadata,
    OwnerState,
    fits_commit_metadata,
)
from kafka_liveness_dagster.core.fencing import RunState
from kafka_liveness_dagster.core.ledger import LedgerEntry, encode_entries
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, union
from kafka_liveness_dagster.core.partition_keys import new_keys
from tests.simulation.run_workers import RUN_ID, LiveRun
from tests.simulation.scheduler import clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafka_liveness_dagster.core.partition_state import PartitionState
    from tests.simulation.partition import SimulatedPartition
    from tests.simulation.world import Simulation

Event = Callable[["Simulation"], None]


def begin_in_the_middle(world: Simulation, p: SimulatedPartition) -> None:
    """As weeks may have left it: processed up to here but for some ranges, of which some are done."""
    p.log_end = p.acknowledged = at = p.log_start + 60
    if world.chance(0.1):
        p.put_first((at, ""))  # a plain consumer was here before
        p.begin_life(at)
        return
    p.begin_life(p.log_start)
    # None: from a lane without a table
    origin = None if world.chance(0.2) else GroupOrigin(p.log_start, p.topic_id)
    cuts = sorted(world.rng.sample(range(p.log_start + 1, at), 6))
    owed = union(Span(*pair) for pair in zip(cuts[::2], cuts[1::2], strict=True))
    while not fits_commit_metadata(owed, GroupOrigin(p.log_start, p.topic_id)):
        owed = owed[1:]
    p.put_first(
        (at, LiveCommitMetadata(world.rng.choice(list(OwnerState)), RUN_ID, owed, origin=origin).encode())
    )
    done = tuple(span for span in owed if world.chance(0.3))
    rows = p.below(at) & ~p.read(set(owed) - set(done))
    account = LedgerEntry(tuple(p.spans(rows)), first_offset=p.log_start, topic_id=p.topic_id)
    world.table.write(
        {p.tp: rows}, {"kafka-liveness.written": encode_entries({p.tp: account})} if origin else {}
    )
    target = world.table.name if origin else None
    p.commit_second(
        p.log_start, CatchUpCommitMetadata(p.log_start, done, origin=origin, target=target).encode()
    )
    world.keys += new_keys([OffsetRange(*p.tp, *span) for span in owed], [], [])
    world.note("begun in the middle", p.tp, p.live_commit, p.catch_up_commit)


def produce(world: Simulation) -> None:
    """Every log grows, or not."""
    for p in world.partitions.values():
        p.log_end += int(world.rng.random() ** 2 * 25)
    world.note("produced", [p.log_end for p in world.partitions.values()])


def time_passes(world: Simulation) -> None:
    """Nothing else happens."""
    clock.block(world.rng.random() ** 2 * 3)


def start_live(world: Simulation) -> None:
    """A live run, unless there are enough."""
    if len(world.runs) < world.scenario.max_runs:
        world.runs.append(LiveRun(world, "live"))
        clock.block(world.rng.random())


def scale_out(world: Simulation) -> None:
    """Another one comes while the others are in the middle of long batches."""
    for _ in range(10):
        if len(world.table.in_flight) > 1:
            break
        clock.block(0.3)
    start_live(world)
    world.broker.group.shuffled = True


def start_catch_up(world: Simulation) -> None:
    """A backfill: some keys, in any order, perhaps such that are materialised or under way already."""
    if not (waiting := world.waiting()):
        tick(world)
    keys = waiting if waiting and world.chance(0.8) else world.keys
    if keys and len(world.catch_ups) < 3:
        for _ in range(2 if world.chance(0.5) else 1):
            world.catch_up(world.rng.sample(keys, world.rng.randint(1, len(keys))))
        clock.block(world.rng.random())


def tick(world: Simulation) -> None:
    """The sensor looks, and takes its time between two looks."""
    if next(world.sensor, None) is None:
        world.sensor = sensor_tick(world)
        next(world.sensor)
        if world.chance(0.8):
            next(world.sensor, None)


def crash(world: Simulation) -> None:
    """SIGKILL for a process, at one of its next steps; often the next one is there soon."""
    if processes := [*world.runs, *world.runs, *world.catch_ups]:
        world.rng.choice(processes).fuse = 1 + int(world.rng.random() ** 2 * 30)
        if world.chance(0.5):
            clock.block(world.rng.random() * world.scenario.session_ms / 700)
            start_live(world)


def stop_or_wake(world: Simulation) -> None:
    """SIGSTOP, SIGCONT; a stopped process is no member for long, and another one takes over."""
    if run := next((run for run in world.runs if run.stopped), None) or _some_run(world):
        if run.stopped:
            world.wake(run)
            return
        run.freezes, run.fuse = True, 1 + int(world.rng.random() ** 2 * 20)
        if world.chance(0.5):
            clock.block(world.rng.random() * world.scenario.session_ms / 500)
            start_live(world)


def stop_in_a_handover(world: Simulation) -> None:
    """SIGSTOP in the middle of a rebalance callback; perhaps somebody cancels the run meanwhile."""
    for _ in range(12):
        for run in world.runs:
            if not run.stopped and any(client.in_callback for client in run.clients):
                run.freezes = True
                run.blow()
                if world.chance(0.4):
                    run.run_state = RunState.CANCELED
                return
        clock.block(0.25)


def stop_in_a_commit(world: Simulation) -> None:
    """SIGSTOP of who repeats a commit that a rebalance holds up; often it is back before its session ends."""
    for _ in range(40):
        for run in world.runs:
            if not run.stopped and any(
                client.is_held_up and not client.in_callback for client in run.clients
            ):
                run.freezes, run.fuse = True, 1 + int(world.rng.random() * 6)
                run.freeze_seconds = world.rng.random() * world.scenario.session_ms / 800
                return
        clock.block(0.1)


def too_slow(world: Simulation) -> None:
    """A batch takes longer than its process timeout."""
    if run := _some_run(world):
        run.too_slow = True


def poison(world: Simulation) -> None:
    """One offset takes longer than a batch may, always."""
    p = world.rng.choice(list(world.partitions.values()))
    if not world.poison and p.log_end > p.log_start:
        at = max(p.log_start, p.log_end - 1 - int(world.rng.random() * 4))
        world.poison.append(OffsetRange(*p.tp, at, at + 1))
        world.note("poisoned", world.poison[-1])
        if world.chance(0.5):  # a batch that is halved again and again takes its time
            clock.block(world.rng.random() * world.scenario.process_ms / 400)


def cancel(world: Simulation) -> None:
    """Someone cancels a Dagster run, or its run worker dies before it."""
    if run := _some_run(world):
        run.run_state = world.rng.choice((RunState.CANCELED, RunState.CANCELED, RunState.ENDED))
        world.note("canceled" if run.run_state is RunState.CANCELED else "declared over", run.name)


def rebalance(world: Simulation) -> None:
    """The coordinator deals anew, with the members it has."""
    world.broker.group.shuffled = world.chance(0.5)
    world.broker.group.rebalance()


def switch_mode(world: Simulation) -> None:
    """Someone changes a setting, from the next run on."""
    now = world.policy
    change = world.rng.choice(
        (
            {"enable_parallel_rebalance": not now.enable_parallel_rebalance},
            {"on_missing_rows": "raise" if now.on_missing_rows == "crash_lag" else "crash_lag"},
            {"on_data_loss": "raise" if now.on_data_loss == "write_off" else "write_off"},
        )
    )
    world.policy = replace(now, **change)
    world.note("mode switched", change)


def sensor_tick(world: Simulation) -> Iterator[str]:
    """Dagster first, then Kafka and the table; the keys for what is owed and has none."""
    existing, materialized = list(world.keys), set(world.materialized)
    firsts = {tp: p.live_log for tp, p in world.partitions.items()}
    yield "looked at Dagster and at the live commit log"
    owed = [
        OffsetRange(*tp, *span)
        for tp, p in world.partitions.items()
        if p.foreign is None
        for span in seen_owed(p.facts(firsts[tp], world.table.entries()[tp]))
    ]
    if keys := new_keys(owed, existing, materialized):
        world.note("partitions added", *keys)
        world.keys += [key for key in keys if key not in world.keys]


def seen_owed(facts: PartitionState) -> tuple[Span, ...]:
    """What the sensor makes partitions of.

    What is owed, and what a stranger's commit made the group forget.
    """
    forgotten = (
        ()
        if facts.is_committed_by_this_package or facts.committed is None
        else facts.missing_rows(facts.committed)
    )
    return union((*facts.outstanding, *forgotten))


def _some_run(world: Simulation) -> LiveRun | None:
    return world.rng.choice(world.runs) if world.runs else None


Weights = Mapping[Event, float]
WEIGHTS: Weights = {
    time_passes: 30,
    produce: 10,
    start_live: 14,
    start_catch_up: 12,
    tick: 8,
    crash: 10,
    stop_or_wake: 4,
    too_slow: 3,
    poison: 2.5,
    cancel: 0.8,
    rebalance: 5,
    switch_mode: 1,
}
OF_REBALANCES: Weights = {
    time_passes: 20,
    produce: 15,
    start_live: 15,
    scale_out: 15,
    crash: 4,
    stop_or_wake: 5,
    stop_in_a_handover: 6,
    stop_in_a_commit: 4,
    too_slow: 8,
    cancel: 4,
    rebalance: 12,
}
