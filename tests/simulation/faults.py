"""What may others do to a group, its logs, its topic and its table? Each enemy is a function of the world.

``ENEMIES`` says how often each comes in the histories that have it; all their combinations occur.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.invariants import after_fault
from tests.simulation.scheduler import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.simulation.partition import SimulatedPartition
    from tests.simulation.world import Simulation


def _some(world: Simulation) -> SimulatedPartition:
    return world.rng.choice(list(world.partitions.values()))


def external_live_commit(world: Simulation) -> None:
    """Commit to the live commit log as a plain consumer, a script or a reset does, where no member is."""
    p = _some(world)
    if p.holder is not None:
        return
    at = p.live_commit[0] if p.live_commit else p.log_end
    places = {
        "same": min(at, p.log_end),
        "lower": world.rng.randint(p.log_start, max(p.log_start, min(at, p.log_end))),
        "higher": world.rng.randint(min(at, p.log_end), p.log_end),
        "earliest": p.log_start,
        "latest": p.log_end,
    }
    where = world.rng.choice(list(places))
    _commit(world, p, (places[where], ""))
    world.note(f"stranger's commit: {where}", p.tp, p.live_commit)


def foreign_commit(world: Simulation) -> None:
    """Another program's commit, with metadata that is not ours; somebody removes it sooner or later."""
    p = _some(world)
    if p.holder is None and p.foreign is None:
        _commit(world, p, (p.live_commit[0] if p.live_commit else p.log_end, "checkpoint-7"))
        world.note("foreign commit", p.tp, p.live_commit)
    elif p.foreign is not None:
        remove_foreign_commits(world)


def remove_foreign_commits(world: Simulation) -> None:
    """An operator commits the same offset without metadata, or deletes it."""
    for p in world.partitions.values():
        if p.foreign is not None and p.live_commit is not None:
            _commit(world, p, (min(p.live_commit[0], p.log_end), "") if world.chance(0.5) else None)
            world.note("foreign commit removed", p.tp, p.live_commit)


def expire_live_log(world: Simulation) -> None:
    """Expired, or deleted: at any moment, under whoever holds the partition too."""
    p = _some(world)
    if p.live_commit is not None and not world.is_anew:
        _commit(world, p, None)
        p.erased = p.holder is not None
        world.note("live commit log gone", p.tp)


def expire_catch_up_log(world: Simulation) -> None:
    """The broker's offsets retention at the worst moment, or somebody's --delete-offsets."""
    p = _some(world)
    if p.catch_up_commit is not None and not world.is_anew:
        world.note("catch-up commit log gone", p.tp)
        p.expire_second()
        after_fault(world)


def external_catch_up_commit(world: Simulation) -> None:
    """Commit any offset and text to the catch-up commit log: kcat's auto-commit, or a reset of all groups."""
    p = _some(world)
    if p.catch_up_commit is not None and not world.is_anew:
        offset = world.rng.choice((0, p.log_start, p.log_end, p.log_end + 10**6))
        p.replace_second(offset, world.rng.choice(("", "checkpoint-7", "kl1 running 0badcafe @0")))
        world.note("catch-up commit log replaced", p.tp, p.catch_up_commit)
        after_fault(world)


def _commit(world: Simulation, p: SimulatedPartition, commit: tuple[int, str] | None) -> None:
    world.set_back, world.set_back_at = True, clock.now
    p.put_first(commit)
    p.acknowledged, p.erased = commit[0] if commit else p.base, False
    after_fault(world)


def drop_table(world: Simulation) -> None:
    """Dropped; the next write creates it anew, empty."""
    if world.table.current_id is not None:
        world.table.drop()
        world.note("table dropped")
        after_fault(world)


