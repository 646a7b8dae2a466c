"""What would the simulation see if the product's shell were wrong? Mistakes to be made on purpose.

Most take out a mend: what stood there before, or what somebody may put there next. ``MISTAKES`` says in whose place it
is put, which invariant breaks, in which histories it is looked for, and from which seed on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.member_state import State
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, difference
from kafka_liveness_dagster.core.timeouts import Timeouts
from kafka_liveness_dagster.kafka.catch_up.commit_log import NotOwedError, SecondLog
from kafka_liveness_dagster.kafka.catch_up.completion import Proof
from kafka_liveness_dagster.kafka.catch_up.consumer import CatchUpConsumer
from kafka_liveness_dagster.kafka.errors import is_held_up
from kafka_liveness_dagster.kafka.live import consumer, planner
from kafka_liveness_dagster.kafka.live.assignment import Rebalance
from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer
from kafka_liveness_dagster.kafka.live.member import Member
from kafka_liveness_dagster.kafka.live.planner import LiveLane
from kafka_liveness_dagster.kafka.watchdog import Fence, Watchdog
from kafka_liveness_dagster.lanes.pipeline import Pipeline
from tests.simulation.enemies import drop_table, make_topic_anew, roll_back
from tests.simulation.events import produce, rebalance, start_catch_up
from tests.simulation.looked_for import Histories, Made
from tests.simulation.product import LOG
from tests.simulation.scheduler import clock

# What is looked for in one place only comes oftener there
QUICK = {"slow_logs": 0.0, "slow_answers": 0.0, "slow_looks": 0.0, "failure_rate": 0.0, "spark_failure_rate": 0.0}
HANDOVERS = Histories(1.0)
_TWO: dict[str, Any] = {**QUICK, "in_flight": 2, "liveness": "poll"}
TWO_LONG_BATCHES = Histories(1.0, {**_TWO, "slow_batches": 0.8, "max_poll_records": 8})
SLOW_LOGS = Histories(1.0, {**_TWO, "slow_logs": 0.9, "slow_batches": 0.5})
BACK_SOON = Histories(1.0, {"in_flight": 2, "slow_logs": 0.9, "slow_batches": 0.5, "failure_rate": 0.1})
_LOOKS = {"liveness": "progress", "slow_looks": 0.9, "slow_batches": 0.0, "failure_rate": 0.0}
SLOW_LOOKS = Histories(1.0, {**_LOOKS, "partitions": 2, "max_runs": 2}, weights={rebalance: 60, produce: 30})
BESIDE_OTHERS = Histories(0.3, {"max_runs": 3}, {"on_missing_rows": "raise"})
MADE_ANEW = Histories(0.0, weights={make_topic_anew: 12, start_catch_up: 20})
TABLES_LOST = Histories(0.0, weights={roll_back: 12, drop_table: 12, start_catch_up: 20})
_commit, _resume = Member.commit, planner.resume


def wait_for_ever(_rebalance):
    """A rebalance waits for open batches as long as they take."""


def wait_from_the_last_poll(timeouts):
    """The whole process timeout, though the group began to count before."""
    return timeouts.process_ms


def leave_at_once(member, *, release):
    """Inside of a callback too."""
    with member._lock:
        if member._standing.state is not State.LEFT:
            if release:
                member._first_log.release(list(member.owned))
            member._standing.state = State.LEFT
            member._ownership.clear()
            member._client.close()


def leave_whoever_is_there(dog, reason, of=None):
    """Not who was fenced: somebody else may be a member by now."""
    with dog._raising:
        if _nothing_to_fence(dog, reason, of):
            return
        dog._reason = reason
    dog._news.set()
    LOG.warning("fenced: %s", reason.value)
    dog._cancel(dog._cancels)
    dog._leave(reason)


def leave_with_the_fence_held(dog, reason, of=None):
    """The two locks are taken in both orders."""
    with dog._raising:
        if _nothing_to_fence(dog, reason, of):
            return
        dog._reason = reason
        dog._news.set()
        LOG.warning("fenced: %s", reason.value)
        dog._cancel(dog._cancels)
        dog._leave(reason)


def _nothing_to_fence(dog, reason, of):
    outdated = reason is FenceReason.POLL_TIMEOUT and not dog._timer.expired(int(clock.now * 1000))
    return dog._reason is not None or outdated or (of is not None and of != dog._leave)


def forget_what_was_cancelled(lane, batch):
    """Who has rejoined meanwhile is not fenced: its cancelled batch looks like a failure of Spark's."""
    lane.check()


def record_what_was_lost(lane, expired, facts):
    """Done first, and told as lost afterwards: whoever dies in between leaves it done in silence."""
    lane._second.record(expired, lane._watchdog.check)
    _lose(lane, expired, facts)


