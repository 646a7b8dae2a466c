"""Every name that people see, written out: metrics, checks, metadata, columns, settings and commands.

Dashboards, alerts, scripts and code locations of users contain these names. A change to one of them after
this needs a note in docs/upgrading.md that says what to write instead. Names that machines store are in
tests/test_stored_text.py.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from inspect import Parameter, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, get_args, get_origin

import click
import dagster as dg
import pytest
from click.testing import CliRunner
from pyspark.sql.types import StringType, StructType

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.assets.definitions import group_checks
from kafka_liveness_dagster.audit.certificate import GroupCertificate
from kafka_liveness_dagster.cli import forgive, status_output
from kafka_liveness_dagster.cli.audit_command import certificate_as_text as audit_shown
from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.core import health
from kafka_liveness_dagster.core.bad_records import PendingDeadLetters
from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.departures import GroupSnapshot, GroupState, MemberSnapshot, Run, RunFate
from kafka_liveness_dagster.core.events import LeaveReason, MemberJoined, MemberLeft
from kafka_liveness_dagster.core.freshness import ServiceLevel, judge_freshness
from kafka_liveness_dagster.core.group_verdict import GroupRuns, PendingCause, PendingReason
from kafka_liveness_dagster.core.health import OpenTransaction, with_open_transactions
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
from kafka_liveness_dagster.core.windows import JudgedWindow, WindowStatus
from kafka_liveness_dagster.doctor import dagster_rules, kafka_rules, spark_rules
from kafka_liveness_dagster.doctor.rules import Outcome, Rule
from kafka_liveness_dagster.kafka.group_status import GroupStatus
from kafka_liveness_dagster.lanes import maintenance, materializations, runs
from kafka_liveness_dagster.metadata import (
    Tally,
    group_metadata,
    late_metadata,
    range_metadata,
    range_table,
    window_metadata,
)
from kafka_liveness_dagster.runs.tags import CAUSE_RUN_TAG, CAUSE_TAG
from kafka_liveness_dagster.sensor.asset_events import crash_lag_observations, group_observations
from kafka_liveness_dagster.sensor.observation import GroupObservation
from kafka_liveness_dagster.sensor.windows import WindowMaterializer
from kafka_liveness_dagster.settings.asset import KafkaAssetSettings
from kafka_liveness_dagster.settings.groups import SettingsGroup
from kafka_liveness_dagster.spark.table import dead_letters
from kafka_liveness_dagster.spark.table.maintenance import TableStatistics
from kafka_liveness_dagster.spark.table.schema_check import KEY_COLUMNS
from kafka_liveness_dagster.spark.table.table import TableInfo
from kafka_liveness_dagster.telemetry import metrics

ROOT = Path(__file__).parents[1]
RUN, AT = "0badcafe-1111-4222-8333-444444444444", TopicPartition("orders", 3)
PENDING = OffsetRange("orders", 3, 70, 120)
SEEN = PartitionSnapshot(
    AT,
    120,
    LiveCommitMetadata(OwnerState.RUNNING, RUN[:8], (Span(130, 140),)),
    log_end=150,
    outstanding=(Span(70, 120),),
)
CRASHED = MemberLeft(RUN[:8], LeaveReason.CRASHED, (AT,))
GROUP = ("messaging.consumer.group.name",)
GROUP_LANE = (*GROUP, "kafka_liveness.lane")
GROUP_TOPIC = (*GROUP, "messaging.destination.name")
GROUP_PARTITION = (*GROUP_TOPIC, "messaging.destination.partition.id")
OPERATION = ("messaging.system", "messaging.operation.name", "messaging.operation.type", *GROUP_LANE)

METRICS = {
    "messaging_process_duration_seconds": ("messaging.process.duration", "histogram", "s", OPERATION, "runs"),
    "messaging_client_operation_duration_seconds": (
        "messaging.client.operation.duration", "histogram", "s", OPERATION, "runs",
    ),
    "kafka_liveness_batch_phase_duration_seconds": (
        "kafka_liveness.batch.phase.duration", "histogram", "s", (*GROUP_LANE, "kafka_liveness.phase"),
        "runs",
    ),
    "kafka_liveness_committed_offsets_total": (
        "kafka_liveness.committed.offsets", "counter", "{offset}",
        (*GROUP_TOPIC, "kafka_liveness.lane", "messaging.destination.partition.id"), "runs",
    ),
    "kafka_liveness_written_rows_total": (
        "kafka_liveness.written.rows", "counter", "{row}", GROUP_LANE, "runs",
    ),
    "kafka_liveness_write_retries_total": (
        "kafka_liveness.write.retries", "counter", "{attempt}", (*GROUP_LANE, "kafka_liveness.reason"),
        "runs",
    ),
    "kafka_liveness_quarantined_offsets_total": (
        "kafka_liveness.quarantined.offsets", "counter", "{offset}", (*GROUP_TOPIC, "kafka_liveness.reason"),
        "runs",
    ),
    "kafka_liveness_fences_total": (
        "kafka_liveness.fences", "counter", "{fence}", (*GROUP_LANE, "kafka_liveness.reason"), "runs",
    ),
    "kafka_liveness_throttle_time_seconds": (
        "kafka_liveness.throttle.time", "histogram", "s", GROUP_LANE, "runs",
    ),
    "kafka_liveness_lag_offsets": (
        "kafka_liveness.lag.offsets", "gauge", "{offset}", GROUP_PARTITION, "sensor",
    ),
    "kafka_liveness_lag_time_seconds": ("kafka_liveness.lag.time", "gauge", "s", GROUP_TOPIC, "sensor"),
    "kafka_liveness_crash_lag_offsets": (
        "kafka_liveness.crash_lag.offsets", "gauge", "{offset}", GROUP_PARTITION, "sensor",
    ),
    "kafka_liveness_crash_lag_age_seconds": (
        "kafka_liveness.crash_lag.age", "gauge", "s", GROUP_TOPIC, "sensor",
    ),
    "kafka_liveness_crash_lag_expired_offsets": (
        "kafka_liveness.crash_lag.expired_offsets", "gauge", "{offset}", GROUP_PARTITION, "sensor",
    ),
    "kafka_liveness_open_transaction_offsets": (
        "kafka_liveness.open_transaction.offsets", "gauge", "{offset}", GROUP_TOPIC, "sensor",
    ),
    "kafka_liveness_open_transaction_age_seconds": (
        "kafka_liveness.open_transaction.age", "gauge", "s", GROUP_TOPIC, "sensor",
    ),
    "kafka_liveness_group_members": ("kafka_liveness.group.members", "gauge", "{member}", GROUP, "sensor"),
    "kafka_liveness_group_events_total": (
        "kafka_liveness.group.events", "counter", "{event}",
        (*GROUP, "kafka_liveness.event", "kafka_liveness.reason"), "sensor",
    ),
}  # fmt: skip


def test_metrics():
    """Name, kind, unit, labels and source of each metric, by its name in Prometheus."""
    found = {
        one.prometheus: (one.name, one.instrument, one.unit, one.labels, one.recorded_by)
        for one in metrics.METRICS
    }
    assert found == METRICS


def test_values_of_labels():
    """Reasons that metrics and observations contain.

    Those of fences and of members that left are stored text.
    """
    reasons = (metrics.BAD_RECORD, metrics.SLOW_RECORD, metrics.COMMIT_CONFLICT, metrics.COMMIT_STATE_UNKNOWN)
    assert reasons == ("bad-record", "slow-record", "commit-conflict", "commit-state-unknown")
    assert [event.__name__ for event in get_args(kl.GroupEvent)] == [
        "MemberJoined", "MemberLeft", "RebalanceStarted", "RebalanceCompleted", "GroupEmptied", "GroupDied",
        "GhostFound", "CrashLagFound", "CrashLagForgotten",
    ]  # fmt: skip


def test_alerts_and_panels():
    """The rules that docs/metrics.md offers, and the panels of the dashboard."""
    assert re.findall(r"- alert: (\w+)", (ROOT / "docs/metrics.md").read_text(encoding="utf-8")) == [
        "KafkaLivenessLagHigh",
        "KafkaLivenessCrashLagPending",
        "KafkaLivenessCrashLagExpired",
        "KafkaLivenessTransactionOpen",
        "KafkaLivenessRunsFenced",
        "KafkaLivenessMemberCrashed",
        "KafkaLivenessOffsetsQuarantined",
        "KafkaLivenessSensorDown",
    ]
    dashboard = (ROOT / "docs/grafana/kafka-liveness.json").read_text(encoding="utf-8")
    assert re.findall(r'^ *"title": "(.*)",$', dashboard, re.MULTILINE) == [
        "kafka_liveness_dagster", "Lag", "Lag in time", "Crash lag, pending", "Age of the oldest crash lag",
        "Offsets per second", "Rows per second", "Batch duration", "Batch duration by phase", "Members",
        "Group events", "Fences and retries", "Quarantined offsets",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def asset():
    """An asset that has each definition there is."""

    @kl.kafka_asset(
        topics=["orders"],
        group_id="orders-etl",
        table="lake.shop.orders",
        name="orders",
        complete_every="1h",
        completeness=kl.Completeness(start="2026-11-01"),
        batching=kl.Batching(on_bad_record="dead_letter"),
        sla=kl.Sla(fresh_seconds=30.0, complete_minutes=15.0),
    )
    def orders(batch):
        return batch

    return orders


def test_definitions(asset):
    """What is named after an asset ``orders`` of topic ``orders``."""
    resources = {"kafka": kl.KafkaLivenessResource(), "spark": kl.SparkConnectResource()}
    found = dg.Definitions.merge(asset.definitions, dg.Definitions(resources=resources)).get_repository_def()
    keys = {key.to_user_string() for key in found.asset_graph.get_all_asset_keys()}
    assert keys == {"kafka/orders_topic", "orders", "orders_crash_lag", "orders_by_hour"}
    jobs = {name for name in found.job_names if not name.startswith("__")}
    assert jobs == {"orders_job", "orders_crash_lag_job", "orders_checks_job", "orders_maintenance_job"}
    assert [one.name for one in found.sensor_defs] == ["orders_sensor"]
    assert [one.name for one in found.schedule_defs] == ["orders_maintenance"]
    assert {one.op.pool for one in (asset.crash_lag, asset.windows)} == {"orders_crash_lag"}
    nodes = {found.asset_graph.get(key).key.path[-1]: found.asset_graph.get(key).kinds for key in
             found.asset_graph.get_all_asset_keys()}  # fmt: skip
    assert nodes == {
        "orders_topic": {"kafka"},
        "orders": {"kafka", "spark", "iceberg"},
        "orders_crash_lag": {"kafka", "spark", "iceberg"},
        "orders_by_hour": {"kafka", "spark", "iceberg"},
    }
    [spec] = asset.live.specs
    ours = {name for name in spec.metadata if not name.startswith(("dagster/", "kafka_liveness/"))}
    assert ours == {"group", "topic orders", "table"}
    assert "dagster/table_name" in spec.metadata


def test_checks(asset):
    """The asset of each check, and the numbers behind its verdict."""
    assert {spec.name: spec.asset_key.to_user_string() for spec in asset.checks.check_specs} == {
        "group_alive": "orders",
        "lag": "orders",
        "retention": "orders",
        "no_missing_rows": "orders",
        "crash_lag_age": "orders_crash_lag",
        "dead_letters": "orders",
        "freshness_sla": "orders",
    }
    numbers = {}
    with dg.DagsterInstance.ephemeral() as instance:
        for one in group_checks(asset).evaluate(look(instance), instance, ["p3:orders:70-120"], time.time()):
            numbers[one.check_name] = {*one.metadata}
    group = {"group"}
    assert numbers == {
        "group_alive": {
            *group,
            "members",
            "external_members",
            "runs_in_progress",
            "lag",
            "ghosts",
            "last_live_run",
        },
        "lag": {*group, "lag", "largest_lag", "paused_lag"},
        "retention": {*group, "expired_offsets", "offsets_about_to_expire"},
        "no_missing_rows": {*group, "missing_offsets", "forgotten_ranges", "pending_offsets"},
        "crash_lag_age": {*group, "pending_offsets", "pending_ranges", "oldest_seconds"},
        "dead_letters": {*group, "dead_letters"},
        "freshness_sla": {
            *group, "lag", "pending_offsets", "fresh_limit_seconds", "complete_limit_seconds",
        },
    }  # fmt: skip
    promised = judge_freshness([SEEN], {(AT, 70): 1, (AT, 120): 1}, ServiceLevel(30.0, 900.0), now_ms=2)
    assert {*promised.numbers} - numbers["freshness_sla"] == {"seconds_behind", "pending_age_seconds"}
    limited = health.crash_lag_age([SEEN], 10.0, (), 60.0)
    assert {*limited.numbers} - numbers["crash_lag_age"] == {"max_crash_lag_age_seconds"}
    assert {*health.lag_below([SEEN], 5).numbers} - numbers["lag"] == {"max_lag"}
    behind = with_open_transactions(health.lag_below([SEEN], None), [OpenTransaction(AT, 150, 10, 5.0)])
    assert {*behind.numbers} - numbers["lag"] == {"behind_open_transactions"}
    assert {*health.dead_letters_waiting(PendingDeadLetters(1, (PENDING,), "X"), "").numbers} == {
        "dead_letters"
    }


def look(instance):
    """A group with a run that crashed, another client, lag and crash lag."""
    tags = {CAUSE_RUN_TAG: RUN[:8]}
    instance.add_run(
        dg.DagsterRun(job_name="orders_job", run_id=RUN, status=dg.DagsterRunStatus.FAILURE, tags=tags)
    )
    member = MemberSnapshot("m-2", "kcat at 10.0.0.7", (AT,), is_foreign=True)
    seen = GroupSnapshot(GroupState.STABLE, (member,), (SEEN,), runs={RUN[:8]: Run(RunFate.FAILED)})
    return GroupObservation(seen, instance.get_run_records())


def columns(table):
    """The columns of a table in metadata, with their types."""
    return {column.name: column.type for column in table.schema.columns}


def test_metadata_of_a_live_run():
    """A materialization of the live asset: what was written, and what the run found."""
    tally = Tally()
    tally.add(Batch((PENDING,), 60.0, skipped=(OffsetRange("orders", 3, 75, 76),)), 5, 1.0)
    found = tally.metadata()
    assert [*found] == [
        "summary", "batches", "offsets", "rows_written", "slowest_batch_percent_of_budget",
        "rows_per_second", "dead_letters", "processed",
    ]  # fmt: skip
    assert columns(found["processed"]) == {"partition": "string", "range": "string", "offsets": "string"}
    uncounted = Tally()
    uncounted.add(Batch((PENDING,), 60.0), None, 1.0)
    assert {*uncounted.metadata()} - {*found} == {"offsets_per_second"}
    assert range_table([PENDING]).records[0].data == {
        "partition": "orders:3",
        "range": "70-120",
        "offsets": "50",
    }
    several = [PENDING]
    consumer = SimpleNamespace(
        crash_lag=several, recovered=several, forgotten_pending=several, lost=several, timeouts="",
        is_joined=True, lag=lambda: 5, seconds_behind=lambda: 1.0,
    )  # fmt: skip
    context = SimpleNamespace(run=SimpleNamespace(tags={CAUSE_TAG: "lag"}))
    pipeline = SimpleNamespace(spark=kl.SparkConnectResource(ui_url="http://driver:4040"))
    assert [*runs._materialization_facts(consumer, context, pipeline, Counter())] == [
        "lag", "seconds_behind", "cause", "timeouts", "spark_ui",
        "crash_lag_found", "recovered", "crash_lag_restored", "expired_unprocessed",
    ]  # fmt: skip
    now = TableInfo(7, 5, StructType().add("topic", StringType()), "lake.shop.orders", "file:///lake")
    of_table = {name for name in materializations.table_metadata(now) if not name.startswith("dagster/")}
    assert of_table == {"snapshot_id"}


def test_metadata_of_a_crash_lag_partition(asset):
    """Found by the sensor, quarantined by a run, processed by a run."""
    with dg.DagsterInstance.ephemeral() as instance:
        key = dg.AssetKey("orders_crash_lag")
        [found] = crash_lag_observations(
            instance, key, "orders-etl", ["p3:orders:70-120"], look(instance), {}
        )
    assert [*found.metadata] == [
        "group", "offsets", "event_time", "oldest_record_age", "ranges", "crash_lag_keys", "cause",
        "crashed_run", "found_by_run",
    ]  # fmt: skip
    assert columns(found.metadata["ranges"]) == {
        "partition": "string", "range": "string", "offsets": "string", "event_time": "string",
    }  # fmt: skip
    events = []
    storage = SimpleNamespace(
        log=SimpleNamespace(warning=lambda *_: None), store_event=lambda event, _: events.append(event)
    )
    runs._report_skipped(asset.settings, storage)(PENDING, "why", "bad-record")
    assert {name: value.value for name, value in events[0].metadata.items()} == {
        "group": "orders-etl", "range": "p3:orders:70-120", "offsets": 50, "cause": "bad-record",
    }  # fmt: skip
    of_run = Tally(rows=5, seconds=1.0, ranges=[PENDING]).of_run(1)
    processed = range_metadata("orders-etl", PENDING, [PENDING], [PENDING], of_run)
    assert [*processed] == [
        "group", "range", "offsets", "state", "expired_unprocessed", "run_summary",
    ]  # fmt: skip
    states = [
        range_metadata("orders-etl", PENDING, owed, (), {}, is_reprocessed=again)["state"].value
        for owed, again in (((PENDING,), False), ((), False), ((PENDING,), True))
    ]
    assert states == ["processed by this run", "processed before this run", "reprocessed by this run"]
    half = OffsetRange("orders", 3, 70, 95)
    closed = [range_metadata("orders-etl", PENDING, (), (), {}, written_off=[one]) for one in (PENDING, half)]
    assert [one["state"].value for one in closed] == [
        "written off, not processed",
        "processed before this run, except 25 offsets that were written off",
    ]
    assert [*closed[0]] == ["group", "range", "offsets", "state", "written_off"]


def test_metadata_of_a_range_that_is_written_off():
    """The event of ``kafka-liveness write-off``, and that of a partition whose earlier rows are kept."""
    key = dg.AssetKey("orders_crash_lag")
    asked = forgive.ForgiveRequest(
        "orders-etl", "no JSON", (PENDING,), expired=(PENDING,), kept_keys=("p3:orders:10-20",)
    )
    with dg.DagsterInstance.ephemeral() as instance:
        audit = forgive.DagsterRecord(instance, key)
        audit.write(asked, "written off")
        audit.close(asked)
        [observed] = instance.fetch_observations(key, limit=9).records
        [closed] = instance.fetch_materializations(key, limit=9).records
    signature_ = ["group", "range", "offsets", "written_off_by", "written_off_at", "reason"]
    assert [*observed.asset_observation.metadata] == [*signature_, "expired_offsets"]
    assert [*closed.asset_materialization.metadata] == [*signature_, "state"]
    assert closed.asset_materialization.metadata["state"].value == "closed, earlier rows kept"
    assert observed.asset_observation.description.startswith("50 pending offsets written off by ")


def test_metadata_of_a_topic():
    """The sensor's observation of the group on the asset of a topic."""
    with dg.DagsterInstance.ephemeral() as instance:
        [found] = group_observations(
            "orders-etl",
            ["orders"],
            look(instance),
            [CRASHED, MemberJoined("0000beef", ()), MemberJoined("kcat at 10.0.0.7", (), is_foreign=True)],
            failed=["on_event failed"],
            windows="complete to 10:00",
        )
    assert [*found.metadata] == [
        "group", "lag", "pending_offsets", "unexpected_departures", "partitions", "state", "members",
        "events", "departures", "joined", "windows", "external_commits", "member_table", "sensor_errors",
        "run 0badcafe",
    ]  # fmt: skip
    assert found.metadata["departures"].value == [{"run": RUN[:8], "reason": "crashed"}]
    assert found.metadata["joined"].value == ["0000beef"]
    assert columns(found.metadata["partitions"]) == {
        "partition": "string", "committed": "string", "log_end": "string", "lag": "string",
        "pending": "string", "last_commit_by_run": "string", "owner_state": "string",
    }  # fmt: skip
    assert columns(found.metadata["member_table"]) == {
        "member": "string", "state": "string", "partitions": "string", "static": "bool",
    }  # fmt: skip
    assert "unexpected_departures" not in group_metadata("orders-etl", [], [])


