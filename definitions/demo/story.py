"""The story.

Orders flow, a run worker is killed in the middle of a batch, fresh data goes on, nothing is lost.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dagster as dg
from rich.console import Console
from rich.table import Table

from definitions.demo.stage import DemoError, Stage, messages, worker_pid
from definitions.demo.verdict import TABLE, Verdict, catalog_of, compare, read_table
from definitions.feed import TOPIC, OrdersFeed
from definitions.orders import orders
from kafka_liveness_dagster.audit.audit import GroupAudit
from kafka_liveness_dagster.core.offsets import intersection
from kafka_liveness_dagster.core.partition_keys import parse_key
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.catch_up.commit_log import spans_by_partition
from kafka_liveness_dagster.kafka.settings import KafkaSettings
from kafka_liveness_dagster.runs.tags import CAUSE_TAG
from kafka_liveness_dagster.spark.connect.session import close, connect

if TYPE_CHECKING:
    from pathlib import Path

    from kafka_liveness_dagster.audit.certificate import GroupCertificate
    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.partition_state import PartitionState

_BACKLOG = 200_000
_RATE = 1_000.0
_BURST_SECONDS = 10.0
_MINUTES = 60.0
_LOOK_AROUND = """
All of it goes on running until Ctrl-C.
Dagster  [bold]{stage.url}[/bold]
         /assets/orders: what each run did; /assets/orders_crash_lag: what was skipped, and the backfill;
         /automation: the sensor. Kill a run worker of your own: pkill -9 -f 'dagster api execute_run'
