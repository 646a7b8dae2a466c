"""``kafka-liveness audit`` on the real broker and the real table.

What is certified, what not, and how it shows.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli.main import main
from tests.integration.group_with_table import GroupWithTable, written_rows
from tests.waiting import wait_for


@pytest.fixture
def world(services, produce, rows, warm_spark):
    """A group with a table, under the classic protocol."""
    return GroupWithTable(services, produce, rows, warm_spark)


@pytest.fixture
def audit(services):
    """Run the command: the exit code, and its object."""

    def run(world, *words):
        told = invoke(services, world.group, "--json", *words)
        assert told.exit_code in {0, 1}, told.output
        found = json.loads(told.stdout)
        assert found["certified"] is (told.exit_code == 0)
        return told.exit_code, found

    return run


@pytest.fixture
def refused(services):
    """Run the command where it cannot answer: what it says on stderr."""

    def run(*words, code=2):
        told = invoke(services, *words)
        assert (told.exit_code, told.stdout) == (code, "")
        return told.stderr

    return run


def invoke(services, *words):
    both = ["--bootstrap-servers", services.bootstrap_servers, "--spark", services.spark_remote]
    return CliRunner(env={"COLUMNS": "160"}).invoke(main, ["audit", *both, *words])


def delete(world, start, end):
    """What a person with a SQL console does."""
    world.sql(f"DELETE FROM {{t}} WHERE offset >= {start} AND offset < {end}")


def compact(world):
    """Let the broker remove records from the middle of the topic, as far as its config says."""
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, world.topic, incremental_configs=[entry])
    world.admin.incremental_alter_configs([resource])[resource].result()


def stretches(found):
    return [(one["start"], one["end"], one["offsets"]) for one in found]


def test_a_life_with_a_crash_is_certified(world, audit):
    """Owed while the partition is open, and named; once it is drained nothing is excepted."""
    world.crash_and_resume_at_120()
    code, found = audit(world)
    [one] = found["partitions"]
    assert code == 0
    assert (one["in_table"], one["pending"], one["missing"]) == ([[0, 70]], [[70, 120]], [])
    assert one["sentence"] == "every offset from 0 to 120 is in the table once, except 50 pending (70-120)"
    assert world.catch_up((70, 120)) is None
    world.grow_to(150)
    assert world.live() is None
    code, found = audit(world, "--deep")
    [one] = found["partitions"]
    assert code == 0
    assert (one["start"], one["committed"], one["in_table"], one["pending"]) == (0, 150, [[0, 150]], [])
    assert one["sentence"].startswith("every offset from 0 to 150 is in the table once; ")
    assert (one["rows"]["rows"], one["rows"]["outside"], one["rows"]["unrecorded"]) == (
        len(written_rows(0, 150)),
        [],
        [],
    )
    assert sum(one["offsets"] for one in one["rows"]["without_rows"]) == 15, "what the transform dropped"
    assert found["sentence"] == (
        f"certified: group {world.group}, table {world.table}: every committed offset of 1 partition is in "
        "the table once, 150 in all; 15 of them have a record, but no row"
    )


def test_the_object_has_what_a_program_asks_for(world, audit):
    """The table's snapshots too, each with its rows and its offsets."""
    world.crash_and_resume_at_120()
    assert world.catch_up((70, 120)) is None
    _, found = audit(world)
    assert set(found) >= {
        "group",
        "target",
        "is_table",
        "certified",
        "sentence",
        "snapshot_id",
        "pending_offsets",
    }
    assert (found["target"], found["in_table_offsets"], found["written_off_offsets"]) == (world.table, 120, 0)
    [one] = found["partitions"]
    assert (one["topic_id"], one["ledger_complete"], one["rows"]) == (world.topic_id(), True, None)
    newest, oldest = found["snapshots"]
    assert newest["written"] == [f"p0:{world.topic}:70-120"]
    assert (oldest["written"], oldest["added_rows"]) == ([f"p0:{world.topic}:0-70"], len(written_rows(0, 70)))
    assert newest["snapshot_id"] == found["snapshot_id"]
    assert (newest["parent_id"], oldest["parent_id"]) == (oldest["snapshot_id"], None)


def test_a_strangers_commit_is_not_certified(world, audit):
    """What it made the group forget is named.

    When the next live run owes it again the group is certified again.
    """
    world.crash_and_resume_at_120()
    world.commit_externally(120)
    code, found = audit(world)
    [one] = found["partitions"]
    assert (code, one["missing"], one["missing_is_forgotten"]) == (1, [[70, 120]], True)
    assert "50 offsets missing (70-120): an external commit removed" in found["sentence"]
    assert world.live() is None
    assert audit(world)[0] == 0


