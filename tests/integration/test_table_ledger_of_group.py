"""No loss is silent, nothing old is gone, no partition is green without its rows, whichever store forgets.

Each enemy of the commit logs and of the table, on the real broker and the real table; on both protocols where
the group's commits are at stake.
"""

from __future__ import annotations

import json
from dataclasses import replace

import dagster as dg
import pytest
from click.testing import CliRunner

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli.group_commands import status
from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.core.commit_metadata import OwnerState
from kafka_liveness_dagster.core.partition_state import (
    RowsMissingError,
    TableMismatchError,
    TopicRecreatedError,
)
from kafka_liveness_dagster.core.timeouts import BrokerLimits
from kafka_liveness_dagster.kafka.live import planner
from kafka_liveness_dagster.lanes import runs
from kafka_liveness_dagster.lanes.assignment_wait import AssignmentWait
from kafka_liveness_dagster.lanes.row_check import check_rows
from kafka_liveness_dagster.runs.tags import FENCED_TAG
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from kafka_liveness_dagster.spark.table.table import IcebergTable
from tests.integration.group_with_table import SPARK_UI, GroupWithTable, written_rows
from tests.integration.kafka_group import NO_SPARK
from tests.waiting import wait_for

on_both_protocols = pytest.mark.parametrize(
    "restarted_broker", ["classic", pytest.param("consumer", marks=pytest.mark.certify)], indirect=True
)
"""Where the broker's group is what forgets; a table forgets the same under either."""


@pytest.fixture
def restarted_broker(request, services, produce, warm_spark, make_group):
    """A group under a protocol, and its table."""
    rows, protocol = request.getfixturevalue("rows"), getattr(request, "param", "classic")

    def make(**settings):
        group = make_group(30, 0.5) if protocol == "consumer" else None
        return GroupWithTable(services, produce, rows, warm_spark, protocol=protocol, group=group, **settings)

    return make


def is_exact_once_drained(world, *spans):
    """Everything is in the table after a live run, with these partitions and the pending ones green."""
    assert world.live() is None
    for span in {*spans, *world.pending_by_live_log()}:
        assert world.catch_up(span) is None
    assert world.offsets() == written_rows(0, world.log_end)
    well = world.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS]))
    assert well
    assert not any(FENCED_TAG in run.tags for run in well), "nothing was the matter with them"
    told = world.instance.get_latest_materialization_event(dg.AssetKey(world.name)).asset_materialization
    assert told.metadata["spark_ui"] == dg.MetadataValue.url(SPARK_UI)


@on_both_protocols
@pytest.mark.parametrize("offset", [120, 0, 150])
def test_a_strangers_commit_forgets_nothing(restarted_broker, offset):
    """At the same offset, back to the beginning, forward to the end.

    The partition that stands gets its rows.
    """
    world = restarted_broker()
    world.crash_and_resume_at_120()
    world.grow_to(150)
    world.commit_externally(offset)
    error = world.catch_up((70, 120))
    assert error is not None or set(written_rows(70, 120)) <= set(world.offsets())
    assert error is None or not world.materialized_ranges()
    is_exact_once_drained(world, (70, 120))


@on_both_protocols
def test_what_a_stranger_made_the_group_forget_is_owed_again(restarted_broker):
    """The live lane owes it in the commit with which it goes on.

    And both lanes' debts are known to the log.
    """
    world = restarted_broker()
    world.crash_and_resume_at_120()
    world.grow_to(150)
    world.commit_externally(120)
    assert world.live() is None
    assert (world.committed(), world.pending_by_live_log()) == (150, [(70, 120)])
    assert world.offsets() == written_rows(0, 70) + written_rows(120, 150)


@on_both_protocols
def test_a_stray_consumer_with_auto_commit_costs_nothing(restarted_broker):
    """It has the partitions for a while, commits what it polled, and goes."""
    world = restarted_broker()
    world.crash_and_resume_at_120()
    world.join_externally()
    world.grow_to(150)
    is_exact_once_drained(world, (70, 120))


