"""What may befall a simulated group? Each event is a function of the world; ``WEIGHTS`` says how often it comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.accounts import Account
from kafka_liveness_dagster.core.commit_log import DoneLog, LiveMark, Mark, Origin, fits
from kafka_liveness_dagster.core.ledger_text import encode
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, union
from kafka_liveness_dagster.partitions import new_keys
from tests.core.simulated_catch_up import sensor_tick
from tests.core.simulated_runs import RUN_MARK, LiveRun

if TYPE_CHECKING:
    from tests.core.simulated_partition import SimulatedPartition
    from tests.core.simulated_settling import Run
    from tests.core.simulation import Simulation

Event = Callable[["Simulation"], None]


def begin_in_the_middle(world: Simulation, p: SimulatedPartition) -> None:
    """As weeks may have left it: processed up to here but for some ranges, of which some are done."""
    p.log_end = p.acknowledged = at = p.log_start + 60
    if world.chance(0.1):
        p.put_first((at, ""))  # a plain consumer was here before
        p.begin_life(at)
        return
    p.begin_life(p.log_start)
    origin = None if world.chance(0.2) else Origin(p.log_start, p.topic_id)  # None: version 0.1.0 was here before
    cuts = sorted(world.rng.sample(range(p.log_start + 1, at), 6))
    owed = union(Span(*pair) for pair in zip(cuts[::2], cuts[1::2], strict=True))
    while not fits(owed, Origin(p.log_start, p.topic_id)):
        owed = owed[1:]
    p.put_first((at, LiveMark(world.rng.choice(list(Mark)), RUN_MARK, owed, origin=origin).encode()))
    done = tuple(span for span in owed if world.chance(0.3))
    rows = p.below(at) & ~p.read(set(owed) - set(done))
    account = Account(tuple(p.spans(rows)), start=p.log_start, topic_id=p.topic_id)
    world.table.write({p.tp: rows}, {"kafka-liveness.wrote": encode({p.tp: account})} if origin else {})
    target = world.table.name if origin else None
    p.commit_second(p.log_start, DoneLog(p.log_start, done, origin=origin, target=target).encode())
    world.keys += new_keys([OffsetRange(*p.tp, *span) for span in owed], [], [])
    world.note("begun in the middle", p.tp, p.first, p.second)


def produce(world: Simulation) -> None:
    """Every log grows, or not."""
    for p in world.partitions.values():
        p.log_end += int(world.rng.random() ** 2 * 25)
    world.note("produced", [p.log_end for p in world.partitions.values()])


def advance(world: Simulation) -> None:
    """Some process goes on for a while; at each of its steps the invariants are checked."""
    processes: list[Run] = [*(run for run in world.runs if not run.stopped), *world.catch_ups, *world.catch_ups]
    if not processes:
        start_live(world)
        return
    process = world.rng.choice(processes)
    for _ in range(1 + int(world.rng.random() * 8)):
        at = world.step(process)
        if at == "idle":
            produce(world)
        if at in {None, "idle"} or (at in {"looked", "recording"} and world.chance(0.8)):
            return  # a decision grows stale best between the look and the commit


def start_live(world: Simulation) -> None:
    """A live run, unless there are enough."""
    if len(world.runs) < world.scenario.max_runs:
        world.runs.append(LiveRun(world, world.name("live"), pipelined=world.chance(0.5)))


def start_catch_up(world: Simulation) -> None:
    """A backfill: some keys, in any order, perhaps such that are materialised or under way already."""
    if not (waiting := world.waiting()):
        tick(world)
    keys = waiting if waiting and world.chance(0.8) else world.keys
    if keys and len(world.catch_ups) < 3:
        for _ in range(2 if world.chance(0.5) else 1):
            world.catch_up(world.rng.sample(keys, world.rng.randint(1, len(keys))))


def tick(world: Simulation) -> None:
    """The sensor looks, and takes its time between two looks."""
    if next(world.sensor, None) is None:
        world.sensor = sensor_tick(world)
        next(world.sensor)
        if world.chance(0.8):
            next(world.sensor, None)


def crash(world: Simulation) -> None:
    """SIGKILL for a process; often the next one is there soon."""
    if processes := [*world.runs, *world.runs, *world.catch_ups]:
        world.kill(world.rng.choice(processes))
        if world.chance(0.5):
            expire_sessions(world)
            start_live(world)


def stop_or_wake(world: Simulation) -> None:
    """SIGSTOP, SIGCONT; a stopped process is no member for long, and another one takes over."""
    if run := next((run for run in world.runs if run.stopped), None) or _some_run(world):
        run.stopped = not run.stopped
        world.note("stopped" if run.stopped else "woken", run.name)
        if run.stopped and world.chance(0.5):
            expire_sessions(world)
            start_live(world)


def expire_sessions(world: Simulation) -> None:
    """The coordinator notices who sends no heartbeats any more."""
    beating = {run.member for run in world.runs if not run.stopped}
    for member in [m for m in world.broker.joined if m not in beating]:
        world.note("session expired", member)
        world.broker.leave(member)


def poll_timeout(world: Simulation) -> None:
    """A batch takes longer than its process timeout: the watchdog leaves the group."""
    if (run := _some_run(world)) and not run.stopped:
        run.fence("poll timeout") if world.chance(0.3) else run.quarantine()


def cancel(world: Simulation) -> None:
    """Someone cancels a Dagster run."""
    if (run := _some_run(world)) and not run.stopped:
        run.fence("canceled", release=True, rejoin=False)


def finish(world: Simulation) -> None:
    """A run has had enough and releases its partitions with the next poll."""
    if run := _some_run(world):
        run.finishing = True


def rebalance(world: Simulation) -> None:
    """The coordinator deals anew, with the members it has."""
    world.broker.rebalance()


def land(world: Simulation) -> None:
    """Spark finishes a write by itself; that of a dead process it may also give up."""
    if not world.table.in_flight:
        return
    write = world.rng.choice(world.table.in_flight)
    if world.is_alive(write.author) or world.chance(0.8):
        world.table.land(write)
        world.note("landed by itself" if write.landed else "late write refused", write.author)
    else:
        world.table.in_flight.remove(write)


def switch_mode(world: Simulation) -> None:
    """Someone changes a setting, from the next run on."""
    now = world.policy
    change = world.rng.choice(
        (
            {"enable_parallel_rebalance": not now.enable_parallel_rebalance},
            {"on_missing_rows": "raise" if now.on_missing_rows == "owe" else "owe"},
            {"on_data_loss": "raise" if now.on_data_loss == "skip" else "skip"},
        )
    )
    world.policy = replace(now, **change)
    world.note("mode switched", change)


def _some_run(world: Simulation) -> LiveRun | None:
    return world.rng.choice(world.runs) if world.runs else None


Weights = Mapping[Event, float]
WEIGHTS: Weights = {
    advance: 50,
    produce: 8,
    start_live: 10,
    start_catch_up: 14,
    tick: 10,
    crash: 10,
    stop_or_wake: 4,
    expire_sessions: 8,
    poll_timeout: 3,
    cancel: 0.5,
    finish: 1,
    rebalance: 5,
    land: 3,
    switch_mode: 1,
}
