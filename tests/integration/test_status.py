"""``kafka-liveness status`` and ``write-off`` on a real broker: what they tell, and what they leave alone."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import sys
from dataclasses import replace
from io import StringIO
from uuid import uuid4

import dagster as dg
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from prometheus_client.parser import text_string_to_metric_families

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli import status_output
from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.core.process_status import HeartbeatTag
from kafka_liveness_dagster.core.run_ids import short_run_id
from kafka_liveness_dagster.kafka.group_status import group_status
from kafka_liveness_dagster.runs import proc
from kafka_liveness_dagster.runs.tags import PROCESS_TAG, lane_tags
from kafka_liveness_dagster.sensor.observation import GroupObservation
from kafka_liveness_dagster.telemetry.metrics import GROUP, PARTITION, TOPIC, prometheus_name
from tests.integration.kafka_group import NO_SPARK, join
from tests.waiting import wait_for


@pytest.fixture
def run(services):
    """Run a command of ``kafka-liveness`` against the test's broker, in a pipe."""

    def invoke(*words, answer=None):
        return CliRunner().invoke(
            main, [*map(str, words), "--bootstrap-servers", services.bootstrap_servers], input=answer
        )

    return invoke


@pytest.fixture(autouse=True)
def _no_dagster(monkeypatch):
    monkeypatch.delenv("DAGSTER_HOME", raising=False)


@pytest.fixture
def owing(crashed):
    """The live lane came back at 120, owes 70-120 and left in good order."""
    with crashed.live() as consumer:
        join(crashed, consumer)
    return crashed


def logs(w):
    """Both logs as the broker has them."""
    return [w.kafka.cluster().commits(group, [w.tp]) for group in (w.group, f"{w.group}.catch-up")]


def commit_by_another_program(w, group, offset, metadata):
    other = Consumer({"bootstrap.servers": w.kafka.bootstrap_servers, "group.id": group})
    other.commit(offsets=[KafkaTopicPartition(w.topic, 3, offset, metadata)], asynchronous=False)
    other.close()


def partition_3(w, run):
    told = run("status", w.group, "--json")
    assert told.exit_code in {0, 1}, told.output
    assert told.stdout, told.stderr
    found = json.loads(told.stdout)
    assert found["well"] is (told.exit_code == 0)
    return found["partitions"][3]


# --- health -------------------------------------------------------------------------------------------------


def test_a_probe_hears_what_is_wrong_by_the_exit_code(crashed, run):
    """No member and lag; a member and pending ranges; more pending offsets than the limit; all on stdout."""
    w = crashed
    nobody = run("health", w.group)
    assert (nobody.exit_code, nobody.stderr) == (1, "")
    assert nobody.stdout.startswith(
        f"group {w.group} is not well: 1 of 4 checks failed\nFAIL the group has 50 off"
    )
    assert "and no member. Fix: turn on the group's sensor, or launch its live job" in nobody.stdout
    assert run("health", w.group, "--allow-no-member").exit_code == 0
    assert run("health", w.group, "--allow-no-member", "--max-lag", 49).exit_code == 1
    with w.live() as consumer:
        join(w, consumer)
        well = run("health", w.group, "--max-lag", 0, "--max-pending", 50)
        assert (well.exit_code, well.stderr) == (0, "")
        assert well.stdout.splitlines()[:4] == [
            f"group {w.group} is well: 4 checks passed",
            "ok   members: 1",
            "ok   lag 0, at most max_lag=0",
            "ok   pending offsets: 50",
        ]
        too_much = run("health", w.group, "--max-pending", 49)
        assert too_much.exit_code == 1
        assert "50 offsets are pending, more than 49. Fix: materialize the partitions" in too_much.stdout
    pending = run("health", w.group, "--json")
    found = json.loads(pending.stdout)
    assert (pending.exit_code, found["well"], found["begun"]) == (1, False, True)
    assert [one["severity"] for one in found["checks"]] == ["error", "fine", "fine", "fine"]
    assert "50 offsets pending, and no member. Fix: launch a backfill" in found["checks"][0]["message"]
    assert run("health", w.group, "--allow-no-member").exit_code == 0


