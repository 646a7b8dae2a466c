"""What must hold, whatever happens? An account of its own, kept in bits beside the core's algebra.

What somebody else did is the enemy's: rows a table lost, debts a commit replaced. It may be missing, but
never in silence: who resumes the partition next must owe it, or say by name why not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core import resume as resume_module
from kafka_liveness_dagster.core.batch_size import SlowRecordError
from kafka_liveness_dagster.core.commit_metadata import ExternalCommitError, committed_offset
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.ledger import SnapshotSummary, lineage
from kafka_liveness_dagster.core.offsets import Span, intersection
from kafka_liveness_dagster.core.partition_state import (
    DataExpiredError,
    RowsMissingError,
    TopicRecreatedError,
)
from kafka_liveness_dagster.core.resume import ResumePolicy
from kafka_liveness_dagster.kafka.catch_up.commit_log import NotPendingError
from kafka_liveness_dagster.kafka.catch_up.consumer import PausedPartitionError
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, CommitRefusedError, FencedError
from kafka_liveness_dagster.spark.errors import SparkFailedError
from tests.simulation.partition import EVERYTHING
from tests.simulation.scheduler import clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.partition import SimulatedPartition
    from tests.simulation.run_workers import LiveRun, RunWorker
    from tests.simulation.world import Simulation

INVARIANTS: dict[str, Callable[[SimulatedPartition], int]] = {
    "the catch-up commit log covers nothing that is not in the table": lambda p: (
        p.done & ~(p.processed | p.removed_by_fault)
    ),
    "the catch-up commit log covers nothing that comes to be a member's to do": lambda p: p.covered,
    "every offset below the live commit log is in the table or owed": lambda p: p.gap & ~p.removed_by_fault,
    "what is owed is below the live commit log": lambda p: p.pending & ~p.below_first,
    "the table holds each offset's rows once": lambda p: p.twice,
    "the live commit log never goes back behind an acknowledged commit": lambda p: p.went_back,
    "only what expired is told as lost": lambda p: p.wrongly_told,
    "nothing is committed for a topic made anew": lambda p: p.mistaken,
    "nobody commits what it has given up": lambda p: p.given_up,
    "the table is told where the group's life began": lambda p: p.unsaid,
}
COMMITTED = "committed() never passes an unprocessed offset"
SILENT = "nothing is missing in silence"
CLAIMS = "the ledger claims nothing that is not in the table"
INTRUDERS = "nothing is written of a topic made anew"
PROVEN = "a range is materialised only when done"
DISJOINT = "live ranges and owed ranges are disjoint"
DURABLE = "a live lane begins where the live commit log says"
GROWS = "the live lane's position goes back to its last commit at most"
IDLE = "nobody ends idle with partitions that he has just been given"
JUSTIFIED = "an error has its reason"
NOTHING_RAISES = "nothing raises"
_FRESH = ResumePolicy(on_missing_rows="crash_lag", on_data_loss="write_off")


def check(world: Simulation) -> None:
    """All invariants, where anything changed."""
    if world.checked != world.table.version:
        world.checked = world.table.version
        check_table(world)
    for p in world.partitions.values():
        if p.changed:
            p.changed = False
            p.lacked_until = math.inf if p.lacks else min(p.lacked_until, clock.now)
            check_partition(world, p)
            _check_live(world, p)


def _check_live(world: Simulation, p: SimulatedPartition) -> None:
    for run in world.runs:
        lane = run.consumer._session.planner if run.consumer is not None else None
        owned = lane.member.owned.get(p.tp) if lane is not None else None
        if lane is None or owned is None or p.holder is not lane.member._client or world.is_anew:
            continue
        if p.bits(owned.committed, owned.position) & p.outstanding:
            raise world.violation(DISJOINT, f"({p.tp}: {run.name} owns {owned})")
        durable = p.below_first | p.lost  # what expired is passed before that is committed
        if not p.erased and p.below(owned.committed) & ~durable:
            raise world.violation(DURABLE, f"({p.tp}: {run.name} owns {owned})")
        if not p.acknowledged <= owned.committed <= owned.position <= p.log_end:
            raise world.violation(GROWS, f"({p.tp}: {run.name} owns {owned}, acknowledged {p.acknowledged})")


def check_partition(world: Simulation, p: SimulatedPartition) -> None:
    """The invariants of one partition, as the commits and the table are now."""
    for name, broken in INVARIANTS.items():
        if bits := broken(p):
            raise world.violation(name, f"({p.tp}: {p.names(bits)})")
    if p.foreign is not None or world.is_anew:
        return
    if p.outstanding and (bits := _below_committed(world, p) & ~(p.processed | p.removed_by_fault)):
        raise world.violation(COMMITTED, f"({p.tp}: {p.names(bits)})")
    if (gap := p.gap) and (bits := gap & ~found_by_next_owner(world, p)):
        if known := bits & known_offsets(world, p):
            raise world.violation(SILENT, f"({p.tp}: {p.names(known)})")
        p.unknowable_missing |= bits


def _below_committed(world: Simulation, p: SimulatedPartition) -> int:
    """All offsets below KIP-333's committed(), as the core has it.

    Asked once for each state of the witnesses.
    """
    state = p.live_commit, p.catch_up_commit, world.table.version
    if p.below_committed[0] != state:
        facts = p.facts(account=world.table.entries()[p.tp])
        p.below_committed = state, p.below(committed_offset(facts.committed, facts.outstanding) or p.base)
    return p.below_committed[1]


def found_by_next_owner(world: Simulation, p: SimulatedPartition) -> int:
    """The offsets that who resumes the partition next will owe, process, or tell as lost.

    All where it refuses.
    """
    try:
        found = resume_module.decide_resume(p.tp, p.facts(account=world.table.entries()[p.tp]), _FRESH)
    except KafkaLivenessError:
        return EVERYTHING
    return p.read((*found.pending, *found.lost, *found.catch_up_log.written_off)) | ~p.below(found.position)


def known_offsets(world: Simulation, p: SimulatedPartition) -> int:
    """What of the group's life some record knows of, and not what the table's expired history had."""
    account = world.table.entries()[p.tp]
    begun = [start for start in (p.begun, account.first_offset) if start is not None]
    life = ~p.below(min(begun)) if begun else 0
    return life & ~p.read(intersection(account.unknown, (Span(0, p.log_end),)))


def check_table(world: Simulation) -> None:
    """Whether the table's ledger says the truth; it may say too little, which costs rework."""
    if world.table.intruders:
        raise world.violation(INTRUDERS)
    if world.is_anew:
        return
    for tp, account in world.table.entries().items():
        p = world.partitions[tp]
        if (
            bits := p.read(account.written) & ~(p.rows | p.unknowable_missing)
            | p.read(account.written_off) & ~p.lost
        ):
            if not _is_accepted(world):
                raise world.violation(CLAIMS, f"({tp}: {p.names(bits)})")
            world.note("claimed what was rolled away and expired", tp, p.names(bits))
            p.unknowable_missing |= bits  # docs/internals/crash-lag.md tells of it