@on_both_protocols
def test_a_stray_consumer_in_the_catch_up_log_costs_nothing(restarted_broker):
    """Both lanes write the log anew from the table; the sensor goes on, and reports what it found."""
    world = restarted_broker()
    world.crash_and_resume_at_120()
    world.join_externally(of_catch_up_log=True)
    stray = world.catch_up_log()
    assert (stray.offset, stray.metadata) == (120, ""), "above all pending offsets, and without a word"
    _, exact = told(world.tick(), "")
    assert (
        f"{world.topic}:0: an external commit replaced the catch-up commit log (offset 120"
        in exact.description
    )
    assert (exact.passed, exact.severity, world.keys()) == (False, dg.AssetCheckSeverity.WARN, [(70, 120)])
    assert world.catch_up((70, 120)) is None
    assert world.offsets() == written_rows(0, 120)
    done = world.catch_up_log()
    assert (done.offset, done.metadata.split(" ")[:2]) == (120, ["kl1", "done"])
    world.commit_externally(0, "not ours", of_catch_up_log=True)
    world.grow_to(150)
    is_exact_once_drained(world, (70, 120))
    assert world.catch_up_log().metadata.endswith(f" target {world.table}")
    world.cursor = None
    assert is_well(world.tick())


def test_without_a_ledger_a_stray_commit_is_removed_by_hand(restarted_broker):
    """A sink that does not report what it has: the error has the command; no offset is lost by it."""
    given = []
    world = restarted_broker(table=None, sink=lambda replacement: given.extend(replacement.ranges))
    world.crash_at_70()
    world.grow_to(120)
    assert world.live() is None
    world.join_externally(of_catch_up_log=True)
    for error in (world.live(), world.catch_up((70, 120))):
        assert isinstance(error, kl.ExternalCommitError), error
        assert f"has an external commit: {world.tp}, offset 120, metadata ''" in str(error)
        assert f"--topic {world.tp} --group {world.group}.catch-up --delete-offsets" in str(error)
    tick = world.tick()
    assert (tick.dynamic_partitions_requests, tick.run_requests) == ([], []), "neither is known to be of use"
    world.delete_offsets(of_catch_up_log=True)
    given.clear()
    assert world.live() is None
    assert world.pending_by_live_log() == [(70, 120)]
    assert world.catch_up((70, 120)) is None
    assert [str(r.span) for r in given] == ["70-120"]


def test_text_of_another_program_in_the_live_log_is_removed_by_hand(restarted_broker):
    """The error names it; at the same offset without metadata the table brings pending offsets back."""
    world = restarted_broker()
    world.crash_and_resume_at_120()
    world.commit_externally(120, "checkpoint-7")
    for error in (world.live(), world.catch_up((70, 120))):
        assert isinstance(error, kl.ExternalCommitError), error
        assert (
            f"the live commit log of group {world.group} has an external commit: {world.tp}, offset 120"
            in str(error)
        )
        assert f"--topic {world.tp} --group {world.group} --reset-offsets --to-current --execute" in str(
            error
        )
    world.commit_externally(120)
    is_exact_once_drained(world, (70, 120))


@on_both_protocols
@pytest.mark.parametrize("of_catch_up_log", [False, True], ids=["live commit log", "catch-up commit log"])
def test_the_offsets_of_either_group_may_be_deleted(restarted_broker, of_catch_up_log):
    """Or expire: what is owed stays owed, and what is done is not owed again."""
    world = restarted_broker()
    world.crash_and_resume_at_120()
    world.delete_offsets(of_catch_up_log=of_catch_up_log)
    is_exact_once_drained(world, (70, 120))
    world.delete_offsets(of_catch_up_log=of_catch_up_log)
    assert world.live() is None
    assert world.pending_by_live_log() == []


@on_both_protocols
def test_an_expired_live_log_does_not_skip_to_the_latest(restarted_broker):
    """With ``latest`` a plain consumer would never read what came while the pipeline stood still."""
    world = restarted_broker(offsets=kl.Offsets(auto_offset_reset="latest"))
    world.grow_to(10)
    assert world.live() is None
    world.commit_externally(0)
    world.grow_to(50)
    assert world.live() is None
    assert world.offsets() == written_rows(0, 50)
    world.delete_offsets()
    world.grow_to(80)
    assert world.live() is None
    assert world.pending_by_live_log() == [(50, 80)]
    assert world.catch_up((50, 80)) is None
    assert world.offsets() == written_rows(0, 80)