def test_a_group_that_has_not_begun_is_a_verdict(run):
    """Before the first join, and for a mistyped name: exit code 1, on stdout."""
    for command in ("health", "status"):
        told = run(command, "nobody-knows-it")
        assert (told.exit_code, told.stderr) == (1, "")
        first, second = told.stdout.splitlines()
        assert first == "group nobody-knows-it is not well: it has not begun yet"
        assert "has no member and no committed offset" in second
        assert "Fix: turn on the group's sensor, or launch its live job." in second
        found = json.loads(run(command, "nobody-knows-it", "--json").stdout)
        assert (found["well"], found["begun"], len(found["problems"])) == (False, False, 1)
    for command in ("audit", "report"):
        told = run(command, "nobody-knows-it")
        assert (told.exit_code, told.stdout) == (1, ""), command
        assert "nobody-knows-it" in told.stderr
    metrics = run("status", "nobody-knows-it", "--prometheus")
    assert (metrics.exit_code, metrics.stdout) == (1, "")
    assert run("health", "nobody-knows-it", "--max-lag", -1).exit_code == 2


# --- status -------------------------------------------------------------------------------------------------


def test_status_as_json_has_both_logs_and_the_members(crashed, run):
    """One object: the live commit log, the second, what they mean together, and who is a member."""
    w = crashed
    with w.live() as consumer:
        join(w, consumer)
        w.grow_to(130)
        with w.catch_up((90, 120), max_poll_records=10) as child:
            child.commit(child.poll())
        before = logs(w)
        found = json.loads(run("status", w.group, "--json").stdout)
        assert logs(w) == before, "it commits nothing"
    mark = consumer._run_context.short_run_id
    for pending in found["partitions"][3]["pending"]:
        assert 0 <= pending.pop("age_seconds") < 600
        assert pending.pop("oldest_record_at").endswith("+00:00")
        assert pending.pop("why") == "", "Dagster is not read"
    assert (found["well"], found["problems"]) == (True, [])
    assert found["next_steps"] == ["launch a backfill of 2 partitions of the group's crash lag asset"]
    assert found["partitions"][3] == {
        "topic": w.topic,
        "partition": 3,
        "log_start": 0,
        "log_end": 130,
        "first_log": {"committed": 120, "owner_state": "running", "run": mark, "run_state": "running"},
        "second_log": {"watermark": 70, "done_above": [[90, 100]]},
        "external_commits": [],
        "lag": 10,
        "committed": 70,
        "pending_offsets": 40,
        "pending": [
            {"start": 70, "end": 90, "offsets": 20, "expiry": "safe"},
            {"start": 100, "end": 120, "offsets": 20, "expiry": "safe"},
        ],
        "missing": [],
    }
    assert (found["lag"], found["pending_offsets"], len(found["partitions"])) == (10, 40, 4)
    [member] = found["members"]
    assert member["client_id"] == consumer._run_context.client_id
    assert (member["runs"], member["group_instance_id"]) == ([mark], None)
    assert member["partitions"] == [f"{w.topic}:{n}" for n in range(4)]


def test_status_as_a_table_says_the_same(owing, run):
    """The verdict, the numbers, the next step, the partitions, and each pending range with size and age."""
    told = run("status", owing.group).stdout
    verdict, numbers, step = told.splitlines()[:3]
    assert verdict == (f"group {owing.group} is not well: the group has 50 offsets pending, and no member")
    assert numbers == "lag 0, 50 offsets pending, members: 0"
    assert step == "next: launch a backfill of 1 partition of the group's crash lag asset"
    assert f"by the commit logs; for the table: kafka-liveness audit {owing.group}" in told
    [pending] = [line for line in told.splitlines() if line.startswith(f"p3:{owing.topic}:70-120")]
    assert re.fullmatch(r"\S+ +50 +\d+ s ago", pending.rstrip())
    [row] = [line for line in told.splitlines() if line.startswith(f"{owing.tp} ")]
    assert "0-120" in row
    assert "released" in row
    assert row.split()[-1] == "70", "KIP-333's committed(), over both lanes"


