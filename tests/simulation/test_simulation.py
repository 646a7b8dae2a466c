"""Whatever happens in whichever order: nothing is lost, nothing is there twice, nobody hangs, and what is told is true.

``SIMULATION_SEEDS=4711`` replays one history and prints it; ``SIMULATION_SEEDS=100000-200000`` looks for new ones.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from kafka_liveness_dagster.core.resume import ResumePolicy
from tests.simulation import events
from tests.simulation.product import simulated
from tests.simulation.scenario import Scenario
from tests.simulation.world import Simulation

HISTORIES, CHUNK = 4_000, 2_000
MUST_HAPPEN = {  # in every chunk: what a simulation does not reach it does not test
    "committed %s: %s in %.2f s",
    "written %s and committed but for %s, which its new owner writes again: %s in %.2f s",
    "crash lag %s, %d offsets, is owed and becomes a partition; live goes on at %d",
    "%s resumes in order at %d: its owed ranges are too many for a commit, or for max_owed_ranges",
    "%s is paused at %d, in both lanes: resume() lets it go on",
    "waits for partitions: %s; the others finish their batches first",
    "handed over before the commit, replayed by the new owner: %s",
    "another writer had touched %s: written at attempt %d",
    "still a member, looking again: %s",
    "could not mark %d partitions as released: %s",
    "partitions lost: %s",
    "fenced: %s",
    "passed a poisoned offset",
    "killed",
    "stopped",
    "woken",
    "canceled",
    "declared over",
    "session expired",
    "max.poll.interval exceeded",
    "thrown out",
    "commit refused: UNKNOWN_MEMBER_ID",
    "commit refused: REBALANCE_IN_PROGRESS",
    "commit refused: ILLEGAL_GENERATION",
    "commit refused: STALE_MEMBER_EPOCH",
    "commit refused: _TIMED_OUT",
    "landed by itself",
    "write refused",
    "materialized",
    "stranger's commit: same",
    "stranger's commit: lower",
    "stranger's commit: higher",
    "stranger's commit: earliest",
    "stranger's commit: latest",
    "foreign commit",
    "foreign commit removed",
    "first log gone",
    "second log gone",
    "table dropped",
    "table rolled back",
    "snapshots expired",
    "compacted",
    "history expired after a compaction",
    "records expired",
    "topic made anew",
    "begun anew",
    "BrokerUnreachableError",
    "DataExpiredError",
    "FencedError",
    "ForeignCommitError",
    "PausedPartitionError",
    "PoisonedOffsetError",
    "RowsMissingError",
    "SparkFailedError",
    "TopicRecreatedError",
    "mode switched",
}


def asked_for():
    """The seeds to go through, in chunks."""
    first, _, last = os.environ.get("SIMULATION_SEEDS", f"0-{HISTORIES}").partition("-")
    seeds = range(int(first), int(last or int(first) + 1))
    return [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]


def happened_in(seeds):
    """What kinds of things happened in these histories; raises what they violate."""
    happened = set()
    with simulated():
        for seed in seeds:
            simulation = Simulation(seed).run()
            happened |= {what for _, what, *_ in simulation.history}
    if len(seeds) == 1:
        print(f"seed {seeds.start}\n{simulation}")  # noqa: T201 - somebody asked for it
    return happened


@pytest.fixture(scope="module")
def histories(request):
    """What happened in each chunk that is to run: it is found on all cores, whatever the tests here do meanwhile."""
    tests = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    chunks = [item.callspec.params["seeds"] for item in tests if "histories" in item.fixturenames]
    workers = min(len(chunks), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as cores:
        yield {seeds: cores.submit(happened_in, seeds) for seeds in chunks}
        cores.shutdown(cancel_futures=True)


@pytest.mark.parametrize("seeds", asked_for(), ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_all_invariants_hold_after_every_step(histories, seeds):
    """Crashes, zombies, handovers, refusals, backfills, enemies and lost updates, at any moment and in any order."""
    happened = histories[seeds].result()
    assert "commit refused: OFFSET_METADATA_TOO_LARGE" not in happened
    if len(seeds) == CHUNK:
        assert not MUST_HAPPEN - happened


def test_a_group_that_crashes_for_years_owes_what_it_skipped():
    """Token after token until there is no room for more; then in order, and all of it is there in the end."""
    crashing = {events.produce: 2, events.crash: 3, events.time_passes: 1, events.start_live: 2}
    policy = ResumePolicy(enable_parallel_rebalance=True)
    scenario = Scenario(1, 10**17, policy, 200, 5, 1, 400)
    with simulated():
        simulation = Simulation(2, scenario, crashing).run()
    told = {what for _, what, *_ in simulation.history}
    assert "%s resumes in order at %d: its owed ranges are too many for a commit, or for max_owed_ranges" in told
    assert len(simulation.materialized) > 3


def test_a_history_is_a_function_of_its_seed():
    """The seed a violation prints is all that is needed to see it again."""
    with simulated():
        once, again = ([str(Simulation(seed).run()) for seed in range(20)] for _ in range(2))
    assert once == again
