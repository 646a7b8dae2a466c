"""What would the simulation see if the core, or the shell around it, were wrong? Mistakes to be made on purpose.

Each is a function to be put in the place of a right one. ``MISTAKES`` says whose place, and which invariant breaks.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core import commit_log, offsets
from kafka_liveness_dagster.core import resume as resume_module
from kafka_liveness_dagster.core.commit_log import DoneLog, LiveMark, Mark
from kafka_liveness_dagster.core.offsets import OffsetRange, Span
from kafka_liveness_dagster.core.resume import Owned
from tests.core import simulated_catch_up, simulated_runs, simulation
from tests.core.simulated_broker import SimulatedPartition
from tests.core.simulated_catch_up import CatchUpRun, owed_of
from tests.core.simulated_runs import LiveRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_resume, _union, _plan, _new_keys = (
    resume_module.resume,
    offsets.union,
    simulated_runs.plan,
    simulated_catch_up.new_keys,
)
_record, _outstanding, _done = DoneLog.record, DoneLog.outstanding, DoneLog.decode
_mark, _text, _commit = LiveMark.decode, LiveMark.encode, LiveRun._commit


def jump_without_owing(tp, facts, policy, poison=()):
    """What is skipped is forgotten."""
    found = _resume(tp, facts, policy, poison)
    return replace(found, owed=facts.second.outstanding(facts.mark.owed)) if found.skipped else found


def jump_and_owe_only_the_last(tp, facts, policy, poison=()):
    """What was owed before is forgotten."""
    found = _resume(tp, facts, policy, poison)
    return replace(found, owed=(found.skipped,)) if found.skipped else found


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
    return found if found.skipped else replace(found, owed=())


def pass_poison_without_owing(tp, facts, policy, poison=()):
    """A quarantined offset is lost."""
    found = _resume(tp, facts, policy, poison)
    return replace(found, owed=_resume(tp, facts, policy).owed)


def everything_fits(_owed):
    """The broker is asked to take any length."""
    return True


def pass_a_hole(log, owed, newly):
    """The watermark is the end of what is done."""
    return DoneLog(_record(log, owed, newly).end)


def pass_the_batch(log, owed, newly):
    """The watermark follows the batch, as an ordinary commit would."""
    return DoneLog(max(log.watermark, newly[-1].end), _record(log, owed, newly).done)


def forget_the_last(log, owed):
    """The highest range is not outstanding."""
    return _outstanding(log, owed)[:-1]


def close_the_range(log, owed):
    """The watermark itself counts as done."""
    return offsets.difference(owed, (Span(0, log.watermark + 1), *log.done))


def read_too_wide(offset, metadata):
    """Done ranges begin one offset early."""
    log = _done(offset, metadata)
    return replace(log, done=tuple(Span(span.start - 1, span.end) for span in log.done))


def bridge_small_gaps(spans):
    """Ranges that nearly touch grow together."""
    merged = _union(spans)
    gaps = [Span(a.end, b.start) for a, b in pairwise(merged) if b.start - a.end < 3]
    return _union((*merged, *gaps))


def released_owes_nothing(metadata):
    """A handover loses the debt."""
    mark = _mark(metadata)
    return replace(mark, owed=()) if mark and mark.mark is Mark.RELEASED else mark


def cut_to_fit(mark):
    """What does not fit is left out: the second log may do that."""
    while len(text := _text(mark)) > commit_log.MAX_METADATA_BYTES:
        mark = replace(mark, owed=mark.owed[:-1])
    return text


def ignore_the_debt(first, _owed):
    """Kafka's committed() instead of KIP-333's."""
    return first


def newest_first(pending, max_records, last):
    """A batch from the wrong end."""
    ranges, last = _plan(pending, max_records, last)
    ends = {tp: spans[-1].end for tp, spans in pending.items() if spans}
    at = [(r.topic_partition, ends[r.topic_partition]) for r in ranges]
    return tuple(OffsetRange(*tp, end - r.size, end) for r, (tp, end) in zip(ranges, at, strict=True)), last


def mix_partitions_up(pending, max_records, last):
    """One partition's offsets under another one's name."""
    ranges, last = _plan(pending, max_records, last)
    return tuple(replace(r, partition=ranges[-1 - at].partition) for at, r in enumerate(ranges)), last


def no_key_comes_twice(owed, existing, materialized):
    """A range that is owed again after its partition was materialised gets no other."""
    return [key for key in _new_keys(owed, existing, materialized) if "@" not in key]


def commit_what_was_given_up(run, batch):
    """The broker accepts it: it fences members, not partitions."""
    run.owned = {**{tp: owned for tp, (_, owned) in batch.items()}, **run.owned}
    return _commit(run, batch)


def know_an_ownership_by_its_offset(run, batch):
    """A batch of a former ownership passes for one of this."""
    now = {tp: run.owned[tp] for tp, (r, _) in batch.items() if tp in run.owned and r.start >= run.began_at[tp]}
    return _commit(run, {tp: (r, now.get(tp, owned)) for tp, (r, owned) in batch.items()})


def settle_with_an_old_look(run, _arrival, tp):
    """The partition went away and came back after it was looked at."""
    return tp in run.arrived


def own_before_committing(run, resumed):
    """Records are planned before position and token are durable."""
    run.owned.update({tp: Owned(r.position, r.position, r.owed) for tp, r in resumed.items()})
    run.arrived.clear()
    return True


def record_before_writing(run) -> Iterator[str]:
    """Done before it is in the table."""
    while ranges := run._plan():
        yield from run._record(ranges)
        yield from run._write(ranges)


def materialize_before_the_end(run) -> Iterator[str]:
    """Dagster shows a range as done when its run begins."""
    run.world.materialize(run.keys)
    yield "opened"


def refuse_what_is_forgotten(run):
    """A key counts as mistyped once neither log names all of it: both forget, the second by expiry."""
    for tp, asked in run._asked.items():
        facts = run.world.partitions[tp].facts()
        known = (*owed_of(facts), *facts.second.done, Span(0, facts.second.watermark))
        if unknown := offsets.difference(asked, known):
            raise run.world.violation(simulated_catch_up.NOT_REFUSED, f"({tp}:{unknown[0]})")


MISTAKES: list[tuple[Any, str, Callable[..., Any], str]] = [
    (simulated_runs, "resume", jump_without_owing, "in the table or owed"),
    (simulated_runs, "resume", jump_and_owe_only_the_last, "in the table or owed"),
    (simulated_runs, "resume", owe_without_jumping, "owed is below the first log"),
    (simulated_runs, "resume", jump_behind_the_log_end, "in the table or owed"),
    (simulated_runs, "resume", resume_and_forget, "in the table or owed"),
    (simulated_runs, "resume", pass_poison_without_owing, "in the table or owed"),
    (resume_module, "fits", everything_fits, "everything up to the log end"),
    (DoneLog, "record", pass_a_hole, "the second log covers nothing"),
    (DoneLog, "record", pass_the_batch, "the second log covers nothing"),
    (DoneLog, "outstanding", forget_the_last, ""),
    (DoneLog, "outstanding", close_the_range, "committed"),
    (DoneLog, "decode", read_too_wide, ""),
    (commit_log, "union", bridge_small_gaps, "nothing raises ForeignCommitError"),
    (LiveMark, "decode", released_owes_nothing, "committed"),
    (LiveMark, "encode", cut_to_fit, "in the table or owed"),
    (simulation, "committed", ignore_the_debt, "committed"),
    (simulated_runs, "plan", newest_first, "in the order"),
    (simulated_runs, "plan", mix_partitions_up, ""),
    (simulated_catch_up, "plan", mix_partitions_up, ""),
    (simulated_catch_up, "new_keys", no_key_comes_twice, "everything up to the log end"),
    (SimulatedPartition, "write", SimulatedPartition.append, "rows once"),
    (LiveRun, "_commit", commit_what_was_given_up, ""),
    (LiveRun, "_commit", know_an_ownership_by_its_offset, "in the order"),
    (LiveRun, "_is_still", settle_with_an_old_look, "never goes back"),
    (LiveRun, "_adopt", own_before_committing, "begins where the first log says"),
    (CatchUpRun, "_life", record_before_writing, "the second log covers nothing"),
    (CatchUpRun, "_life", materialize_before_the_end, "materialised only when done"),
    (CatchUpRun, "_check_asked", refuse_what_is_forgotten, "never refused"),
]