@pytest.mark.parametrize("columns", [None, 80, 20])
def test_status_cuts_no_word_where_there_is_no_room(owing, columns):
    """In a pipe a line for each partition; on a narrow terminal several lines, with long names folded."""
    cluster = owing.kafka.cluster()
    report = status_output.StatusReport.read(cluster, lambda: group_status(cluster, owing.group))
    console = status_output.create_console()
    console.file = StringIO()
    if columns:
        console.width = columns
    console.print(status_output.show_status(report))
    told = console.file.getvalue()
    assert "\u2026" not in told
    text = told.replace("\n", "") if columns == 20 else told
    assert f"p3:{owing.topic}:70-120" in text
    alone = [line for line in told.splitlines() if line == str(owing.tp)]
    assert alone == ([str(owing.tp)] if columns else []), "a heading where there is no room for a row"
    assert columns is None or all(len(line.rstrip()) <= columns for line in told.splitlines())
    if columns is None:
        [row] = [line for line in told.splitlines() if line.startswith(f"{owing.tp} ")]
        assert re.fullmatch(r"\S+ +0-120 +120 +released \w+ +0 +50 +70", row.rstrip())


def test_a_pipe_gets_whole_lines_whatever_columns_says(owing, run, monkeypatch):
    """COLUMNS is the width of a terminal, and a pipe is none."""
    monkeypatch.setenv("COLUMNS", "40")
    told = run("status", owing.group).stdout
    [row] = [line for line in told.splitlines() if line.startswith(f"{owing.tp} ")]
    assert row.rstrip().endswith(" 70")


def test_every_pending_range_is_shown(owing, run):
    """One for each dead letter: none is left out, and each has its age."""
    w = owing
    with w.catch_up(*((start, start + 1) for start in range(71, 120, 2))) as child:
        while (batch := child.poll()) is not None:
            child.commit(batch)
    told = run("status", w.group).stdout
    rows = [line for line in told.splitlines() if re.match(rf"p3:{w.topic}:\d+-\d+ ", line)]
    assert len(rows) == 25
    assert sum("ago" in row for row in rows) >= 5
    assert all(re.search(r" 1 +(\d+ s ago|unknown) *$", row) for row in rows), "a slow broker leaves some out"
    assert "more" not in told
    done = next(line for line in told.splitlines() if line.startswith(f"{w.tp} "))
    assert "119-120" in done
    assert "71-72" in done


def test_a_run_that_is_gone_is_not_shown_as_running(crashed, run):
    """Kafka alone: its commits say running, and it is no member."""
    run_id = crashed.live_log()[1].run_id
    told = run("status", crashed.group)
    assert told.exit_code == 1
    assert f"run {run_id} left the group and did not release its partitions; it had " in told.stdout
    assert f"gone {run_id}" in told.stdout
    assert f"running {run_id}" not in told.stdout
    assert "next: the group's sensor starts the next live run" in told.stdout
    assert partition_3(crashed, run)["first_log"]["run_state"] == "gone"


def test_dagster_tells_why_a_run_is_gone(crashed, run, instance):
    """With DAGSTER_HOME: the crash and its time, the run that starts, and the partitions to backfill."""
    w = crashed
    dead = add_run(instance, w, dg.DagsterRunStatus.STARTED)
    release_as(w, dead)
    instance.report_run_failed(instance.get_run_by_id(dead))
    mark = short_run_id(dead)
    told = run("status", w.group).stdout
    assert re.search(rf"run {mark} crashed \d+ s ago; it had .*{w.tp}", told)
    assert f"crashed {mark}" in told
    assert "next: the group's sensor starts the next live run" in told
    waits = short_run_id(add_run(instance, w, dg.DagsterRunStatus.STARTING))
    at_work = add_run(instance, w, dg.DagsterRunStatus.STARTED)
    here = HeartbeatTag(short_run_id(at_work), 1, proc.process(os.getpid()))
    instance.add_run_tags(at_work, {PROCESS_TAG: here.encode()})
    told = run("status", w.group, "--json").stdout
    pids = {one["run_id"]: one["pid"] for one in json.loads(told)["live_runs"]}
    assert pids[at_work] == os.getpid()
    assert list(pids.values()).count(None) == 1, "the one that waits has no process"
    instance.report_run_canceled(instance.get_run_by_id(at_work))
    output = run("status", w.group).output  # with an error, if there is one
    assert f"next: live run {waits} is starting" in output
    assert "the group's sensor starts" not in output


