"""What one history has to be; all of them are in ``test_first_half`` and ``test_second_half``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kafka_liveness_dagster.core.fencing import FenceReason
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.core.resume import ResumePolicy
from kafka_liveness_dagster.kafka.live import planner
from tests.simulation import events, faults
from tests.simulation.scenario import Scenario
from tests.simulation.scheduler import clock
from tests.simulation.seams import simulated
from tests.simulation.world import Simulation


def test_a_group_that_crashes_for_years_owes_what_it_skipped():
    """Token after token until there is no room for more; then in order, and all of it is there in the end."""
    crashing = {events.produce: 2, events.crash: 3, events.time_passes: 1, events.start_live: 2}
    policy = ResumePolicy(enable_parallel_rebalance=True)
    scenario = Scenario(1, 10**17, policy, 200, 5, 1, 400)
    with simulated():
        lives = [Simulation(seed, scenario, crashing).run() for seed in range(10)]
    full = [life for life in lives if planner.IN_ORDER_LINE in {what for _, what, *_ in life.history}]
    assert max(len(life.materialized) for life in full) > 3


def test_a_history_is_a_function_of_its_seed():
    """The seed a violation prints is all that is needed to see it again."""
    with simulated():
        once, again = ([str(Simulation(seed).run()) for seed in range(20)] for _ in range(2))
    assert once == again


def test_an_external_catch_up_log_costs_work_and_no_data():
    """Beside all other enemies.

    The table's ledger takes its place, and every invariant of a history holds.
    """
    weights = {**events.WEIGHTS, **faults.ENEMIES, faults.external_catch_up_commit: 12}
    with simulated():
        lives = [Simulation(seed, None, weights, of_rebalances=0).run() for seed in range(150)]
    happened = [what for life in lives for _, what, *_ in life.history]
    assert happened.count("catch-up commit log replaced") > 100


def test_the_oracle_knows_what_a_run_reports_as_lost():
    """A report of records that have not expired breaks an invariant, also for the second range of a line."""
    world, run = Simulation(0), SimpleNamespace(name="run-1")
    partition = world.partitions[TopicPartition("orders", 0)]
    partition.log_end += 20
    partition.log_start += 10
    first, start = partition.log_start - 10, partition.log_start
    world.on_log_line(
        run, planner.LOST_LINE, (f"p0:orders:{first}-{first + 2}, p0:orders:{start - 1}-{start}", 3)
    )
    assert (partition.lost.bit_count(), partition.wrongly_told) == (3, 0)
    world.on_log_line(run, planner.LOST_LINE, (f"p0:orders:{start}-{start + 5} and 2 more", 9))
    assert (partition.lost.bit_count(), partition.wrongly_told.bit_count()) == (8, 5)


def freeze(world):
    """SIGSTOP in the middle of a batch, for half as long again as it may take; once."""
    for _ in range(20):
        run = next((run for run in world.runs if world.table.in_flight and not run.stopped), None)
        if run is not None and "stopped" not in {what for _, what, *_ in world.history}:
            world.stop(run)
            clock.block(1.5 * world.scenario.process_ms / 1000)
            world.wake(run)
            return
        clock.block(0.05)


def test_an_offset_is_not_blamed_for_a_process_that_was_frozen():
    """It was alone in its batch, and comes again."""
    weights = {events.produce: 1, events.start_live: 1, freeze: 3}
    scenario = Scenario(1, 0, ResumePolicy(), 4_095, 1, 1, 6, on_slow_record="raise", in_flight=1)
    told = []
    with simulated():
        for seed in range(15):
            told += [entry[1:4:2] for entry in Simulation(seed, scenario, weights).run().history]
    assert ("Fenced: %s", FenceReason.POLL_TIMEOUT.value) in told
    assert "SlowRecordError" not in {what for what, *_ in told}


def poison_for_long(world):
    """Long enough for a batch to be too slow again and again."""
    events.poison(world)
    clock.block(6 * world.scenario.process_ms / 1000)


@pytest.mark.parametrize(
    ("on_slow_record", "told"), [("raise", "SlowRecordError"), ("quarantine", "passed a poisoned offset")]
)
def test_a_poisoned_offset_is_named_or_passed(on_slow_record, told):
    """Which takes a live lane longer than most histories last; whatever comes of it, the invariants hold."""
    weights = {events.produce: 1, events.start_live: 1, poison_for_long: 3}
    happened = set()
    with simulated():
        for seed in range(15):
            scenario = Scenario(1, 0, ResumePolicy(), 4_095, 1, 1, 6, on_slow_record=on_slow_record)
            happened |= {what for _, what, *_ in Simulation(seed, scenario, weights).run().history}
    assert told in happened
