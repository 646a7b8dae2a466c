"""Each name that machines store: commits, summaries, tags, cursors, state files, environment, ``--json``.

A name here changes only together with a new version of its format: text under the old name outlives the
upgrade.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.tags import TagType, get_tag_type
from dagster._utils.tags import normalize_tags

import kafka_liveness_dagster
from definitions.timeline.events import Recording, Scenario, TimelineEvent, What
from definitions.timeline.verdict import judge_recording
from kafka_liveness_dagster.audit.certificate import GroupCertificate, PartitionCertificate
from kafka_liveness_dagster.audit.rows import OffsetRun, RowComparison
from kafka_liveness_dagster.cli.audit_command import certificate_as_json
from kafka_liveness_dagster.cli.health_command import health_as_json
from kafka_liveness_dagster.cli.report_output import report_as_json
from kafka_liveness_dagster.cli.status_output import StatusReport
from kafka_liveness_dagster.core.commit_metadata import (
    CATCH_UP_SUFFIX,
    CatchUpCommitMetadata,
    ExternalCommit,
    GroupOrigin,
    LiveCommitMetadata,
    OwnerState,
)
from kafka_liveness_dagster.core.departures import GroupState
from kafka_liveness_dagster.core.event_detection import SeenMember, SensorMemory
from kafka_liveness_dagster.core.events import LeaveReason
from kafka_liveness_dagster.core.fencing import FenceReason, FenceReport
from kafka_liveness_dagster.core.freshness import ServiceLevel
from kafka_liveness_dagster.core.group_verdict import GroupRuns, LiveRun, PendingCause, PendingReason
from kafka_liveness_dagster.core.health import OpenTransaction, Severity, Verdict
from kafka_liveness_dagster.core.ledger import ALL_OFFSETS, LedgerEntry, encode_entries
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.orphaned_runs import Absence
from kafka_liveness_dagster.core.partition_keys import current_key, is_replay, parse_key
from kafka_liveness_dagster.core.partition_snapshot import Expiry, PartitionSnapshot
from kafka_liveness_dagster.core.partition_state import PartitionState
from kafka_liveness_dagster.core.process_status import HeartbeatTag, Process, ProcessNamespace
from kafka_liveness_dagster.core.report import Backfill, Departure, GroupHistory, Report
from kafka_liveness_dagster.core.run_ids import instance_id_for_run
from kafka_liveness_dagster.core.sink_ledger import LedgerCommit
from kafka_liveness_dagster.doctor.rules import FAIL, Finding, Outcome
from kafka_liveness_dagster.embedded import processes, state
from kafka_liveness_dagster.embedded.jars import jars_folder
from kafka_liveness_dagster.embedded.services import Services
from kafka_liveness_dagster.failpoints import Failpoint
from kafka_liveness_dagster.kafka.group_description import MemberDescription
from kafka_liveness_dagster.kafka.group_status import GroupStatus, MemberStatus, PartitionStatus
from kafka_liveness_dagster.runs import tags
from kafka_liveness_dagster.runs.run_context import run_context_of
from kafka_liveness_dagster.sensor.checks import StoredResults
from kafka_liveness_dagster.sensor.cursor import GroupCursor, WindowProgress
from kafka_liveness_dagster.spark.table import commits, ledger
from kafka_liveness_dagster.telemetry.metrics import METRICS

AT, RUN = TopicPartition("orders", 3), "0badcafe"
ORIGIN = GroupOrigin(0, "2Mq71qnKT1ul7FBvra2xew")
HIDDEN = ".dagster/kafka_liveness."
SOURCES = {
    path: path.read_text(encoding="utf-8")
    for path in Path(kafka_liveness_dagster.__file__).parent.rglob("*.py")
}


def in_sources(pattern):
    """All that the package has of a form, without doctests."""
    lines = (line for text in SOURCES.values() for line in text.splitlines() if ">>>" not in line)
    return {found for line in lines for found in re.findall(pattern, line)}


def names(found):
    """The names of a JSON object and of those in it, with dots between them."""
    if isinstance(found, list):
        return {name for one in found for name in names(one)}
    if not isinstance(found, dict):
        return set()
    return {name for key, value in found.items() for name in (key, *(f"{key}.{one}" for one in names(value)))}


# --- Kafka --------------------------------------------------------------------------------------------------


def test_the_metadata_of_both_commit_logs():
    """``kl1`` is the version of the format; a group that cannot ask a table writes ``@-``."""
    live = LiveCommitMetadata(
        OwnerState.RUNNING, RUN, (Span(70, 120), Span(140, 190)), reprocess=Span(0, 120), origin=ORIGIN
    )
    assert live.encode() == "kl1 running 0badcafe 2Mq71qnKT1ul7FBvra2xew@0 70-120,140-190 reprocess 0-120"
    assert (
        LiveCommitMetadata(OwnerState.RELEASED, RUN, (), reprocess=None, origin=GroupOrigin(5)).encode()
        == "kl1 released 0badcafe @5"
    )
    assert (
        LiveCommitMetadata(OwnerState.PAUSED, RUN, (Span(70, 120),)).encode()
        == "kl1 paused 0badcafe @- 70-120"
    )
    done = CatchUpCommitMetadata(
        120,
        (Span(150, 160),),
        (Span(30, 40),),
        origin=ORIGIN,
        target="lake.shop.orders",
        missing=(Span(40, 50),),
    )
    words = (
        "kl1 done 2Mq71qnKT1ul7FBvra2xew@0 150-160 written-off 30-40 missing 40-50 target lake.shop.orders"
    )
    assert done.encode() == words
    assert (CatchUpCommitMetadata(120, (Span(150, 160),)).encode(), CatchUpCommitMetadata(120).encode()) == (
        "kl1 done @- 150-160",
        "kl1 done @-",
    )
    assert CATCH_UP_SUFFIX == ".catch-up"


def test_the_ids_of_members_and_clients():
    """By them the sensor and ``status`` know the run of a member."""
    assert instance_id_for_run("0badcafe-1111", "00c0ffee") == "kafka-liveness.0badcafe-1111.00c0ffee"
    assert re.fullmatch("kafka-liveness/script/[0-9a-f]{32}", run_context_of(None).client_id)
    found = []

    @dg.op
    def orders(context):
        found.append(run_context_of(context).client_id)

    @dg.job
    def orders_job():
        orders()

    with dg.instance_for_test() as instance:
        run_id = orders_job.execute_in_process(instance=instance).run_id
    assert found == [f"dagster/orders_job/{run_id}/orders"]
    assert in_sources(r'f"\{(?:self\._)?client_id\}(/[a-z-]+)"') == {"/catch-up", "/records"}


# --- the table ----------------------------------------------------------------------------------------------


def test_the_summaries_of_snapshots():
    """The names, and the text of the ledger."""
    assert (ledger.WRITTEN_KEY, ledger.TOTAL_KEY) == ("kafka-liveness.written", "kafka-liveness.total")
    assert (ledger.TOTAL_AS_OF_KEY, commits.ATTEMPT) == (
        "kafka-liveness.total-as-of",
        "kafka-liveness.attempt",
    )
    assert in_sources('"(kafka-liveness[.][a-z-]+)"') == {"kafka-liveness.attempt", "kafka-liveness.ranges"}
    account = LedgerEntry(
        (Span(0, 70), Span(90, 120)), (Span(70, 90),), 0, topic_id=ORIGIN.topic_id, groups=frozenset({"etl"})
    )
    text = "orders/2Mq71qnKT1ul7FBvra2xew/etl 3@0:0-70,90-120!70-90"
    assert encode_entries({AT: account}) == text
    assert (
        encode_entries({AT: LedgerEntry((Span(0, 70),), unknown=ALL_OFFSETS)}, complete=False)
        == "? orders/ 3?:0-70"
    )
    assert encode_entries({AT: LedgerEntry(tuple(Span(n, n + 1) for n in range(0, 2_000, 2)))}).startswith(
        "z:eN"
    )


# --- Dagster ------------------------------------------------------------------------------------------------


def test_the_tags_of_runs():
    """Those for people are shown; the rest has the prefix that Dagster's UI hides."""
    assert tags.lane_tags("etl", "live") == {"kafka_liveness/group": "etl", "kafka_liveness/lane": "live"}
    assert tags.lane_tags("etl", "catch-up")["kafka_liveness/lane"] == "catch-up"
    assert (tags.CAUSE_TAG, tags.CAUSE_LAG) == ("kafka_liveness/started_because", "lag")
    assert tags.CAUSE_CRASH_LAG == "crash lag"
    assert (tags.WAITS_TAG, tags.STEP_TAG) == ("kafka_liveness/waiting_for", "kafka_liveness/step")
    assert tags.MAX_BATCH_SECONDS == "kafka_liveness/max_batch_seconds"
    hidden = {
        tags.CAUSE_RUN_TAG: ".dagster/kafka_liveness.started_because_of_run",
        tags.FENCED_TAG: ".dagster/kafka_liveness.fence_reason",
        tags.LEFT_TAG: ".dagster/kafka_liveness.leave_reason",
        tags.PROCESS_TAG: ".dagster/kafka_liveness.heartbeat",
        tags.AWAY_TAG: ".dagster/kafka_liveness.max_absence_seconds",
        tags.COMMITTED_TAG: ".dagster/kafka_liveness.committed",
        tags.SESSION_TAG: ".dagster/kafka_liveness.spark_session",
        tags.instance_id_tag("etl"): ".dagster/kafka_liveness.instance_id-be0a4158",
    }
    assert list(hidden) == list(hidden.values())
    assert {get_tag_type(key) for key in hidden} == {TagType.HIDDEN}
    of_package = {
        value for name, value in vars(tags).items() if name.endswith("_TAG") and "kafka_liveness" in value
    }
    shown = {tags.GROUP_TAG, tags.LANE_TAG, tags.CAUSE_TAG, tags.WAITS_TAG, tags.STEP_TAG}
    assert of_package | {tags.instance_id_tag("etl")} == shown | set(hidden)