def test_a_run_that_takes_over_between_two_reads(crashed, run, instance, monkeypatch):
    """Kafka is read twice, for the status and for Dagster's runs: both show the same moment."""
    w, read, times = crashed, GroupObservation.read.__func__, []

    def takes_over(cls, *words, **settings):
        if not times:
            release_as(w, str(uuid4()))
        times.append(1)
        return read(cls, *words, **settings)

    dead = add_run(instance, w, dg.DagsterRunStatus.STARTED)
    release_as(w, dead)
    instance.report_run_failed(instance.get_run_by_id(dead))
    monkeypatch.setattr(GroupObservation, "read", classmethod(takes_over))
    told = run("status", w.group).stdout
    assert len(times) == 2
    assert f"running {short_run_id(dead)}" not in told


def test_dagster_that_cannot_be_read_is_named(crashed, run, monkeypatch, tmp_path):
    """The status is Kafka's alone then."""
    (tmp_path / "dagster.yaml").write_text("run_launcher: nonsense\n")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    told = run("status", crashed.group)
    assert told.exit_code == 1
    assert "without Dagster's runs: Dagster cannot open the instance" in told.stdout
    assert "gone " in told.stdout


def add_run(instance, w, status):
    """A live run of the group in Dagster, without a process."""
    run_id = str(uuid4())
    tags = lane_tags(w.group, "live")
    instance.add_run(dg.DagsterRun(job_name="orders_job", run_id=run_id, status=status, tags=tags))
    return run_id


def release_as(w, run_id):
    """Write the group's commit as a run that is at work would."""
    offset, metadata = w.live_log()
    text = replace(metadata, run_id=short_run_id(run_id)).encode()
    commit_by_another_program(w, w.group, offset, text)


def test_status_shows_static_members_and_paused_partitions(world, run):
    """A static member by its name, its run by its commits; a held partition by its mark."""
    w = world
    with w.live(membership=kl.Membership(group_instance_id="orders-1")) as consumer:
        join(w, consumer)
        consumer.pause(w.topic, 3)
        found = json.loads(run("status", w.group, "--json").stdout)
    assert found["members"][0]["group_instance_id"] == "orders-1"
    assert found["members"][0]["runs"] == [consumer._run_context.short_run_id]
    assert found["partitions"][3]["first_log"]["owner_state"] == "paused"


def test_a_member_that_names_itself_after_a_terminal_is_shown_as_text(world, run):
    """Escape sequences would move the reader's cursor; rich's marks would end the command or hide a word."""
    w, name = world, "\x1b]0;mine\x07[/red][bold]kcat\n"
    member = Consumer({"bootstrap.servers": w._servers, "group.id": w.group, "client.id": name})
    try:
        member.subscribe([w.topic])
        wait_for(lambda: member.poll(0.1) or member.assignment(), what="it is a member")
        told, found = run("status", w.group), json.loads(run("status", w.group, "--json").stdout)
    finally:
        member.close()
    assert told.exit_code == 0, told.output
    assert r"\x1b]0;mine\x07[/red][bold]kcat\n" in told.stdout
    assert "\x1b" not in told.stdout
    assert found["members"][0]["client_id"] == r"\x1b]0;mine\x07[/red][bold]kcat\n"


def test_status_names_what_another_program_committed(world, run):
    """Foreign metadata is shown as such, in either log, and is no error."""
    w = world
    w.grow_to(30)
    commit_by_another_program(w, w.group, 10, "their own words")
    found = partition_3(w, run)
    assert found["external_commits"][-1]["metadata"] == "their own words"
    assert (found["first_log"], found["lag"]) == (
        {"committed": 10, "owner_state": None, "run": None, "run_state": None},
        20,
    )
    told = run("status", w.group)
    assert told.exit_code == 1
    assert f"{w.tp}: not this package's metadata: 'their own words'" in told.stdout
    commit_by_another_program(w, w.group, 10, "")
    commit_by_another_program(w, f"{w.group}.catch-up", 5, "theirs too")
    found = partition_3(w, run)
    assert found["external_commits"][-1]["metadata"] == "theirs too"
    assert found["external_commits"] == [{"log": "second", "offset": 5, "metadata": "theirs too"}]
    told = run("status", w.group)
    assert told.exit_code == 1
    assert (
        f"{w.tp}: an external commit replaced the catch-up commit log (offset 5, metadata 'theirs too')"
        in told.stdout
    )
    refused = run("write-off", w.group, f"p3:{w.topic}:0-5", "--reason", "expired", "--yes")
    assert refused.exit_code == 1
    assert (
        f"the catch-up commit log of group {w.group} has an external commit: {w.tp}, offset 5"
        in refused.stderr
    )