def test_metadata_of_a_window(asset):
    """A complete hour, and records that came late."""
    assert [*window_metadata("orders-etl", [PENDING])] == ["group", "offsets", "ranges"]
    windows = asset.settings.windows
    watch = WindowMaterializer(windows=windows, group_id="orders-etl", target="lake.shop.orders")
    window = windows.window_at(windows.begin + 1)
    event = watch._materialization(
        window, JudgedWindow(next(iter(WindowStatus)), (PENDING,), written_off=5), window.end
    )
    assert [*event.metadata] == [
        "group", "offsets", "ranges", "complete_at", "late_records", "written_off_offsets",
    ]  # fmt: skip
    assert [*late_metadata("orders-etl", 5, 2, [PENDING])] == [
        "group", "late_records", "late_records_of_batch", "late_ranges",
    ]  # fmt: skip


def test_metadata_of_maintenance():
    """What the maintenance of a table reports."""
    figures = TableStatistics(8, 800, 0, 2, 1)
    assert [*maintenance._before_and_after(figures, figures, 0)] == [
        "files", "bytes", "delete_files", "manifests", "snapshots", "commit_conflicts",
    ]  # fmt: skip
    work = SimpleNamespace(
        policy=lambda: SimpleNamespace(allows_delete=True),
        expire=lambda *_, **__: None,
        remove_orphans=lambda *_, **__: 3,
    )
    assert [*maintenance._delete(work, kl.Maintenance())] == ["orphan_files_removed"]
    kept = SimpleNamespace(policy=lambda: SimpleNamespace(allows_delete=False))
    assert [*maintenance._delete(kept, kl.Maintenance())] == ["not_deleted"]


