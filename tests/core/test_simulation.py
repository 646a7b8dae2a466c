"""Whatever happens in whichever order: nothing is lost, nothing is there twice, and what is told is true.

``SIMULATION_SEEDS=4711`` replays one history and prints it; ``SIMULATION_SEEDS=100000-200000`` looks for new ones.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from inspect import getattr_static

import pytest

from kafka_liveness_dagster.core.resume import ResumePolicy
from tests.core import simulated_events
from tests.core.simulated_mistakes import MISTAKES
from tests.core.simulation import Scenario, Simulation, Violation

HISTORIES, CHUNK = 20_000, 2_000
FOUND_WITHIN = 10_000
MUST_HAPPEN = {  # in every chunk: what a simulation does not reach it does not test
    "resumed",
    "jumped",
    "jumped again",
    "no room for the token",
    "passed a poisoned offset",
    "left out a poisoned offset",
    "handed over",
    "left to the new owner",
    "stopped",
    "woken",
    "noticed the fence",
    "fenced: poll timeout",
    "fenced: canceled",
    "fenced: partitions lost",
    "commit refused: UNKNOWN_MEMBER_ID",
    "commit refused: REBALANCE_IN_PROGRESS",
    "commit refused: no answer, nothing written",
    "commit refused: no answer, but written",
    "landed by itself",
    "late write refused",
    "write refused",
    "update lost",
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
    "table set to another snapshot",
    "snapshots expired",
    "compacted",
    "history expired after a compaction",
    "records expired",
    "topic made anew",
    "begun anew",
    "owed again",
    "lost",
    "ForeignCommitError",
    "TopicRecreatedError",
    "DataExpiredError",
    "RowsMissingError",
    "NotOwedError",
    "mode switched",
}


@pytest.fixture(autouse=True)
def untraced():
    """Without coverage's tracer, with which histories take three times as long: each branch has tests of its own."""
    tracer = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracer)


def asked_for():
    """The seeds to go through, in chunks."""
    first, _, last = os.environ.get("SIMULATION_SEEDS", f"0-{HISTORIES}").partition("-")
    seeds = range(int(first), int(last or int(first) + 1))
    return [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]


def happened_in(seeds):
    """What kinds of things happened in these histories; raises what they violate."""
    happened = set()
    for seed in seeds:
        simulation = Simulation(seed).run()
        happened |= {what for what, *_ in simulation.history}
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
def test_all_invariants_hold_after_every_event(histories, seeds):
    """Crashes, zombies, handovers, refusals, backfills and lost updates, at any moment and in any order."""
    happened = histories[seeds].result()
    assert "commit refused: OFFSET_METADATA_TOO_LARGE" not in happened
    if len(seeds) == CHUNK:
        assert not MUST_HAPPEN - happened


def test_a_group_that_crashes_for_years_owes_what_it_skipped():
    """Token after token until the broker's 4,095 bytes are full; then in order, and all of it is there in the end."""
    crashing = {simulated_events.advance: 4, simulated_events.crash: 1}
    policy = ResumePolicy(enable_parallel_rebalance=True)
    scenario = Scenario(1, 10**17, policy, 4_095, 5, 1, progress=False, failure_rate=0.0, events=3_000)
    simulation = Simulation(2, scenario, crashing).run()
    assert "no room for the token" in {what for what, *_ in simulation.history}
    assert len(simulation.materialized) > 100


def test_a_history_is_a_function_of_its_seed():
    """The seed a violation prints is all that is needed to see it again."""
    once, again = ([str(Simulation(seed).run()) for seed in range(20)] for _ in range(2))
    assert once == again


@pytest.mark.parametrize(
    ("where", "name", "mistake", "invariant"),
    [pytest.param(*mistake, id=f"{mistake[1]}: {mistake[2].__name__}") for mistake in MISTAKES],
)
def test_a_mistake_is_found(where, name, mistake, invariant, monkeypatch):
    """What the simulation does not complain of is right, as far as it can see: here is how far that is."""
    right = getattr_static(where, name)
    of_its_kind = property if isinstance(right, property) else staticmethod
    special = isinstance(right, (staticmethod, classmethod, property))
    monkeypatch.setattr(where, name, of_its_kind(mistake) if special else mistake)
    with pytest.raises(Violation, match=f"seed [0-9]+: .*{invariant}"):
        for seed in range(FOUND_WITHIN):
            Simulation(seed).run()
