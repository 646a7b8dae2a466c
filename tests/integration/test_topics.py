"""``kafka-liveness topic`` and ``produce`` on a real broker; topics that the embedded one creates on use."""

from __future__ import annotations

import json
import time
from unittest.mock import patch
from uuid import uuid4

import dagster as dg
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaTopicPartition

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.errors import TopicNotFoundError


@pytest.fixture
def run(services):
    """Run a command of ``kafka-liveness`` with what it reads from standard input."""

    def invoke(*words, given=None):
        return CliRunner().invoke(main, [*map(str, words)], input=given)

    return invoke


@pytest.fixture
def topic(run):
    """A topic of four partitions, made by the command."""
    name = f"orders-{uuid4().hex[:8]}"
    made = run("topic", "create", name, "--partitions", 4, "--config", "retention.ms=600000")
    assert (made.exit_code, made.output) == (0, f"made topic {name} with 4 partitions\n")
    return name


def records(services, topic, count):
    """What the topic holds, by partition: (key, value) in their order."""
    consumer = Consumer({"bootstrap.servers": services.bootstrap_servers, "group.id": uuid4().hex})
    consumer.assign([KafkaTopicPartition(topic, partition, 0) for partition in range(4)])
    found = {}
    for _ in range(count):
        message = consumer.poll(120)
        found.setdefault(message.partition(), []).append((message.key(), message.value()))
    assert consumer.poll(0.5) is None, "no more than that"
    consumer.close()
    return found


def test_a_topic_is_made_listed_and_described(run, topic):
    """What was asked for is what is told."""
    assert topic in run("topic", "list").output.splitlines()
    assert topic in json.loads(run("topic", "list", "--json").output)
    run("produce", topic, given="one\n")
    told = json.loads(run("topic", "describe", topic, "--json").output)
    assert sum(one["log_end"] for one in told["partitions"]) == 1
    assert (told["topic"], len(told["partitions"]), told["config"]) == (topic, 4, {"retention.ms": "600000"})
    told = run("topic", "describe", topic).output
    assert "4 partitions, 1 offsets" in told
    assert "retention.ms=600000" in told


def test_a_topic_is_made_when_the_leaders_of_its_partitions_answer(run):
    """A busy broker shows a topic before it leads its partitions: who comes next would be refused."""
    log_bounds, refusals = Cluster.log_bounds, [kl.BrokerUnreachableError("a leader is moving")] * 2

    def moving(cluster, partitions):
        if refusals:
            raise refusals.pop()
        return log_bounds(cluster, partitions)

    with patch.object(Cluster, "log_bounds", moving):
        made = run("topic", "create", f"orders-{uuid4().hex[:8]}", "--partitions", 2)
    assert (made.exit_code, refusals) == (0, [])


def test_what_cannot_be_made_is_told(run, topic):
    """A topic that is there, more copies than brokers, a setting that is none, a topic that is not there."""
    again = run("topic", "create", topic)
    assert again.exit_code == 1
    assert f"creating topic {topic} (TOPIC_ALREADY_EXISTS)" in again.output
    assert run("topic", "create", "more-copies", "--replication-factor", 3).exit_code == 1
    assert run("topic", "create", "no-setting", "--config", "retention=1").exit_code == 1
    assert run("topic", "create", "no-setting", "--config", "retention").exit_code == 2
    assert not {"more-copies", "no-setting"} & set(run("topic", "list").output.splitlines())
    missing = run("topic", "describe", f"{topic}x")
    assert (missing.exit_code, f"did you mean {topic}" in missing.output) == (1, True)


def test_lines_become_records(run, services, topic):
    """As they are, without the line's end."""
    told = run("produce", topic, given="a b\r\n\nlast without an end")
    assert (told.exit_code, told.output.startswith(f"3 records to {topic} (partition ")) == (0, True)
    found = [record for part in records(services, topic, 3).values() for record in part]
    assert sorted(found) == [(None, b""), (None, b"a b"), (None, b"last without an end")]