DEAD_LETTERS = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp": "timestamp",
    "error": "string",
    "run_id": "string",
}
"""The columns of a table of dead letters.

tests/integration/test_dead_letters.py compares their types with a real table.
"""


def test_columns_of_dead_letters():
    """Their order, and the types that this package decides; the others are of Spark's Kafka source."""
    assert dead_letters.SUFFIX == "_dead_letters"
    assert [*KEY_COLUMNS, *dead_letters._RECORD_COLUMNS, *dead_letters._ERROR] == [*DEAD_LETTERS]
    ours = {field.name: field.dataType.simpleString() for field in dead_letters._ERRORS}
    assert ours.items() <= DEAD_LETTERS.items()


NEEDED, STOPPED = Parameter.empty, dg.DefaultSensorStatus.STOPPED
GROUPS = {
    "completeness": kl.Completeness, "batching": kl.Batching, "crash_lag": kl.CrashLag, "offsets": kl.Offsets,
    "membership": kl.Membership, "sensor": kl.Sensor, "sla": kl.Sla, "iceberg": kl.Iceberg,
    "maintenance": kl.Maintenance, "resources": kl.ResourceKeys,
}  # fmt: skip
SETTINGS = {
    "completeness": {
        "start": None, "timezone": "UTC", "allowed_lateness_seconds": 60.0, "reopen_on_late": False,
        "mark_empty": True,
    },
    "batching": {
        "allocation": "fair", "commit_interval_seconds": 0.0, "max_batch_bytes": None, "in_flight": None,
        "on_slow_record": "raise", "on_bad_record": "raise", "max_dead_letters": 20,
    },
    "crash_lag": {
        "min_offsets": 1, "max_ranges": None, "auto_catch_up": False, "max_age_seconds": None,
        "backfill_policy": None,
    },
    "offsets": {"auto_offset_reset": "earliest", "on_data_loss": "raise", "on_missing_rows": "raise"},
    "membership": {"liveness": "poll", "group_instance_id": None},
    "sensor": {
        "max_live_runs": 1, "minimum_interval_seconds": 3, "default_status": STOPPED, "on_event": None,
        "event_jobs": (), "max_lag": None, "ghost_after_seconds": 120.0, "fail_ghost_runs": False,
    },
    "sla": {"fresh_seconds": None, "complete_minutes": None},
    "iceberg": {
        "snapshots": "overwrite", "partition_by": ("topic", "partition"), "sort_by": (),
        "table_properties": {},
    },
    "maintenance": {
        "cron_schedule": "17 * * * *", "default_status": dg.DefaultScheduleStatus.STOPPED, "min_files": 20,
        "max_snapshot_age_seconds": 432_000.0, "max_snapshots": 1_000, "orphan_file_age_seconds": 259_200.0,
    },
    "resources": {"kafka": "kafka", "spark": "spark"},
}  # fmt: skip
WORDS = {
    "complete_every": ("15min", "1h", "1d"),
    "max_poll_records": ("auto",),
    "batching.allocation": ("fair", "greedy"),
    "batching.on_slow_record": ("raise", "quarantine"),
    "batching.on_bad_record": ("raise", "dead_letter"),
    "offsets.auto_offset_reset": ("earliest", "latest", "error"),
    "offsets.on_data_loss": ("raise", "write_off"),
    "offsets.on_missing_rows": ("raise", "crash_lag"),
    "membership.liveness": ("poll", "progress"),
    "iceberg.snapshots": ("overwrite", "append"),
}
MADE = {name: group() for name, group in GROUPS.items()}
ASSET = {
    "topics": NEEDED, "group_id": NEEDED, "table": None, "sink": None, "name": None,
    "max_poll_records": 100_000, "max_batch_seconds": None, "enable_parallel_rebalance": False,
    "idle_seconds": 10.0, "materialize_interval_seconds": 60.0, "include_headers": False,
    "complete_every": None, **MADE, "group_name": None,
}  # fmt: skip
OF_DAGSTER = {
    "key_prefix", "description", "owners", "tags", "metadata", "kinds", "deps", "automation_condition",
    "freshness_policy", "code_version", "retry_policy", "op_tags", "pool", "run_tags",
}  # fmt: skip
SECURITY = {
    "security_protocol": "PLAINTEXT", "sasl_mechanism": None, "sasl_username": None, "sasl_password": None,
    "ssl_ca_location": None, "ssl_certificate_location": None, "ssl_key_location": None,
    "ssl_key_password": None, "ssl_endpoint_identification_algorithm": "https",
    "sasl_oauthbearer_client_id": None, "sasl_oauthbearer_client_secret": None,
    "sasl_oauthbearer_token_endpoint_url": None, "sasl_oauthbearer_scope": None,
    "sasl_oauthbearer_extensions": None, "https_ca_location": None,
}  # fmt: skip
RESOURCES = {
    kl.KafkaLivenessResource: {
        **SECURITY, "bootstrap_servers": "embedded", "session_timeout_seconds": None,
        "heartbeat_interval_seconds": None, "group_protocol": "classic", "default_max_batch_seconds": 300.0,
        "extra": {},
    },
    kl.SparkConnectResource: {"remote": "embedded", "ui_url": None, "connect_timeout_seconds": 120.0},
    kl.SchemaRegistryResource: {"username": None, "password": None, "ssl_ca_location": None},
}  # fmt: skip
CALLS = {
    kl.KafkaLivenessResource.consumer: {
        "topics": NEEDED, "group_id": NEEDED, "context": None, "max_poll_records": None,
        "max_batch_seconds": None, "enable_parallel_rebalance": False, "batching": kl.Batching(),
        "crash_lag": kl.CrashLag(), "offsets": kl.Offsets(), "membership": kl.Membership(),
    },
    kl.KafkaLivenessResource.catch_up: {
        "group_id": NEEDED, "ranges": NEEDED, "reprocess": (), "context": None, "max_poll_records": 500,
        "max_batch_seconds": None, "offsets": kl.Offsets(),
    },
    kl.build_group_sensor: {
        "name": NEEDED, "group_id": NEEDED, "topics": NEEDED, "live_job": NEEDED, "crash_lag": NEEDED,
        "crash_lag_job": None, "sensor": kl.Sensor(), "checks": None, "table": None, "windows": None,
        "resources": kl.ResourceKeys(),
    },
}  # fmt: skip


