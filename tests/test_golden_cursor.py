"""The sensor reads the cursors that earlier versions stored. One is written out here with every field.

A field that is renamed in the model without an alias is lost without an error, and the sensor reports old
events again.
"""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import dagster as dg
import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.process_status import HeartbeatTag
from kafka_liveness_dagster.kafka import timestamps
from kafka_liveness_dagster.kafka.group_description import (
    CommittedOffset,
    GroupDescription,
    MemberDescription,
)
from kafka_liveness_dagster.runs.tags import PROCESS_TAG, lane_tags
from kafka_liveness_dagster.sensor.cursor import GroupCursor

NOW = 1_795_000_000.0
CURSOR = (
    '{"observed_at":1794999970.5,"started_at":1794000000,"event_count":12,"check_outcomes":".WE..",'
    '"checks_stored_at":1794999980.25,"check_facts":{"lag":"0badf00d"},"check_facts_stored_at":1794999981.25,'
    '"checked_materialization":41,"pending_hash":1443367605,'
    '"windows_done_until":1794999600.0,"windows_watched_since":1794990000.0,"last_late_event":17,'
    '"windows_identity":"1h 2026-11-01 UTC","first_window_start":1794985200.0,"group_state":"rebalancing",'
    '"member_runs":{"fda4e0a4":"0000beef"},"other_instance_runs":{"8aa3d032":"0000cafe"},'
    '"external_members":{"13aa8188":"kcat at 10.0.0.7"},"reported_departures":{"graceful":"0000feed",'
    '"crashed":"0badcafe"},"assignment_hash":"0123abcd","rebalancing_since":1794999990.5,'
    '"absent_runs":{"0000dead":[1794999500,1794999600,7,true]},"forgotten_ranges":["orders:3:70-80"],'
    '"last_tick_at":1795000000.0}'
)
TIMES = {
    "1794999970.5": "2026-11-18T11:06:10.500Z",
    "1794000000": "2026-11-06T21:20:00Z",
    "1794999980.25": "2026-11-18T11:06:20.250Z",
    "1794999981.25": "2026-11-18T11:06:21.250Z",
    "1794999600.0": "2026-11-18T11:00:00Z",
    "1794990000.0": "2026-11-18T08:20:00Z",
    "1794985200.0": "2026-11-18T07:00:00Z",
    "1794999990.5": "2026-11-18T11:06:30.500Z",
    "1795000000.0": "2026-11-18T11:06:40Z",
}
READABLE = CURSOR
for number, text in TIMES.items():
    READABLE = READABLE.replace(f":{number},", f':"{text}",').replace(f":{number}}}", f':"{text}"}}')
READABLE = READABLE.replace("orders:3:70-80", "p3:orders:70-80")
"""The same cursor as it is stored now, with readable times and today's text of a range."""
GROUP, TOPIC = "orders-etl", "orders"
RUN_ID = "{}-1111-4222-8333-444444444444"
CLIENT = f"dagster/orders_job/{RUN_ID}/orders"


class Cluster:
    """The group that the cursor is about, as it was: nothing has changed since."""

    settings = None
    commits_by_partition = (
        LiveCommitMetadata(OwnerState.RUNNING, "0000beef"),
        LiveCommitMetadata(OwnerState.RUNNING, "0000cafe"),
        None,
        LiveCommitMetadata(OwnerState.RUNNING, "0badcafe", (Span(70, 100),)),
        LiveCommitMetadata(OwnerState.RELEASED, "0000feed"),
    )

    def find_coordinator(self, group_id):
        """Prepare a query."""

    def partitions(self, topics):
        return [TopicPartition(TOPIC, number) for number in range(len(self.commits_by_partition))]

    def commits(self, group_id, partitions):
        marks = {tp: self.commits_by_partition[tp.partition] for tp in partitions if group_id == GROUP}
        return {tp: CommittedOffset(100, mark.encode() if mark else "") for tp, mark in marks.items()}

    def log_bounds(self, partitions):
        return dict.fromkeys(partitions, (0, 120))

    def topic_ids(self, topics):
        return dict.fromkeys(topics, "2Mq71qnKT1ul7FBvra2xew")

    def group(self, group_id):
        clients = [(CLIENT.format("0000beef"), 0), (CLIENT.format("0000cafe"), 1), ("kcat", 2)]
        members = [
            MemberDescription(
                f"member-{number}", client, "/10.0.0.7", partitions=(TopicPartition(TOPIC, number),)
            )
            for client, number in clients
        ]
        return GroupDescription("PREPARING_REBALANCING", tuple(members))


