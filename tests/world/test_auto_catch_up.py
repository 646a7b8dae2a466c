"""The sensor with ``auto_catch_up``: which crash lag partition gets a run, and when none does."""

from __future__ import annotations

from uuid import uuid4

import dagster as dg
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaTopicPartition

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.commit_log import LiveMark, Mark
from kafka_liveness_dagster.core.offsets import Span
from kafka_liveness_dagster.runs import lane_tags


@pytest.fixture
def owing_two(world, services):
    """Owed are 20-50 and 60-65; the last owner gave the partition up in good order at 70."""
    w = world
    w.grow_to(70)
    client = Consumer({**w.kafka.settings().committer(w.group, "kafka-liveness/test"), "log_level": 0})
    metadata = LiveMark(Mark.RELEASED, "0badcafe", (Span(20, 50), Span(60, 65))).encode()
    told = client.commit(offsets=[KafkaTopicPartition(w.topic, 3, 70, metadata)], asynchronous=False)
    client.close()
    assert told[0].error is None
    return w


@pytest.mark.parametrize("auto_catch_up", [True, False])
def test_the_oldest_partition_gets_a_run_and_the_next_one_waits(owing_two, auto_catch_up):
    """One run at a time, the oldest first, another after that one's end; without auto_catch_up none."""
    w = owing_two

    @kl.kafka_asset(topics=[w.topic], group_id=w.group, table="lake.shop.orders", auto_catch_up=auto_catch_up)
    def orders(batch):
        return batch

    def tick():
        with dg.build_sensor_context(
            instance=instance, resources={"kafka": w.kafka}, sensor_name="orders_group"
        ) as context:
            told = orders.sensor._raw_fn(context)  # evaluate_tick wants the whole repository
        for request in told.dynamic_partitions_requests or ():
            instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        return [(request.job_name, request.partition_key) for request in told.run_requests]

    with dg.DagsterInstance.ephemeral() as instance:
        assert tick() == []  # the partitions are added by this one
        oldest = [("orders_crash_lag_job", f"{w.tp}:20-50")] if auto_catch_up else []
        assert tick() == oldest
        run = dg.DagsterRun(
            "orders_crash_lag_job",
            run_id=str(uuid4()),
            status=dg.DagsterRunStatus.STARTED,
            tags=lane_tags(w.group, "catch-up"),
        )
        instance.add_run(run)
        assert tick() == []
        instance.report_run_canceled(run)
        assert tick() == oldest
