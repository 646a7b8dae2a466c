"""The real client without a broker.

Settings that are refused before anything is joined, and an address in vain.
"""

from __future__ import annotations

import time

import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.errors import InvalidSettingError, KafkaLivenessError
from kafka_liveness_dagster.core.fencing import RunState
from kafka_liveness_dagster.core.timeouts import BrokerLimits, RunBudget, derive_timeouts
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError
from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer
from kafka_liveness_dagster.kafka.run_context import RunContext
from kafka_liveness_dagster.kafka.settings import KafkaSettings, LiveSettings
from tests.timeouts import seconds


def link(run_id="0badcafe"):
    """A run that goes on."""
    return RunContext(run_id, f"dagster/job/{run_id}/step", lambda: RunState.IN_PROGRESS)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        pytest.param("enable.auto.commit", "true", "call commit", id="acknowledges what was not processed"),
        pytest.param("enable.auto.offset.store", "true", "call commit", id="the same by another name"),
        pytest.param("max.poll.records", "500", "pass max_poll_records", id="librdkafka ignores it"),
        pytest.param("max.poll.interval.ms", "1000", "set max_batch_seconds", id="comes from the budget"),
        pytest.param("session.timeout.ms", "1000", "set session_timeout_seconds", id="unchecked otherwise"),
        pytest.param(
            "heartbeat.interval.ms", "1000", "set heartbeat_interval_seconds", id="unchecked otherwise"
        ),
        pytest.param("auto.offset.reset", "latest", "set auto_offset_reset", id="would decide elsewhere too"),
        pytest.param("isolation.level", "read_uncommitted", "read_committed", id="two log ends lose records"),
        pytest.param("group.id", "other", "set the field of the resource", id="said elsewhere"),
        pytest.param("client.id", "other", "Dagster runs", id="the sensor reads it"),
        pytest.param("bootstrap.servers", "other", "set the field of the resource", id="said elsewhere"),
        pytest.param("group.protocol", "consumer", "set group_protocol", id="decides whose the session is"),
        pytest.param("group.instance.id", "one", "set group_instance_id", id="a static member never leaves"),
    ],
)
def test_a_setting_that_breaks_a_promise_is_refused_with_its_remedy(name, value, remedy):
    """Each refusal names the setting and where to say it instead."""
    with pytest.raises(InvalidSettingError, match=f"{name}='{value}' is refused: .*{remedy}"):
        KafkaSettings("localhost:9092", {name: value})


@pytest.mark.parametrize("value", ["false", "False"])
def test_saying_what_is_done_anyway_is_fine(value):
    """Switching auto-commit off is what a careful user writes."""
    settings = KafkaSettings("localhost:9092", {"enable.auto.commit": value})
    assert settings.committer_config("g", "c")["enable.auto.commit"] is False


def test_a_misspelt_setting_is_a_named_error():
    """A typo in extra settings is the user's, so the error is ours and says which."""
    with pytest.raises(KafkaLivenessError, match=r"fetch\.wait\.maxms"):
        Cluster(KafkaSettings("localhost:9092", {"fetch.wait.maxms": "1"}))


def test_no_broker_is_a_named_error_within_seconds():
    """A wrong address fails soon and says what to check; librdkafka would try for ever."""
    nowhere = KafkaSettings("127.0.0.1:1")
    timeouts = derive_timeouts(
        RunBudget(30, "argument"),
        session_seconds=None,
        heartbeat_seconds=0.3,
        limits=BrokerLimits(1_000, 60_000),
    )
    started = time.monotonic()
    with (
        LivenessConsumer(nowhere, LiveSettings(("orders",), "g"), timeouts, link()) as consumer,
        pytest.raises(BrokerUnreachableError, match=r"no Kafka broker answered at 127\.0\.0\.1:1 while"),
    ):
        consumer.poll(0)
    assert time.monotonic() - started < seconds(60)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param(
            {"topics": ()}, "topics of the consumer of group g is .*: wanted at least one", id="no topics"
        ),
        pytest.param(
            {"max_poll_records": 0}, "max_poll_records of .* is 0: wanted a whole number", id="no room"
        ),
        pytest.param({"group_id": ""}, "group_id of .* is '': wanted 1 to 249", id="no group"),
        pytest.param(
            {"group_id": "orders.catch-up"}, "catch-up commit log", id="the name of a catch-up commit log"
        ),
    ],
)
def test_a_live_lane_that_cannot_work_is_refused(settings, words):
    """Before a broker is asked for anything: each refusal says what was wanted."""
    kafka = kl.KafkaLivenessResource(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(InvalidSettingError, match=words):
        kafka.consumer(**{"topics": ["orders"], "group_id": "g", **settings})


@pytest.mark.parametrize(
    "run_id",
    [
        pytest.param("0badcafe-1111-4222-8333-444455556666", id="as Dagster writes it"),
        pytest.param("nightly", id="a script's"),
        pytest.param("7", id="short"),
    ],
)
def test_every_run_can_read_its_own_mark(run_id):
    """Whatever a run is called, what it commits is read back: otherwise it locks itself out of its group."""
    mark = LiveCommitMetadata(OwnerState.RUNNING, link(run_id).short_run_id)
    assert LiveCommitMetadata.decode(mark.encode()) == mark