_lose = CatchUpConsumer._lose


def any_batch(fence, batch):
    """A batch of a former membership may be committed."""


def commit_what_was_given_up(member, done, arrivals, waiting=lambda: None, _left_out=None):
    """The broker accepts it: it fences members, not partitions."""
    with member._lock:
        was = {tp: o for tp, o in member.owned.items() if tp in done and o.arrival == arrivals.get(tp)}
        while was and (error := member._first_log.commit({tp: (done[tp].end, o) for tp, o in was.items()})):
            if not is_held_up(error):
                raise member._refused(error)
            waiting()
            member.serve()
        for tp, owned in was.items():
            owned.committed = done[tp].end
        return ()


def know_an_ownership_by_its_partition(member, done, arrivals, waiting=lambda: None, _left_out=None):
    """A batch of a former ownership passes for one of this."""
    return _commit(member, done, {tp: member.owned[tp].arrival for tp in done if tp in member.owned}, waiting)


def settle_with_an_old_look(member, settled):
    """The partition went away and came back after it was looked at."""
    _adopt(member, {tp: replace(o, arrival=member.arrived[tp]) for tp, o in settled.items() if tp in member.arrived})


_adopt = Member.adopt


def own_before_committing(member, settled):
    """Records are planned before position and token are durable."""
    with member._lock:
        for tp, owned in settled.items():
            if member.arrived.get(tp) == owned.arrival:
                member.owned[tp] = owned
                del member.arrived[tp]


def commit_before_writing(pipeline, in_flight, lane, tally, lines, _on_quarantine):
    """Done before it is in the table."""
    lane.commit(in_flight[0].batch)
    one = in_flight[0]
    one.finish() if pipeline.most_in_flight > 1 else one.run()
    return in_flight.committed()


def refuse_what_is_forgotten(log, asked, facts):
    """A key counts as mistyped once neither log names all of it: both forget, the second by expiry."""
    for tp, spans in asked.items():
        known = (*facts[tp].owed, *facts[tp].second.done, Span(0, facts[tp].second.watermark))
        if unknown := difference(spans, known):
            raise NotOwedError(f"{OffsetRange(*tp, *unknown[0])}")


def ask_the_table_first(cluster, group_id, partitions, witness):
    """What is written and committed meanwhile looks missing."""
    accounts = witness.accounts(partitions)
    clock.point(1.0)
    return {tp: replace(f, account=accounts[tp]) for tp, f in cluster.facts(group_id, partitions).items()}


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


MISTAKES = [
    Made(Rebalance, "may_wait", wait_for_ever, "gives up in time", TWO_LONG_BATCHES, 6_221),
    Made(Timeouts, "handover_ms", wait_from_the_last_poll, "gives up in time", TWO_LONG_BATCHES, 6_221),
    Made(Member, "leave", leave_at_once, "closed inside of its own callback", HANDOVERS, 1_482),
    Made(Watchdog, "_raise_fence", leave_whoever_is_there, "comes to an end", SLOW_LOGS, 100),
    Made(Watchdog, "_raise_fence", leave_with_the_fence_held, "each other's locks", SLOW_LOGS, 5_020),
    Made(LivenessConsumer, "check_open", forget_what_was_cancelled, "SparkCancelledError", BACK_SOON, 9_450),
    Made(Pipeline, "_commit_first", commit_before_writing, "in the table or owed"),
    Made(SecondLog, "check_owed", refuse_what_is_forgotten, "when all is caught up"),
    Made(CatchUpConsumer, "_lose", record_what_was_lost, "the second log covers nothing", first=200),
    Made(Fence, "check_epoch", any_batch, "SparkCancelledError", BACK_SOON, 9_450),
    Made(Member, "commit", commit_what_was_given_up, "given up", HANDOVERS),
    Made(Member, "commit", know_an_ownership_by_its_partition, "out of order", HANDOVERS, first=200),
    Made(Member, "adopt", settle_with_an_old_look, "never goes back", SLOW_LOOKS, 4_300),
    Made(Member, "adopt", own_before_committing, "begins where the first log says"),
    Made(consumer, "witnessed", ask_the_table_first, "RowsMissingError", BESIDE_OTHERS),
    Made(LiveLane, "_learn", learn_nothing, "the table is told"),
    Made(LiveLane, "_identify", any_topic, "nothing is written of a topic made anew", MADE_ANEW),
    Made(Proof, "_identified", any_facts, "nothing is written of a topic made anew", MADE_ANEW, first=400),
    Made(Proof, "holds", believe_what_was_written, "materialised only when done", TABLES_LOST, first=1_970),
]
