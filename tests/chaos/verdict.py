"""Was anything lost, doubled or late?

Told by the rows, read without Spark, and by the product's own deep audit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import dagster as dg
from pyiceberg.exceptions import NoSuchTableError

from definitions.demo.verdict import Verdict, compare, read_table
from tests.chaos.orders import GROUP
from tests.integration.power_loss import ROOT

if TYPE_CHECKING:
    from tests.chaos.faults import Fault

_LOOK_SECONDS = 3.0
_AUDIT = "from kafka_liveness_dagster.cli.main import main; main()"


class FaultResult(NamedTuple):
    """A fault that was done, how long it took until the lane was fresh (None.

    It never was), and how long it may.
    """

    fault: Fault
    seconds: float | None
    bound: float

    @property
    def late(self):
        """Whether it took longer than it may."""
        return self.seconds is None or self.seconds > self.bound


def settle(stage, patience, say):
    """No new data, no faults: launch backfills until nothing is missing; the verdict on all rows."""
    stage.feed.stop()
    give_up_at = time.monotonic() + patience
    while True:
        count = stage.backfill()
        if count:
            say(f"settling: backfill of {count} crash lag partitions")
        try:
            found = compare(stage.feed.acknowledged, read_table(stage.judged))
        except NoSuchTableError:
            found = Verdict(len(stage.feed.acknowledged), 0, len(stage.feed.acknowledged), 0)
        if time.monotonic() > give_up_at or (found.lost == 0 and not stage.missing()):
            return found
        time.sleep(_LOOK_SECONDS)


def audit(stage):
    """``kafka-liveness audit --deep``: whether it certifies, and its sentence.

    The history has the certificate.
    """
    at = stage.judged
    asked = [
        GROUP,
        "--deep",
        "--json",
        "--bootstrap-servers",
        at.bootstrap_servers,
        "--spark",
        at.spark_remote,
    ]
    done = subprocess.run(
        [sys.executable, "-c", _AUDIT, "audit", *asked], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        return False, f"no certificate: {done.stderr.strip()[-400:]}"
    told = json.loads(done.stdout)
    stage.history.audit(told)
    return told["certified"] and told["pending_offsets"] == 0, told["sentence"]


def ends_of_runs(stage):
    """How the runs ended, and by which errors: what a fault may do, and what it may not."""
    instance, ends, errors = stage.dev.instance, Counter(), Counter()
    for run in instance.get_runs():
        what = {"orders_job": "live", "orders_maintenance_job": "maintenance"}.get(run.job_name, "catch-up")
        ends[f"{what} {run.status.value.lower()}"] += 1
        for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
            error = entry.dagster_event.step_failure_data.error
            while error is not None and error.cause is not None:
                error = error.cause
            errors[" ".join(error.message.split())[:150] if error else "unknown"] += 1
    return ends, errors


def table_of(struck):
    """A line for each fault: how often, the seconds to fresh, the bound and what it is made of."""
    by_fault = defaultdict(list)
    for one in struck:
        by_fault[one.fault].append(one)
    yield f"{'fault':<40}{'times':>6}{'median':>9}{'worst':>9}{'bound':>8}{'late':>6}  the bound is"
    for fault, several in sorted(by_fault.items(), key=lambda item: item[0].name):
        seconds = [float("inf") if one.seconds is None else one.seconds for one in several]
        late, bound = sum(one.late for one in several), min(one.bound for one in several)
        numbers = f"{len(several):>6}{median(seconds):>9.1f}{max(seconds):>9.1f}{bound:>8.0f}{late:>6}"
        yield f"{fault.name:<40}{numbers}  {fault.why}"
