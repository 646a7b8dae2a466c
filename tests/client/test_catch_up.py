"""The catch-up lane on a broker and a table that change under it: offsets are done only if both prove it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kafka_liveness_dagster.core.commit_metadata import (
    CatchUpCommitMetadata,
    ExternalCommit,
    ExternalCommitError,
    GroupOrigin,
    LiveCommitMetadata,
    OwnerState,
)
from kafka_liveness_dagster.core.fencing import FenceReason, RunState
from kafka_liveness_dagster.core.ledger import LedgerEntry
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_state import PartitionState, RowsMissingError, TopicRecreatedError
from kafka_liveness_dagster.core.timeouts import BrokerLimits, RunBudget, derive_timeouts
from kafka_liveness_dagster.kafka.catch_up import commit_log, consumer
from kafka_liveness_dagster.kafka.catch_up.consumer import CatchUpConsumer, PausedPartitionError
from kafka_liveness_dagster.kafka.errors import CommitRefusedError, FencedError
from kafka_liveness_dagster.kafka.live.consumer import GroupView, LivenessConsumer
from kafka_liveness_dagster.kafka.run_context import RunContext, now_ms
from kafka_liveness_dagster.kafka.settings import KafkaSettings, LiveSettings

AT = TopicPartition("orders", 3)
OWED = OffsetRange("orders", 3, 70, 120)
FIRST, REST = OffsetRange("orders", 3, 70, 100), OffsetRange("orders", 3, 100, 120)
TABLE = "lake.shop.orders"
LINK = RunContext("0badcafe", "dagster/job/0badcafe/step", lambda: RunState.IN_PROGRESS)


class Broker:
    """One partition with the crash lag 70-120.

    Attributes:
        topic_id: the topic's id at the broker.
        facts_now: both commit logs and the log bounds.
        loses: whether another run's write replaces each write to the catch-up commit log.
        written: ``(offset, metadata)`` of each write to the catch-up commit log.
    """

    settings = SimpleNamespace(bootstrap_servers="broker-1:9092")

    def __init__(self):
        mark = LiveCommitMetadata(OwnerState.RUNNING, "0badcafe", (OWED.span,), origin=GroupOrigin(0, "T1"))
        self.topic_id, self.loses, self.written = "T1", False, []
        self.facts_now = PartitionState(
            120,
            mark,
            0,
            log_end=150,
            catch_up_log=CatchUpCommitMetadata(origin=GroupOrigin(0, "T1"), target=TABLE),
        )

    def partition_states(self, _group_id, _partitions):
        return {AT: replace(self.facts_now, topic_id=self.topic_id)}

    def topic_ids(self, topics):
        return dict.fromkeys(topics, self.topic_id)

    def commit(self, offsets, asynchronous):
        assert not asynchronous
        [one] = offsets
        self.written.append((one.offset, one.metadata))
        if not self.loses:
            self.facts_now = replace(
                self.facts_now, catch_up_log=CatchUpCommitMetadata.decode(one.offset, one.metadata)
            )
        return offsets


class Table:
    """A table with an account of what it holds.

    Attributes:
        done: of the partition.
        learned: accounts for its next write.
    """

    target = TABLE

    def __init__(self):
        self.done, self.learned = (Span(0, 70),), []

    def read(self, partitions):
        return {tp: LedgerEntry(self.done, first_offset=0, topic_id="T1") for tp in partitions}

    def add_known(self, accounts):
        self.learned.append(dict(accounts))


@pytest.fixture
def broker():
    """The lane's."""
    return Broker()


@pytest.fixture
def table():
    """The witness."""
    return Table()


@pytest.fixture
def opened(monkeypatch, broker, table):
    """A lane that was entered: ``opened(reprocess=…, max_poll_records=…)``; closed at the end."""
    client = SimpleNamespace(commit=broker.commit, close=lambda: None)
    for module in (consumer, commit_log):
        monkeypatch.setattr(module, "Cluster", lambda _kafka: broker)
    monkeypatch.setattr(commit_log, "create_client", lambda *_: client)
    lanes = []

    def make(**settings):
        usual = {
            "max_poll_records": 500,
            "budget": RunBudget(60, "argument"),
            "run_context": LINK,
            "ledger": table,
        }
        lanes.append(
            CatchUpConsumer(KafkaSettings("127.0.0.1:1"), "orders-etl", [OWED], **{**usual, **settings})
        )
        return lanes[-1].__enter__()

    yield make
    for lane in lanes:
        lane.close()