def test_status_marks_owed_data_that_expires(owing, run):
    """In the oldest tenth of a log that is being deleted, partly gone, and gone."""
    w = owing
    w.grow_to(1_000)
    expiries = []
    for log_start in (0, 60, 100, 120):
        w.expire(log_start)
        expiries += [one["expiry"] for one in partition_3(w, run)["pending"]]
    assert expiries == ["safe", "about to expire", "partly expired", "expired"]
    found = run("status", w.group)
    assert re.search(r":70-120 +50 +unknown +expired", found.stdout), found.stderr
    next_step = f"write off what has expired: kafka-liveness write-off {w.group} p3:{w.topic}:70-120"
    assert f"next: {next_step}" in found.stdout


def test_status_of_one_topic(owing, run, make_topic):
    """--topic shows that one, committed or not; a topic that does not exist is an error with a hint."""
    other = make_topic()
    found = json.loads(run("status", owing.group, "--topic", owing.topic, "--json").stdout)
    assert {p["topic"] for p in found["partitions"]} == {owing.topic}
    missing = run("status", owing.group, "--topic", f"{other}x")
    assert missing.exit_code == 1
    assert f"did you mean {other}" in missing.stderr


def test_json_is_one_object(owing, run):
    """A watch never ends, so it is no JSON."""
    told = run("status", owing.group, "--json", "--watch")
    assert told.exit_code == 2
    assert "Fix: choose one." in told.stderr


def test_watch_looks_again_until_ctrl_c(owing, run, monkeypatch):
    """Each look is shown; Ctrl-C ends it without an error."""
    waited = []

    def wait(seconds):
        waited.append(seconds)
        owing.grow_to(130)
        if len(waited) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(status_output.time, "sleep", wait)
    told = run("status", owing.group, "--watch", 5)
    assert (told.exit_code, waited) == (0, [5.0, 5.0])
    assert "lag 10, 50 offsets pending" in told.stdout


# --- write-off ----------------------------------------------------------------------------------------------


def test_forgive_closes_a_range_in_the_catch_up_log(owing, run):
    """After a yes the range counts as done; without Dagster it says that only the broker knows."""
    w = owing
    told = run("write-off", w.group, f"p3:{w.topic}:70-120", "--reason", "not wanted", answer="y\n")
    assert told.exit_code == 0, told.output
    assert f"p3:{w.topic}:70-120: 50 offsets pending, all of them still in the log" in told.stdout
    assert "DAGSTER_HOME is not set: Dagster will get no event" in told.stdout
    found = partition_3(w, run)
    assert (found["pending"], found["committed"], found["second_log"]["watermark"]) == ([], 120, 120)


def test_forgive_tells_what_is_left_of_the_data(owing, run):
    """Partly expired or gone: known before the question."""
    w = owing
    w.expire(100)
    ranges = [f"p3:{w.topic}:70-90", f"p3:{w.topic}:95-120"]
    told = run("write-off", w.group, *ranges, "--reason", "expired", "--yes").stdout
    assert f"p3:{w.topic}:70-90: 20 offsets pending, expired" in told
    assert (
        f"p3:{w.topic}:95-120: 25 offsets pending, 5 of them expired, the others are still in the log" in told
    )
    assert [(one["start"], one["end"]) for one in partition_3(w, run)["pending"]] == [(90, 95)]


@pytest.mark.parametrize(
    ("ranges", "reason", "answer", "says"),
    [
        pytest.param(["p3:{}:70-120"], "why", "n\n", "Aborted", id="not confirmed"),
        pytest.param(["p3:{}:70-120"], "why", "", "Aborted", id="nobody to ask"),
        pytest.param(
            ["p3:{}:70-120", "p3:{}:10-20"],
            "why",
            "y\n",
            "10-20 is not pending in group",
            id="one is not owed",
        ),
        pytest.param(
            ["p3:{}:70-121"], "why", "y\n", "120-121 is not pending in group", id="one offset too many"
        ),
        pytest.param(["p3:{}:70-120", "p3:{}:120-70"], "why", "y\n", "is not a crash lag key", id="mistyped"),
        pytest.param(["p3:{}:70-120"], " ", "y\n", "--reason is empty", id="no reason"),
        pytest.param(["p0:nowhere:0-1"], "why", "y\n", "topic 'nowhere' does not exist", id="no such topic"),
    ],
)
def test_nothing_is_forgiven_by_mistake(owing, run, ranges, reason, answer, says):  # noqa: PLR0917
    """What is mistyped, not owed or not confirmed changes nothing, not even the right ranges beside it."""
    before = logs(owing)
    asked = [one.format(owing.topic) for one in ranges]
    told = run("write-off", owing.group, *asked, "--reason", reason, answer=answer)
    assert told.exit_code == (2 if says == "is not a crash lag key" else 1)
    assert says in told.stderr
    assert logs(owing) == before