def roll_back(world: Simulation) -> None:
    """To an earlier snapshot, or forward again to one that was rolled away."""
    table = world.table
    known = [one for one in table.snapshots if one != table.current_id]
    ancestors = table.ancestors()[1:5]
    if not known or table.current_id is None:
        return
    forward = not ancestors or world.chance(0.2)
    table.point_to(world.rng.choice(known if forward else ancestors))
    table.lose_rows()
    world.note("table set to another snapshot" if forward else "table rolled back", table.current_id)
    after_fault(world)


def expire_snapshots(world: Simulation) -> None:
    """All but the newest few ancestors, and whatever else is old."""
    table = world.table
    kept = table.ancestors()[: world.rng.choice((1, 1, 2, 3))]
    before = (
        world.rng.randint(0, max(table.snapshots, default=0)) if world.chance(0.3) else max(kept, default=0)
    )
    if gone := [one for one in table.snapshots if one not in kept and (one <= before or world.chance(0.5))]:
        table.expire(gone)
        world.note("snapshots expired", gone)
        after_fault(world)


def compact(world: Simulation) -> None:
    """Somebody rewrites the files, and often expires what was before: a snapshot that says nothing."""
    table = world.table
    if table.current_id is None:
        return
    now = table.snapshots[table.current_id]
    table.add({}, now.rows, now.twice, {})
    world.note("compacted", table.current_id)
    if world.chance(0.4):
        table.expire([one for one in table.snapshots if one != table.current_id])
        world.note("history expired after a compaction")
    after_fault(world)


def retention(world: Simulation) -> None:
    """The broker deletes old records, processed or not."""
    p = _some(world)
    if p.log_end > p.log_start and world.scenario.max_metadata_bytes > 4_000:
        p.log_start += 1 + int(world.rng.random() ** 2 * (p.log_end - p.log_start))
        world.note("records expired", p.tp, "below", p.log_start)
        after_fault(world)


def recreate_topic(world: Simulation) -> None:
    """Delete and create the topic, with fewer, as many, or more records; the broker may drop the commits."""
    if world.is_anew or not world.chance(0.3):
        return
    drops = world.chance(0.7)
    known = any(account.topic_id for account in world.table.entries().values())
    known = known or (not drops and any(p.named for p in world.partitions.values()))
    for p in world.partitions.values():
        was, p.topic_id = p.log_end, f"T{int(p.topic_id[1:]) + 1}"
        p.log_start, p.log_end = 0, world.rng.choice((was // 2, was, was + 20)) if was < 10**6 else 20
        if drops:
            p.put_first(None)
            p.expire_second()
    world.note("topic made anew", world.topic_id, "commits dropped" if drops else "commits left")
    if not known:  # no witness says whose offsets those were
        start_over_with_new_table(world)


def start_over_with_new_table(world: Simulation) -> None:
    """An operator clears up after the old topic: another table, and both groups' commits deleted."""
    if not world.is_anew:
        return
    for process in (*world.runs, *world.catch_ups):
        world.kill(process)
    for member in list(world.broker.group.members):
        world.broker.group.leave(member)
    world.table.in_flight.clear()
    world.table.drop()
    world.table.intruders = 0
    for p in world.partitions.values():
        p.born, p.base, p.acknowledged = p.topic_id, 0, 0
        p.waived = p.unknowable_missing = p.lost = p.removed_by_fault = p.wrongly_told = p.mistaken = (
            p.went_back
        ) = p.covered = 0
        p.given_up = p.unsaid = False
        p.unborn, p.holder, p.adopted_by, p.erased = True, None, None, False
        p.put_first(None)
        p.expire_second()
    world.keys, world.materialized, world.sensor, world.poison = [], set(), iter(()), []
    world.note("begun anew", world.topic_id)


ENEMIES: Mapping[Callable[[Simulation], None], float] = {
    external_live_commit: 4,
    foreign_commit: 2,
    expire_live_log: 2,
    expire_catch_up_log: 2,
    drop_table: 1.5,
    roll_back: 3,
    expire_snapshots: 3,
    compact: 2,
    retention: 5,
    recreate_topic: 2,
    start_over_with_new_table: 3,
}
