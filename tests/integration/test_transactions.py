"""Transactions, committed, aborted and open.

The log end is the last stable offset, and holes are no records.
"""

from __future__ import annotations

import json
import re
import time

import dagster as dg
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli import main as cli
from kafka_liveness_dagster.kafka.timestamps import open_transactions
from tests.integration.both_lanes import Tables, await_log_end, records, skip_to_log_end
from tests.integration.kafka_group import SECONDS, KafkaGroup, join
from tests.spark_addresses import spark_at
from tests.waiting import wait_for


class Transaction:
    """Records that are not to be seen before ``commit``, and never after ``abort``.

    Either is an offset of its own.
    """

    def __init__(self, world, name):
        self._topic = world.topic
        servers, who = world.kafka.bootstrap_servers, f"{world.topic}-{name}"
        settings = {"transactional.id": who, "transaction.timeout.ms": 600_000, "log_level": 0}
        self._producer = Producer({"bootstrap.servers": servers, **settings})
        self._producer.init_transactions(SECONDS)

    def begin(self, *values, seconds_ago=0):
        """Leave a transaction open whose records are in the log, since so long by their timestamps."""
        self._producer.begin_transaction()
        for value in values:
            at_ms = int(1000 * (time.time() - seconds_ago))
            self._producer.produce(self._topic, value.encode(), partition=3, timestamp=at_ms)
        assert self._producer.flush(SECONDS) == 0

    def commit(self):
        self._producer.commit_transaction(SECONDS)

    def abort(self):
        self._producer.abort_transaction(SECONDS)


@pytest.fixture
def transaction(world):
    """A transactional producer on the world's partition."""
    return Transaction(world, "first")


def values(word, count):
    """So many different values."""
    return [f"{word} {n}" for n in range(count)]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_open_transaction_at_the_seam_is_the_live_lanes(world, transaction, spark, table, rows, end):  # noqa: PLR0917
    """Open at 100, plain to 120: crash lag ends at 100.

    When it has ended, live reads what is left of it, once.
    """
    w, tables = world, Tables(world, spark)
    w.crash()
    transaction.begin(*values("paid", 10))
    w.log_end = 110
    w.grow_to(120)
    with w.live() as consumer:
        join(w, consumer)
        assert (consumer.position(w.topic, 3), w.live_log()[0]) == (100, 100)
        assert consumer.end_offsets(w.topic, 3) == 100, (
            "the last stable offset, though the log goes on to 120"
        )
        assert w.spans(consumer.crash_lag) == w.spans(consumer.pending(w.topic, 3)) == [(70, 100)]
        assert consumer.poll(0.5) is None, "nothing behind an open transaction is to be read"
        assert tables.catch_up(table, (70, 100), max_poll_records=500) == [((70, 100), 30)]
        getattr(transaction, end)()
        await_log_end(w, 121)
        assert tables.live(table, consumer, 121) == [((100, 121), 20 if end == "commit" else 10)]
        assert consumer.pending(w.topic, 3) == ()
        assert consumer.committed(w.topic, 3) == 121
    paid = [(100 + n, value, "live") for n, value in enumerate(values("paid", 10))]
    assert [(row["offset"], row["value"], row["lane"]) for row in rows(table)] == [
        *((n, str(n), "catch-up") for n in range(70, 100)),
        *(paid if end == "commit" else []),
        *((n, str(n), "live") for n in range(110, 120)),
    ]


def test_both_lanes_read_the_same_of_transactions(services, world, transaction, produce, spark, table, rows):  # noqa: PLR0917
    """Transactions one after the other, interleaved and cut by batches.

    No lane sees an aborted record or a marker.
    """
    w, other = world, Transaction(world, "second")
    w.grow_to(5)
    transaction.begin(*values("kept", 6))  # 5-11
    transaction.commit()
    await_log_end(w, 12)
    transaction.begin(*values("aborted", 8))  # 12-20
    transaction.abort()
    await_log_end(w, 21)
    other.begin(*values("aborted too", 4))  # 21-25
    transaction.begin(*values("kept too", 3))  # 25-28
    other.abort()
    transaction.commit()
    await_log_end(w, 30)
    expected = [
        *((n, str(n)) for n in range(5)),
        *((5 + n, value) for n, value in enumerate(values("kept", 6))),
        *((25 + n, value) for n, value in enumerate(values("kept too", 3))),
    ]
    with w.live(max_poll_records=18) as consumer:
        assert Tables(w, spark).live(table, consumer, 30) == [((0, 18), 11), ((18, 30), 3)]
    assert records(rows(table)) == expected

    owing = KafkaGroup(services, w.topic, produce)
    skip_to_log_end(owing, 30)
    caught_up = f"{table}_caught_up"
    batches = Tables(owing, spark).catch_up(caught_up, (0, 30), max_poll_records=13)
    assert batches == [((0, 13), 11), ((13, 26), 1), ((26, 30), 2)]
    assert records(rows(caught_up)) == expected