def test_what_is_done_needs_no_forgiveness(owing, run):
    """A range done already is told as such."""
    w = owing
    assert run("write-off", w.group, f"p3:{w.topic}:70-120", "--reason", "why", "--yes").exit_code == 0
    again = run("write-off", w.group, f"p3:{w.topic}:70-120", "--reason", "why", "--yes")
    assert again.exit_code == 1
    assert "it is done already or was never skipped" in again.stderr


def crash_lag_asset(w, instance, name="orders"):
    """The asset's partitions as the sensor makes them."""

    @kl.kafka_asset(
        topics=[w.topic],
        group_id=w.group,
        table="lake.shop.orders",
        name=name,
        enable_parallel_rebalance=True,
    )
    def orders(batch):
        return batch

    resources = {"kafka": w.kafka, "spark": NO_SPARK}
    with dg.build_sensor_context(instance, resources=resources, sensor_name=f"{name}_sensor") as context:
        tick = orders.sensor.evaluate_tick(context)
    for request in tick.dynamic_partitions_requests:
        instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
    for event in tick.asset_events:
        instance.report_runless_asset_event(event)
    return orders.crash_lag.key


@pytest.mark.parametrize("named", [True, False])
def test_forgiveness_is_an_event_of_the_partitions_in_dagster(owing, run, instance, named):
    """Who, when, why and how much.

    On each partition that holds some of it, found by its group when not named.
    """
    w = owing
    key = crash_lag_asset(w, instance)
    words = ["--asset", "orders_crash_lag"] if named else []
    w.expire(80)
    told = run(
        "write-off", w.group, f"p3:{w.topic}:70-100", "--reason", "replaced from the archive", "--yes", *words
    )
    assert told.exit_code == 0, told.output
    assert f"an event of orders_crash_lag will record it, partitions p3:{w.topic}:70-120" in told.stdout
    [seen] = instance.fetch_observations(key, limit=1).records
    event = seen.asset_observation
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    assert event.partition == f"p3:{w.topic}:70-120"
    assert event.description == f"30 pending offsets written off by {who}: replaced from the archive"
    metadata = {name: value.value for name, value in event.metadata.items()}
    assert metadata.pop("written_off_at").endswith("+00:00")
    assert metadata == {
        "group": w.group,
        "range": f"p3:{w.topic}:70-100",
        "offsets": 30,
        "expired_offsets": 10,
        "written_off_by": who,
        "reason": "replaced from the archive",
    }
    assert [(one["start"], one["end"]) for one in partition_3(w, run)["pending"]] == [(100, 120)]


def test_nothing_is_forgiven_unaudited(owing, run, instance, monkeypatch):
    """The event comes first: when Dagster cannot take it, the range stays owed."""
    crash_lag_asset(owing, instance)
    before = logs(owing)

    def refuse(*_):
        raise OSError("disk full")

    monkeypatch.setattr(dg.DagsterInstance, "report_runless_asset_event", refuse)
    told = run("write-off", owing.group, f"p3:{owing.topic}:70-120", "--reason", "why", "--yes")
    assert told.exit_code == 1
    assert logs(owing) == before


def test_forgive_does_not_guess_the_asset(owing, run, instance):
    """With Dagster there, an asset that it does not know, or cannot tell, is an error with those it has."""
    asked = ["write-off", owing.group, f"p3:{owing.topic}:70-120", "--reason", "why", "--yes"]
    assert "Dagster has 0 crash lag assets of group" in run(*asked).stderr
    crash_lag_asset(owing, instance)
    crash_lag_asset(owing, instance, "again")
    before = logs(owing)
    assert "Dagster has 2 crash lag assets of group" in run(*asked).stderr
    mistyped = run(*asked, "--asset", "order_crash_lag")
    assert "Dagster has no crash lag asset order_crash_lag" in mistyped.stderr
    assert "It has: again_crash_lag, orders_crash_lag" in mistyped.stderr
    assert logs(owing) == before