def test_a_key_keeps_its_records_in_one_partition(run, services, topic):
    """Both ways to say a key; what is no text is one as JSON writes it."""
    lines = [{"customer": name, "n": n} for n in range(10) for name in ("ada", "bob", 7)]
    told = run(
        "produce", topic, "--json-lines", "--key", "customer", given="\n\n".join(map(json.dumps, lines))
    )
    assert told.exit_code == 0, told.output
    told = run("produce", topic, "--key-separator", ":", given="ada:{}:1\n:no key\n")
    assert told.exit_code == 0, told.output
    by_key = {}
    for partition, found in records(services, topic, 32).items():
        for key, value in found:
            by_key.setdefault(key, []).append((partition, value))
    assert {len({partition for partition, _ in found}) for found in by_key.values()} == {1}
    assert [json.loads(value)["n"] for _, value in by_key[b"7"]] == list(range(10))
    assert [value for _, value in by_key[b"ada"]][-1] == b"{}:1"
    assert [value for _, value in by_key[b""]] == [b"no key"]


@pytest.mark.parametrize(
    ("words", "second", "why"),
    [
        (("--json-lines",), "{", "line 2 is no JSON"),
        (("--json-lines", "--key", "id"), '{"name": 1}', "line 2 has no field 'id'"),
        (("--json-lines", "--key", "id"), "[1]", "line 2 has no field 'id'"),
        (("--key-separator", '":'), "x", "line 2 has no '\":' in it"),
    ],
)
def test_a_line_that_is_none_ends_it_with_its_number(run, services, topic, words, second, why):  # noqa: PLR0917
    """What is before it is in the topic, and counted; nothing from it on is."""
    told = run("produce", topic, *words, given=f'{{"id": 1}}\n{second}\n{{"id": 3}}\n')
    assert told.exit_code == 1
    assert f"1 records to {topic}" in told.output
    assert f"{why}" in told.output
    assert "nothing from it on was produced" in told.output
    [[(_, value)]] = records(services, topic, 1).values()
    assert value.endswith(b"1}")


def test_a_rate_is_kept(run, topic):
    """20 records at 40 a second take half a second, and not much less."""
    began_at = time.monotonic()
    assert run("produce", topic, "--rate", 40, given="x\n" * 20).exit_code == 0
    assert time.monotonic() - began_at >= 0.5


def test_a_record_the_broker_refuses_is_an_error(run, topic):
    """Larger than the broker takes: told with what is in the topic."""
    told = run("produce", topic, given=f"small\n{'x' * 2_000_000}\n")
    assert told.exit_code == 1
    assert "records are in topic" in told.output


def test_a_topic_is_made_on_first_use_of_the_embedded_broker_alone(run, services, make_group):
    """Of an asset, and of what is produced; said once.

    Another broker is left alone, with the error that names it.
    """
    first, second, third = (f"orders-{uuid4().hex[:8]}" for _ in range(3))
    told = run("produce", first, given="one\n")
    assert f"Created topic {first} with 4 partitions: it did not exist on the embedded broker" in told.output
    assert "Created topic" not in run("produce", first, given="two\n").output
    asset = kl.kafka_asset(
        topics=[first, second], group_id=make_group(6, 1), name="orders", table="lake.a.b"
    )(lambda rows: rows)
    resources = {"kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(
            instance=instance, resources=resources, sensor_name="orders_sensor"
        ) as context,
    ):
        [request] = asset.sensor.evaluate_tick(context).run_requests
    assert request.job_name == "orders_job"
    assert second in run("topic", "list").output.splitlines()
    elsewhere = kl.KafkaLivenessResource(bootstrap_servers=services.bootstrap_servers)
    with (
        elsewhere.consumer(topics=[third], group_id=make_group(6, 1)) as consumer,
        pytest.raises(TopicNotFoundError),
    ):
        consumer.poll(1)
    refused = run("produce", third, "--bootstrap-servers", services.bootstrap_servers, given="one\n")
    assert (refused.exit_code, "does not exist" in refused.output) == (1, True)
    with kl.KafkaLivenessResource().consumer(topics=[third], group_id=make_group(6, 1)) as consumer:
        assert consumer.poll(1) is None
    assert third in run("topic", "list").output.splitlines()