def test_a_topic_made_anew_touches_no_old_row(restarted_broker):
    """However many records it has: both ids are named before a row or a commit is touched, in both lanes."""
    world = restarted_broker()
    world.grow_to(50)
    assert world.live() is None
    before = world.values()
    world.recreate_topic(80)
    for error in (world.live(), world.catch_up((10, 40))):
        assert isinstance(error, TopicRecreatedError), error
        assert world.topic_id() in str(error)
    assert (world.values(), world.committed(), world.materialized_ranges()) == (before, None, [])


@on_both_protocols
def test_a_topic_made_anew_between_two_batches_is_named(restarted_broker):
    """A member at work: the rows that are there stay, and nothing more is written."""
    world = restarted_broker(max_poll_records=25)
    world.grow_to(50)
    seen = []

    def make_anew(_batch):
        seen.append(len(seen))
        if len(seen) == 2:
            world.recreate_topic(200)

    error = world.live(make_anew)
    assert isinstance(error, TopicRecreatedError), error
    assert {n: value for n, value in world.values().items() if n < 25} == {
        n: str(n) for n in written_rows(0, 25)
    }
    assert world.committed() is None


@pytest.mark.parametrize("replaced", [False, True], ids=["dropped", "replaced"])
def test_a_table_that_is_gone_is_named_and_its_rows_are_owed(restarted_broker, replaced):
    """After 50 of 80: an error with what is missing; with ``crash_lag`` it becomes a partition."""
    world = restarted_broker()
    world.grow_to(50)
    assert world.live() is None
    world.drop_table()
    if replaced:
        columns = "topic string, partition int, offset bigint, value string"
        world.sql(f"CREATE TABLE {{t}} ({columns}) PARTITIONED BY (topic, partition)")
    world.grow_to(80)
    error = world.live()
    assert isinstance(error, RowsMissingError), error
    assert "0-50" in str(error)
    assert (world.committed(), world.offsets()) == (50, [])
    assert world.live(offsets=kl.Offsets(on_missing_rows="crash_lag")) is None
    assert world.pending_by_live_log() == [(0, 50)]
    assert world.catch_up((0, 50)) is None
    assert world.offsets() == written_rows(0, 80)


def test_a_table_that_was_rolled_back_is_named_and_repaired_by_a_backfill(restarted_broker):
    """By two snapshots: what they held is missing; owed, it comes back."""
    world = restarted_broker(max_poll_records=10)
    world.grow_to(50)
    assert world.live() is None
    world.roll_back(2)
    error = world.live()
    assert isinstance(error, RowsMissingError), error
    assert f"p0:{world.topic}:30-50, 20 offsets" in str(error)
    assert world.live(offsets=kl.Offsets(on_missing_rows="crash_lag")) is None
    assert (world.pending_by_live_log(), world.offsets()) == ([(30, 50)], written_rows(0, 30))
    assert world.catch_up((30, 50)) is None
    is_exact_once_drained(world)


def test_what_a_rolled_back_table_lacks_is_not_shown_as_processed(services, restarted_broker, warm_spark):
    """By the consumer and by `status`, where they have the table.

    Else both name the commit logs as their source.
    """
    world = restarted_broker(max_poll_records=10)
    world.grow_to(50)
    assert world.live() is None
    world.roll_back(2)

    def shown(*words):
        at = ["--bootstrap-servers", services.bootstrap_servers, "--spark", services.spark_remote]
        told = CliRunner(env={"COLUMNS": "160"}).invoke(main, ["status", world.group, *at, *words])
        assert told.exit_code in {0, 1}, told.output
        return told.stdout

    def numbers(*words):
        found = json.loads(shown("--json", *words))
        [partition] = found["partitions"]
        return found["source"], partition["committed"], partition["missing"]

    assert numbers() == ("commit logs", 50, [])
    assert numbers("--table", world.table) == (world.table, 30, [[30, 50]])
    assert f"by the commit logs; for the table: kafka-liveness audit {world.group}" in shown()
    assert f"{world.table} lacks p0:{world.topic}:30-50, 20 committed offsets. Fix:" in shown(
        "--table", world.table
    )
    ledger = TableLedger(IcebergTable(world.table), lambda: warm_spark)
    for witness, committed, owed in ((None, 50, ()), (ledger, 30, (kl.OffsetRange(*world.tp, 30, 50),))):
        with world.kafka.consumer(topics=[world.topic], group_id=world.group, ledger=witness) as consumer:
            assert (consumer.committed(*world.tp), consumer.pending(*world.tp)) == (committed, owed)