def test_dagster_takes_the_hidden_tags_and_finds_them(recwarn):
    """In a run request, and added to a run; keys of another form are deprecated."""
    hidden = {tags.CAUSE_RUN_TAG: RUN, tags.instance_id_tag("etl"): "kafka-liveness.a.b"}
    assert normalize_tags(hidden, allow_private_system_tags=False) == hidden
    assert [str(one.message) for one in recwarn if "tag" in str(one.message)] == []
    with dg.instance_for_test() as instance:
        run = dg.DagsterRun("orders_job", tags={tags.CAUSE_RUN_TAG: RUN})
        instance.add_run(run)
        instance.add_run(dg.DagsterRun("orders_job"))
        instance.add_run_tags(run.run_id, {tags.instance_id_tag("etl"): "kafka-liveness.a.b"})
        assert [one.run_id for one in instance.get_runs(dg.RunsFilter(tags=hidden))] == [run.run_id]


def test_the_values_of_tags():
    """A reason, and whether the run is a member again; a sign of life with the process, of version 1."""
    away = FenceReport(FenceReason.POLL_TIMEOUT)
    assert (away.encode(), FenceReport(away.reason, is_back=True).encode()) == (
        "poll-timeout",
        "poll-timeout back",
    )
    worker = Process(ProcessNamespace("48df4ead", "4026531836"), 4242, 1_311_164)
    assert HeartbeatTag(RUN, 7, worker).encode() == "1 0badcafe 7 4242 1311164 48df4ead 4026531836 -"
    assert (HeartbeatTag(RUN).encode(), HeartbeatTag(RUN, has_ended=True).encode()) == (
        "1 0badcafe -",
        "1 0badcafe ended",
    )


