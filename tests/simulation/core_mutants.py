"""What would the simulation see if the core were wrong? Mistakes to be made on purpose; see ``mistakes``.

Each is a function to be put in the place of a right one. ``CORE_MUTANTS`` says whose place, and which
invariant breaks.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from kafka_liveness_dagster.core import commit_metadata, offsets
from kafka_liveness_dagster.core import resume as resume_module
from kafka_liveness_dagster.core.commit_metadata import CatchUpCommitMetadata, LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.offsets import OffsetRange, Span
from kafka_liveness_dagster.core.partition_state import PartitionState
from kafka_liveness_dagster.kafka.catch_up import consumer
from kafka_liveness_dagster.kafka.live import planner
from kafka_liveness_dagster.spark.table import ledger as table_ledger
from tests.simulation import events, faults, invariants
from tests.simulation.mutant_histories import Histories, SimulatedMutant
from tests.simulation.table import SimulatedTable

_resume, _union, _plan, _new_keys = (
    resume_module.decide_resume,
    offsets.union,
    planner.plan_ranges,
    events.new_keys,
)
_record, _outstanding, _done = (
    CatchUpCommitMetadata.mark_done,
    CatchUpCommitMetadata.outstanding,
    CatchUpCommitMetadata.decode,
)
_mark = LiveCommitMetadata.decode
_missing, _lineage = PartitionState.missing_rows, table_ledger.lineage


def jump_without_owing(tp, facts, policy, poison=()):
    """What is skipped is forgotten."""
    found = _resume(tp, facts, policy, poison)
    if not found.skipped:
        return found
    return replace(found, pending=facts.catch_up_log.outstanding(facts.live_metadata.pending))


def jump_and_owe_only_the_last(tp, facts, policy, poison=()):
    """What was owed before is forgotten."""
    found = _resume(tp, facts, policy, poison)
    return replace(found, pending=(found.skipped,)) if found.skipped else found


def owe_without_jumping(tp, facts, policy, poison=()):
    """Both lanes process the same."""
    found = _resume(tp, facts, policy, poison)
    return replace(found, position=facts.committed) if found.skipped else found


def jump_behind_the_log_end(tp, facts, policy, poison=()):
    """One offset is in neither lane."""
    found = _resume(tp, facts, policy, poison)
    return replace(found, position=found.position + 1) if found.skipped else found


def resume_and_forget(tp, facts, policy, poison=()):
    """Only a jump writes what is owed."""
    found = _resume(tp, facts, policy, poison)
    return found if found.skipped else replace(found, pending=())


def pass_poison_without_owing(tp, facts, policy, poison=()):
    """A quarantined offset is lost."""
    found = _resume(tp, facts, policy, poison)
    return replace(found, pending=_resume(tp, facts, policy).pending)


def everything_fits(*_):
    """The broker is asked to take any length."""
    return True


def pass_a_hole(log, owed, newly):
    """The watermark is the end of what is done."""
    return replace(log, watermark=_record(log, owed, newly).end, done=())


def pass_the_batch(log, owed, newly):
    """The watermark follows the batch, as an ordinary commit would."""
    return replace(_record(log, owed, newly), watermark=max(log.watermark, newly[-1].end))


def forget_the_last(log, owed):
    """The highest range is not outstanding."""
    return _outstanding(log, owed)[:-1]


def close_the_range(log, owed):
    """The watermark itself counts as done."""
    return offsets.difference(owed, (Span(0, log.watermark + 1), *log.done))


def read_too_wide(offset, metadata):
    """Done ranges begin one offset early."""
    log = _done(offset, metadata)
    return replace(log, done=tuple(Span(max(0, span.start - 1), span.end) for span in log.done))


def bridge_small_gaps(spans):
    """Ranges that nearly touch grow together."""
    merged = _union(spans)
    gaps = [Span(a.end, b.start) for a, b in pairwise(merged) if b.start - a.end < 3]
    return _union((*merged, *gaps))


def released_owes_nothing(metadata):
    """A handover loses the debt."""
    mark = _mark(metadata)
    return replace(mark, pending=()) if mark and mark.owner_state is OwnerState.RELEASED else mark


def ignore_the_debt(first, _owed):
    """Kafka's committed() instead of KIP-333's."""
    return first


def newest_first(pending, max_records, last, **_):
    """A batch from the wrong end."""
    ranges, last = _plan(pending, max_records, last)
    ends = {tp: spans[-1].end for tp, spans in pending.items() if spans}
    at = [(r.topic_partition, ends[r.topic_partition]) for r in ranges]
    return tuple(OffsetRange(*tp, end - r.size, end) for r, (tp, end) in zip(ranges, at, strict=True)), last


def mix_partitions_up(pending, max_records, last, **_):
    """One partition's offsets under another one's name."""
    ranges, last = _plan(pending, max_records, last)
    return tuple(replace(r, partition=ranges[-1 - at].partition) for at, r in enumerate(ranges)), last


def no_key_comes_twice(owed, existing, materialized):
    """A range that is owed again after its partition was materialised gets no other."""
    return [key for key in _new_keys(owed, existing, materialized) if "@" not in key]


def add_rows(rows, twice, bits):
    """An append."""
    return rows | bits, twice | rows & bits


def trust_strangers(facts, position):
    """Only what our own commit vouches for is looked for in the table."""
    return _missing(facts, position) if facts.is_committed_by_this_package else ()


def trust_our_commits(facts, position):
    """What our own commit vouches for must be in the table still."""
    return () if facts.is_committed_by_this_package else _missing(facts, position)


def believe_the_catch_up_log(facts, asked):
    """Done is what the catch-up commit log says, whatever became of the table."""
    asked_pending = offsets.intersection(asked, facts.pending_by_live_log)
    return offsets.difference(facts.catch_up_log.outstanding(asked_pending), facts.written_off)


def keep_the_catch_up_log(tp, facts, policy, poison=()):
    """What it says of another life of the group is believed in this one."""
    found = _resume(tp, facts, policy, poison)
    return replace(
        found,
        catch_up_log=replace(
            facts.catch_up_log, origin=found.origin, written_off=found.catch_up_log.written_off
        ),
    )


def believe_any_sum(snapshots, current):
    """Also what a writer summed up before the table was rolled back."""
    found = _lineage(snapshots, current)
    newest = next((one for one in found.path if snapshots[one].total_as_of is not None), None)
    return found if newest is None else replace(found, totals=(*found.totals, newest))


def whatever_befell(_now, _known):
    """What was known of a table goes on to be so where its history is expired.

    It may have been rolled back.
    """
    return True


def always_complete(snapshots, current):
    """What expired snapshots may have said is not in the table."""
    return replace(_lineage(snapshots, current), is_complete=True)


def tell_nothing(_facts):
    """What was told as lost is owed again."""
    return ()


def any_topic(*_):
    """A topic made anew passes for the old one."""


def roll_back_and_clean(world):
    """Whoever sets a table back removes at once what was rolled away."""
    faults.roll_back(world)
    faults.expire_snapshots(world)


# An offset that is jumped over is owed anyway
POISONED = Histories(
    0.0,
    {"on_slow_record": "quarantine", "max_poll_records": 3, "events": 20},
    {"enable_parallel_rebalance": False},
    {events.poison: 10},
)
SET_BACK = Histories(
    0.0,
    policy={"on_missing_rows": "crash_lag"},
    weights={
        faults.roll_back: 12,
        faults.drop_table: 6,
        faults.external_live_commit: 12,
        events.start_catch_up: 20,
    },
)
ROLLED_BACK = Histories(0.0, weights={faults.roll_back: 25})
_ONE_BY_ONE = (faults.roll_back, faults.expire_snapshots, faults.compact, faults.drop_table)
CLEANED_AT_ONCE = Histories(
    0.0,
    {"max_runs": 2, "failure_rate": 0.0, "spark_failure_rate": 0.0},
    weights={roll_back_and_clean: 8, events.produce: 30, **dict.fromkeys(_ONE_BY_ONE, 0.0)},
)
CORE_MUTANTS = [
    SimulatedMutant(planner, "decide_resume", jump_without_owing, "in the table or owed"),
    SimulatedMutant(planner, "decide_resume", jump_and_owe_only_the_last, "in the table or owed"),
    SimulatedMutant(
        planner, "decide_resume", owe_without_jumping, "what is owed is below the live commit log"
    ),
    SimulatedMutant(planner, "decide_resume", jump_behind_the_log_end, "in the table or owed"),
    SimulatedMutant(planner, "decide_resume", resume_and_forget, "in the table or owed"),
    SimulatedMutant(resume_module, "fits_commit_metadata", everything_fits, "OFFSET_METADATA_TOO_LARGE"),
    SimulatedMutant(
        CatchUpCommitMetadata, "mark_done", pass_a_hole, "the catch-up commit log covers nothing"
    ),
    SimulatedMutant(
        CatchUpCommitMetadata, "mark_done", pass_the_batch, "the catch-up commit log covers nothing"
    ),
    SimulatedMutant(
        CatchUpCommitMetadata, "outstanding", forget_the_last, "in the table or owed", first_seed=3
    ),
    SimulatedMutant(
        CatchUpCommitMetadata,
        "outstanding",
        close_the_range,
        "the catch-up commit log covers nothing",
        first_seed=6,
    ),
    SimulatedMutant(
        CatchUpCommitMetadata, "decode", read_too_wide, "committed() never passes", first_seed=159
    ),
    SimulatedMutant(commit_metadata, "union", bridge_small_gaps, "in the table or owed"),
    SimulatedMutant(LiveCommitMetadata, "decode", released_owes_nothing, "committed() never passes"),
    SimulatedMutant(invariants, "committed_offset", ignore_the_debt, "committed() never passes"),
    SimulatedMutant(planner, "plan_ranges", newest_first, "out of order"),
    SimulatedMutant(planner, "plan_ranges", mix_partitions_up, "goes back to its last commit at most"),
    SimulatedMutant(consumer, "plan_ranges", mix_partitions_up, "without trouble everybody comes to an end"),
    SimulatedMutant(events, "new_keys", no_key_comes_twice, "everything up to the log end", first_seed=340),
    SimulatedMutant(SimulatedTable, "replaced", add_rows, "rows once"),
    SimulatedMutant(PartitionState, "missing_rows", trust_strangers, "in silence", first_seed=130),
    SimulatedMutant(PartitionState, "missing_rows", trust_our_commits, "in silence"),
    SimulatedMutant(
        PartitionState, "not_done", believe_the_catch_up_log, "materialised only when done", first_seed=341
    ),
    SimulatedMutant(
        PartitionState,
        "written_off",
        tell_nothing,
        "an error has its reason RowsMissingError",
        first_seed=200,
    ),
    SimulatedMutant(
        resume_module,
        "check_identity",
        any_topic,
        "never goes back behind an acknowledged commit",
    ),
    SimulatedMutant(table_ledger, "lineage", believe_any_sum, "claims nothing", ROLLED_BACK, 750),
    SimulatedMutant(
        table_ledger, "is_continuation_of", whatever_befell, "claims nothing", CLEANED_AT_ONCE, 40_500
    ),
    SimulatedMutant(
        table_ledger, "lineage", always_complete, "an error has its reason RowsMissingError", first_seed=180
    ),
    SimulatedMutant(
        planner, "decide_resume", pass_poison_without_owing, "in the table or owed", POISONED, first_seed=970
    ),
    SimulatedMutant(
        planner,
        "decide_resume",
        keep_the_catch_up_log,
        "the catch-up commit log covers nothing",
        SET_BACK,
        first_seed=80,
    ),
]
