"""Settling and planning of one membership, on a log that is deleted, recreated or expires under it."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kafka_liveness_dagster.core.batch_planning import BatchRequest, Rotation
from kafka_liveness_dagster.core.commit_metadata import (
    CatchUpCommitMetadata,
    ExternalCommit,
    ExternalCommitError,
    GroupOrigin,
    LiveCommitMetadata,
    OwnerState,
)
from kafka_liveness_dagster.core.ledger import ALL_OFFSETS, LedgerEntry
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_state import DataExpiredError, PartitionState, TopicRecreatedError
from kafka_liveness_dagster.core.resume import OwnedPartition, ResumePolicy
from kafka_liveness_dagster.kafka.errors import CommitRefusedError, FencedError
from kafka_liveness_dagster.kafka.live import planner
from kafka_liveness_dagster.kafka.live.planner import LivePlanner, ResumeReport
from kafka_liveness_dagster.kafka.settings import LiveSettings

AT = TopicPartition("orders", 3)
WANTED = BatchRequest(500)
SKIP = ResumePolicy(on_data_loss="write_off")


class RecordedCalls:
    """All that the lane does, in order: broker, member, catch-up commit log and table in one.

    Attributes:
        bounds: log start and log end.
        topic_id: the topic's id at the broker; empty for a broker without topic ids.
        committed: the group's offset; ``second``: its catch-up commit log.
        is_ours: whether the last commit is of this package, or of another client.
        in_table: the end of what the table has.
        done: the steps.
    """

    target, membership_certain_seconds = "lake.shop.orders", 3_600.0
    settings = SimpleNamespace(bootstrap_servers="broker-1:9092")

    def __init__(self):
        self.bounds, self.topic_id, self.done = (0, 120), "", []
        self.committed, self.is_ours, self.second = (
            70,
            True,
            CatchUpCommitMetadata(120, origin=GroupOrigin(0)),
        )
        self.pending, self.owned, self.in_table = {}, {}, 70
        self.data_listener = SimpleNamespace(on_caught_up=lambda _ends: None, has_new_data=False)

    def log_bounds(self, partitions):
        return dict.fromkeys(partitions, self.bounds)

    def topic_ids(self, topics):
        return dict.fromkeys(topics, self.topic_id)

    def partition_states(self, _group_id, partitions):
        mark = (
            LiveCommitMetadata(OwnerState.RUNNING, "0badcafe", origin=GroupOrigin(0, self.topic_id))
            if self.is_ours
            else None
        )
        one = PartitionState(
            self.committed,
            mark,
            self.bounds[0],
            log_end=self.bounds[1],
            catch_up_log=self.second,
            topic_id=self.topic_id,
        )
        return dict.fromkeys(partitions, one)

    def read(self, partitions):
        return {tp: LedgerEntry((Span(0, self.in_table),), first_offset=0) for tp in partitions}

    def commit_start_positions(self, resumed):
        self.done.append(("live commit log", {tp: one.committed for tp, one in resumed.items()}))
        self.owned.update(resumed)

    def write(self, logs):
        [(_, self.second)] = logs.values()
        self.done.append(
            ("catch-up commit log", {tp: self.second.outstanding((Span(0, 120),)) for tp in logs})
        )

    def write_off(self, ranges):
        self.done.append(("reported as lost", ranges))

    def add_known(self, accounts):
        self.done.append(("table", dict(accounts)))

    def assume_written(self, accounts):
        if accounts:
            self.done.append(("assumed", {tp: (one.written, one.unknown) for tp, one in accounts.items()}))


@pytest.fixture
def steps():
    """The steps of one lane."""
    return RecordedCalls()


@pytest.fixture
def lane(steps):
    """A lane with these settings: ``lane(policy=…)``; without a witness for a sink that reports nothing."""

    def make(policy=SKIP, *, has_witness=True, found=None):
        witness = steps if has_witness else None
        settings = LiveSettings(("orders",), "orders-etl", 500, policy=policy, ledger=witness)
        log = logging.getLogger("kafka_liveness_dagster")
        parts = {
            "report": found or ResumeReport(),
            "poison": (),
            "rotation": Rotation(),
            "catch_up_log": lambda: steps,
            "log": log,
        }
        return LivePlanner(steps, steps, settings, **parts)

    return make


def test_a_position_behind_the_log_end_ends_the_run(steps, lane):
    """The topic was recreated, on a broker without topic ids: the lane would wait at the old log end."""
    steps.owned[AT] = OwnedPartition(120, 120)
    steps.bounds = (0, 30)
    with pytest.raises(TopicRecreatedError, match="orders:3 is committed at 120 but its log ends at 30"):
        lane().plan(WANTED)


def test_offsets_that_expired_under_a_live_member_end_the_run(steps, lane):
    """Unless the user has chosen to go on without them."""
    steps.owned[AT] = OwnedPartition(70, 70)
    steps.bounds = (100, 120)
    with pytest.raises(DataExpiredError, match="30 offsets were deleted before they were processed"):
        lane(ResumePolicy()).plan(WANTED)


def test_exactly_the_expired_offsets_are_passed_and_reported(steps, lane):
    """By the catch-up commit log and the table, before any offset behind them is planned."""
    steps.owned[AT] = OwnedPartition(70, 70)
    steps.bounds = (100, 120)
    live = lane()
    batch = live.plan(WANTED)
    gone = {AT: (Span(70, 100),)}
    assert steps.done == [("reported as lost", gone), ("table", {AT: LedgerEntry(written_off=gone[AT])})]
    assert live._report.lost == [OffsetRange("orders", 3, 70, 100)]
    assert batch.ranges == (OffsetRange("orders", 3, 100, 120),)
    assert (steps.owned[AT].committed, steps.owned[AT].position) == (100, 120), (
        "the next commit begins at the log start"
    )


def test_a_partition_with_an_open_batch_is_not_passed(steps, lane):
    """The batch 70-90 may be in the table already: only its commit decides about these offsets."""
    steps.owned[AT] = OwnedPartition(70, 90)
    steps.bounds = (100, 120)
    with pytest.raises(DataExpiredError):
        lane().plan(WANTED)
    assert steps.done == []


def test_the_catch_up_log_is_written_before_the_live_one(steps, lane):
    """A former life of the group had 70-120 done: a crash between the two writes would lose these offsets."""
    steps.pending[AT] = 1
    lane(ResumePolicy(enable_parallel_rebalance=True)).resume_assigned()
    assert [what for what, _ in steps.done][:2] == ["catch-up commit log", "live commit log"], (
        "the catch-up commit log comes first"
    )
    assert steps.done[:2] == [("catch-up commit log", {AT: (Span(70, 120),)}), ("live commit log", {AT: 120})]


@pytest.mark.parametrize(
    ("log_start", "policy", "repeated"),
    [(0, ResumePolicy(), ["p3:orders:70-100"]), (90, SKIP, ["p3:orders:90-100", "p3:orders:70-90"])],
    ids=["all there", "partly deleted"],
)
def test_recovered_rows_get_their_side_effects_before_they_are_committed(
    steps, lane, log_start, policy, repeated
):
    """A crash in between repeats them. A rebalance that holds up the commit does not, in the same process."""
    steps.pending[AT], steps.in_table, steps.bounds, steps.second = (
        1,
        100,
        (log_start, 120),
        CatchUpCommitMetadata(70),
    )
    adopt, steps.commit_start_positions = steps.commit_start_positions, lambda _settled: None
    told = []
    found = ResumeReport(on_recovered=lambda *ranges: told.append([str(r) for part in ranges for r in part]))
    live = lane(replace(policy, enable_parallel_rebalance=True), found=found)
    live.resume_assigned()
    steps.commit_start_positions = adopt
    live.resume_assigned()
    assert told == [repeated]
    assert found.recovered == [OffsetRange("orders", 3, 70, 100)]
    assert steps.owned[AT].pending == (Span(100, 120),)


def test_recovered_rows_are_not_committed_without_their_side_effects(steps, lane):
    """The next run recovers them."""
    steps.pending[AT], steps.in_table, steps.second = 1, 100, CatchUpCommitMetadata(70)
    found = ResumeReport(on_recovered=lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lane(ResumePolicy(enable_parallel_rebalance=True), found=found).resume_assigned()
    assert (steps.done, found.recovered) == ([], [])


def test_crash_lag_outlasts_a_commit_of_another_client(steps, lane):
    """Such a commit replaces the mark with the owed ranges; the consumer keeps them in memory."""
    live = lane(ResumePolicy(enable_parallel_rebalance=True), has_witness=False)
    steps.pending[AT] = 1
    live.resume_assigned()
    steps.committed, steps.is_ours = 120, False
    live.resume_assigned()
    assert steps.owned[AT].pending == (Span(70, 120),), "crash lag lasts"


def test_a_recreated_topic_is_known_before_anything_is_planned_of_it(steps, lane):
    """The new topic may have more records than the old one."""
    steps.owned[AT] = OwnedPartition(70, 70)
    live = lane()
    steps.topic_id = "T1"
    assert live.plan(WANTED).ranges == (OffsetRange("orders", 3, 70, 120),)
    steps.topic_id, steps.bounds = "T2", (0, 500)
    with pytest.raises(TopicRecreatedError, match="T2"):
        live.plan(WANTED)
    assert steps.owned[AT].position == 120


@pytest.mark.parametrize("paused", [True, False])
def test_a_refused_commit_neither_pauses_nor_resumes(steps, lane, paused):
    """The next owner follows the commit."""

    def refuse(*_):
        raise CommitRefusedError

    steps.owned[AT] = OwnedPartition(70, 70, is_paused=not paused)
    steps.commit = refuse
    with pytest.raises(CommitRefusedError):
        lane().set_paused(AT, paused=paused)
    assert steps.owned[AT].is_paused is not paused, "a refused commit changes nothing"


def planned(steps, lane):
    """A lane that owns a partition, and a batch of it."""
    steps.owned[AT] = OwnedPartition(70, 70, assignment_id=1)
    live = lane()
    return live, live.plan(WANTED)


def test_a_batch_is_confirmed_by_the_broker_after_its_partitions_went(steps, lane):
    """The batch was planned a moment ago, but the member no longer owns all of it."""
    live, batch = planned(steps, lane)
    steps.owns = lambda _: False
    steps.verify_ownership = lambda *_: (AT,)
    with pytest.raises(
        FencedError, match=r"handed over to another member \(orders:3, before the batch was written\)"
    ):
        live.confirm(batch, lambda: None)
    assert steps.owned[AT].position == 70, "owned partitions are replanned"


def test_a_batch_that_was_planned_a_moment_ago_needs_no_confirmation(steps, lane):
    """Within half a session the group gives its partitions to no other member."""
    live, batch = planned(steps, lane)
    steps.owns, steps.verify_ownership = lambda _: True, pytest.fail
    live.confirm(batch, lambda: None)
    assert steps.owned[AT].position == 120


# --- the wait for a full batch ------------------------------------------------------------------------------

EACH_SECOND = BatchRequest(500, min_records=500, max_wait_seconds=1.0)


@pytest.fixture
def clock(monkeypatch):
    """The planner's clock, which only the test moves."""
    found = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr(planner, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def test_records_wait_from_the_read_of_the_log_ends_before_they_came(steps, lane, clock):
    """The time in which the run commits the batch before is part of their wait."""
    steps.owned[AT] = OwnedPartition(70, 70, assignment_id=1)
    live = lane()
    clock.now += 1.0
    assert live.plan(EACH_SECOND).ranges == (OffsetRange("orders", 3, 70, 120),)
    steps.bounds = (0, 130)
    clock.now += 0.4
    assert live.plan(EACH_SECOND) is None
    clock.now += 0.6
    assert live.plan(EACH_SECOND).ranges == (OffsetRange("orders", 3, 120, 130),)


def test_records_of_an_idle_lane_wait_from_their_signal(steps, lane, clock):
    """An idle lane reads the log ends rarely, so the last read may be seconds before the records came."""
    steps.owned[AT] = OwnedPartition(120, 120, assignment_id=1)
    live = lane()
    clock.now += 4.0
    steps.bounds, steps.data_listener.has_new_data = (0, 130), True
    assert live.plan(EACH_SECOND) is None
    steps.data_listener.has_new_data = False
    clock.now += 1.0
    assert live.plan(EACH_SECOND).ranges == (OffsetRange("orders", 3, 120, 130),)


# --- text of other clients ----------------------------------------------------------------------------------

EXTERNAL = CatchUpCommitMetadata(external=ExternalCommit("second", 10**6, ""))


def test_an_external_commit_in_the_catch_up_log_is_rewritten(steps, lane, caplog):
    """From the table, before the live commit log; a warning names group, log, partition and text."""
    steps.pending[AT], steps.second = 1, EXTERNAL
    lane(ResumePolicy(enable_parallel_rebalance=True)).resume_assigned()
    assert [step for step, _ in steps.done[:2]] == ["catch-up commit log", "live commit log"]
    assert (steps.second.target, steps.second.origin, steps.owned[AT].pending) == (
        "lake.shop.orders",
        GroupOrigin(0),
        (Span(70, 120),),
    )
    assert steps.second.outstanding((Span(70, 120),)) == (Span(70, 120),)
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"][:1]
    assert warning == (
        "Rewrote the catch-up commit log of group orders-etl (orders-etl.catch-up), 1 external commits had "
        "replaced it: orders:3, offset 1000000, metadata ''"
    )


def test_an_external_commit_under_a_live_member_is_rewritten(steps, lane, monkeypatch):
    """At the next time that done ranges are dropped from the live commit log."""
    live = lane()
    steps.owned[AT] = OwnedPartition(120, 120, (Span(70, 120),), origin=GroupOrigin(0))
    steps.second = EXTERNAL
    monkeypatch.setattr(planner, "PRUNE_INTERVAL_SECONDS", 0.0)
    live.prune_pending()
    assert [step for step, _ in steps.done] == ["table", "catch-up commit log"]
    assert steps.second.target == "lake.shop.orders"


@pytest.mark.parametrize("arrives", [True, False], ids=["arrives", "live"])
def test_rows_of_a_dead_catch_up_run_get_their_side_effects_before_a_rebuilt_log(
    steps, lane, monkeypatch, arrives
):
    """The run may have died before it recorded them, and the rebuilt log says that they are done."""
    mark = LiveCommitMetadata(OwnerState.RELEASED, "0badcafe", (Span(70, 120),), origin=GroupOrigin(0))
    facts = PartitionState(120, mark, steps.bounds[0], log_end=steps.bounds[1], catch_up_log=EXTERNAL)
    monkeypatch.setattr(
        steps, "partition_states", lambda _group, partitions: dict.fromkeys(partitions, facts)
    )
    found, steps.in_table = ResumeReport(), 100

    def repeat(ranges, _deleted):
        steps.done.append(("side effects", ranges))

    found.on_recovered = repeat
    live = lane(found=found)
    if arrives:
        steps.pending[AT] = 1
        live.resume_assigned()
    else:
        steps.owned[AT] = OwnedPartition(120, 120, (Span(70, 120),), origin=GroupOrigin(0))
        monkeypatch.setattr(planner, "PRUNE_INTERVAL_SECONDS", 0.0)
        live.prune_pending()
    steps_of_it = [one for one in steps.done if one[0] != "table"][:2]
    in_order = ["side effects", "catch-up commit log"]
    assert [step for step, _ in steps_of_it] == in_order, "side effects come before the rebuilt log"
    assert steps_of_it[0][1] == [OffsetRange("orders", 3, 70, 100)]


def test_an_expired_ledger_is_completed_by_all_that_is_not_pending(steps, lane, monkeypatch):
    """A catch-up run may have written some of the pending offsets, and they are in no log yet."""
    mark = LiveCommitMetadata(OwnerState.RELEASED, "0badcafe", (Span(70, 90),), origin=GroupOrigin(0))
    log = CatchUpCommitMetadata(origin=GroupOrigin(0))
    state = PartitionState(120, mark, 0, log_end=120, catch_up_log=log)
    monkeypatch.setattr(steps, "partition_states", lambda _group, found: dict.fromkeys(found, state))
    monkeypatch.setattr(steps, "read", lambda found: dict.fromkeys(found, LedgerEntry(unknown=ALL_OFFSETS)))
    steps.pending[AT] = 1
    lane().resume_assigned()
    assumed = dict(step for step in steps.done if step[0] == "assumed").get("assumed")
    done, unknown = (Span(0, 70), Span(90, 120)), (Span(70, 90),)
    assert assumed == {AT: (done, unknown)}, "pending offsets are not assumed"


def test_what_was_forgiven_is_learned_while_the_catch_up_log_says_so(steps, lane, monkeypatch):
    """An external commit may replace the only record of it."""
    live = lane()
    steps.owned[AT] = OwnedPartition(120, 120, (Span(70, 120),), origin=GroupOrigin(0))
    steps.second = CatchUpCommitMetadata(120, written_off=(Span(70, 120),), origin=GroupOrigin(0))
    monkeypatch.setattr(planner, "PRUNE_INTERVAL_SECONDS", 0.0)
    live.prune_pending()
    assert steps.done == [("table", {AT: LedgerEntry(written_off=(Span(70, 120),))})]


def test_an_external_commit_stops_a_lane_without_a_ledger(steps, lane):
    """The error has the command that removes it; nothing was written."""
    steps.pending[AT], steps.second = 1, EXTERNAL
    with pytest.raises(ExternalCommitError, match="orders:3, offset 1000000, metadata ''") as caught:
        lane(has_witness=False).resume_assigned()
    command = (
        "kafka-consumer-groups --bootstrap-server broker-1:9092 --topic orders:3 --group orders-etl.catch-up "
    )
    assert command + "--delete-offsets" in str(caught.value)
    assert steps.done == []


def test_pending_offsets_that_cannot_be_are_ignored(steps, lane, caplog, monkeypatch):
    """With a warning; the lane reads them anyway."""
    mark = LiveCommitMetadata(
        OwnerState.RELEASED, "0badcafe", (Span(1_000, 2**63 - 1),), origin=GroupOrigin(0)
    )
    facts = PartitionState(
        70,
        mark,
        steps.bounds[0],
        log_end=steps.bounds[1],
        catch_up_log=CatchUpCommitMetadata(origin=GroupOrigin(0)),
    )
    monkeypatch.setattr(
        steps, "partition_states", lambda _group, partitions: dict.fromkeys(partitions, facts)
    )
    steps.pending[AT] = 1
    lane().resume_assigned()
    assert steps.owned[AT].pending == ()
    assert (
        "at or above its committed offset, which the live lane reads: p3:orders:1000-9223372036854775807"
        in caplog.text
    )