CODES = {
    FenceReason: {
        *(
            "poll-timeout",
            "partitions-lost",
            "replaced",
            "max-runtime-reached",
            "run-canceled",
            "run-ended",
            "orphaned",
        ),
        *("closed", "brokers-unavailable", "handed-over", "interrupted"),
    },
    LeaveReason: {
        *(
            "graceful",
            "canceled",
            "poll-timeout",
            "crashed",
            "unresponsive",
            "partitions-lost",
            "brokers-unavailable",
        ),
        *(
            "interrupted",
            "unreleased",
            "static",
            "max-runtime-reached",
            "replaced",
            "unexplained",
            "external-client",
        ),
        "other-instance",
    },
    What: {
        *(
            "consumer-created",
            "poll-called",
            "batch-polled",
            "commit-refused",
            "batch-committed",
            "join-sent",
        ),
        *("heartbeat-sent", "leave-sent", "fenced", "member-seen", "group-empty"),
    },
}


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
def test_the_codes_of_enums(kind):
    """Tags, cursors, run keys and timelines hold them; their order means nothing."""
    assert {one.code for one in kind} == CODES[kind]


def test_the_values_of_enums():
    """Those that are stored by their value."""
    assert {one.value for one in GroupState} == {"stable", "rebalancing", "empty", "dead"}
    assert {one.value for one in Expiry} == {"safe", "about to expire", "partly expired", "expired"}
    assert {one.value for one in Failpoint} == {
        *("after_join", "after_token_commit", "after_plan", "after_table_commit", "after_offset_commit"),
        "before_materialization",
    }


