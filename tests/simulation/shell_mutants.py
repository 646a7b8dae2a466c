"""What would the simulation see if the product's shell were wrong? Mistakes to be made on purpose.

Most take out a mend: what stood there before, or what somebody may put there next. ``SHELL_MUTANTS`` says in
whose place it is put, which invariant breaks, in which histories it is looked for, and from which seed on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.member_state import State
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, difference
from kafka_liveness_dagster.core.timeouts import Timeouts
from kafka_liveness_dagster.kafka.catch_up.commit_log import CatchUpCommitLog, NotPendingError
from kafka_liveness_dagster.kafka.catch_up.completion import CompletionCheck
from kafka_liveness_dagster.kafka.catch_up.consumer import CatchUpConsumer
from kafka_liveness_dagster.kafka.errors import is_rebalance_in_progress
from kafka_liveness_dagster.kafka.live import consumer, planner
from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer
from kafka_liveness_dagster.kafka.live.member import Member
from kafka_liveness_dagster.kafka.live.planner import LivePlanner
from kafka_liveness_dagster.kafka.watchdog import Fence, Watchdog
from kafka_liveness_dagster.lanes.pipeline import Pipeline
from tests.simulation.events import produce, rebalance, start_catch_up
from tests.simulation.faults import drop_table, recreate_topic, roll_back
from tests.simulation.mutant_histories import Histories, SimulatedMutant
from tests.simulation.scheduler import clock
from tests.simulation.seams import LOG

# What is looked for in one place only comes oftener there
QUICK = {
    "slow_logs": 0.0,
    "slow_answers": 0.0,
    "slow_looks": 0.0,
    "failure_rate": 0.0,
    "spark_failure_rate": 0.0,
}
HANDOVERS = Histories(1.0)
_TWO: dict[str, Any] = {**QUICK, "in_flight": 2, "liveness": "poll"}
TWO_LONG_BATCHES = Histories(1.0, {**_TWO, "slow_batches": 0.8, "max_poll_records": 8})
SLOW_LOGS = Histories(1.0, {**_TWO, "slow_logs": 0.9, "slow_batches": 0.5})
BACK_SOON = Histories(1.0, {"in_flight": 2, "slow_logs": 0.9, "slow_batches": 0.5, "failure_rate": 0.1})
_LOOKS = {"liveness": "progress", "slow_looks": 0.9, "slow_batches": 0.0, "failure_rate": 0.0}
SLOW_LOOKS = Histories(1.0, {**_LOOKS, "partitions": 2, "max_runs": 2}, weights={rebalance: 60, produce: 30})
BESIDE_OTHERS = Histories(0.3, {"max_runs": 3}, {"on_missing_rows": "raise"})
MADE_ANEW = Histories(0.0, weights={recreate_topic: 12, start_catch_up: 20})
TABLES_LOST = Histories(0.0, weights={roll_back: 12, drop_table: 12, start_catch_up: 20})
_commit, _resume = Member.commit, planner.decide_resume


def count_from_poll(timeouts):
    """The process timeout alone, though the broker counts from the rebalance's start."""
    return timeouts.process_timeout_ms


def leave_at_once(member, *, release):
    """Inside of a callback too."""
    with member._lock:
        if member._state.state is not State.LEFT:
            if release:
                member._commit_log.mark_released(list(member.owned))
            member._state.state = State.LEFT
            member._assigned.remove_all()
            member._client.close()


def leave_whoever_is_there(dog, reason, of=None):
    """Not who was fenced: somebody else may be a member by now."""
    with dog._fence_lock:
        if _nothing_to_fence(dog, reason, of):
            return
        dog._reason = reason
    dog._wake.set()
    LOG.warning("fenced: %s", reason.value)
    dog._cancel(dog._cancels)
    dog._leave(reason)


def leave_with_the_fence_held(dog, reason, of=None):
    """The two locks are taken in both orders."""
    with dog._fence_lock:
        if _nothing_to_fence(dog, reason, of):
            return
        dog._reason = reason
        dog._wake.set()
        LOG.warning("fenced: %s", reason.value)
        dog._cancel(dog._cancels)
        dog._leave(reason)


def _nothing_to_fence(dog, reason, of):
    outdated = reason is FenceReason.POLL_TIMEOUT and not dog._timer.has_expired(int(clock.now * 1000))
    return dog._reason is not None or outdated or (of is not None and of != dog._leave)


def forget_what_was_cancelled(lane, batch):
    """Who has rejoined meanwhile is not fenced: its cancelled batch looks like a failure of Spark's."""
    lane.check()


def record_what_was_lost(lane, expired, facts):
    """Done first, and told as lost afterwards: whoever dies in between leaves it done in silence."""
    lane._catch_up_log.mark_done(expired, lane._watchdog.check)
    _lose(lane, expired, facts)


_lose = CatchUpConsumer._write_off_expired


def any_batch(fence, batch):
    """A batch of a former membership may be committed."""