def _is_accepted(world: Simulation) -> bool:
    """Return whether the table was rolled back under a writer, and the rest expired before anyone looked."""
    table = world.table
    snapshots = {
        one.snapshot_id: SnapshotSummary(
            one.snapshot_id, one.parent, total_as_of=int(since) if (since := one.row[4]) else None
        )
        for one in table.snapshots.values()
    }
    sums = [(one, snapshots[one].total_as_of) for one in lineage(snapshots, table.current_id).totals]
    return any(
        since is not None and since not in {*table.snapshots, *table.dropped, *table.ever_before(one)}
        for one, since in sums
    )


def after_fault(world: Simulation) -> None:
    """What is missing now is the enemy's. What no witness can know any more, nobody can be asked for."""
    if world.is_anew:
        return
    for p in world.partitions.values():
        account = world.table.entries()[p.tp]
        begun = [start for start in (p.begun, account.first_offset) if start is not None]
        p.unborn = p.unborn or not begun
        p.unknowable_missing |= (
            p.below(min(begun) if begun else max(p.log_end, p.live_commit[0] if p.live_commit else 0))
            & ~p.outstanding
        )
        p.removed_by_fault |= p.gap | p.done & ~p.processed
        p.enemy_at = clock.now
        p.changed = True


def check_idle(world: Simulation, run: LiveRun) -> None:
    """Nobody ends as if there were nothing to do who has been given what he has not begun with."""
    lane = run.consumer._session.planner if run.consumer is not None else None
    if (
        world.scenario.liveness == "poll"
        and lane is not None
        and lane.member.pending
        and lane.member.fenced_by is None
    ):
        clock.fail(world.violation(IDLE, f"({run.name}: {sorted(lane.member.pending)})"))


def check_error(world: Simulation, error: KafkaLivenessError, process: RunWorker) -> None:
    """Nobody stops without a reason."""
    expired = lambda: any(p.log_start > p.base for p in world.partitions.values())  # noqa: E731
    reasons: dict[type, Callable[[], bool]] = {
        ExternalCommitError: lambda: any(
            p.foreign or p.foreign_until >= process.began_at for p in world.partitions.values()
        ),
        TopicRecreatedError: lambda: world.is_anew,
        DataExpiredError: expired,
        SparkFailedError: lambda: process.spark_failed,
        RowsMissingError: lambda: (
            world.table.losses > process.losses_before
            or world.set_back_at >= process.began_at
            or any(p.lacked_until >= process.began_at for p in world.partitions.values())
        ),
        NotPendingError: lambda: (
            world.set_back or world.is_anew or any(p.is_back for p in world.partitions.values())
        ),
        FencedError: lambda: isinstance(error, FencedError) and not error.reason.may_rejoin,
        BrokerUnreachableError: lambda: world.scenario.failure_rate > 0,
        CommitRefusedError: lambda: "other runs" in str(error) or world.scenario.failure_rate > 0,
        SlowRecordError: lambda: bool(world.poison) or process.was_slow or process.held_up_at > 0,
        PausedPartitionError: lambda: any(p.was_paused for p in world.partitions.values()),
    }
    if not (reason := reasons.get(type(error))) or not reason():
        clock.fail(world.violation(JUSTIFIED, repr(error), error))
