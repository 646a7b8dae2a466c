"""Run the histories of a test run, in two halves for two processes; check that required events happen.

``SIMULATION_SEEDS=4711`` replays one history and prints it; ``SIMULATION_SEEDS=12000-200000`` looks for new
ones.
"""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafka_liveness_dagster.kafka.live import planner
from tests.simulation.seams import simulated
from tests.simulation.world import Simulation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HISTORIES = 4_000
FAILED_ONCE = (
    *(566, 5_245, 11_954, 18_014, 19_351, 40_676),
    *(47_763, 48_809, 67_009, 73_274, 73_677, 78_565),
)
"""Seeds that showed a defect, whatever their histories are under today's code; add each seed that fails."""
_SELDOM = (20_000, 20, 50)
MUST_HAPPEN = {  # in every half: what a simulation does not reach it does not test
    "Committed %s: %s in %.2f s",
    "Written %s, and committed without %s, which its new owner writes again: %s in %.2f s",
    planner.CRASH_LAG_LINE,
    planner.IN_ORDER_LINE,
    planner.PAUSED_LINE,
    "Waiting for partitions: %s. The other members finish their batches first",
    "Handed over before the commit; the new owner retries: %s",
    "Another writer committed rows of %s: written at attempt %d",
    "Brokers did not respond; this run is still a member and retries: %s",
    "Could not mark %d partitions as released: %s",
    "Lost partitions: %s",
    "Fenced: %s",
    planner.LOST_LINE,
    "DATA LOSS: %s. Recorded as done, and reported as lost",
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
    "late write refused",
    "write refused",
    "materialized",
    "stranger's commit: same",
    "stranger's commit: lower",
    "stranger's commit: higher",
    "stranger's commit: earliest",
    "stranger's commit: latest",
    "foreign commit",
    "foreign commit removed",
    "live commit log gone",
    "catch-up commit log gone",
    "table dropped",
    "table rolled back",
    "table set to another snapshot",
    "snapshots expired",
    "compacted",
    "history expired after a compaction",
    "records expired",
    "topic made anew",
    "begun anew",
    "BrokerUnreachableError",
    "DataExpiredError",
    "FencedError",
    "NotPendingError",
    "ExternalCommitError",
    "PausedPartitionError",
    "RowsMissingError",
    "SparkFailedError",
    "TopicRecreatedError",
    "mode switched",
}


def half(number: int) -> Sequence[int]:
    """Return the seeds of one half.

    Those of ``SIMULATION_SEEDS``, or the first ones and those that failed once.
    """
    named = os.environ.get("SIMULATION_SEEDS")
    if named is None:
        return [*range(HISTORIES), *(seed for seed in FAILED_ONCE if seed >= HISTORIES)][number::2]
    first, _, last = named.partition("-")
    return range(int(first), int(last or int(first) + 1))[number::2]


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect garbage seldom, and look only at new objects.

    To look at the others again takes a tenth of the time.
    """
    often = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*often)
        gc.unfreeze()


def go_through(seeds: Sequence[int]) -> None:
    """These histories: nothing is violated, and in many of them all happens that can."""
    happened: set[str] = set()
    with seldom_collected(), simulated():
        for seed in seeds:
            simulation = Simulation(seed).run()
            happened |= {what for _, what, *_ in simulation.history}
    if len(seeds) == 1:
        print(f"seed {seeds[0]}\n{simulation}")  # noqa: T201 - somebody asked for it
    assert "commit refused: OFFSET_METADATA_TOO_LARGE" not in happened
    if len(seeds) >= HISTORIES // 2:
        left_out = MUST_HAPPEN - happened
        assert not left_out