def test_what_the_broker_has_not_either_is_reported_as_lost(restarted_broker):
    """Owed is what can still be had; the rest is told once, and not again."""
    world = restarted_broker(offsets=kl.Offsets(on_missing_rows="crash_lag"))
    world.grow_to(50)
    assert world.live() is None
    world.drop_table()
    world.expire(20)
    world.grow_to(60)
    assert world.live() is None
    assert world.pending_by_live_log() == [(20, 50)]
    assert world.catch_up((20, 50)) is None
    for _ in range(2):
        assert world.live() is None
        assert (world.pending_by_live_log(), world.offsets()) == ([], written_rows(20, 60))


@pytest.mark.parametrize("befall", ["drop_table", "roll_back"])
def test_a_table_that_goes_between_two_batches_is_named(restarted_broker, befall):
    """The run ends at once, and says what is missing."""
    world = restarted_broker(max_poll_records=10)
    world.grow_to(50)
    seen = []

    def befalls(_batch):
        seen.append(len(seen))
        if len(seen) == 4:
            world.drop_table() if befall == "drop_table" else world.roll_back(1)

    error = world.live(befalls)
    assert isinstance(error, RowsMissingError), error
    assert "rolled back" in str(error)
    assert len(seen) <= 5


@pytest.mark.parametrize(
    ("new", "snapshots", "lacks"),
    [
        pytest.param(30, 1, "50-80", id="its own rows", marks=pytest.mark.certify),
        pytest.param(30, 2, "20-80", id="another run's too"),
        pytest.param(0, 1, "20-50", id="a run without a batch"),
    ],
)
def test_rows_that_are_rolled_back_while_a_live_run_is_idle_end_it(
    restarted_broker, monkeypatch, new, snapshots, lacks
):
    """Without lag no other run would look; with ``crash_lag`` the next live run owes them."""
    world = restarted_broker()
    for log_end in (20, 50):
        world.grow_to(log_end)
        assert world.live() is None
    goes_on, idle = AssignmentWait.should_continue, []

    def roll_back_once(waiting):
        if not idle:
            idle.append(waiting)
            world.roll_back(snapshots)
        return goes_on(waiting)

    monkeypatch.setattr(AssignmentWait, "should_continue", roll_back_once)
    world.grow_to(50 + new)
    error = world.live()
    assert isinstance(error, RowsMissingError), error
    assert f"p0:{world.topic}:{lacks}" in str(error)
    assert world.live(offsets=kl.Offsets(on_missing_rows="crash_lag")) is None
    for span in world.pending_by_live_log():
        assert world.catch_up(span) is None
    assert world.offsets() == written_rows(0, world.log_end)


def test_after_the_last_commit_nothing_can_make_a_crash_of_a_run(restarted_broker, monkeypatch):
    """The check of the rows may outlast the process timeout, so the run has left its group by then."""
    world, marks = restarted_broker(), []

    def check(*given):
        marks.append((world.first_owner_state(), len(world.kafka.cluster().members(world.group))))
        check_rows(*given)

    monkeypatch.setattr(runs, "check_rows", check)
    world.grow_to(50)
    assert world.live() is None
    assert marks == [(OwnerState.RELEASED, 0)]
    [told] = world.instance.fetch_materializations(dg.AssetKey(world.name), limit=10).records
    assert told.asset_materialization.metadata["lag"].value == 0