def test_the_cursor_of_the_sensor():
    """All of its fields."""
    memory = SensorMemory(
        GroupState.STABLE,
        {
            "1": SeenMember(RUN),
            "2": SeenMember("0000beef", is_of_other_instance=True),
            "3": SeenMember("kcat", is_foreign=True),
        },
        {"00000001": LeaveReason.CRASHED, "00000002": LeaveReason.CRASHED},
        assignment_hash="00c0ffee",
        rebalancing_since=5.0,
        absent_runs={"00000003": Absence(6, 7, 8, is_reported=True)},
        forgotten_ranges=("p3:orders:70-120",),
        last_tick_at=9.0,
    )
    windows = WindowProgress(
        done_until=1.0, watched_since=2.0, last_late_event=3, identity="hour", first_window_start=4.0
    )
    written = GroupCursor.of(
        memory,
        observed_at=10.0,
        started_at=11,
        event_count=12,
        checks=StoredResults("lag passed, retention WARN", 13.0, {"lag": "0badf00d"}, 16.0),
        checked_materialization=14,
        pending_hash=15,
        told=windows,
    )
    assert json.loads(written.encode()) == {
        "observed_at": "1970-01-01T00:00:10Z",
        "started_at": "1970-01-01T00:00:11Z",
        "event_count": 12,
        "check_outcomes": "lag passed, retention WARN",
        "checks_stored_at": "1970-01-01T00:00:13Z",
        "check_facts": {"lag": "0badf00d"},
        "check_facts_stored_at": "1970-01-01T00:00:16Z",
        "checked_materialization": 14,
        "pending_hash": 15,
        "windows_done_until": "1970-01-01T00:00:01Z",
        "windows_watched_since": "1970-01-01T00:00:02Z",
        "last_late_event": 3,
        "windows_identity": "hour",
        "first_window_start": "1970-01-01T00:00:04Z",
        "group_state": "stable",
        "member_runs": {"1": RUN},
        "other_instance_runs": {"2": "0000beef"},
        "external_members": {"3": "kcat"},
        "reported_departures": {"crashed": "00000001 00000002"},
        "assignment_hash": "00c0ffee",
        "rebalancing_since": "1970-01-01T00:00:05Z",
        "absent_runs": {"00000003": [6, 7, 8, True]},
        "forgotten_ranges": ["p3:orders:70-120"],
        "last_tick_at": "1970-01-01T00:00:09Z",
    }
    assert set(json.loads(written.encode())) == set(GroupCursor.model_fields)


@pytest.mark.parametrize(
    ("key", "current"),
    [
        ("p3:orders:70-120", "p3:orders:70-120"),
        ("p3:orders:70-120@2", "p3:orders:70-120@2"),
        ("p3:orders:70-120@replay-20261122T100000Z", "p3:orders:70-120@replay-20261122T100000Z"),
        # Of earlier versions: Dagster keeps them
        ("orders:3:70-120", "p3:orders:70-120"),
        ("orders:3:70-120@2", "p3:orders:70-120@2"),
        ("orders:3:70-120@replay-20261122T100000Z", "p3:orders:70-120@replay-20261122T100000Z"),
    ],
)
def test_the_keys_of_crash_lag_partitions(key, current):
    """The range, how often it was pending, or when a replay was requested."""
    assert (str(parse_key(key)), current_key(key)) == ("p3:orders:70-120", current)
    assert is_replay(key) is ("replay" in key)