def test_crash_lag_is_done_once_it_is_in_the_table_and_in_the_catch_up_log(opened, broker, table):
    """The lane ends then, and leaves nothing to do."""
    lane = opened()
    batch = lane.poll()
    assert batch.ranges == (OWED,)
    table.done = (Span(0, 120),)
    lane.commit(batch)
    assert lane.poll() is None
    assert broker.facts_now.catch_up_log.outstanding((OWED.span,)) == ()
    assert lane.done_ranges() == [OWED]


def test_rows_of_a_dead_run_get_its_side_effects_before_they_are_recorded(opened, broker, table):
    """The dead run may have skipped them; the range is recorded, and not processed again."""
    table.done = (Span(0, 100),)
    lane = opened()
    told = []

    def repeat(*ranges):
        assert broker.written == []
        told.append(ranges)

    lane.on_recovered(repeat)
    assert lane.poll().ranges == (REST,)
    assert told == [([FIRST], [])]
    assert broker.facts_now.catch_up_log.outstanding((OWED.span,)) == (REST.span,)
    assert lane.poll(ahead=True) is None
    assert (len(told), lane.recovered) == (1, [FIRST])
    assert opened().recovered == []


def test_rows_of_a_dead_run_are_not_recorded_without_its_side_effects(opened, broker, table):
    """The next run of the range repeats them."""
    table.done = (Span(0, 120),)
    lane = opened()
    lane.on_recovered(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lane.poll()
    assert broker.written == []


def test_rows_of_a_paused_partition_are_recovered_when_it_is_resumed(opened, broker, table):
    """Pausing holds both lanes."""
    table.done = (Span(0, 100),)
    broker.facts_now = replace(
        broker.facts_now, live_metadata=replace(broker.facts_now.live_metadata, owner_state=OwnerState.PAUSED)
    )
    lane = opened()
    with pytest.raises(PausedPartitionError):
        lane.poll()
    assert (lane.recovered, broker.written) == ([], [])
    broker.facts_now = replace(
        broker.facts_now,
        live_metadata=replace(broker.facts_now.live_metadata, owner_state=OwnerState.RUNNING),
    )
    assert lane.poll().ranges == (REST,)
    assert lane.recovered == [FIRST]


def test_a_paused_partition_whose_rows_are_all_there_is_not_done_before_they_are_recorded(
    opened, broker, table
):
    """A green partition with a pending range would come back as a missing one."""
    table.done = (Span(0, 120),)
    broker.facts_now = replace(
        broker.facts_now, live_metadata=replace(broker.facts_now.live_metadata, owner_state=OwnerState.PAUSED)
    )
    with pytest.raises(PausedPartitionError):
        opened().poll()


def test_a_recovery_takes_no_time_from_the_next_batch(opened, table):
    """It reads Kafka for as long as a batch may take."""
    table.done = (Span(0, 100),)
    lane = opened()

    def repeat(*_):
        lane._timer.polled_at_ms -= 50_000

    lane.on_recovered(repeat)
    assert lane.poll().ranges == (REST,)
    assert lane._timer.elapsed_ms(now_ms()) < 40_000


def test_a_record_that_another_run_replaced_is_written_again_before_the_run_ends(opened, broker, table):
    """Else the partition is green while its range is pending, and the next run repeats its side effects."""
    lane = opened(max_poll_records=30)
    lane.commit(lane.poll())
    broker.facts_now = replace(
        broker.facts_now, catch_up_log=CatchUpCommitMetadata(origin=GroupOrigin(0, "T1"), target=TABLE)
    )
    table.done = (Span(0, 120),)
    lane.commit(lane.poll())
    assert broker.facts_now.catch_up_log.outstanding((OWED.span,)) == (FIRST.span,)
    assert lane.poll() is None
    assert broker.facts_now.catch_up_log.outstanding((OWED.span,)) == (), (
        "a run that ends green has recorded its ranges"
    )


def test_a_batch_of_a_recreated_topic_is_not_recorded(opened, broker):
    """Its rows may be of either topic: a record of it as done could lose records of the new topic."""
    lane = opened()
    batch = lane.poll()
    broker.topic_id = "T2"
    with pytest.raises(TopicRecreatedError, match="Rows of p3:orders:70-120 were written meanwhile"):
        lane.commit(batch)
    assert broker.written == []


def test_rows_that_the_table_lost_after_the_commit_end_the_run(opened, broker, table):
    """Else its partitions would be materialized without these rows."""
    lane = opened()
    batch = lane.poll()
    table.done = (Span(0, 120),)
    lane.commit(batch)
    table.done = (Span(0, 70),)
    with pytest.raises(RowsMissingError, match="lacks p3:orders:70-120") as raised:
        lane.poll()
    lane.__exit__(RowsMissingError, raised.value, None)
    assert broker.facts_now.catch_up_log.outstanding((OWED.span,)) == (OWED.span,), (
        "missing rows are not done"
    )


def test_a_record_that_another_run_has_replaced_is_outstanding(opened, broker):
    """Without a witness the catch-up commit log alone proves that a range is done."""
    lane = opened(ledger=None)
    lane.commit(lane.poll())
    assert lane.poll() is None
    broker.facts_now = replace(
        broker.facts_now, catch_up_log=CatchUpCommitMetadata(origin=GroupOrigin(0, "T1"), target=TABLE)
    )
    assert lane.outstanding_ranges() == [OWED]


def test_a_batch_that_outlasted_its_process_timeout_is_not_committed(opened, broker):
    """Its offsets are planned a second time by then."""
    lane = opened()
    late = lane.poll()
    lane._timer.polled_at_ms -= 60_000
    with pytest.raises(FencedError, match="longer than its process timeout"):
        lane.commit(late)
    assert lane.poll().ranges == late.ranges
    with pytest.raises(FencedError, match="planned before its process timeout"):
        lane.commit(late)
    assert broker.written == []


def test_a_batch_that_was_not_recorded_is_outstanding(opened, broker):
    """Another run's write replaced every record, so this run may not count the range as done."""
    lane = opened()
    broker.loses = True
    with pytest.raises(CommitRefusedError, match="lost 5 writes to other runs"):
        lane.commit(lane.poll())
    assert lane.outstanding_ranges() == [OWED], "a range that was not recorded is outstanding"


def test_exactly_the_offsets_below_the_log_start_are_lost(opened, broker, table):
    """The offset at the log start is processed; lost offsets are recorded and reported."""
    broker.facts_now = replace(broker.facts_now, log_start=100)
    lane = opened(on_data_loss="write_off")
    assert lane.poll().ranges == (REST,)
    assert lane.lost == [FIRST]
    assert broker.facts_now.catch_up_log.written_off == (FIRST.span,)
    assert table.learned[-1] == {AT: LedgerEntry(written_off=(FIRST.span,))}


def test_a_range_that_is_replayed_is_processed_once(opened, table):
    """Neither log changes by a replay, so the lane itself counts the replayed offsets."""
    table.done = (Span(0, 120),)
    lane = opened(reprocess=[OWED], max_poll_records=30)
    batches = [lane.poll()]
    assert batches[0].ranges == (FIRST,)
    lane.commit(batches[0])
    assert lane.outstanding_ranges() == [REST], "a range is replayed once"
    batches.append(lane.poll())
    lane.commit(batches[1])
    assert lane.outstanding_ranges() == []
    assert lane.poll() is None


def test_a_batch_ahead_of_one_that_is_open_does_not_end_the_lane(opened, table):
    """The open batch is neither in the table nor in the log yet, and its rows are not missing."""
    table.done = (Span(0, 70),)
    lane = opened()
    batch = lane.poll()
    assert lane.poll(ahead=True) is None
    table.done = (Span(0, 120),)
    lane.commit(batch)
    assert lane.poll() is None


def test_a_quarantined_offset_is_not_planned_a_second_time(opened, table):
    """Each process timeout would meet the offset once more, and the run would not end."""
    lane = opened()
    lane.poll()
    lane.quarantine(OffsetRange("orders", 3, 100, 101))
    lane._timer.polled_at_ms -= 60_000
    assert [tuple(r.span) for r in lane.poll().ranges] == [(70, 100), (101, 120)], (
        "a quarantined offset is left out"
    )


def test_a_deadline_that_passes_in_the_last_poll_is_no_error_of_the_run(opened, broker, table, monkeypatch):
    """All rows are in the table: the poll looks again, and the run ends well."""
    lane = opened()
    batch = lane.poll()
    table.done = (Span(0, 120),)
    lane.commit(batch)
    record, polls = lane._catch_up_log.mark_done, []

    def passes_at_first(ranges, may_go_on):
        polls.append(ranges)
        if len(polls) == 1:
            lane._timer.polled_at_ms -= 60_000
        record(ranges, may_go_on)

    monkeypatch.setattr(lane._catch_up_log, "mark_done", passes_at_first)
    assert lane.poll() is None
    assert polls == [[OWED], [OWED]]


def test_crash_lag_of_a_paused_partition_ends_the_run_with_an_error(opened, broker):
    """The run would materialize partitions of which nothing was processed."""
    lane = opened(ledger=None)
    broker.facts_now = replace(
        broker.facts_now, live_metadata=replace(broker.facts_now.live_metadata, owner_state=OwnerState.PAUSED)
    )
    with pytest.raises(PausedPartitionError, match="orders:3 of group orders-etl is paused"):
        lane.poll()


def test_a_batch_is_not_written_once_the_run_is_fenced(opened):
    """The lane checks the fence before it replaces rows."""
    lane = opened()
    batch = lane.poll()
    lane.confirm(batch)
    lane._watchdog.fence(FenceReason.RUN_ENDED, lane._watchdog._leave)
    with pytest.raises(FencedError, match="no longer in progress"):
        lane.confirm(batch)


def test_an_external_commit_in_the_catch_up_log_is_rewritten_at_the_first_poll(opened, broker, table, caplog):
    """From the table: what is there is done, the rest is not, whatever offset the other client committed.

    The writer of these rows may have died, so its side effects are repeated before the log says that they are
    done.
    """
    broker.facts_now = replace(
        broker.facts_now, catch_up_log=CatchUpCommitMetadata(external=ExternalCommit("second", 150, ""))
    )
    table.done = (Span(0, 100),)
    lane = opened()
    repeated = []

    def repeat(*ranges):
        assert broker.written == []
        repeated.append(ranges)

    lane.on_recovered(repeat)
    assert lane.poll().ranges == (REST,)
    assert repeated == [([FIRST], [])]
    assert broker.written == [(100, f"kl1 done T1@0 target {TABLE}")]
    assert (
        "orders-etl.catch-up), 1 external commits had replaced it: orders:3, offset 150, metadata ''"
        in caplog.text
    )


def test_an_external_commit_after_the_first_look_is_replaced_by_the_next_record(opened, broker, table):
    """What the run knows from the table counts meanwhile."""
    lane = opened()
    batch = lane.poll(30)
    broker.facts_now = replace(
        broker.facts_now,
        catch_up_log=CatchUpCommitMetadata(external=ExternalCommit("second", 150, "not ours")),
    )
    lane.commit(batch)
    assert broker.facts_now.catch_up_log.outstanding((OWED.span,)) == (REST.span,)
    assert broker.facts_now.catch_up_log.target == TABLE
    rest = lane.poll()
    assert rest.ranges == (REST,)
    lane.commit(rest)
    table.done = (Span(0, 120),)
    assert lane.poll() is None


def test_a_newer_versions_log_stops_the_lane(opened, broker):
    """It may have more than the ledger: nothing is written over it."""
    broker.facts_now = replace(
        broker.facts_now,
        catch_up_log=CatchUpCommitMetadata(external=ExternalCommit("second", 150, "kl3 done")),
    )
    with pytest.raises(ExternalCommitError, match="has a commit of a newer version: orders:3, offset 150"):
        opened()
    assert broker.written == []


def test_an_external_commit_stops_a_lane_without_a_ledger(opened, broker):
    """The error has the command that removes it; nothing was written."""
    broker.facts_now = replace(
        broker.facts_now, catch_up_log=CatchUpCommitMetadata(external=ExternalCommit("second", 150, ""))
    )
    with pytest.raises(ExternalCommitError, match=r"--group orders-etl\.catch-up --delete-offsets"):
        opened(ledger=None)
    assert broker.written == []


@pytest.mark.parametrize(
    ("servers", "group", "seen"),
    [
        pytest.param("127.0.0.1:1", "orders-etl", [False, True, False], id="its group"),
        pytest.param(
            "127.0.0.2:1,127.0.0.1:1", "orders-etl", [False, True, False], id="by another of the brokers"
        ),
        pytest.param("127.0.0.1:1", "another", [False] * 3, id="another group"),
        pytest.param("127.0.0.2:1", "orders-etl", [False] * 3, id="another cluster"),
    ],
)
def test_a_live_consumer_of_this_process_sees_the_open_catch_up_lane(opened, servers, group, seen):
    """KIP-333, childConsumerIsAlive(): without Dagster, as long as it is open."""
    cluster, settings = SimpleNamespace(settings=KafkaSettings(servers)), SimpleNamespace(group_id=group)
    view = GroupView(cluster, settings, None, RunContext("1badcafe", "script", lambda: RunState.IN_PROGRESS))
    alive = [view.child_consumer_is_alive()]
    lane = opened()
    alive.append(view.child_consumer_is_alive())
    lane.close()
    assert [*alive, view.child_consumer_is_alive()] == seen


def test_a_live_lane_that_closes_leaves_the_catch_up_lane_open(opened):
    """KIP-333's close() shuts both down; here a live lane that restarts does not interrupt the other."""
    limits = BrokerLimits(6_000, 1_800_000)
    timeouts = derive_timeouts(
        RunBudget(60, "argument"), session_seconds=None, heartbeat_seconds=None, limits=limits
    )
    lane = opened()
    with LivenessConsumer(
        KafkaSettings("127.0.0.1:1"), LiveSettings(("orders",), "orders-etl"), timeouts, LINK
    ):
        batch = lane.poll()
    lane.check()
    assert lane.is_batch_current(batch)