def test_what_was_forgiven_stays_so_after_an_external_commit_under_a_live_run(restarted_broker, monkeypatch):
    """The catch-up commit log alone said it until then; the run learned it, and writes it into the ledger."""
    world = restarted_broker(max_poll_records=10)
    world.crash_and_resume_at_120()
    monkeypatch.setattr(planner, "PRUNE_INTERVAL_SECONDS", 0.0)
    world.grow_to(150)
    seen = []

    def befalls(_batch):
        seen.append(len(seen))
        if len(seen) == 1:
            world.write_off(70, 120)
        if len(seen) == 2:
            world.commit_externally(150, of_catch_up_log=True)

    assert world.live(befalls) is None
    assert world.live() is None
    assert (world.pending_by_live_log(), world.offsets()) == (
        [],
        written_rows(0, 70) + written_rows(120, 150),
    )


def test_what_was_forgiven_and_is_known_to_nobody_is_owed_again(restarted_broker):
    """The external commit replaced the only record of it; neither lane stops for that."""
    world = restarted_broker()
    world.crash_and_resume_at_120()
    world.write_off(70, 120)
    assert world.live() is None
    assert world.pending_by_live_log() == []
    world.commit_externally(150, of_catch_up_log=True)
    world.grow_to(150)
    is_exact_once_drained(world, (70, 120))


def test_two_tables_are_two_groups(restarted_broker):
    """Refused before it joins, in both lanes, whatever it may owe.

    A table that was renamed is told by hand.
    """
    world = restarted_broker()
    world.crash_and_resume_at_120()
    second, renamed = world.catch_up_log(), f"{world.table}_renamed"
    for error in (
        world.live(table=renamed),
        world.live(table=renamed, offsets=kl.Offsets(on_missing_rows="crash_lag")),
        world.catch_up((70, 120), table=renamed),
    ):
        assert isinstance(error, TableMismatchError), error
        assert f"writes to {renamed}, but the commits of group {world.group} name {world.table}" in str(error)
    assert (
        world.committed(),
        world.pending_by_live_log(),
        world.catch_up_log(),
        world.materialized_ranges(),
    ) == (
        120,
        [(70, 120)],
        second,
        [],
    )
    world.settings["table"] = renamed
    for _ in range(2):  # and its sensor starts nothing
        with pytest.raises(TableMismatchError):
            world.tick()
    del world.settings["table"]
    world.tick()

    move = ["move", world.group, renamed, "--bootstrap-servers", world.servers]
    with world.kafka.consumer(topics=[world.topic], group_id=world.group) as consumer:
        wait_for(lambda: consumer.poll(0.0) is None and consumer.is_joined)
        refused = CliRunner().invoke(main, move)
        assert (refused.exit_code, "has 1 member (" in refused.output) == (1, True), refused.output
    world.sql(f"ALTER TABLE {{t}} RENAME TO {renamed.partition('.')[2]}")
    told = CliRunner().invoke(main, move)
    assert (told.exit_code, told.output) == (0, f"{world.tp}: {world.table} -> {renamed}\n")
    again = CliRunner().invoke(main, move)
    assert "No commit of group" in again.output
    assert isinstance(world.live(), TableMismatchError)
    world.table = renamed
    is_exact_once_drained(world, (70, 120))


@on_both_protocols
def test_the_catch_up_log_may_go_while_a_live_run_is_at_work(restarted_broker):
    """What was caught up before is not owed again, and no row is missing."""
    world = restarted_broker(max_poll_records=10)
    world.crash_and_resume_at_120()
    assert world.catch_up((70, 120)) is None
    world.grow_to(150)
    seen = []

    def delete(_batch):
        seen.append(len(seen))
        if len(seen) == 2:
            world.delete_offsets(of_catch_up_log=True)

    assert world.live(delete) is None
    assert world.live() is None
    assert (world.pending_by_live_log(), world.offsets()) == ([], written_rows(0, 150))