def test_another_programs_metadata_is_no_obstacle(world, audit):
    """It is named, and the table says what is there."""
    world.grow_to(50)
    assert world.live() is None
    world.commit_externally(50, "their own words")
    code, found = audit(world)
    assert (code, found["partitions"][0]["external_commits"][-1]["metadata"]) == (0, "their own words")
    assert "another client committed the metadata 'their own words'" in found["partitions"][0]["sentence"]


def test_a_stray_commit_in_the_catch_up_log_is_named(world, audit, refused):
    """It has replaced the table's name: that is said, and not that the group has no table."""
    world.crash_and_resume_at_120()
    world.join_externally(of_catch_up_log=True)
    why = refused(world.group)
    assert (
        f"external commits replaced the catch-up commit log, {world.group}.catch-up ({world.tp}, offset 120"
        in why
    )
    assert "without table" not in why
    code, found = audit(world, "--table", world.table)
    [one] = found["partitions"]
    assert (code, one["pending"], one["external_commits"]) == (
        0,
        [[70, 120]],
        [{"log": "second", "offset": 120, "metadata": ""}],
    )
    assert "an external commit replaced the catch-up commit log (offset 120, metadata '')" in one["sentence"]


def test_a_summary_of_another_writer_is_named(world, refused):
    """With its snapshot; by either form of the command, and without a traceback."""
    world.grow_to(50)
    assert world.live() is None
    row = world.spark.sql(f"SELECT '{world.topic}' AS topic, 0 AS partition, 50L AS offset, 'x' AS value")
    row.writeTo(world.table).option("snapshot-property.kafka-liveness.written", "not ours").append()
    [(snapshot_id,)] = world.sql("SELECT snapshot_id FROM {t}.refs")
    for words in ([], ["--json"]):
        told = refused(world.group, *words, code=3)
        assert f"snapshot {snapshot_id} has a summary of an unknown format: 'not ours', 8 characters" in told


def test_a_dropped_table_is_not_certified(world, audit):
    """With all that was in it, as lost by the table."""
    world.grow_to(50)
    assert world.live() is None
    world.drop_table()
    code, found = audit(world, "--deep")
    [one] = found["partitions"]
    assert (code, found["snapshot_id"], one["missing"], one["missing_is_forgotten"]) == (
        1,
        None,
        [[0, 50]],
        False,
    )
    assert "50 offsets missing (0-50): they were committed after" in found["sentence"]


def test_a_topic_made_anew_is_not_certified(world, audit, refused):
    """The broker has deleted its commits with it: the table still knows the old id, once it is named."""
    world.grow_to(50)
    assert world.live() is None
    before = world.topic_id()
    world.recreate_topic(80)
    assert "name the table with --table" in refused(world.group, code=1)
    code, found = audit(world, "--table", world.table)
    assert code == 1
    assert f"opic {world.topic} was deleted and created again" in found["sentence"]
    assert before in found["sentence"]
    assert world.topic_id() in found["sentence"]


def test_deleted_rows_are_found_by_a_deep_audit_alone(world, audit):
    """Metadata says that the offsets were written, and they were.

    That a row is gone again is told, and no failure.
    """
    world.grow_to(100)
    assert world.live() is None
    delete(world, 20, 50)
    code, found = audit(world)
    assert (code, found["partitions"][0]["in_table"]) == (0, [[0, 100]])
    assert [one["operation"] for one in found["snapshots"] if not one["written"]] == ["overwrite"]
    code, found = audit(world, "--deep")
    assert code == 0
    without = stretches(found["partitions"][0]["rows"]["without_rows"])
    assert sum(offsets for *_, offsets in without) == 37, "30 deleted, 7 dropped by the transform"
    assert (20, 50, 30) in without


def test_rows_that_nobody_vouches_for_fail_a_deep_audit(world, audit):
    """An append by another program: above the commit, in what is owed, and once more where a row is."""
    world.crash_and_resume_at_120()
    stray = ", ".join(f"('{world.topic}', 0, {offset}L, 'x')" for offset in (80, 500))
    world.sql(f"INSERT INTO {{t}} VALUES {stray}")
    world.sql("INSERT INTO {t} SELECT * FROM {t} WHERE offset = 5".replace("{{t}}", "{t}"))
    assert audit(world)[0] == 0
    code, found = audit(world, "--deep")
    told = found["partitions"][0]["rows"]
    assert code == 1
    assert stretches(told["outside"]) == [(80, 81, 1), (500, 501, 1)]
    assert stretches(told["unrecorded"]) == [(500, 501, 1)]
    assert stretches(told["doubled"]) == [(5, 6, 1)]
    assert "another program writes to the table" in found["sentence"]