def defaults(call):
    """The keywords of a function with their defaults; ``ledger`` is Python's alone."""
    found = {one.name: one.default for one in signature(call).parameters.values()}
    return {name: default for name, default in found.items() if name not in ("self", "ledger", "of_dagster")}


def words(annotation):
    """The texts that a field allows."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(word for part in get_args(annotation) for word in words(part))


def test_settings():
    """Each group of settings, its fields and defaults; the texts that a field allows."""
    classes = {name: KafkaAssetSettings.group(name) for name in KafkaAssetSettings.model_fields}
    groups = {
        name: group
        for name, group in classes.items()
        if group is not None and issubclass(group, SettingsGroup)
    }
    assert groups == GROUPS
    assert {
        name: {f: one.default for f, one in group.model_fields.items()} for name, group in groups.items()
    } == (SETTINGS)
    assert [group.__name__ for group in groups.values()] == [
        "Completeness", "Batching", "CrashLag", "Offsets", "Membership", "Sensor", "Sla", "Iceberg",
        "Maintenance", "ResourceKeys",
    ]  # fmt: skip
    fields = {
        f"{name}.{field}": words(one.annotation)
        for name, group in groups.items()
        for field, one in group.model_fields.items()
    }
    fields |= {
        name: words(kl.KafkaAssetComponent.model_fields[name].annotation) for name in ASSET if name != "sink"
    }
    assert {name: allowed for name, allowed in fields.items() if allowed} == WORDS


def test_declarations():
    """The keywords of ``kafka_asset``, the attributes of the component, and the fields of the resources."""
    assert defaults(kl.kafka_asset) == ASSET
    assert kl.AssetArguments.__annotations__.keys() == {*OF_DAGSTER, "ins", "hooks"}
    assert kl.KafkaAssetComponent.model_fields.keys() == {
        *ASSET,
        *OF_DAGSTER,
        "sql",
        "transform",
        "kafka",
        "spark",
    }
    for resource, expected in RESOURCES.items():
        found = {
            name: one.get_default(call_default_factory=True)
            for name, one in resource.model_fields.items()
            if not one.is_required()
        }
        assert (resource.__name__, found) == (resource.__name__, expected)
    assert [name for name, one in kl.SchemaRegistryResource.model_fields.items() if one.is_required()] == [
        "url"
    ]
    for call, expected in CALLS.items():
        assert (call.__name__, defaults(call)) == (call.__name__, expected)


KAFKA = ("--bootstrap-servers", "--command-config")
COMMANDS = {
    "": ("--version",),
    "adopt": ("GROUP", "TABLE", "--topic", *KAFKA, "--spark", "--yes", "--json"),
    "audit": ("GROUP", "--topic", "--table", "--sink", *KAFKA, "--spark", "--deep", "--json"),
    "demo": ("--json-file", "--keep", "--json"),
    "doctor": (
        *KAFKA, "--spark", "--group", "--probe-catalog", "-m", "--module-name", "-f", "--python-file",
        "--strict", "--json",
    ),
    "down": ("--json",),
    "init": ("NAME", "--topic", "--table", "--group", "--json"),
    "health": (
        "GROUP", "--topic", "--max-lag", "--max-pending", "--allow-no-member", "--json", *KAFKA,
    ),
    "jars": ("--json",),
    "move": ("GROUP", "TABLE", *KAFKA, "--json"),
    "produce": (
        "TOPIC", "[FILE]", "--json-lines", "--key", "--key-separator", "--rate", "--json", *KAFKA,
    ),
    "replay": ("GROUP", "--from", "--to", "--topic", "--asset", "--allow-expired", *KAFKA, "--json"),
    "report": (
        "GROUP", "--since", "--until", "--topic", "--table", "--fresh-seconds", "--complete-minutes", "-m",
        "--module-name", "-f", "--python-file", *KAFKA, "--spark", "--html", "--json",
    ),
    "start": (
        "GROUP", "--from-group", "--from-checkpoint", "--from-file", "--topic", *KAFKA, "--yes", "--json",
    ),
    "status": (
        "GROUP", "--topic", *KAFKA, "--table", "--spark", "--json", "--prometheus", "--by-partition",
        "--watch",
    ),
    "timeline": (
        "--session", "--poll-interval", "--stall", "--protocol", *KAFKA, "--json-file", "--svg-file",
        "--json",
    ),
    "topic": (),
    "topic create": ("NAME", "--partitions", "--replication-factor", "--config", "--json", *KAFKA),
    "topic describe": ("NAME", "--json", *KAFKA),
    "topic list": ("--json", *KAFKA),
    "up": ("--kafka-port", "--spark-port", "--spark-cores", "--json"),
    "write-off": ("GROUP", "RANGE...", "--reason", "--asset", *KAFKA, "--yes", "--json"),
}  # fmt: skip
MAX_SUMMARY = 45  # characters of a command's first line: more does not fit into the list of commands


def commands(command, name=""):
    """Yield each command below this one, by its name."""
    yield name, command
    if isinstance(command, click.Group):
        for inner in command.commands:
            yield from commands(command.commands[inner], f"{name} {inner}".strip())


def names(command):
    """The arguments and flags of a command."""
    context = click.Context(command)
    options = [
        one.opts if isinstance(one, click.Option) else [one.make_metavar(context)] for one in command.params
    ]
    return tuple(name for several in options for name in several)


def test_commands():
    """Each command with its arguments and flags.

    Its summary fits into a line, and the list shows it whole.
    """
    found = dict(commands(main))
    assert {name: names(command) for name, command in found.items()} == COMMANDS
    summaries = {name: command.get_short_help_str(limit=200) for name, command in found.items() if name}
    assert {name: text for name, text in summaries.items() if len(text) > MAX_SUMMARY} == {}
    told = CliRunner().invoke(main, ["--help"]).output
    assert [text for name, text in summaries.items() if " " not in name and text not in told] == []


def test_an_alias_of_a_command_works():
    """``forgive`` is the former name of ``write-off``; the list of commands shows one of them."""
    former, now = (
        CliRunner().invoke(main, [name, "--help"], prog_name="kl").output for name in ("forgive", "write-off")
    )
    assert former.partition("\n")[0] == "Usage: kl forgive [OPTIONS] GROUP RANGE..."
    assert former.partition("\n")[2] == now.partition("\n")[2]
    assert "forgive " not in CliRunner().invoke(main, ["--help"]).output


def test_tables_of_commands():
    """The columns that ``status`` and ``audit`` print, and the words of ``status`` and ``doctor``."""
    nothing = GroupStatus("orders-etl", (), ())
    report = status_output.StatusReport(nothing, GroupRuns(), oldest_seconds={}, now_seconds=0.0)
    assert status_output._partitions_table(nothing, report.runs).columns == (
        "partition", "log", "committed", "run", "lag", "pending", "complete to", "done beyond",
    )  # fmt: skip
    columns = ("pending range", "offsets", "oldest record", "retention")
    assert status_output._pending_table(report).columns == columns
    skipped = GroupRuns(pending_reasons=(PendingReason(PENDING, PendingCause.SKIPPED),))
    by_dagster = status_output.StatusReport(nothing, skipped, oldest_seconds={}, now_seconds=0.0)
    assert status_output._pending_table(by_dagster).columns == (*columns, "why")
    assert status_output._members_table(nothing).columns == (
        "member",
        "run",
        "host",
        "instance id",
        "partitions",
    )
    assert [*status_output._WARNING.values()] == ["about to expire", "partly expired", "expired"]
    table = audit_shown(
        GroupCertificate("orders-etl", "sink", False, snapshot_id=None, partitions=())
    ).renderables[0]
    assert [str(column.header) for column in table.columns] == [
        "partition", "log", "from", "committed", "in table", "pending", "written off", "missing",
        "written twice",
    ]  # fmt: skip
    assert [one.value for one in Outcome] == ["ok", "warn", "FAIL", "?"]


def test_checks_of_the_doctor():
    """The name of each check, by the list of rules that has it."""
    found = {
        name: [rule.check for rule in rules]
        for module in (kafka_rules, spark_rules, dagster_rules)
        for name, rules in vars(module).items()
        if isinstance(rules, tuple) and rules and isinstance(rules[0], Rule)
    }
    assert found == {
        "CLUSTER": [
            "agreement", "sessions", "commit metadata", "offsets retention", "elections", "auto creation",
        ],
        "OFFSETS_TOPIC": ["offsets topic"],
        "GROUP": ["sessions"],
        "BACKLOG": ["expiry"],
        "TOPIC": ["retention", "size", "backlog", "elections", "clock", "reads"],
        "SERVER": [
            "version", "kafka connector", "iceberg", "extensions", "detached work", "progress",
            "fetched records", "scheduler", "time zone", "clock",
        ],
        "CATALOG": ["cache", "commits"],
        "INSTANCE": [
            "monitoring", "queue", "limits", "pools", "retries", "storage", "threads", "ticks", "daemon",
        ],
        "LOCATION": ["executor", "sensors", "period"],
    }  # fmt: skip
