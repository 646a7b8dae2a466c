"""Complete hours in a Dagster whose daemon starts everything, with the code of docs/windows.md."""

from __future__ import annotations

import os
import time

import dagster as dg
import pytest
from confluent_kafka import Producer
from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.storage.tags import BACKFILL_ID_TAG
from dagster._core.utils import make_new_backfill_id

from benchmarks.daemon import Daemon
from tests.first_hour.conftest import HURRY
from tests.waiting import wait_for
from tests.conftest import *

HOUR = 3600


def test_materialize_all(services, make_topic, table, tmp_path, warm_spark, monkeypatch):
    topic = make_topic()
    begin = int(time.time() // HOUR - 4) * HOUR
    key = lambda hour: time.strftime("%Y-%m-%d-%H:%M", time.gmtime(begin + hour * HOUR))
    producer = Producer({"bootstrap.servers": services.bootstrap_servers})
    for minute in (61, 62, 121):
        producer.produce(topic, b"tea", partition=0, timestamp=1000 * (begin + 60 * minute))
    assert producer.flush(120) == 0
    from tests.test_examples import EXAMPLES
    code = EXAMPLES["hourly"]
    for old, new in (
        ('["orders"]', f'["{topic}"]'), ('"orders-etl"', f'"etl-{topic}"'), ('"lake.shop.orders"', f'"{table}"'),
        ('"2026-11-01"', f'"{key(0)}"'), 
    ):
        assert old in code
        code = code.replace(old, new)
    code = code.replace("enable_parallel_rebalance=True,", "enable_parallel_rebalance=True, idle_seconds=0.5, watch=kl.Watch(default_status=dg.DefaultSensorStatus.RUNNING),")
    (tmp_path / "hourly_location.py").write_text(code)
    (tmp_path / "sitecustomize.py").write_text(HURRY)
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    with Daemon(tmp_path / "home", "hourly_location", env) as daemon:
        instance = daemon.instance
        by_hour, an_hour = dg.AssetKey("orders_by_hour"), dg.AssetKey("orders_an_hour")
        began = time.time()
        wait_for(lambda: len(instance.get_materialized_partitions(by_hour)) >= 3, details=lambda: print(*instance.get_runs()))
        print("hours", time.time() - began, instance.get_materialized_partitions(by_hour))
        import sys
        sys.path.insert(0, str(tmp_path))
        import hourly_location
        graph = hourly_location.defs.resolve_asset_graph()
        chosen = [dg.AssetKey(one) for one in ("orders", "orders_crash_lag", "orders_by_hour", "orders_an_hour")]
        id_ = make_new_backfill_id()
        instance.add_dynamic_partitions("orders_crash_lag", [f"{topic}:0:0-1"])
        backfill = PartitionBackfill.from_asset_partitions(
            backfill_id=id_, asset_graph=graph, partition_names=None, asset_selection=chosen,
            backfill_timestamp=time.time(), tags={}, dynamic_partitions_store=instance, all_partitions=True,
            title=None, description=None, run_config=None)
        from dagster._core.remote_representation.external import RemoteRepository
        instance.add_backfill(backfill)
        try:
            wait_for(lambda: instance.get_backfill(id_).status.value not in ("REQUESTED",), 60)
        except AssertionError as e:
            print(e)
        got = instance.get_backfill(id_)
        print(got.status, got.asset_selection, got.error)
        for run in instance.get_runs():
            print(run.job_name, run.status, run.asset_selection, {k: v for k, v in run.tags.items() if k.startswith("dagster/")})
            if run.status.value == "FAILURE":
                for entry in instance.all_logs(run.run_id):
                    if entry.dagster_event and entry.dagster_event.is_failure:
                        print("    ", str(entry.dagster_event.event_specific_data)[:600])
        print((tmp_path / "home" / "daemon.log").read_text()[-3000:])
        for k in (by_hour, an_hour, dg.AssetKey("orders_crash_lag")):
            print(k, instance.get_materialized_partitions(k))