def test_a_hole_is_processed_like_anything_else(services, world, transaction, table, rows):
    """Only aborted records and markers.

    The live lane commits 0 rows, and the crash lag of such a hole materialises.
    """
    w = world
    w.grow_to(70)
    with pytest.raises(ZeroDivisionError), w.live() as consumer:
        w.process(consumer, 70)
        transaction.begin(*values("aborted", 12))
        transaction.abort()
        await_log_end(w, 83)
        assert w.spans(consumer.poll(SECONDS).ranges) == [(70, 83)]
        raise ZeroDivisionError

    @kl.kafka_asset(
        topics=[w.topic], group_id=w.group, table=table, enable_parallel_rebalance=True, idle_seconds=0.3
    )
    def orders(batch):
        return batch.selectExpr("topic", "partition", "offset")

    resources = dg.Definitions(resources={"kafka": w.kafka, "spark": spark_at(services.spark_remote)})
    defs = dg.Definitions.merge(orders.definitions, resources)

    def run(job, **partition):
        return defs.resolve_job_def(job).execute_in_process(instance=instance, **partition)

    with dg.DagsterInstance.ephemeral() as instance:
        assert run("orders_job").success  # jumps over the hole
        transaction.begin(*values("aborted again", 12))
        transaction.abort()
        await_log_end(w, 96)
        [event] = run("orders_job").asset_materializations_for_node("orders")
        assert (event.metadata["batches"].value, event.metadata["rows_written"].value) == (1, 0)
        assert w.live_log()[0] == 96
        key = f"p3:{w.topic}:70-83"
        instance.add_dynamic_partitions("orders_crash_lag", [key])
        assert run("orders_crash_lag_job", partition_key=key).success
        assert instance.get_materialized_partitions(orders.crash_lag.key) == {key}
    assert rows(table) == []
    assert w.kafka.cluster().partition_states(w.group, [w.tp])[w.tp].outstanding == ()


def test_what_waits_behind_a_transaction_that_nobody_ends_is_told(world, transaction):
    """The lag does not count it and never will: the check of the lag fails, and says what to do.

    Status shows it.
    """
    w = world
    w.grow_to(100)
    transaction.begin(*values("paid", 10), seconds_ago=1000)
    w.log_end = 110
    w.grow_to(120)
    waits = f"20 offsets of {w.tp} wait behind a transaction that has been open at 100 for [12],... s"
    with w.live() as consumer:
        w.process(consumer, 100)
        assert consumer.poll(1) is None, "nothing more is to be read"
        # Once its age could be read in time
        checked = wait_for(lambda: None if (told := lag_of(w)).passed else told)
        assert re.match(f"lag 0; no bound .*{waits}.*find-hanging", checked.description)
        assert (checked.passed, checked.severity) == (False, dg.AssetCheckSeverity.WARN)
        command = ["status", w.group, "--bootstrap-servers", w.kafka.bootstrap_servers]

        def shown():
            told = CliRunner().invoke(cli.main, command, catch_exceptions=False).output
            # It is folded to the width there is
            return re.search(f"lag 0, .*{waits}", " ".join(told.split()))

        wait_for(shown)

        def is_unwell():
            told = CliRunner().invoke(cli.main, ["health", *command[1:]], catch_exceptions=False)
            return told.exit_code == 1 and re.search(waits, told.stdout)

        def measured():
            told = CliRunner().invoke(cli.main, [*command, "--prometheus"], catch_exceptions=False).output
            found = dict(
                re.findall(r"^kafka_liveness_open_transaction_(\w+)\{.*\} (\S+)$", told, re.MULTILINE)
            )
            return found if "age_seconds" in found else None  # as above

        wait_for(is_unwell)
        found = wait_for(measured)
        assert (float(found["offsets"]), 1_000 <= float(found["age_seconds"]) < 3_000) == (20, True)
        transaction.abort()
        await_log_end(w, 121)
        checked = lag_of(w)
        assert (checked.passed, "transaction" in checked.description) == (True, False)
        told = CliRunner().invoke(cli.main, [*command, "--json"], catch_exceptions=False).output
        assert json.loads(told)["behind_open_transactions"] == []
        assert CliRunner().invoke(cli.main, ["health", *command[1:]], catch_exceptions=False).exit_code == 0


def test_an_open_transaction_that_is_young_is_no_alarm(world, transaction):
    """Its producer is at work: what it has sent is a number beside the lag."""
    world.grow_to(100)
    transaction.begin(*values("paid", 10))
    checked = lag_of(world)
    assert (checked.passed, checked.metadata["behind_open_transactions"].value) == (True, "10")
    transaction.commit()


def test_what_has_come_since_the_look_is_behind_no_transaction(world):
    """A busy topic has grown when its very end is asked for."""
    world.grow_to(100)
    assert open_transactions(world.kafka.cluster(), world.group, {world.tp: 90}) == ()


def lag_of(world):
    """What a run of the lag's check says."""
    settings = {
        "topics": [world.topic],
        "group_id": world.group,
        "name": "orders",
        "table": "lake.shop.orders",
    }
    asset = kl.kafka_asset(**settings)(lambda batch: batch)
    chosen = dg.AssetSelection.checks(dg.AssetCheckKey(dg.AssetKey("orders"), "lag"))
    resources = {"kafka": world.kafka, "spark": kl.SparkConnectResource(remote="sc://localhost:1")}
    [told] = dg.materialize(
        [asset.checks], selection=chosen, resources=resources
    ).get_asset_check_evaluations()
    return told