# --- this machine -------------------------------------------------------------------------------------------


def test_the_state_of_the_embedded_services(tmp_path, monkeypatch):
    """Folder, files, fields, and the option by which a process is found again."""
    monkeypatch.delenv("KAFKA_LIVENESS_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert state.home_folder() == tmp_path / ".kafka_liveness"
    state.create_home(state.home_folder())
    state.write_state(
        state.home_folder(), {"kafka": state.StartedService(9092, 7, "00c0ffee", ready=True, token="t")}
    )
    state.mark_down(state.home_folder(), down=True)
    files = {
        ".gitignore",
        "services.lock",
        "services.json",
        "catalog.db",
        "kafka",
        "spark",
        "logs",
        "warehouse",
        "down",
    }
    assert {path.name for path in state.home_folder().iterdir()} == files
    stored = json.loads((state.home_folder() / "services.json").read_text())
    fields = {"port": 9092, "pid": 7, "process_marker": "00c0ffee", "ready": True, "token": "t"}
    assert stored == {"kafka": fields}
    assert processes.process_marker_option("00c0ffee") == "-Dkafka_liveness.process_marker=00c0ffee"
    monkeypatch.delenv("KAFKA_LIVENESS_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jars_folder() == tmp_path / "kafka-liveness" / "jars"


def test_the_variables_of_the_environment():
    """All that the package reads under its own name."""
    assert in_sources(r"\bKAFKA_LIVENESS_[A-Z_]+\b") == {
        "KAFKA_LIVENESS_FAILPOINT",
        "KAFKA_LIVENESS_HIDE_VALUES",
        "KAFKA_LIVENESS_HOME",
        "KAFKA_LIVENESS_IVY_SETTINGS",
        "KAFKA_LIVENESS_JARS",
        "KAFKA_LIVENESS_METRICS_BY_PARTITION",
        "KAFKA_LIVENESS_SPARK_CONF",
        "KAFKA_LIVENESS_START_SECONDS",
    }


def test_the_spans_of_a_trace():
    """Names of spans, and attributes of the package's own."""
    phases = in_sources(r'phases(?:\.add_before)?\("([a-z ]+)"')
    assert phases == {"poll", "transform", "write", "commit", "dead letters"}
    assert in_sources(r'trace\(f"(\w+) ') == {"process"}
    names = in_sources(r'"(kafka_liveness[.]batch[.]\w+)"')
    assert names - {metric.name for metric in METRICS} == {
        "kafka_liveness.batch.ranges",
        "kafka_liveness.batch.offsets",
    }


# --- ``--json`` ---------------------------------------------------------------------------------------------


def test_status_as_json():
    """``kafka-liveness status --json``."""
    mark, log = (
        LiveCommitMetadata(OwnerState.RUNNING, RUN, (Span(70, 120),)),
        CatchUpCommitMetadata(70, (Span(80, 90),)),
    )
    seen = PartitionSnapshot(
        AT, 120, mark, log_end=190, outstanding=(Span(90, 120),), missing_rows=(Span(0, 5),)
    )
    member = MemberDescription(
        "m-1", "dagster/orders_job/0badcafe-1111/orders", "/10.0.0.7", partitions=(AT,)
    )
    found = GroupStatus(
        "etl",
        (PartitionStatus(seen, log, (ExternalCommit("second", 5, "theirs"),)),),
        (MemberStatus(member, (RUN,)),),
        open_transactions=(OpenTransaction(AT, 190, 10, 3.0),),
    )
    assert found.as_json() == {
        "group": "etl",
        "catch_up_group": "etl.catch-up",
        "source": "commit logs",
        "lag": 70,
        "pending_offsets": seen.pending_offsets,
        "members": [
            {
                "client_id": "dagster/orders_job/0badcafe-1111/orders",
                "member_id": "m-1",
                "group_instance_id": None,
                "host": "/10.0.0.7",
                "runs": [RUN],
                "partitions": ["orders:3"],
            }
        ],
        "partitions": [
            {
                "topic": "orders",
                "partition": 3,
                "log_start": 0,
                "log_end": 190,
                "first_log": {"committed": 120, "owner_state": "running", "run": RUN},
                "second_log": {"watermark": 70, "done_above": [[80, 90]]},
                "external_commits": [{"log": "second", "offset": 5, "metadata": "theirs"}],
                "lag": 70,
                "committed": 0,
                "pending_offsets": seen.pending_offsets,
                "pending": [{"start": 90, "end": 120, "offsets": 30, "expiry": "safe"}],
                "missing": [[0, 5]],
            }
        ],
        "behind_open_transactions": [{"partition": "orders:3", "offset": 190, "offsets": 10, "seconds": 3.0}],
    }


def test_verdicts_as_json():
    """What ``status`` adds to the commit logs, and ``health``."""
    seen = PartitionSnapshot(
        AT, 120, LiveCommitMetadata(OwnerState.RUNNING, RUN), log_end=120, outstanding=(Span(70, 90),)
    )
    found = GroupStatus("etl", (PartitionStatus(seen, CatchUpCommitMetadata(), ()),), ())
    letter = PendingReason(OffsetRange(*AT, 75, 76), PendingCause.BAD_RECORD, "X: no")
    runs = GroupRuns(live=(LiveRun(RUN, "0badcafe-1111", 4242),), pending_reasons=(letter,))
    report = StatusReport(
        found, runs, oldest_seconds={OffsetRange(*AT, 70, 90): 1.0}, now_seconds=41.0
    ).as_json()
    assert set(report) - set(found.as_json()) == {"well", "begun", "problems", "next_steps", "live_runs"}
    [partition] = report["partitions"]
    assert report["live_runs"] == [{"run": RUN, "run_id": "0badcafe-1111", "pid": 4242}]
    assert partition["first_log"]["run_state"] == "running"
    assert partition["pending"] == [
        {
            "start": 70,
            "end": 90,
            "offsets": 20,
            "expiry": "safe",
            "oldest_record_at": "1970-01-01T00:00:01.000+00:00",
            "age_seconds": 40.0,
            "why": "dead letter: X: no",
        }
    ]
    health = health_as_json("etl", [Verdict(Severity.FINE, "members: 1")], is_well=True, not_begun="")
    assert health == {
        "group": "etl",
        "well": True,
        "begun": True,
        "problems": [],
        "checks": [{"severity": "fine", "message": "members: 1", "numbers": {}}],
    }


def test_audit_as_json():
    """``kafka-liveness audit --json``."""
    facts = PartitionState(
        120,
        LiveCommitMetadata(OwnerState.RELEASED, RUN, origin=GroupOrigin(0)),
        0,
        log_end=120,
        external_live_commit=ExternalCommit("first", 5, "theirs"),
    )
    stretch = (OffsetRun(0, 4, 2),)
    rows = RowComparison(7, stretch, stretch, without_rows=stretch, doubled=stretch)
    one = PartitionCertificate(AT, facts, rows=rows)
    write = LedgerCommit(
        7, "2026-11-22 10:00:00", "append", added_rows=63, deleted_rows=0, text="orders/ 3@0:0-70"
    )
    found = certificate_as_json(
        GroupCertificate("etl", "lake.shop.orders", True, snapshot_id=7, partitions=(one,), history=(write,))
    )
    spans = {
        *(
            "in_table",
            "pending",
            "pending_expired",
            "written_off",
            "missing",
            "by_commits_only",
            "uncommitted",
        ),
        "rewritten",
    }
    assert set(found) == {
        *("group", "target", "is_table", "certified", "sentence", "snapshot_id", "partitions", "snapshots"),
        *(f"{name}_offsets" for name in spans),
    }
    [partition] = found["partitions"]
    assert set(partition) == spans | {
        *(
            "topic",
            "partition",
            "topic_id",
            "certified",
            "sentence",
            "start",
            "committed",
            "log_start",
            "log_end",
        ),
        *("external_commits", "ledger_complete", "missing_is_forgotten", "rows"),
    }
    findings = {"outside", "unrecorded", "without_rows", "doubled"}
    of_stretches = {f"{name}.{one}" for name in findings for one in ("start", "end", "offsets")}
    assert names(partition["rows"]) == {"rows", "compacted"} | findings | of_stretches
    assert found["snapshots"] == [
        {
            "snapshot_id": 7,
            "parent_id": None,
            "committed_at": "2026-11-22 10:00:00",
            "operation": "append",
            "added_rows": 63,
            "deleted_rows": 0,
            "written": ["p3:orders:0-70"],
        }
    ]


def test_the_other_commands_as_json():
    """``doctor``, ``up``, ``topic describe`` and ``timeline``."""
    finding = {"area": "kafka", "check": "sessions", "outcome": "fail", "message": "70", "fix": "120"}
    assert Finding("kafka", "sessions", FAIL("70", "120")).as_json() == finding
    assert {one.name.lower() for one in Outcome} == {"ok", "warn", "fail", "unknown"}
    assert in_sources(r'json\.dumps\(\{\*\*\w+, "(\w+)": ') == {"findings"}
    up = {"bootstrap_servers", "spark_remote", "catalog_uri", "warehouse", "catalog_name"}
    assert set(Services.__dataclass_fields__) == up
    assert in_sources(r'json\.dumps\((\{"topic": .*\})\)') == {
        '{"topic": name, "topic_id": topic_id, "partitions": logs, "config": config}',
        '{"topic": name, "partitions": count}',
    }
    told = Recording(
        Scenario("classic", 10, 60, 180), (TimelineEvent(0.0, What.BATCH_POLLED, "p3:orders:70-100"),)
    )
    assert names(told.as_json()) == {
        *("scene", "scene.protocol", "scene.session", "scene.poll_interval", "scene.stall"),
        *("events", "events.seconds", "events.source", "events.event", "events.detail"),
    }
    figures = (
        "heartbeats_while_stalled",
        "longest_silence",
        "left_after",
        "gone_after",
        "rejoined_after",
        "replayed",
    )
    assert names(judge_recording(told).as_json()) == {
        "holds",
        "broken",
        "figures",
        *(f"figures.{one}" for one in figures),
    }


def test_the_json_of_the_report():
    """``kafka-liveness report --json``."""
    history = GroupHistory(
        "orders-etl",
        0.0,
        60.0,
        known_since=0.0,
        steps={},
        departures=[Departure(5.0, RUN, LeaveReason.POLL_TIMEOUT)],
        backfills=[Backfill(7.0, 9.0, RUN, "SUCCESS")],
        notes=["a fact is missing"],
    )
    found = report_as_json(Report(history, ServiceLevel(30.0, 900.0)))
    one_of_each = {
        **found,
        "points": found["points"][0],
        **{name: found[name][0] for name in ("incidents", "backfills")},
    }
    assert names(one_of_each) == {
        *("group", "since", "until", "known_since", "verdict", "summary", "sla", "sla.fresh_seconds"),
        *("sla.complete_seconds", "within_sla", "within_fresh_limit", "within_complete_limit"),
        *("missed_seconds", "missed_seconds_without_incident", "known_seconds", "max_seconds_behind"),
        *("pending_offsets", "live_commits", "crashes", "fences", "fresh_limit_missed"),
        *("complete_limit_missed", "unknown", "notes", "incidents", "backfills", "points"),
        *(f"{many}.{one}" for many, ones in OF_THE_REPORT.items() for one in ones),
    }
    assert found["incidents"][0]["reason"] == "poll-timeout"


OF_THE_REPORT = {
    "incidents": (
        *("at", "run", "reason", "is_crash", "resumed_after_seconds", "unread_after_seconds"),
        *("skipped_offsets", "pending_offsets"),
        *("caught_up_after_seconds", "fresh_missed_seconds", "complete_missed_seconds", "missed_seconds"),
    ),
    "backfills": ("start", "end", "run", "status"),
    "points": (
        *("at", "seconds_behind", "lag", "pending_offsets", "pending_age_seconds", "live_rows"),
        "backfilled_rows",
    ),
}