def commit_what_was_given_up(member, done, arrivals, waiting=lambda: None, _left_out=None):
    """The broker accepts it: it fences members, not partitions."""
    with member._lock:
        was = {tp: o for tp, o in member.owned.items() if tp in done and o.assignment_id == arrivals.get(tp)}
        while was and (error := member._commit_log.commit({tp: (done[tp].end, o) for tp, o in was.items()})):
            if not is_rebalance_in_progress(error):
                raise member._to_package_error(error)
            waiting()
            member.poll()
        for tp, owned in was.items():
            owned.committed = done[tp].end
        return ()


def know_an_ownership_by_its_partition(member, done, arrivals, waiting=lambda: None, _left_out=None):
    """A batch of a former ownership passes for one of this."""
    return _commit(
        member, done, {tp: member.owned[tp].assignment_id for tp in done if tp in member.owned}, waiting
    )


def settle_with_an_old_look(member, settled):
    """The partition went away and came back after it was looked at."""
    _adopt(
        member,
        {
            tp: replace(o, assignment_id=member.pending[tp])
            for tp, o in settled.items()
            if tp in member.pending
        },
    )


_adopt = Member.commit_start_positions


def own_before_committing(member, settled):
    """Records are planned before position and token are durable."""
    with member._lock:
        for tp, owned in settled.items():
            if member.pending.get(tp) == owned.assignment_id:
                member.owned[tp] = owned
                del member.pending[tp]


def commit_before_writing(pipeline, in_flight, lane, _counter, **_):
    """Done before it is in the table."""
    lane.commit(in_flight[0].batch)
    one = in_flight[0]
    one.finish() if pipeline.max_in_flight > 1 else one.run()
    return in_flight.pop_committed()


def refuse_what_is_forgotten(log, asked, facts):
    """A key counts as mistyped once neither log names all of it: both forget, the second by expiry."""
    for tp, spans in asked.items():
        log = facts[tp].catch_up_log
        known = (*facts[tp].pending_by_live_log, *log.done, Span(0, log.watermark))
        if unknown := difference(spans, known):
            raise NotPendingError(f"{OffsetRange(*tp, *unknown[0])}")


def ask_the_table_first(cluster, group_id, partitions, witness):
    """What is written and committed meanwhile looks missing."""
    accounts = witness.read(partitions)
    clock.point(1.0)
    states = cluster.partition_states(group_id, partitions)
    return {tp: replace(f, ledger_entry=accounts[tp]) for tp, f in states.items()}


def learn_nothing(lane, settled):
    """The table is not told where the life of the group began, nor what was lost."""


def any_topic(*_):
    """A topic made anew passes for the old one."""


def any_facts(_proof, facts):
    """The same, in the catch-up lane."""
    return facts


def believe_what_was_written(proof, left_out):
    """Green without a look at the table."""
    return True


SHELL_MUTANTS = [
    SimulatedMutant(Timeouts, "rebalance_timeout_ms", count_from_poll, "gives up in time", first_seed=12_840),
    SimulatedMutant(Member, "leave", leave_at_once, "closed inside of its own callback", HANDOVERS, 1_212),
    SimulatedMutant(Watchdog, "_raise_fence", leave_whoever_is_there, "comes to an end", SLOW_LOGS, 100),
    SimulatedMutant(
        Watchdog, "_raise_fence", leave_with_the_fence_held, "each other's locks", SLOW_LOGS, 5_020
    ),
    SimulatedMutant(
        LivenessConsumer, "check_batch", forget_what_was_cancelled, "SparkCancelledError", BACK_SOON, 540
    ),
    SimulatedMutant(Pipeline, "_commit_oldest", commit_before_writing, "in the table or owed"),
    SimulatedMutant(CatchUpCommitLog, "require_pending", refuse_what_is_forgotten, "when all is caught up"),
    SimulatedMutant(
        CatchUpConsumer,
        "_write_off_expired",
        record_what_was_lost,
        "the catch-up commit log covers nothing",
        first_seed=200,
    ),
    SimulatedMutant(Fence, "_check_epoch", any_batch, "SparkCancelledError", BACK_SOON, 540),
    SimulatedMutant(Member, "commit", commit_what_was_given_up, "given up", HANDOVERS),
    SimulatedMutant(
        Member, "commit", know_an_ownership_by_its_partition, "out of order", HANDOVERS, first_seed=200
    ),
    SimulatedMutant(
        Member, "commit_start_positions", settle_with_an_old_look, "never goes back", SLOW_LOOKS, 4_000
    ),
    SimulatedMutant(
        Member, "commit_start_positions", own_before_committing, "begins where the live commit log says"
    ),
    SimulatedMutant(
        consumer, "partition_states_with_ledger", ask_the_table_first, "RowsMissingError", BESIDE_OTHERS
    ),
    SimulatedMutant(LivePlanner, "_update_ledger", learn_nothing, "the table is told"),
    SimulatedMutant(
        LivePlanner, "_check_topic_id", any_topic, "nothing is written of a topic made anew", MADE_ANEW
    ),
    SimulatedMutant(
        CompletionCheck,
        "_require_same_topics",
        any_facts,
        "nothing is written of a topic made anew",
        MADE_ANEW,
        first_seed=400,
    ),
    SimulatedMutant(
        CompletionCheck,
        "verify",
        believe_what_was_written,
        "materialised only when done",
        TABLES_LOST,
        first_seed=1_970,
    ),
]