def test_rows_outlive_their_records(world, audit):
    """Below the log start a row needs no record; what was owed there is dead, and said to be."""
    world.crash_and_resume_at_120()
    world.expire(100)
    code, found = audit(world, "--deep")
    [one] = found["partitions"]
    assert (code, one["pending"], one["pending_expired"], one["rows"]["unrecorded"]) == (
        0,
        [[70, 120]],
        [[70, 100]],
        [],
    )
    assert "50 pending (70-120, 30 of them expired at the broker)" in one["sentence"]


def test_what_was_lost_and_told_is_excepted(world, audit):
    """Retention took what nobody had read, and the group was told to go on."""
    world.grow_to(50)
    assert world.live() is None
    world.grow_to(80)
    world.expire(70)
    assert "50-70 expired before the group read it" in audit(world)[1]["partitions"][0]["sentence"]
    assert world.live(offsets=kl.Offsets(on_data_loss="write_off")) is None
    code, found = audit(world)
    assert (code, found["partitions"][0]["written_off"]) == (0, [[50, 70]])
    assert "except 20 written off (50-70)" in found["partitions"][0]["sentence"]


def test_an_expired_history_leaves_the_commit_logs_word(world, audit):
    """Entries of expired snapshots count as recorded by the commits alone, unless one summed them up."""
    world.grow_to(50)
    assert world.live() is None
    before = audit(world)[1]["snapshots"]
    world.sql("ALTER TABLE {t} SET TBLPROPERTIES ('history.expire.min-snapshots-to-keep' = '1')")
    delete(world, 0, 10)
    world.sql(
        "CALL {catalog}.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)"
    )
    code, found = audit(world, "--deep")
    [one] = found["partitions"]
    assert (len(before), len(found["snapshots"])) == (1, 1)
    assert (code, one["ledger_complete"], one["in_table"], one["by_commits_only"]) == (
        0,
        False,
        [],
        [[0, 50]],
    )
    assert "0-50 is recorded by the commit logs alone" in one["sentence"]
    assert "50 of them by the commit logs alone" in found["sentence"]
    assert one["rows"]["outside"] == []


def test_aborted_transactions_have_neither_records_nor_rows(world, audit):
    """Offsets without records are committed like others, and no deep audit misses them.

    Rows of them are nobody's.
    """
    world.grow_to(20)
    producer = Producer({"bootstrap.servers": world.servers, "transactional.id": world.topic})
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(10):
        producer.produce(world.topic, b"aborted", partition=0)
    producer.flush(120)
    producer.abort_transaction()
    world.grow_to(40)
    assert world.live() is None
    code, found = audit(world, "--deep")
    [one] = found["partitions"]
    assert (code, one["committed"], one["rows"]["unrecorded"]) == (0, 51, [])
    assert sum(one["offsets"] for one in one["rows"]["without_rows"]) == 4, (
        "7, 17, 27 and 37: the transform's"
    )
    world.sql(f"INSERT INTO {{t}} VALUES ('{world.topic}', 0, 25L, 'of no record')")
    code, found = audit(world, "--deep")
    assert (code, stretches(found["partitions"][0]["rows"]["unrecorded"])) == (1, [(25, 26, 1)])
    compact(world)
    code, found = audit(world, "--deep")
    assert (code, found["partitions"][0]["rows"]["compacted"]) == (0, True)
    assert "rows of 1 offset (25-26) have no record any more" in found["partitions"][0]["sentence"]


def test_a_terminal_gets_the_certificate_as_its_last_line(world, services):
    """Each partition, what the history has of others, and the verdict."""
    world.crash_and_resume_at_120()
    delete(world, 20, 30)
    told = invoke(services, world.group)
    assert told.exit_code == 0
    lines = told.stdout.splitlines()
    assert f"{world.table} at snapshot" in told.stdout
    assert "overwrite by others" in told.stdout
    assert f"{world.tp}: every offset from 0 to 120 is in the table once, except 50 pending (70-120)" in lines
    assert lines[-1].startswith(f"certified: group {world.group}, table {world.table}: ")
    assert lines[-1].endswith(f"70 in all, except 50 pending (p0:{world.topic}:70-120)")


