"""What does a run worker do?

What ``lanes`` has it do, with the product's own consumers, pipeline and ledger.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core.batch_size import SlowRecordError
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.fencing import RunState
from kafka_liveness_dagster.core.partition_keys import parse_key
from kafka_liveness_dagster.core.sink_ledger import LaneLedger
from kafka_liveness_dagster.core.timeouts import RunBudget, Timeouts
from kafka_liveness_dagster.kafka.catch_up.consumer import CatchUpConsumer
from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer
from kafka_liveness_dagster.kafka.run_context import RunContext
from kafka_liveness_dagster.kafka.settings import KafkaSettings, LiveSettings
from kafka_liveness_dagster.lanes.assignment_wait import AssignmentWait
from kafka_liveness_dagster.lanes.pipeline import Pipeline
from kafka_liveness_dagster.lanes.runs import _batches_until_idle
from kafka_liveness_dagster.metadata import Tally
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from tests.simulation import invariants
from tests.simulation.broker import TOPIC
from tests.simulation.scheduler import Killed, Process, clock
from tests.simulation.seams import LOG
from tests.simulation.spark import SeenTable, Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.offsets import OffsetRange
    from tests.simulation.client import MemberClient
    from tests.simulation.world import Simulation

GROUP = "orders-etl"
RUN_ID = "0badcafe"
IDLE_SECONDS = 1.5
KAFKA = KafkaSettings("127.0.0.1:9092")
_STARTER = 7


class RunWorker(Process):
    """A process that works for one Dagster run.

    Attributes:
        clients: its members of the group.
        losses_before: how often the table had lost rows when it began.
        topic_id: what the broker last told it.
        parent: whose child it is by now.
        run_state: what Dagster says of its run.
        too_slow: its next batch takes longer than it may; ``was_slow``: one did.
        freeze_seconds: how long it is stopped next; 0 for any time.
        held_up_at: when something else last made it wait.
    """

    is_live = False

    def __init__(self, world: Simulation, kind: str) -> None:
        super().__init__(world.name(kind))
        self.world = world
        self.clients: list[MemberClient] = []
        self.losses_before, self.topic_id = world.table.losses, ""
        self.parent, self.run_state = _STARTER, RunState.IN_PROGRESS
        self.too_slow = self.spark_failed = self.freezes = False
        self.freeze_seconds = 0.0
        self.policy = world.policy
        self.held_up_at, self.began_at, self.was_slow = -1_000.0, clock.now, False
        clock.spawn(self, self._live)

    def died(self) -> None:
        """Its clients send no heartbeats any more."""
        self.world.bury(self)
        for client in self.clients:
            self.world.broker.group.silent(client)

    def was_well(self, seconds: float) -> bool:
        """Whether nothing held it up for so long: no SIGSTOP, no slow answer, no other writer."""
        quick = self.world.scenario.slow_answers == self.world.scenario.failure_rate == 0.0
        return quick and not self.stopped and clock.now - self.held_up_at > 2 * seconds

    def seconds_of(self, ranges: Sequence[OffsetRange]) -> float:
        """How long Spark takes for these."""
        world, limit = self.world, self.world.scenario.process_ms / 1000
        poisoned = any(p.overlaps(r) for r in ranges for p in world.poison)
        if poisoned or self.too_slow:
            self.too_slow, self.was_slow = False, True
            seconds = limit * (1.1 + 0.5 * world.rng.random())
            self.held_up_at = clock.now + seconds
            return seconds
        if world.calm:
            return 0.1
        if world.chance(world.scenario.slow_batches):
            return limit * (0.3 + 0.65 * world.rng.random())
        return 0.05 + world.rng.random() ** 3

    def blow(self) -> None:
        """Its fuse has burnt down: it is killed, or stopped for a while."""
        if not self.freezes:
            self.world.kill(self)
            return
        self.freezes = False
        self.world.stop(self)
        seconds = self.freeze_seconds or 2 * self.world.rng.random() * self.world.scenario.process_ms / 1000
        self.freeze_seconds = 0.0
        clock.call(seconds, lambda: self.world.wake(self))

    def state(self) -> RunState:
        """Dagster is asked."""
        clock.point(0.2)
        return self.run_state

    def work(self) -> None:
        """The op."""
        raise NotImplementedError

    def _live(self) -> None:
        try:
            self.work()
            self.world.note("ended", self.name)
        except KafkaLivenessError as error:
            invariants.check_error(self.world, error, self)
            self.world.note(type(error).__name__, self.name, str(error)[:150])
        except Killed:
            raise
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            clock.fail(self.world.violation(invariants.NOTHING_RAISES, repr(error), error))
        clock.kill(self)
        raise Killed

    def _link(self) -> RunContext:
        return RunContext(RUN_ID, self.name, self.state, log=LOG, report_fence=lambda _why: clock.point(0.2))

    def _pipeline(self) -> tuple[Pipeline, LaneLedger]:
        world, session, seen = self.world, Session(self), SeenTable()
        ledger = LaneLedger(seen.name, lambda: TableLedger(seen, lambda: session))  # type: ignore[arg-type, return-value]
        s = world.scenario
        spark: Any = SimpleNamespace(session=lambda: session)
        kafka: Any = SimpleNamespace(settings=lambda: KAFKA)
        most = world.max_poll_records
        pipeline = Pipeline(
            kafka,
            spark,
            _same,
            table=seen.name,
            sink=None,
            max_records=most,
            is_auto_sized=s.auto and not world.calm,
            liveness=s.liveness,
            on_slow_record=s.on_slow_record,
            max_in_flight=s.in_flight,
            ledger=ledger,
        )
        return pipeline, ledger

    def _timeouts(self) -> Timeouts:
        s = self.world.scenario
        protocol = "consumer" if s.protocol == "consumer" else "classic"
        return Timeouts(
            s.session_ms,
            s.heartbeat_ms,
            s.process_ms,
            budget=RunBudget(s.process_ms / 1000, "argument"),
            protocol=protocol,
        )  # type: ignore[arg-type]


def _same(frame: Any) -> Any:
    return frame


class LiveRun(RunWorker):
    """A run of the live lane."""

    consumer: LivenessConsumer | None = None
    is_live = True

    def work(self) -> None:
        """As ``lanes.runs.run_live``."""
        pipeline, ledger = self._pipeline()
        live = LiveSettings(
            (TOPIC,),
            GROUP,
            self.world.max_poll_records,
            policy=self.policy,
            answers_rebalances_while_busy=pipeline.liveness == "progress",
            ledger=ledger,
            recommit_seconds=5.0,
        )
        storage: Any = SimpleNamespace(log=LOG, add_tags=lambda _tags: clock.point(0.1), is_behind=False)
        with LivenessConsumer(KAFKA, live, self._timeouts(), self._link()) as consumer:
            self.consumer = consumer
            commit_interval_seconds = self.world.scenario.commit_interval_seconds
            told: Any = SimpleNamespace(
                add=Tally().add, emit_if_due=lambda **_: None, due_in_seconds=math.inf
            )
            next_batch = _batches_until_idle(
                consumer, IDLE_SECONDS, commit_interval_seconds, AssignmentWait(consumer, storage), told
            )
            pipeline.run(consumer, next_batch, LOG, self._quarantined, told)
            invariants.check_idle(self.world, self)
            consumer.leave()
            consumer.check_rows()

    def _quarantined(self, poison: OffsetRange, _why: str, _cause: str) -> None:
        self.world.note("passed a poisoned offset", self.name, poison)


class CatchUpRun(RunWorker):
    """A run of the catch-up lane over some partition keys."""

    def __init__(self, world: Simulation, kind: str, keys: list[str]) -> None:
        super().__init__(world, kind)
        self.keys, self.asked_at = keys, clock.now
        world.note("backfill", self.name, *keys)

    def work(self) -> None:
        """As ``lanes.runs.run_catch_up``."""
        pipeline, ledger = self._pipeline()
        timeouts = self._timeouts()
        with CatchUpConsumer(
            KAFKA,
            GROUP,
            [parse_key(key) for key in self.keys],
            max_poll_records=self.world.max_poll_records,
            budget=timeouts.budget,
            run_context=self._link(),
            on_data_loss=self.policy.on_data_loss,
            ledger=ledger,
        ) as lane:
            lane.outstanding_ranges()

            def next_batch(max_records: int, *, ahead: bool) -> Batch | None:
                self.asked_at = clock.now
                return lane.poll(max_records, ahead=ahead)

            pipeline.run(lane, next_batch, LOG, self._left_out, Tally())
            left_out = lane.quarantined
        if left_out:
            raise SlowRecordError(left_out, timeouts.budget.seconds, "they stay missing")
        self.world.materialize(self.keys, self.asked_at)

    def _left_out(self, poison: OffsetRange, _why: str, _cause: str) -> None:
        self.world.note("left out a poisoned offset", self.name, poison)