@pytest.fixture
def instance():
    """A Dagster instance with a run that is a member, and one that is away and was reported."""
    with dg.DagsterInstance.ephemeral() as found:
        for digits in ("0000beef", "0000dead"):
            tags = {**lane_tags(GROUP, "live"), PROCESS_TAG: HeartbeatTag(digits, 7).encode()}
            run = dg.DagsterRun(
                "orders_job", RUN_ID.format(digits), status=dg.DagsterRunStatus.STARTED, tags=tags
            )
            found.add_run(run)
        yield found


@pytest.fixture
def tick(instance, monkeypatch, tmp_path):
    """Evaluate the sensor with a cursor: ``tick(cursor) -> result``."""
    monkeypatch.setenv("KAFKA_LIVENESS_HOME", str(tmp_path))  # the embedded Spark does not run there
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr(timestamps, "open_transactions", lambda *_: ())
    asset = kl.kafka_asset(
        topics=[TOPIC], group_id=GROUP, table="lake.shop.orders", name="orders",
        enable_parallel_rebalance=True, complete_every="1h", completeness=kl.Completeness(start="2026-11-01"),
    )(lambda batch: batch)  # fmt: skip
    kafka = SimpleNamespace(cluster=Cluster, create_missing_topics=lambda *_: None)
    declared = {"kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}
    defs = dg.Definitions.merge(asset.definitions, dg.Definitions(resources=declared))

    def evaluate(cursor):
        resources = {**declared, "kafka": kafka}
        context = dg.build_sensor_context(
            instance, cursor, definitions=defs, resources=resources, sensor_name="orders_sensor"
        )
        with context, dg.partition_loading_context(dynamic_partitions_store=instance):
            return asset.sensor.evaluate_tick(context)

    return evaluate


FIELDS = {field.alias or name: (name, field.default) for name, field in GroupCursor.model_fields.items()}


@pytest.mark.parametrize("stored", [CURSOR, READABLE])
def test_a_tick_on_an_unchanged_group_reports_nothing_and_stores_the_same_cursor(tick, stored):
    """Members, departures, absent runs, forgotten ranges and windows are known from the cursor."""
    result = tick(stored)
    assert [event.description for event in result.asset_events] == []
    assert not result.dynamic_partitions_requests
    assert json.loads(result.cursor) == json.loads(READABLE)
    assert result.cursor == READABLE
    assert GroupCursor.decode(READABLE) == GroupCursor.decode(CURSOR)


def test_the_cursor_has_every_field():
    """A field that is added to the model is added to the text, with a value that is not its default."""
    stored = json.loads(CURSOR)
    assert set(stored) == set(FIELDS)
    assert [name for name, (_, default) in FIELDS.items() if stored[name] == default] == []


def test_a_field_that_is_missing_or_unknown_is_no_error():
    """The sensor ignores an unknown field.

    Instead of a missing one it takes the default, and keeps the others.
    """
    stored, known = json.loads(CURSOR), GroupCursor.decode(CURSOR)
    assert GroupCursor.decode(json.dumps({**stored, "of_a_later_version": [1]})) == known
    for field, (name, default) in FIELDS.items():
        without = GroupCursor.decode(
            json.dumps({key: value for key, value in stored.items() if key != field})
        )
        assert without == known.model_copy(update={name: default}) != known, field
