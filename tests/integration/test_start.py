"""A group starts where another engine stopped: a consumer group, Structured Streaming, or a file."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer

from kafka_liveness_dagster.cli.main import main
from tests.integration.group_with_table import GroupWithTable, written_rows


@pytest.fixture
def world(services, produce, rows, warm_spark):
    """A topic with 60 records; the group has no commit."""
    world = GroupWithTable(services, produce, rows, warm_spark)
    world.grow_to(60)
    return world


@pytest.fixture
def start(services):
    """The command for a group, with these arguments."""

    def run(group, *arguments):
        words = [
            "start",
            group,
            *map(str, arguments),
            "--bootstrap-servers",
            services.bootstrap_servers,
            "--yes",
        ]
        return CliRunner().invoke(main, words)

    return run


def goes_on_at(world, offset):
    """The first run reads from there, and the audit certifies the seam."""
    assert world.live() is None
    assert world.offsets() == written_rows(offset, world.log_end)
    found = CliRunner().invoke(
        main,
        ["audit", world.group, "--bootstrap-servers", world.servers, "--spark", world.spark_remote, "--json"],
    )
    [partition] = json.loads(found.stdout)["partitions"]
    assert (partition["certified"], partition["start"], partition["committed"]) == (
        True,
        offset,
        world.log_end,
    )


def test_a_group_goes_on_where_another_group_stopped(world, start):
    """As Flink and Kafka Connect leave their offsets behind."""
    other = f"connect-{world.group}"
    world._commit(other, 25, "")
    done = start(world.group, "--from-group", other)
    assert done.exit_code == 0, done.output
    assert f"{world.topic}:0: starts at 25, 35 offsets to read" in done.stdout
    goes_on_at(world, 25)
    again = start(world.group, "--from-group", other)
    assert (again.exit_code, "has commits already" in again.output) == (1, True)


def test_a_group_goes_on_where_structured_streaming_stopped(world, start, warm_spark, tmp_path):
    """From the checkpoint of a real query, whose last batch is finished."""
    stream = warm_spark.readStream.format("kafka").option("kafka.bootstrap.servers", world.servers)
    stream = stream.option("subscribe", world.topic).option("startingOffsets", "earliest").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    world.grow_to(90)
    done = start(world.group, "--from-checkpoint", tmp_path / "checkpoint")
    assert done.exit_code == 0, done.output
    assert "warning" not in done.output
    goes_on_at(world, 60)


def test_a_planned_batch_of_a_checkpoint_is_named(world, start, tmp_path):
    """Its rows may be in the old table: the query died before it recorded the batch."""
    for kind, batch, offset in (("offsets", 6, 20), ("commits", 6, 20), ("offsets", 7, 40)):
        (tmp_path / kind).mkdir(exist_ok=True)
        lines = ["v1", "{}", json.dumps({world.topic: {"0": offset}})]
        (tmp_path / kind / str(batch)).write_text("\n".join(lines))
    done = start(world.group, "--from-checkpoint", tmp_path)
    assert done.exit_code == 0, done.output
    assert "warning: batch 7 of the query was planned" in done.stdout
    goes_on_at(world, 20)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"TOPIC": {"0": 61}}', "TOPIC:0 at 61, log end 60: the offset is above the log end"),
        ('{"TOPIC": {"0": 3}}', "TOPIC:0 at 3, log start 5: the broker has deleted records"),
        ('{"TOPIC": {"1": 3}}', "TOPIC:1: no such partition at the broker"),
        ('{"TOPIC": {"0": -1}}', "the offset -1 for TOPIC:0: wanted an offset from 0"),
        ('["TOPIC"]', "wanted topics with an offset for each partition"),
        ("{", "wanted topics with an offset for each partition"),
    ],
)
def test_offsets_that_cannot_be_right_change_nothing(world, start, tmp_path, text, message):
    world.expire(5)
    (tmp_path / "offsets.json").write_text(text.replace("TOPIC", world.topic))
    done = start(world.group, "--from-file", tmp_path / "offsets.json")
    assert (done.exit_code, message.replace("TOPIC", world.topic) in done.output) == (1, True), done.output
    assert world.committed() is None


def test_a_group_at_work_is_not_copied(world, start):
    """Its offsets still move."""
    other = Consumer({"bootstrap.servers": world.servers, "group.id": f"connect-{world.group}"})
    other.subscribe([world.topic])
    try:
        while not other.assignment():
            other.poll(0.1)
        done = start(world.group, "--from-group", f"connect-{world.group}")
    finally:
        other.close()
    assert (done.exit_code, "has 1 member(s)" in done.output) == (1, True), done.output


def test_exactly_one_source_is_named(world, start):
    done = start(world.group)
    assert (done.exit_code, "Name one source" in done.output) == (2, True)
