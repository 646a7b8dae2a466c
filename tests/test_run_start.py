"""The start of a run's process: one thread imports PySpark, and the collector skips what stays.

Each in a process of its own, because both happen once in a process.
"""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.runs.garbage_collection import freeze_definitions

_UNTIL_THE_SESSION_IS_OPEN = """
import sys
from concurrent.futures import Future
import dagster as dg
import kafka_liveness_dagster as kl

OPENED = Future()  # the other thread imports PySpark meanwhile
kl.SparkConnectResource._new_session = lambda _: OPENED.result()


class Kafka:
    default_max_batch_seconds = 300

    def consumer(self, *, ledger, **_):
        import kafka_liveness_dagster.kafka.live.consumer
        OPENED.set_exception(ConnectionError("no session"))
        ledger.read({})

    catch_up = consumer


class Sink:
    def __call__(self, replacement):
        pass

    def ledger_commits(self):
        import pyspark


target = {"sink": Sink()} if sys.argv[2] == "sink" else {"table": "lake.shop.orders"}
made = kl.kafka_asset(name="orders", topics=["orders"], group_id="orders-etl", **target)(lambda batch: batch)
resources = {"kafka": Kafka(), "spark": kl.SparkConnectResource(remote="sc://localhost:1")}
defs = dg.Definitions.merge(made.definitions, dg.Definitions(resources=resources))
with dg.instance_for_test() as instance:
    instance.add_dynamic_partitions("orders_crash_lag", ["p3:orders:70-120"])
    try:
        defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance,
            asset_selection=[dg.AssetKey(sys.argv[1])],
            partition_key="p3:orders:70-120" if sys.argv[1] == "orders_crash_lag" else None,
        )
    except ConnectionError as error:
        print(error, "pyspark" in sys.modules)
"""


@pytest.mark.parametrize("target", ["table", "sink"])
@pytest.mark.parametrize("lane", ["orders", "orders_crash_lag"])
def test_only_one_thread_imports_pyspark(lane, target):
    """Two threads in a circle of imports would wait for each other; Python then fails in one of them."""
    code = [sys.executable, "-c", _UNTIL_THE_SESSION_IS_OPEN, lane, target]
    run = subprocess.run(code, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    assert run.stdout.split("\n")[-2:] == ["no session False", ""], run.stderr


def in_new_process(call):
    """Return what a call puts into its queue, in a process as Dagster's code server starts them."""
    spawn = multiprocessing.get_context("spawn")  # also of Dagster's multiprocess executor
    found = spawn.SimpleQueue()
    child = spawn.Process(target=call, args=(found,))
    child.start()
    child.join()
    assert child.exitcode == 0
    return found.get()


def _count_frozen(found):
    freeze_definitions()
    found.put(gc.get_freeze_count())


def test_only_the_process_of_a_run_keeps_its_definitions_from_the_collector():
    """A process that a user started may have garbage of its own."""
    freeze_definitions()
    assert gc.get_freeze_count() == 0
    assert in_new_process(_count_frozen) > 1_000


def _import_pyspark(found):
    freeze_definitions()
    frozen, importing = gc.get_freeze_count(), []
    gc.callbacks.append(lambda *_: importing.append(is_importing_pyspark()))
    spark = kl.SparkConnectResource(remote="sc://localhost:1", connect_timeout_seconds=1)
    spark.open_ahead()
    with pytest.raises(kl.SparkUnreachableError):
        spark.session()
    found.put((any(importing), gc.get_freeze_count() - frozen, gc.isenabled()))


def is_importing_pyspark():
    module = sys.modules.get("kafka_liveness_dagster.spark.connect.session")
    return module is not None and not hasattr(module, "connect")


def test_the_process_of_a_run_keeps_pyspark_from_the_collector():
    """During its import, and after it."""
    was_collected, frozen, is_enabled = in_new_process(_import_pyspark)
    assert not was_collected
    assert frozen > 50_000
    assert is_enabled