Kafka    {stage.services.bootstrap_servers}
Spark    {spark} (with its token: kafka-liveness up --json)
In another shell: export KAFKA_LIVENESS_HOME='{stage.home}', then
         kafka-liveness status orders-etl --watch
         kafka-liveness audit orders-etl
         kafka-liveness topic describe orders
         kafka-liveness produce orders --rate 100 FILE"""


def tell(*, keep: bool = False, json_file: Path | None = None, backlog: int = _BACKLOG) -> Verdict:
    """Tell the story on fresh services and judge it; every process of it is gone afterwards.

    Args:
        keep: stay with the UI and the services running until Ctrl-C.
        json_file: where to write the verdict's figures.
        backlog: orders waiting when the worker is killed.

    Raises:
        DemoError: a step did not happen in time; says which and where its log is.
    """
    console = Console()
    with Stage() as stage:
        story = _Story(stage, console, backlog)
        verdict = story.run()
        story.show(verdict)
        if json_file is not None:
            json_file.write_text(json.dumps(verdict.as_json(), indent=2) + "\n")
        if keep:
            console.print(
                _LOOK_AROUND.format(stage=stage, spark=stage.services.spark_remote.partition("/;")[0]),
                highlight=False,
                soft_wrap=True,
            )
            while True:
                signal.pause()
    return verdict


@dataclass
class _Story:
    stage: Stage
    console: Console
    backlog: int
    began_at: float = field(default_factory=time.monotonic)
    burst_at: float = 0.0
    timeline: list[tuple[float, str]] = field(default_factory=list)

    def run(self) -> Verdict:
        with self.console.status("services") as status:
            self.status = status
            self._open()
            first = self._first_live_run()
            middle, killed_at = self._kill(first)
            fresh_seconds, second = self._see_fresh_data(first, killed_at)
            keys = self._see_crash_lag()
            drain_seconds = self._backfill(keys)
            self._finish(second)
            self._now("reading the table with pyiceberg")
            verdict = compare(self.feed.acknowledged, read_table(self.services))
            self._happened(f"the table was read: {verdict.in_table:,} rows for {verdict.produced:,} orders")
            self._now("asking all witnesses")
            certificate = self._certificate()
        verdict.certified, verdict.certificate = certificate.is_certified, certificate.verdict
        self._happened("both commit logs, the broker and the table's snapshots were asked for a certificate")
        verdict.crash_lag = sorted(keys)
        verdict.crash_lag_state = self._state_of(keys)
        verdict.crash_lag_offsets = sum(parse_key(key).size for key in keys)
        verdict.crash_to_fresh_seconds = round(fresh_seconds, 2)
        verdict.in_order_seconds = round(fresh_seconds + drain_seconds, 2)
        verdict.killed_in_the_middle_of = middle
        verdict.seconds = round(time.monotonic() - self.began_at, 1)
        return verdict

    def show(self, verdict: Verdict) -> None:
        timeline = Table("seconds", "what happened", title="Timeline", title_justify="left")
        for at, what in self.timeline:
            timeline.add_row(f"{at:7.1f}", what)
        self.console.print(timeline)
        result = Table("", "", title="Verdict", title_justify="left", show_header=False)
        result.add_row("orders produced", f"{verdict.produced:,}")
        result.add_row("rows in the table", f"{verdict.in_table:,}")
        result.add_row("lost", f"{verdict.lost:,}")
        result.add_row("duplicated", f"{verdict.duplicated:,}")
        result.add_row("crash to fresh data, live lane", f"{verdict.crash_to_fresh_seconds:.1f} s")
        result.add_row(
            "had the backlog been drained in order first",
            (
                f"{verdict.in_order_seconds:.1f} s ({verdict.crash_lag_offsets:,} offsets, at the backfill's "
                "speed)"
            ),
        )
        result.add_row("crash lag", f"{', '.join(verdict.crash_lag)}: {verdict.crash_lag_state}")
        self.console.print(result)
        word = "[bold green]holds[/]" if verdict.holds else "[bold red]BROKEN[/]"
        self.console.print(f"Every order is in the table exactly once: {word}")
        self.console.print(verdict.certificate, highlight=False, markup=False, soft_wrap=True)

    def _open(self) -> None:
        self._now("starting Kafka and Spark Connect")
        self.services = self.stage.start_services()
        self._happened(f"Kafka at {self.services.bootstrap_servers} and Spark Connect run")
        self._refuse_what_is_there()
        self.feed = OrdersFeed(self.services.bootstrap_servers, _RATE)
        self.feed.create_topic()
        self.feed.start()
        self._happened(f"the feed produces {_RATE:,.0f} orders a second")
        self._now("starting dagster dev")
        self.stage.start_dagster()
        self.instance = self.stage.instance()
        self._happened(f"Dagster's UI, daemon and code server run at {self.stage.url}")

    def _refuse_what_is_there(self) -> None:
        """Services of yours may have orders of yours."""
        servers, remedy = (
            self.services.bootstrap_servers,
            "the demo makes it: delete yours, or name other services",
        )
        if TOPIC in Cluster(KafkaSettings(servers)).topics():
            raise DemoError(f"topic {TOPIC} is at {servers} already, and {remedy}")
        if not self.services.catalog_uri and catalog_of(self.services).table_exists(TABLE):
            raise DemoError(f"table {TABLE} is in the catalog already, and {remedy}")

    def _first_live_run(self) -> str:
        self._now("waiting for the sensor to start the live run")
        run: str = self.stage.wait_until("the sensor started a live run", self._live_runs, 2 * _MINUTES)[0]
        self._happened(f"the sensor saw lag and started live run {run[:8]}")
        self._now("waiting for its first commit")
        self.stage.wait_until("a batch was committed", lambda: self._commits(run), 3 * _MINUTES)
        self._happened("the live run has committed its first batch")
        return run

    def _kill(self, run: str) -> tuple[str, float]:
        self._now(f"producing {self.backlog:,} more orders at once")
        self._produce_burst()
        self._happened(f"{self.backlog:,} more orders arrived at once")
        pid = worker_pid(self.instance, run)
        middle = self.stage.wait_until(
            "a batch is under way", lambda: self._stopped_in_a_batch(pid, run), _MINUTES
        )
        os.kill(pid, signal.SIGKILL)
        killed_at = time.time()
        self._happened(f"SIGKILL to run worker {pid} in the middle of {middle}")
        return str(middle), killed_at

    def _stopped_in_a_batch(self, pid: int, run: str) -> str | None:
        """Stop the worker, look at Kafka, and let it go on unless it is in the middle of a batch.

        Dagster is asked before: what is stopped may have locked its database.
        """
        if not self._commits(run):
            return None
        os.kill(pid, signal.SIGSTOP)
        behind = sum(facts.log_end - (facts.committed or 0) for facts in self._facts().values())
        if behind > 2 * orders.settings.max_records:
            return f"its batches, {behind:,} orders behind"
        os.kill(pid, signal.SIGCONT)
        if behind < orders.settings.max_records and time.monotonic() > self.burst_at + _BURST_SECONDS:
            self._produce_burst()  # on a busy machine the run may have processed it between two looks
        return None

    def _produce_burst(self) -> None:
        self.burst_at = time.monotonic()
        self.feed.produce_burst(self.backlog)

    def _see_fresh_data(self, first: str, killed_at: float) -> tuple[float, str]:
        self._now("waiting for the sensor to notice the crash")
        failed = {dg.DagsterRunStatus.FAILURE}
        self.stage.wait_until("Dagster saw the crash", lambda: self._status(first) in failed, _MINUTES)
        self._happened(f"Dagster reports run {first[:8]} as failed")
        runs = self.stage.wait_until(
            "a new live run", lambda: [r for r in self._live_runs() if r != first], _MINUTES
        )
        run = self.instance.get_run_by_id(runs[0])
        cause = run.tags.get(CAUSE_TAG) if run else None
        self._happened(f"the sensor started live run {runs[0][:8]}, cause: {cause}")
        self._now("waiting for fresh data")
        commits = self.stage.wait_until(
            "fresh data was committed", lambda: self._commits(runs[0]), 2 * _MINUTES
        )
        seconds = commits[0][0] - killed_at
        self._happened(f"fresh orders are in the table, {seconds:.1f} s after the crash")
        return seconds, runs[0]

    def _see_crash_lag(self) -> list[str]:
        self._now("waiting for the crash lag partitions")
        keys = self.stage.wait_until("every owed range is a partition", self._covering_keys, _MINUTES)
        self._happened(f"{len(keys)} crash lag partitions appeared: {', '.join(keys)}")
        return list(keys)

    def _backfill(self, keys: list[str]) -> float:
        self._now("launching the backfill as the UI would")
        backfill = self.stage.launch_backfill(orders.crash_lag.key.path[-1], keys)
        self._happened(f"backfill {backfill} of {len(keys)} partitions launched, live data goes on")
        self._now("waiting for the backfill")
        self.stage.wait_until("the backfill ended", lambda: self._backfill_ended(backfill), 4 * _MINUTES)
        runs = self.instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill}))
        said = [entry for run in runs for entry in messages(self.instance, run.run_id)]
        begun = min((at for at, text in said if "requested; pending: " in text), default=0.0)
        ended = max((at for at, text in said if text.startswith("Committed ")), default=begun)
        self._happened(
            f"the backfill is done: crash lag drained in {ended - begun:.1f} s by {len(runs)} run(s)"
        )
        return ended - begun

    def _backfill_ended(self, backfill_id: str) -> bool:
        backfill = self.instance.get_backfill(backfill_id)
        status = backfill.status.value if backfill else "UNKNOWN"
        if "FAIL" in status or "CANCEL" in status:
            raise DemoError(
                f"backfill {backfill_id} ended as {status}: see {self.stage.url}/runs/b/{backfill_id}"
            )
        return status == "COMPLETED_SUCCESS"

    def _finish(self, run: str) -> None:
        self._now("stopping the feed, the live lane takes the rest")
        self.feed.stop()
        if self.feed.failed:
            raise DemoError(
                f"the feed could not produce {len(self.feed.failed)} orders: {self.feed.failed[0]}"
            )
        self._happened("the feed stopped")
        self.stage.wait_until("the live lane reached the log end", self._caught_up, 2 * _MINUTES)
        self._happened(f"live run {run[:8]} has reached the log end")

    def _live_runs(self) -> list[str]:
        found = self.instance.get_runs(dg.RunsFilter(job_name=orders.live_job.name))
        return [run.run_id for run in reversed(found) if run.status is not dg.DagsterRunStatus.QUEUED]

    def _commits(self, run: str) -> list[tuple[float, str]]:
        return [(at, text) for at, text in messages(self.instance, run) if text.startswith("Committed ")]

    def _status(self, run_id: str) -> dg.DagsterRunStatus | None:
        run = self.instance.get_run_by_id(run_id)
        return run.status if run else None

    def _certificate(self) -> GroupCertificate:
        """What ``kafka-liveness audit`` says."""
        cluster = Cluster(KafkaSettings(self.services.bootstrap_servers))
        session = connect(self.services.spark_remote)
        try:
            return GroupAudit(cluster, orders.group_id, lambda: session).certificate()
        finally:
            close(session)

    def _facts(self) -> dict[TopicPartition, PartitionState]:
        cluster = Cluster(KafkaSettings(self.services.bootstrap_servers))
        return cluster.partition_states(orders.group_id, cluster.partitions(orders.topics))

    def _covering_keys(self) -> list[str] | None:
        """The partitions, once they hold all that is owed.

        The dead worker's write may land meanwhile: then less is owed than the group's commits say, or the
        partitions.
        """
        owed = {tp: found.outstanding for tp, found in self._facts().items()}
        keys = list(self.instance.get_dynamic_partitions(orders.crash_lag.key.path[-1]))
        held = spans_by_partition(map(parse_key, keys))
        touched = all(not spans or intersection(spans, held.get(tp, ())) for tp, spans in owed.items())
        return keys if keys and any(owed.values()) and touched else None

    def _caught_up(self) -> bool:
        return all(facts.committed == facts.log_end for facts in self._facts().values())

    def _state_of(self, keys: list[str]) -> str:
        done = self.instance.get_materialized_partitions(orders.crash_lag.key)
        waiting = [key for key in keys if key not in done]
        return f"{len(waiting)} of {len(keys)} missing" if waiting else "all materialized"

    def _now(self, what: str) -> None:
        self.status.update(f"{what} …")

    def _happened(self, what: str) -> None:
        at = time.monotonic() - self.began_at
        self.timeline.append((at, what))
        self.console.print(f"[dim]{at:6.1f} s[/]  {what}", highlight=False)