MAINTENANCE = {
    "expired": [
        "CALL {catalog}.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)"
    ],
    "compacted": [
        "CALL {catalog}.system.rewrite_data_files(table => '{name}', options => map('min-input-files', '2'))"
    ],
    "manifests": ["CALL {catalog}.system.rewrite_manifests(table => '{name}')"],
}
MAINTENANCE_IN_GATE = ("manifests", "compacted, expired, compacted, expired")
MAINTENANCE["compacted and expired"] = MAINTENANCE["compacted"] + MAINTENANCE["expired"]
MAINTENANCE["compacted, expired, compacted, expired"] = MAINTENANCE["compacted and expired"] + [
    "CALL {catalog}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))",
    *MAINTENANCE["expired"],
]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(steps, id=name, marks=() if name in MAINTENANCE_IN_GATE else pytest.mark.certify)
        for name, steps in MAINTENANCE.items()
    ],
)
def test_maintenance_is_no_loss(restarted_broker, steps):
    """Whoever maintains the table between two runs, nothing is owed for it, and nothing is missing."""
    world = restarted_broker(max_poll_records=10)
    world.crash_and_resume_at_120()
    for step in steps:
        world.sql(step)
    world.grow_to(150)
    assert world.live() is None
    assert world.pending_by_live_log() == [(70, 120)]
    assert world.catch_up((70, 120)) is None
    assert world.live() is None
    assert (world.pending_by_live_log(), world.offsets()) == ([], written_rows(0, 150))


def test_offsets_without_rows_are_proven_too(restarted_broker):
    """A transform may drop a whole batch: it counts as done, and a stranger's commit makes nobody owe it."""
    world = restarted_broker()
    world.grow_to(7)
    assert world.live() is None
    world.grow_to(8)  # its row is dropped
    assert world.live() is None
    world.commit_externally(8)
    assert world.live() is None
    assert (world.committed(), world.pending_by_live_log(), world.offsets()) == (8, [], written_rows(0, 8))


def told(result, name):
    """What one tick says of an event, and of a check."""
    events = [
        e.description
        for e in result.asset_events
        if isinstance(e, dg.AssetObservation) and e.partition is None
    ]
    checks = {e.check_name: e for e in result.asset_events if isinstance(e, dg.AssetCheckEvaluation)}
    return [text for text in events if name in text], checks.get("no_missing_rows")


def is_well(result):
    """Whether nothing was forgotten, and the check says so."""
    events, exact = told(result, "neither in the table nor pending")
    return not events and exact.passed