def test_a_replay_is_closed_only_where_it_is_open(owing, run, instance, monkeypatch):
    """A partition that Dagster has, of which nothing is owed.

    Else the log, the events and the partition stay.
    """
    key = crash_lag_asset(owing, instance)
    replay = f"p3:{owing.topic}:60-120@replay-20261122T100000Z"
    asked = ["write-off", owing.group, replay, "--reason", "why", "--yes"]
    assert f"orders_crash_lag has no partition {replay}" in run(*asked).stderr
    instance.add_dynamic_partitions("orders_crash_lag", [replay])
    before = logs(owing)
    assert f"{replay} cannot be closed: p3:{owing.topic}:70-120 of it is pending" in run(*asked).stderr
    with monkeypatch.context() as patch:
        patch.delenv("DAGSTER_HOME")
        assert "set DAGSTER_HOME" in run(*asked).stderr
        patch.setenv("DAGSTER_HOME", "/no/such/folder")
        assert "Dagster cannot open the instance of DAGSTER_HOME=/no/such/folder" in run(*asked).stderr
    assert (logs(owing), instance.get_materialized_partitions(key)) == (before, set())
    told = run(*asked[:2], f"p3:{owing.topic}:70-120", *asked[2:])
    assert f"50 offsets written off; closed {replay}" in told.output
    assert instance.get_materialized_partitions(key) == {replay}
    assert (
        f"Partition {replay} of orders_crash_lag cannot be closed: it is materialized" in run(*asked).stderr
    )


def test_an_asset_needs_dagster(owing, run):
    """--asset without DAGSTER_HOME writes nothing."""
    told = run(
        "write-off",
        owing.group,
        f"p3:{owing.topic}:70-120",
        "--reason",
        "why",
        "--yes",
        "--asset",
        "orders_crash_lag",
    )
    assert told.exit_code == 1
    assert "set DAGSTER_HOME" in told.stderr


def series(told):
    """``{(name, labels): value}`` of what Prometheus would read."""
    return {
        (one.name, *sorted(one.labels.items())): one.value
        for family in text_string_to_metric_families(told)
        for one in family.samples
    }


def test_prometheus_reads_what_is_owed_and_for_how_long(owing, run):
    """A series for each topic, unless each partition is asked for; the times are the records' own."""
    group, topic = owing.group, (prometheus_name(TOPIC), owing.topic)
    of_group, partition = (prometheus_name(GROUP), group), (prometheus_name(PARTITION), "3")
    told = run("status", group, "--prometheus")
    assert told.exit_code == 0, told.output
    found = series(told.stdout)
    of = (of_group, topic)
    assert found[("kafka_liveness_crash_lag_offsets", *of)] == 50
    assert found[("kafka_liveness_lag_offsets", *of)] == 0
    assert found[("kafka_liveness_crash_lag_expired_offsets", *of)] == 0
    assert found[("kafka_liveness_lag_time_seconds", *of)] == 0
    assert found["kafka_liveness_group_members", of_group] == 0
    assert 0 < found[("kafka_liveness_crash_lag_age_seconds", *of)] < 3600
    apart = series(run("status", group, "--prometheus", "--by-partition").stdout)
    assert apart["kafka_liveness_crash_lag_offsets", of_group, topic, partition] == 50
    assert "has not begun yet" in run("status", "nobody", "--prometheus").output


@pytest.mark.parametrize(
    ("words", "says"),
    [(("--json", "--prometheus"), "choose one"), (("--by-partition",), "--by-partition needs --prometheus")],
)
def test_what_does_not_go_together_is_refused(run, words, says):
    told = run("status", "orders-etl", *words)
    assert (told.exit_code, says in told.output) == (2, True)


def test_prometheus_without_its_library_names_the_extra(owing, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    told = run("status", owing.group, "--prometheus")
    assert told.exit_code == 2
    assert "kafka-liveness-dagster[metrics]" in told.output