def test_of_a_sink_both_commit_logs_are_asked_alone(world, audit, refused):
    """Nobody looks for a table, nor for Spark; a deep audit is refused, for there are no rows to read."""
    nowhere = ("--spark", "sc://localhost:1")
    world.grow_to(50)
    world.commit_externally(50, f"kl1 released 0badcafe {world.topic_id()}@0 30-50")
    world._commit(f"{world.group}.catch-up", 0, f"kl1 done {world.topic_id()}@0 target ParquetSink")
    code, found = audit(world, *nowhere)
    assert (code, found["is_table"], found["target"]) == (0, False, "ParquetSink")
    assert (
        "according to both commit logs, every offset from 0 to 50 is processed, except 20 pending (30-50)"
        in (found["partitions"][0]["sentence"])
    )
    assert "writes to sink ParquetSink" in refused(world.group, "--deep", *nowhere)
    world.commit_externally(50)
    code, found = audit(world, *nowhere)
    assert (code, found["partitions"][0]["missing"]) == (1, [[0, 50]])


class StoringSink:
    """Counts the rows of a batch, and keeps the ledger's text of it."""

    def __init__(self):
        self.stored = []

    def __call__(self, replacement):
        rows = replacement.rows.count()
        self.stored.append(kl.SinkCommit(replacement.ledger_text, str(len(self.stored)), rows=rows))
        return rows

    def ledger_commits(self):
        return self.stored


sink = StoringSink()


def test_a_sink_that_is_a_ledger_is_certified(services, produce, rows, warm_spark, audit, refused):  # noqa: PLR0917
    """With a crash, a backfill, and rows that it loses; the audit needs no Spark."""
    world = GroupWithTable(services, produce, rows, warm_spark, table=None, sink=sink)
    of_sink = ("--sink", f"{__name__}:sink", "--spark", "sc://localhost:1")
    world.crash_at_70()
    world.grow_to(120)
    assert world.live() is None
    code, found = audit(world, *of_sink)
    assert (code, found["pending_offsets"], found["is_table"], found["target"]) == (
        0,
        50,
        False,
        "StoringSink",
    )
    assert world.catch_up((70, 120)) is None
    code, found = audit(world, *of_sink)
    assert (code, found["in_table_offsets"], found["by_commits_only_offsets"]) == (0, 120, 0)
    assert found["sentence"].endswith("every committed offset of 1 partition is in the sink once, 120 in all")
    assert sum(one["added_rows"] for one in found["snapshots"]) == 108, "the transform drops each tenth"
    del sink.stored[0]
    code, found = audit(world, *of_sink)
    assert (code, found["missing_offsets"]) == (1, 70)
    assert "the sink has lost them" in found["sentence"]
    assert "--sink and --table name two targets" in refused(
        world.group, *of_sink, "--table", "lake.shop.orders"
    )
    assert "could not be imported" in refused(world.group, "--sink", "nowhere:sink")
    assert "is not a sink with a ledger" in refused(world.group, "--sink", "json:dumps")


def test_several_targets_are_no_target(world, refused):
    """A group whose partitions go to different tables is asked which."""
    world.admin.create_partitions([NewPartitions(world.topic, 2)])[world.topic].result()
    client = Consumer({"bootstrap.servers": world.servers, "group.id": f"{world.group}.catch-up"})
    wait_for(lambda: len(client.list_topics(world.topic).topics[world.topic].partitions) == 2)
    told = [
        KafkaTopicPartition(world.topic, at, 0, f"kl1 done @0 target lake.shop.orders_{at}") for at in (0, 1)
    ]
    client.commit(offsets=told, asynchronous=False)
    client.close()
    assert "several targets: lake.shop.orders_0, lake.shop.orders_1" in refused(world.group)


def test_what_cannot_be_asked_is_no_verdict(world, services, refused, monkeypatch, tmp_path):
    """Exit code 1 for an unknown group, 2 for the command line, 3 for no response, with the fix."""
    assert "No offset of group 'nobody' is committed" in refused("nobody", code=1)
    world.grow_to(10)
    assert world.live() is None
    assert "wanted catalog.namespace.table" in refused(world.group, "--table", "orders")
    assert "has no catalog 'nowhere'" in refused(world.group, "--table", "nowhere.shop.orders")
    assert "no Spark Connect server answered" in refused(world.group, "--spark", "sc://localhost:1", code=3)
    world.commit_externally(10)
    world.delete_offsets(of_catch_up_log=True)
    assert "names a target" in refused(world.group)
    monkeypatch.setenv("KAFKA_LIVENESS_HOME", str(tmp_path))
    assert "The embedded Spark does not run" in refused(
        world.group, "--table", world.table, "--spark", "embedded", code=3
    )
    gone = CliRunner().invoke(main, ["audit", world.group])
    assert gone.exit_code == 3
    assert "The embedded Kafka does not run" in gone.stderr
