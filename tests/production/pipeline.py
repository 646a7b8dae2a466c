"""A pipeline in production.

Its topic, its runs and its table, as a person sees and changes them in the UI.
"""

from __future__ import annotations

import re

import dagster as dg
import psutil
from confluent_kafka import Producer
from dagster._core.execution.backfill import BULK_ACTION_TERMINAL_STATUSES
from dagster._core.scheduler.instigation import TickStatus
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.settings import KafkaSettings
from tests.waiting import wait_for

_ENDED = BULK_ACTION_TERMINAL_STATUSES
_REPOSITORY = "__repository__"
_TERMINATE = """mutation ($run: String!) { terminateRun(runId: $run) {
  __typename ... on TerminateRunFailure { message } ... on PythonError { message } } }"""
_LAUNCH = """mutation ($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
_AGAIN = """mutation ($params: ReexecutionParams!) { launchRunReexecution(reexecutionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
_BACKFILL = """mutation ($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
_CANCEL = """mutation ($id: String!) { cancelPartitionBackfill(backfillId: $id) {
  __typename ... on PythonError { message } } }"""
_SCHEDULE = """mutation ($schedule: ScheduleSelector!) { startSchedule(scheduleSelector: $schedule) {
  __typename ... on ScheduleStateResult { scheduleState { id } } ... on PythonError { message } } }"""
_STOP_SCHEDULE = """mutation ($id: String!) { stopRunningSchedule(id: $id) {
  __typename ... on PythonError { message } } }"""


class Pipeline:
    """One topic, one group, one table, one code location."""

    def __init__(self, production, asset, partitions):
        self.production, self.asset = production, asset
        self.name, self.group = asset["name"], asset["group_id"]
        [self.topic] = asset["topics"]
        self.live_job, self.crash_lag = f"{self.name}_job", f"{self.name}_crash_lag"
        self.log_ends = dict.fromkeys(range(partitions), 0)

    @property
    def instance(self):
        """Dagster's records, in PostgreSQL."""
        return self.production.instance

    # Its topic and its table

    def produce(self, count):
        """Append so many records to each partition."""
        producer = Producer({"bootstrap.servers": self.production.services.bootstrap_servers, "linger.ms": 5})
        for partition, end in self.log_ends.items():
            for value in range(end, end + count):
                producer.produce(self.topic, str(value).encode(), partition=partition)
            self.log_ends[partition] = end + count
        assert producer.flush(20) == 0

    def committed(self):
        """Return the sum of the offsets that the live lane committed."""
        found = self.cluster().commits(self.group, [TopicPartition(self.topic, p) for p in self.log_ends])
        return sum(max(0, commit.offset) for commit in found.values())

    def rows(self):
        """Return a row's partition, offset and version, sorted; read without Spark."""
        services = self.production.services
        catalog = SqlCatalog(
            services.catalog_name, uri=f"{services.catalog_uri}?timeout=60", warehouse=services.warehouse
        )
        try:
            table = catalog.load_table(self.asset["table"].partition(".")[2])
        except NoSuchTableError:
            return []
        found = table.scan(selected_fields=("partition", "offset", "version")).to_arrow().to_pylist()
        return sorted((row["partition"], row["offset"], row["version"]) for row in found)

    def is_exact(self):
        """Return whether each record that was produced is in the table, once."""
        wanted = [(partition, offset) for partition, end in self.log_ends.items() for offset in range(end)]
        return [(partition, offset) for partition, offset, _ in self.rows()] == wanted

    def becomes_exact(self):
        """Wait until each record is in the table once."""
        wait_for(self.is_exact, patience=300.0, what="each record is in the table once", details=self.shown)

    def is_at_work(self, count=100):
        """Produce; wait until a live run has committed the first of several batches, and return the run."""
        before = self.committed()
        self.produce(count)
        wait_for(lambda: self.committed() > before, what="the live lane commits", details=self.shown)
        [run] = self.runs(dg.DagsterRunStatus.STARTED)
        return run

    def crashes(self):
        """Kill a live run in the middle of its batches.

        Return the crash lag partitions that the sensor adds.
        """
        known, dead = set(self.missing()), self.is_at_work()
        self.worker(dead.run_id).kill()
        wanted = len(self.log_ends)
        wait_for(lambda: len(set(self.missing()) - known) >= wanted, what="crash lag", details=self.shown)
        assert self.ends(dead.run_id) is dg.DagsterRunStatus.FAILURE
        return [key for key in self.missing() if key not in known]

    def cluster(self):
        """Return a client that reads the group."""
        return Cluster(KafkaSettings(self.production.services.bootstrap_servers))

    # Its runs

    def runs(self, *statuses, job=None):
        """Return the live runs, or another job's, the newest first."""
        return self.instance.get_runs(
            dg.RunsFilter(job_name=job or self.live_job, statuses=list(statuses) or None)
        )

    def run(self, run_id):
        """Return a run as Dagster knows it now."""
        return self.instance.get_run_by_id(run_id)

    def ends(self, run_id):
        """Wait for a run's end; return its status."""
        run = wait_for(
            lambda: (found := self.run(run_id)).is_finished and found, patience=300.0, details=self.shown
        )
        return run.status

    def messages(self, run_id):
        """Return the lines of a run's log."""
        return [entry.user_message or entry.message for entry in self.instance.all_logs(run_id)]

    def last_tick(self):
        """Return the sensor's last tick that has ended."""
        [sensor] = [
            one
            for one in self.instance.all_instigator_state()
            if one.instigator_name == f"{self.name}_sensor"
        ]
        ticks = self.instance.get_ticks(sensor.instigator_origin_id, sensor.selector_id, limit=2)
        return next(tick for tick in ticks if tick.status is not TickStatus.STARTED)

    def observed(self):
        """Return what the sensor observed of the topic, one text."""
        topic = dg.AssetKey(["kafka", f"{self.topic}_topic"])
        found = self.instance.fetch_observations(dg.AssetRecordsFilter(asset_key=topic), limit=200).records
        return "\n".join(one.event_log_entry.asset_observation.description or "" for one in found)

    def worker(self, run_id):
        """Return the process that works for a run."""
        text = "\n".join(self.messages(run_id))
        return psutil.Process(int(re.findall(r"Started process for run \(pid: (\d+)\)", text)[-1]))

    def shown(self):
        """Return what a failure needs: the rows, the runs and the services' logs."""
        runs = [(run.run_id[:8], run.job_name, run.status.value) for run in self.instance.get_runs(limit=12)]
        rows = dict.fromkeys(self.log_ends, 0)
        for partition, _, _ in self.rows():
            rows[partition] += 1
        return f"produced {self.log_ends}, rows {rows}, runs {runs}\n{self.production.logs()}"

    # What a person does in the UI

    def launch(self, job=None, tags=None):
        """Launch a job as the Launchpad does; return the run's id."""
        params = {
            "selector": {**self._of("repositoryLocationName"), "pipelineName": job or self.live_job},
            "mode": "default",
            "executionMetadata": {
                "tags": [{"key": key, "value": value} for key, value in (tags or {}).items()]
            },
        }
        return self._press(_LAUNCH, "launchRun", params=params)["run"]["runId"]

    def run_from_failure(self, run_id):
        """Press *Re-execute from failure*; return the new run's id."""
        params = {"parentRunId": run_id, "strategy": "FROM_FAILURE"}
        return self._press(_AGAIN, "launchRunReexecution", params=params)["run"]["runId"]

    def terminate(self, run_id):
        """Press *Terminate*; return what the UI shows, None when its request times out."""
        return (self.production.query(_TERMINATE, run=run_id) or {}).get("terminateRun")

    def backfill(self, keys):
        """Launch a backfill of crash lag partitions; return its id."""
        params = {"assetSelection": [{"path": [self.crash_lag]}], "partitionNames": keys}
        return self._press(_BACKFILL, "launchPartitionBackfill", params=params)["backfillId"]

    def cancel_backfill(self, backfill_id):
        """Cancel a backfill."""
        assert (
            self._press(_CANCEL, "cancelPartitionBackfill", id=backfill_id)["__typename"]
            == "CancelBackfillSuccess"
        )

    def backfill_ends(self, backfill_id):
        """Wait for a backfill's end; return its status."""

        def ended():
            status = self.instance.get_backfill(backfill_id).status
            return status if status in _ENDED else None

        return wait_for(ended, patience=300.0, what="the backfill ends", details=self.shown)

    def start_schedule(self):
        """Switch on the schedule that starts a live run every minute."""
        schedule = {**self._of("repositoryLocationName"), "scheduleName": f"{self.name}_every_minute"}
        self._schedule = self._press(_SCHEDULE, "startSchedule", schedule=schedule)["scheduleState"]["id"]

    def stop_schedule(self):
        """Switch it off again."""
        self._press(_STOP_SCHEDULE, "stopRunningSchedule", id=self._schedule)

    def missing(self):
        """Return the crash lag partitions that are not materialized."""
        done = self.instance.get_materialized_partitions(dg.AssetKey(self.crash_lag))
        return [key for key in self.instance.get_dynamic_partitions(self.crash_lag) if key not in done]

    def _of(self, location):
        return {location: f"{self.name}", "repositoryName": _REPOSITORY}

    def _press(self, query, field, **variables):
        """Press a button until the storage answers.

        A webserver's connection does not survive PostgreSQL's restart.
        """

        def press():
            answer = (self.production.query(query, **variables) or {}).get(field)
            return None if answer is None or "OperationalError" in answer.get("message", "") else answer

        answer = wait_for(press, what=field, pause=0.5)
        assert "message" not in answer, answer
        return answer
