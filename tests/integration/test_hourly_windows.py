"""Complete hours as docs/complete-hours.md has them, in a Dagster whose daemon starts every run."""

from __future__ import annotations

import os
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import Producer
from dagster._core.execution.backfill import BulkActionStatus
from dagster._core.storage.tags import BACKFILL_ID_TAG

from benchmarks.daemon import Daemon
from tests.end_to_end.conftest import HURRY
from tests.integration.group_with_table import launch_backfill_of_all
from tests.test_examples import EXAMPLES
from tests.waiting import wait_for

HOUR, MINUTE = 3600, 60
AT_ONCE = "run_coordinator: {module: dagster.core.run_coordinator, class: DefaultRunCoordinator}\n"
BY_HOUR, AN_HOUR = dg.AssetKey("orders_by_hour"), dg.AssetKey("orders_an_hour")


class Hours:
    """The example with names of its own; its records are of the second and the third hour."""

    def __init__(self, services, topic, table, folder):
        self.topic, self.begin = topic, int((time.time() - 6 * MINUTE) // HOUR - 4) * HOUR
        self._producer = Producer({"bootstrap.servers": services.bootstrap_servers})
        self._folder = folder
        names = {
            '["orders"]': f'["{topic}"]',
            '"orders-etl"': f'"etl-{topic}"',
            '"lake.shop.orders"': f'"{table}"',
            '"2026-11-01"': f'"{self.key(0)}"',
            "enable_parallel_rebalance=True": "idle_seconds=0.5",
            # Fewer processes
            "sensors=[automation],": "sensors=[automation], executor=dg.in_process_executor,",
        }
        code = EXAMPLES["hourly"]
        for old, new in names.items():
            assert old in code
            code = code.replace(old, new)
        (folder / "hours.py").write_text(code)
        (folder / "sitecustomize.py").write_text(HURRY)
        self.env = {"PYTHONPATH": os.pathsep.join([str(folder), str(Path.cwd())])}

    def key(self, hour):
        return time.strftime("%Y-%m-%d-%H:%M", time.gmtime(self.begin + hour * HOUR))

    def produce(self, *minutes):
        for minute in minutes:
            self._producer.produce(
                self.topic, b"tea", partition=0, timestamp=1000 * (self.begin + minute * MINUTE)
            )
        assert self._producer.flush(120) == 0

    def graph(self):
        spec = spec_from_file_location("hours", self._folder / "hours.py")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.defs.resolve_asset_graph()


@pytest.fixture
def hours(services, make_topic, table, tmp_path):
    """No record yet."""
    return Hours(services, make_topic(), table, tmp_path)


@pytest.mark.certify
@pytest.mark.usefixtures("warm_spark")
def test_each_complete_hour_starts_one_run_and_materialize_all_repeats_none(hours, tmp_path):
    """Nobody clicks anything until *Materialize all*; hours before the first record start nothing."""
    hours.produce(70, 80, 121)
    with Daemon(tmp_path / "home", "hours", hours.env, settings=AT_ONCE) as daemon:
        instance = daemon.instance

        def counted():
            asked = dg.AssetRecordsFilter(asset_key=AN_HOUR)
            found = instance.fetch_materializations(asked, limit=100).records
            return sorted(
                (one.partition_key, one.asset_materialization.metadata["orders"].value) for one in found
            )

        def log():
            return (tmp_path / "home" / "daemon.log").read_text()[-5_000:]

        once = [(hours.key(1), 2), (hours.key(2), 1), (hours.key(3), 0)]
        wait_for(lambda: counted()[:3] == once, details=lambda: (counted(), log()))
        assert hours.key(0) not in instance.get_materialized_partitions(BY_HOUR)

        hours.produce(240)  # else the live run has nothing to write, and Dagster calls its asset failed
        backfill = launch_backfill_of_all(hours.graph(), instance)
        wait_for(
            lambda: instance.get_backfill(backfill).status is not BulkActionStatus.REQUESTED, details=log
        )
        runs = instance.get_runs(dg.RunsFilter(tags={BACKFILL_ID_TAG: backfill}))
        [of_hours] = [run for run in runs if run.asset_selection == {BY_HOUR}]
        said = "\n".join(str(entry.user_message) for entry in instance.all_logs(of_hours.run_id))
        assert (
            f"Left {hours.key(1)}, {hours.key(2)}, {hours.key(3)} alone: marked complete already" in said
        ), said
        failed = {run.run_id for run in runs if run.status is not dg.DagsterRunStatus.SUCCESS}
        assert failed == {of_hours.run_id}, "it names the hour that is not marked complete"
        assert counted()[:6] == sorted(2 * once), "whose aggregate is the only one that was not started"
