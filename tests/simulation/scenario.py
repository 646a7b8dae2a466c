"""What is the same all through one history?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kafka_liveness_dagster.core.resume import ResumePolicy

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True)
class Scenario:
    """A group's settings, and how much goes wrong around it.

    Attributes:
        protocol: the classic one, eager or cooperative, or KIP-848's.
        slow_answers: how many answers take their time; ``slow_logs``: how many log lines; ``slow_looks``: how
            many looks at the table; ``slow_batches``: how many batches take most of their budget.
        is_about_rebalances: much comes and goes, and nobody is an enemy.
    """

    partitions: int
    log_start: int
    policy: ResumePolicy
    max_metadata_bytes: int
    max_poll_records: int
    max_runs: int
    events: int
    protocol: Literal["eager", "cooperative", "consumer"] = "cooperative"
    liveness: Literal["poll", "progress"] = "poll"
    on_slow_record: Literal["raise", "quarantine"] = "quarantine"
    in_flight: int = 2
    auto: bool = False
    process_ms: int = 6_000
    session_ms: int = 3_000
    heartbeat_ms: int = 1_000
    failure_rate: float = 0.0
    spark_failure_rate: float = 0.0
    slow_answers: float = 0.0
    slow_logs: float = 0.0
    slow_looks: float = 0.0
    slow_batches: float = 0.0
    is_about_rebalances: bool = False

    @property
    def commit_interval_seconds(self) -> float:
        """How long what came may wait for its batch, in seconds: where batches may be large."""
        return 3.0 if self.max_poll_records == 50 else 0.0

    @classmethod
    def random(cls, rng: Random, *, of_rebalances: float = 0.3) -> Scenario:
        """Mostly with the mode on; at times with room for two or three owed ranges only."""
        about_rebalances = rng.random() < of_rebalances
        log_start = rng.choice((0, 0, 0, 7, 10**15))
        small = 55 + 55 * (log_start > 7)  # an origin, what is done again, and not much more
        return cls(
            partitions=rng.choice((1, 2, 3) if about_rebalances else (1, 1, 1, 2, 3)),
            log_start=log_start,
            policy=ResumePolicy(
                enable_parallel_rebalance=rng.random() < 0.9,
                auto_offset_reset=rng.choice(("earliest", "earliest", "latest")),
                min_crash_lag=rng.choice((1, 1, 1, 3, 10)),
                on_data_loss=rng.choice(("raise", "write_off")),
                on_missing_rows=rng.choice(("raise", "crash_lag", "crash_lag")),
            ),
            max_metadata_bytes=rng.choice((4_095, 4_095, 4_095, small + 30, small)),
            max_poll_records=rng.choice((8, 8, 20) if about_rebalances else (3, 8, 8, 20, 50)),
            max_runs=3 if about_rebalances else rng.choice((1, 2, 3, 3)),
            events=6 + int(rng.random() ** 2 * 18),
            protocol=rng.choice(("eager", "cooperative", "consumer")),
            liveness=rng.choice(("poll", "poll", "progress")),
            on_slow_record=rng.choice(("raise", "quarantine", "quarantine")),
            in_flight=rng.choice((1, 2, 2)),
            auto=rng.random() < 0.2,
            failure_rate=rng.choice((0.0, 0.0, 0.0, 0.1)),
            spark_failure_rate=rng.choice((0.0, 0.0, 0.1)),
            slow_answers=rng.choice((0.0, 0.0, 0.1)),
            slow_logs=rng.choice((0.0, 0.0, 0.4)),
            slow_looks=rng.choice((0.0, 0.0, 0.0, 0.3)),
            slow_batches=rng.choice((0.1, 0.5) if about_rebalances else (0.0, 0.0, 0.1)),
            is_about_rebalances=about_rebalances,
        )
