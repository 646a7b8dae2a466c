"""Everything that is on the stage.

Services, a feed, ``dagster dev`` with the pipeline, and how fresh the table is.
"""

from __future__ import annotations

import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import dagster as dg
import psutil
from dagster._core.execution.backfill import BulkActionStatus
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual
from sqlalchemy.exc import OperationalError

from definitions.demo.stage import DemoError, launch_backfill, messages
from definitions.demo.verdict import TABLE
from definitions.feed import PARTITIONS, OrdersFeed
from kafka_liveness_dagster.embedded import services, state
from tests.chaos.orders import GROUP, HEARTBEAT, SESSION
from tests.chaos.services import Broker, Spark, addresses
from tests.history.observer import Observer
from tests.integration.power_loss import DagsterDev
from tests.timeouts import set_timeouts

CRASH_LAG = "orders_crash_lag"
_LOOK_SECONDS = 0.5
_READ_EVERY_SECONDS = 10.0


class ChaosEnvironment:
    """Use it as a context manager: nothing that was started here outlives it, stopped processes included."""

    def __init__(self, home, protocol, catch_up, snapshots, rate):
        self.home, self._protocol, self._rate = home, protocol, rate
        os.environ |= {"KAFKA_LIVENESS_HOME": str(home), "CHAOS_PROTOCOL": protocol}
        os.environ |= {"CHAOS_CATCH_UP": catch_up, "CHAOS_SNAPSHOTS": snapshots}
        self._left = ExitStack()

    def __enter__(self):
        try:
            self._set()
        except BaseException:
            self._left.close()
            raise
        return self

    def __exit__(self, *_):
        self._left.close()

    def _set(self):
        state.create_home(self.home)
        self._left.callback(services.stop_services, self.home)
        self.spark = Spark(self.home)
        self._left.enter_context(self.spark.proxy)
        self.broker = Broker(self.home)
        self._left.callback(self.broker.end)
        self._left.enter_context(self.broker.proxy)
        self.broker.start()
        self.judged = addresses(self.broker, self.spark, proxied=False)
        self.feed = OrdersFeed(self.judged.bootstrap_servers, self._rate)
        self.feed.create_topic()
        set_timeouts(self.judged.bootstrap_servers, GROUP, SESSION, HEARTBEAT)
        self.feed.start()
        self._left.callback(self.feed._stopped.set)  # and no wait for a broker that may be gone
        code = Path(__file__).with_name("orders.py").read_text()
        self.dev = self._left.enter_context(
            DagsterDev(self.home, code, addresses(self.broker, self.spark, proxied=True))
        )
        self.dev.start()
        self.history = Observer(
            self.home / "history.jsonl",
            bootstrap_servers=self.judged.bootstrap_servers,
            topics=["orders"],
            group=GROUP,
            load_table=self.load_table,
            value_column="order_json",
        )
        self._no_more_reads = threading.Event()
        self._reader = self._left.enter_context(ThreadPoolExecutor(1)).submit(self._read_repeatedly)
        self._left.callback(self._no_more_reads.set)

    def _read_repeatedly(self):
        """Read the table during the faults too, as a separate reader does."""
        while not self._no_more_reads.wait(_READ_EVERY_SECONDS):
            self.history.read()

    def end_reads(self):
        """End the repeated reads, and raise the error that ended them before."""
        self._no_more_reads.set()
        self._reader.result()

    def load_table(self):
        """Return the table as pyiceberg has it now, without Spark."""
        catalog = SqlCatalog(
            self.judged.catalog_name, uri=self.judged.catalog_uri, warehouse=self.judged.warehouse
        )
        return catalog.load_table(TABLE)

    def observe(self):
        """Record the records, both commit logs, Dagster's reports, the snapshots, and a read of the table."""
        self.history.produced()
        self.history.committed()
        self.history.dagster(self.dev.instance, "orders", CRASH_LAG)
        self.history.written()
        self.history.read()

    def ends(self):
        """The next offset of each partition that the feed will hear of."""
        return {
            p: max((o for q, o in list(self.feed.acknowledged) if q == p), default=-1) + 1
            for p in range(PARTITIONS)
        }

    def seconds_to_fresh(self, patience):
        """How long until each partition has a row that was produced from now on.

        None when it takes longer.
        """
        since, waiting = time.monotonic(), self.ends()
        while waiting:
            waiting = {p: end for p, end in waiting.items() if not self._has(p, end)}
            if time.monotonic() - since > patience:
                return None
            time.sleep(_LOOK_SECONDS)
        return time.monotonic() - since

    def _has(self, partition, offset):
        """Whether the table has a row of the partition from that offset on; read without Spark."""
        wanted = And(EqualTo("partition", partition), GreaterThanOrEqual("offset", offset))
        with suppress(NoSuchTableError, OperationalError):  # not made yet; or Spark is writing its name
            return self.load_table().scan(wanted, ("offset",), limit=1).to_arrow().num_rows > 0
        return False

    def workers(self, *jobs):
        """Processes that work for the jobs' runs, by the run; only such as were started here."""
        ours = {one.pid: one for one in self.dev.processes()}
        found = {}
        for run in self.dev.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
            if run.job_name in jobs or (CRASH_LAG in jobs and run.job_name.startswith("__ASSET_JOB")):
                said = "\n".join(text for _, text in messages(self.dev.instance, run.run_id))
                for pid in map(int, re.findall(r"Started process for run \(pid: (\d+)\)", said)):
                    if pid in ours and ours[pid].status() != psutil.STATUS_STOPPED:
                        found[run.run_id] = ours[pid]
        return dict(sorted(found.items()))

    def missing(self):
        """Crash lag partitions that are not materialised."""
        instance = self.dev.instance
        done = instance.get_materialized_partitions(dg.AssetKey(CRASH_LAG))
        return [key for key in instance.get_dynamic_partitions(CRASH_LAG) if key not in done]

    def backfill(self):
        """Launch what is missing as the UI does, unless that is under way; how many partitions."""
        keys = self.missing()
        instance = self.dev.instance
        if not keys or instance.get_backfills(status=BulkActionStatus.REQUESTED):
            return 0
        try:
            launch_backfill(self.dev.url, CRASH_LAG, keys)
        except (OSError, DemoError):  # the webserver is not up again, or the code server
            return 0
        return len(keys)