def test_the_sensor_tells_what_was_forgotten_until_it_is_done(restarted_broker):
    """An event once, a check that fails, and a partition, before any run.

    All well when it is in the table.
    """
    world = restarted_broker()
    world.crash_and_resume_at_120()
    assert is_well(world.tick())
    world.commit_externally(120)
    events, exact = told(world.tick(), "neither in the table nor pending")
    assert f"p0:{world.topic}:70-120, 50 offsets, is neither in the table nor pending" in events[0]
    assert (exact.passed, exact.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert world.live() is None
    events, exact = told(world.tick(), "neither in the table nor pending")
    assert events == []
    assert exact is None, "it fails still, and is not stored again"
    assert world.keys() == [(70, 120)]
    assert world.catch_up((70, 120)) is None
    assert is_well(world.tick())


def test_the_sensor_tells_a_table_that_lost_rows_and_a_topic_made_anew(restarted_broker):
    """The one by the check, the other by an error that no tick gets over."""
    world = restarted_broker()
    world.grow_to(50)
    assert world.live() is None
    world.drop_table()
    _, exact = told(world.tick(), "")
    assert not exact.passed
    assert f"the table lacks p0:{world.topic}:0-50, 50 offsets" in exact.description
    assert world.live(offsets=kl.Offsets(on_missing_rows="crash_lag")) is None
    assert world.catch_up((0, 50)) is None
    world.recreate_topic(80)
    with pytest.raises(TopicRecreatedError, match=world.topic_id()):
        world.tick()


def test_a_tick_goes_on_while_spark_is_away(restarted_broker):
    """The check says that it cannot tell, and why; everything else is as it was."""
    world = restarted_broker()
    world.crash_and_resume_at_120()
    _, exact = told(world.tick(spark=NO_SPARK), "")
    assert (exact.passed, exact.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "not checked: no Spark Connect server answered at sc://localhost:1" in exact.description
    assert world.keys() == [(70, 120)]


class CoveredSink:
    """Counts nothing, writes nothing, and remembers which offsets it was given."""

    def __init__(self):
        self.held = []

    def __call__(self, replacement):
        replacement.rows.count()
        self.held += replacement.ranges

    def covered(self, ranges):
        return [held for held in self.held if any(held.overlaps(one) for one in ranges)]


def test_a_sink_that_says_what_it_holds_is_a_witness_too(restarted_broker):
    """What was forgotten is owed again, what it lost is named, and no partition is green without its word."""
    sink = CoveredSink()
    world = restarted_broker(table=None, sink=sink)
    world.crash_at_70()
    world.grow_to(120)
    assert world.live() is None
    assert world.pending_by_live_log() == [(70, 120)]
    world.commit_externally(120)
    assert world.live() is None
    assert world.pending_by_live_log() == [(70, 120)]
    assert world.catch_up((70, 120)) is None
    assert world.materialized_ranges() == [(70, 120)]
    sink.held = sink.held[1:]
    error = world.live()
    assert isinstance(error, RowsMissingError), error
    assert f"p0:{world.topic}:0-70, 70 offsets" in str(error)


def test_without_a_witness_a_standing_partition_is_processed_again(restarted_broker):
    """A sink that does not say what it holds: nothing is green because nobody remembers that it is owed."""
    given = []
    world = restarted_broker(table=None, sink=lambda replacement: given.extend(replacement.ranges))
    world.crash_at_70()
    world.grow_to(120)
    assert world.live() is None
    world.commit_externally(120)
    assert world.live() is None
    given.clear()
    assert world.catch_up((70, 120)) is None
    assert [str(r.span) for r in given] == ["70-120"]


@on_both_protocols
def test_the_catch_up_log_is_committed_anew_under_a_live_member(restarted_broker):
    """A group without members loses its offsets after a while: what was seen of it last is written again."""
    world = restarted_broker()
    world.grow_to(10)
    with world.kafka.consumer(topics=[world.topic], group_id=world.group) as consumer:
        consumer.settings = replace(consumer.settings, recommit_seconds=0.0)
        consumer.commit(consumer.poll(120))
        before = world.catch_up_log()
        world.delete_offsets(of_catch_up_log=True)
        assert world.catch_up_log() is None
        assert consumer.poll(0.0) is None
        assert world.catch_up_log() == before


def test_how_often_it_is_committed_anew_follows_the_broker(restarted_broker):
    """A quarter of the time that the broker keeps it, an hour at most."""
    assert restarted_broker().kafka.cluster().broker_limits().recommit_seconds == 3_600
    assert BrokerLimits(6_000, 60_000, offsets_retention_seconds=120).recommit_seconds == 30


def test_status_names_a_topic_made_anew(restarted_broker, services):
    """The broker has deleted the commits with the topic: the table is asked."""
    world = restarted_broker()
    world.grow_to(50)
    assert world.live() is None
    asked = [
        world.group,
        "--bootstrap-servers",
        world.servers,
        "--spark",
        services.spark_remote,
        "--table",
        world.table,
    ]
    assert CliRunner().invoke(status, asked).exit_code == 0
    world.recreate_topic(80)
    recreated = CliRunner().invoke(status, asked)
    assert (recreated.exit_code, world.topic_id() in recreated.stderr) == (1, True)


@on_both_protocols
def test_a_quarantined_offset_is_not_lost_to_a_catch_up_log_of_an_earlier_life(restarted_broker):
    """With the mode off too: what passed the live lane is processed, though that log says that it is done."""
    world = restarted_broker()
    world.grow_to(50)
    world.commit_externally(200, "kl1 done @-", of_catch_up_log=True)
    live = {"topics": [world.topic], "group_id": world.group, "max_poll_records": 20}
    with world.kafka.consumer(**live) as consumer:
        consumer.commit(consumer.poll(120))
    poison = kl.OffsetRange(world.topic, 0, 20, 21)
    with world.kafka.consumer(**live) as consumer:
        consumer.quarantine(poison)
        batch = consumer.poll(120)
        assert batch.ranges[0].start == 21
        consumer.commit(batch)
    assert world.pending_by_live_log() == [(20, 21)]
    with world.kafka.catch_up(group_id=world.group, ranges=[poison]) as lane:
        assert lane.poll().ranges == (poison,)
