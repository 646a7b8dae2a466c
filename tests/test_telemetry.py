"""Metrics and traces without Kafka: the table, who is told, and collectors that are away, slow, or refuse."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import dagster as dg
import pytest
import yaml

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.fencing import FenceReason, FenceReport
from kafka_liveness_dagster.core.offsets import Span
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
from kafka_liveness_dagster.embedded.processes import free_port
from kafka_liveness_dagster.lanes.batch_reporting import BatchMetrics
from kafka_liveness_dagster.lanes.dead_letters import WriteOutcome
from kafka_liveness_dagster.runs.run_context import run_context_of
from kafka_liveness_dagster.runs.tags import lane_tags
from kafka_liveness_dagster.spark.table.write import WriteResult
from kafka_liveness_dagster.telemetry import metrics
from kafka_liveness_dagster.telemetry.group_metrics import TopicTimes, gauge_points
from kafka_liveness_dagster.telemetry.metrics import METRICS
from kafka_liveness_dagster.telemetry.otel import BatchPhases, set_up
from tests.receiver import over_grpc, over_http
from tests.timeouts import seconds

ROOT = Path(__file__).parents[1]
DASHBOARD = json.loads((ROOT / "docs" / "grafana" / "kafka-liveness.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
SERIES = {
    one.prometheus + end: one
    for one in METRICS
    for end in (("_bucket", "_sum", "_count") if one.instrument == "histogram" else ("",))
}
LABELS = {metrics.prometheus_name(label) for one in METRICS for label in one.labels}
TELLS = """
from kafka_liveness_dagster.telemetry import metrics, otel
with otel.export_telemetry():
    otel.record(metrics.FENCES, 2, {metrics.GROUP: "etl"})
    phases = otel.BatchPhases()
    phases.add_before("poll", 0.5)
    otel.record_trace("process orders", phases, {"dagster.run.id": "r"})
"""
# The variables as the page has them
TO_OTLP = dict(re.findall(r"(OTEL_\w+)=(\S+)", PAGE.partition("OTEL_EXPORTER_OTLP_ENDPOINT")[0]))
HTTP = {**TO_OTLP, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
BOUND = seconds(1.0)
QUICK = f"from kafka_liveness_dagster.telemetry import otel\notel.FLUSH_SECONDS = {BOUND}\n"


def started(code, **environment):
    """A Python process that does this."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    words = [sys.executable, "-c", code]
    return subprocess.Popen(
        words, env={**env, **environment}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )


def done(code, **environment):
    """What it printed, and what it complained of; it has ended well."""
    process = started(code, **environment)
    out, complaints = process.communicate(timeout=600)
    assert process.returncode == 0, complaints
    return out, complaints


def used(text):
    """The metrics of a text in Prometheus' language, each by its name in the table.

    All others are mistakes.
    """
    return {
        SERIES[name] for name in re.findall(r"\b(?:kafka_liveness|messaging)_\w+", text) if name not in LABELS
    }


def test_the_page_has_the_table():
    """A line for each metric, in order, with its words."""
    lines = [
        f"| `{one.name}` | `{one.prometheus}` | {one.instrument}, {one.unit} | {one.recorded_by} "
        f"| {', '.join(f'`{label}`' for label in one.labels)} | {one.description} |"
        for one in METRICS
    ]
    assert [
        line for line in PAGE.splitlines() if re.match(r"\| `(messaging|kafka_liveness)\.", line)
    ] == lines
    assert len({one.name for one in METRICS}) == len(METRICS)
    # HANDED_OVER ends no membership
    counted = {why for why in FenceReason if not why.is_orderly_close} - {FenceReason.HANDED_OVER}
    assert [why for why in counted if f"`{why.code}`" not in PAGE] == []


def test_the_dashboard_draws_every_metric_and_no_other():
    """By the labels that it has, too.

    The expressions themselves are asked of a real Prometheus in tests/integration.
    """
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert set().union(*map(used, expressions)) == set(METRICS)
    grouped = ",".join(by for one in expressions for by in re.findall(r"by \(([^)]*)\)", one))
    assert {name.strip() for name in grouped.split(",")} - {"le"} <= LABELS
    assert used("\n".join(re.findall(r"expr: (.*)", PAGE)))


def test_nobody_who_asks_for_nothing_loads_anything():
    """Installed or not; and a call that nobody hears is nothing beside a batch."""
    code = f"""{TELLS}
import sys, timeit
tells = lambda: otel.record(metrics.FENCES, 1, {{metrics.GROUP: "etl"}})
print("opentelemetry" in sys.modules, min(timeit.repeat(tells, number=1_000, repeat=20)) / 1_000)
"""
    loaded, seconds = done(code)[0].split()
    assert loaded == "False"
    assert float(seconds) < 50e-6


@pytest.mark.parametrize(("protocol", "collector"), [("grpc", over_grpc), ("http/protobuf", over_http)])
def test_the_environment_says_where_it_goes(protocol, collector):
    """Over both protocols, from a process and from one that it forks.

    Neither waits for the minute of an export.
    """
    code = f"""TELLS = {TELLS!r}
exec(TELLS)
import multiprocessing, threading
for one in threading.enumerate():
    if one.name == "kafka-liveness-flush":
        one.join()  # a fork in the middle of an export has a lock of the SDK's that nobody opens
child = multiprocessing.get_context("fork").Process(target=exec, args=(TELLS,))
child.start()
child.join()
"""
    with collector() as (received, address):
        done(code, **TO_OTLP, OTEL_EXPORTER_OTLP_PROTOCOL=protocol, OTEL_EXPORTER_OTLP_ENDPOINT=address)
    ours, forked = received.points(metrics.FENCES, GROUP="etl")
    assert ours.as_int == 2
    assert forked.as_int in (2, 4)  # with what was counted before the fork, or without
    assert sorted(span.name for span in received.spans) == [
        "poll",
        "poll",
        "process orders",
        "process orders",
    ]
    assert len({one["service.instance.id"] for one in received.resources}) == 2


def test_who_has_set_up_an_sdk_is_told_and_not_replaced():
    """And a gauge is shown until its look is old."""
    code = """
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from kafka_liveness_dagster.telemetry import metrics, otel
reader = InMemoryMetricReader()
api.set_meter_provider(theirs := MeterProvider([reader]))
with otel.export_telemetry():
    assert otel.is_enabled()
    otel.set_gauges("etl", [otel.Point(metrics.PENDING, 50, {metrics.GROUP: "etl"})])
assert api.get_meter_provider() is theirs
def shown():
    data = reader.get_metrics_data()
    found = [one for scope in data.resource_metrics[0].scope_metrics for one in scope.metrics] if data else []
    return [(one.name, point.value) for one in found for point in one.data.data_points]
print(shown())
otel.STALE_SECONDS = 0.0
print(shown())
"""
    out, _ = done(code, OTEL_METRICS_EXPORTER="otlp")
    assert out.splitlines() == ["[('kafka_liveness.crash_lag.offsets', 50)]", "[]"]


def silent():
    """A collector that takes connections and says nothing."""
    return socket.create_server(("127.0.0.1", 0))


@pytest.mark.parametrize(("protocol", "how"), [("grpc", "away"), ("http/protobuf", "silent")])
def test_no_run_waits_for_a_collector(protocol, how):
    """The run goes on at once, its process ends within the bound, and the exporter says what is wrong."""
    code = f"""{QUICK}{TELLS}
import time
began = time.monotonic()
otel.flush()
print(time.monotonic() - began, time.time())
"""
    with silent() as listening:
        port = listening.getsockname()[1] if how == "silent" else free_port()
        address = f"http://127.0.0.1:{port}"
        out, _ = done(
            code, **TO_OTLP, OTEL_EXPORTER_OTLP_PROTOCOL=protocol, OTEL_EXPORTER_OTLP_ENDPOINT=address
        )
        waited, at = map(float, out.split())
        assert waited < BOUND / 2
        assert time.time() - at < BOUND + seconds(5.0)


def test_a_collector_that_refuses_is_told_of():
    """In the process' log, by the exporter; nothing else changes."""
    with over_http(status=401) as (_, address):
        _, complaints = done(TELLS, **HTTP, OTEL_EXPORTER_OTLP_ENDPOINT=address)
    assert "401" in complaints


def test_an_interrupt_ends_the_wait_for_a_collector():
    """Ctrl-C at the very end: the process does not stay for the rest of the bound."""
    code = f"{QUICK}otel.FLUSH_SECONDS = 300.0\n{TELLS}\nprint('ended', flush=True)"
    with silent() as listening:
        process = started(
            code, **HTTP, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{listening.getsockname()[1]}"
        )
        assert process.stdout.readline() == "ended\n"
        for _ in range(900):  # the first may come before the wait
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
                break
        assert process.poll() is not None
        process.communicate()


def test_a_port_that_is_taken_is_no_reason_to_end_a_run():
    """It is told of once, and the endpoint is there as soon as the port is free."""
    code = """
import sys, urllib.request
from kafka_liveness_dagster.telemetry import metrics, otel
for _ in range(2):
    with otel.export_telemetry():
        otel.record(metrics.FENCES, 1, {})
assert not otel.is_enabled()
print("taken", flush=True)
sys.stdin.readline()
otel.set_up()
assert otel.is_enabled()
"""
    with silent() as listening:
        port = str(listening.getsockname()[1])
        env = {**os.environ, "OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": port}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen([sys.executable, "-c", code], env=env, cwd=ROOT, text=True, **pipes)
        assert process.stdout.readline() == "taken\n"
    _, complaints = process.communicate("\n", timeout=600)
    assert process.returncode == 0, complaints
    assert complaints.count(f"no Prometheus endpoint at localhost:{port}") == 1


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (
            {"OTEL_METRICS_EXPORTER": "promtheus"},
            "names promtheus, and no exporter of that name is installed",
        ),
        (
            {**TO_OTLP, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "is http/json. Nothing is exported. Fix: set it to grpc or http/protobuf.",
        ),
        (
            {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": "many"},
            "OTEL_METRICS_EXPORTER=prometheus cannot be set up: invalid literal",
        ),
    ],
)
def test_words_that_mean_nothing_are_refused(environment, says, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(kl.InvalidSettingError, match=re.escape(says)):
        set_up()


def test_without_the_sdk_a_run_ends_before_it_joins(monkeypatch):
    """Nobody is at the broker's address: it was not asked.

    ``OTEL_SDK_DISABLED`` is the way out that is told.
    """
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")

    @kl.kafka_asset(topics=["orders"], group_id="etl", table="lake.shop.orders")
    def orders(batch):
        return batch

    resources = {
        "kafka": kl.KafkaLivenessResource(bootstrap_servers="localhost:1"),
        "spark": kl.SparkConnectResource(),
    }
    job = dg.Definitions.merge(orders.definitions, dg.Definitions(resources=resources)).resolve_job_def(
        "orders_job"
    )
    run = job.execute_in_process(raise_on_error=False)
    message = run.failure_data_for_node("orders").error.cause.message
    assert "InvalidSettingError: OTEL_TRACES_EXPORTER=otlp requires OpenTelemetry's SDK" in message
    assert "kafka-liveness-dagster[metrics]" in message
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    set_up()


def seen(topic, partition, committed, end, *owed, start=0):
    """A partition as a look sees it."""
    tp, spans = kl.TopicPartition(topic, partition), tuple(Span(*one) for one in owed)
    return PartitionSnapshot(tp, committed, None, log_end=end, outstanding=spans, log_start=start)


def shown(known, **settings):
    """What the gauges show of two partitions of a topic and one of another: ``{(metric, topic, partition).

    Value}``.
    """
    looked = (
        seen("a", 0, 70, 100, (10, 20)),
        seen("a", 1, 90, 90, (0, 50), start=40),
        seen("b", 0, None, 7, start=3),
    )
    labels = (metrics.TOPIC, metrics.PARTITION)
    found = gauge_points("etl", 2, looked, known, **settings)
    return {(one.metric, *map(one.labels.get, labels)): one.value for one in found}


def test_gauges_are_sums_of_a_topic():
    """Lag, owed and expired; times are what the broker said of them, or not there."""
    since = time.time() - 500
    found = shown({"a": TopicTimes(12.5, since, 20, 1_000.0), "b": TopicTimes(None, None)})
    age = found.pop((metrics.PENDING_AGE, "a", None))
    assert 500 <= age < 600
    assert found == {
        (metrics.MEMBERS, None, None): 2,
        (metrics.LAG, "a", None): 30,
        (metrics.PENDING, "a", None): 60,
        (metrics.EXPIRED, "a", None): 40,
        (metrics.LAG_TIME, "a", None): 12.5,
        (metrics.OPEN_TRANSACTION_OFFSETS, "a", None): 20,
        (metrics.OPEN_TRANSACTION_AGE, "a", None): 1_000.0,
        (metrics.LAG, "b", None): 4,
        (metrics.PENDING, "b", None): 0,
        (metrics.EXPIRED, "b", None): 0,
        (metrics.PENDING_AGE, "b", None): 0.0,
        (metrics.OPEN_TRANSACTION_OFFSETS, "b", None): 0,
        (metrics.OPEN_TRANSACTION_AGE, "b", None): 0.0,
    }


def test_partitions_apart_are_for_who_asks(monkeypatch):
    """By the environment, in words of OpenTelemetry; a command has an option."""
    of = (metrics.LAG, "a", "0")
    assert of not in shown({})
    monkeypatch.setenv("KAFKA_LIVENESS_METRICS_BY_PARTITION", "True")
    assert (shown({})[of], shown({})[metrics.EXPIRED, "a", "1"]) == (30, 40)
    assert of not in shown({}, by_partition=False)


class Ended:
    """A batch of two topics that has ended."""

    batch = Batch(
        (kl.OffsetRange("a", 0, 0, 10), kl.OffsetRange("a", 1, 0, 5), kl.OffsetRange("b", 0, 0, 2)), 60.0
    )

    def __init__(self):
        self.phases = BatchPhases()
        with self.phases("write"), self.phases("commit"):
            pass


@pytest.fixture
def told(monkeypatch):
    """What batches tell: ``(metric, value, labels without the group's)``, and traces."""
    found = []
    of_group = {metrics.GROUP: "etl", metrics.LANE: "live"}
    module = "kafka_liveness_dagster.lanes.batch_reporting"
    monkeypatch.setattr(
        f"{module}.record",
        lambda metric, value, has: found.append((metric, value, dict(has.items() - of_group.items()))),
    )
    monkeypatch.setattr(f"{module}.record_trace", lambda *one, failed: found.append((*one, failed)))
    return found


def test_a_batch_tells_what_it_gave(told):
    """But for what its new owner does again.

    Each attempt that was not the last is counted by what was in its way.
    """
    handed_over = {kl.TopicPartition("a", 1)}
    landed = WriteOutcome(WriteResult(9, 4, rewrote_files=False, unknown_commits=1), Ended.batch)
    BatchMetrics("etl", "live", "run").record_committed(Ended(), landed, 2.5, handed_over)
    assert (metrics.OFFSETS, 10, {metrics.TOPIC: "a"}) in told
    assert (metrics.OFFSETS, 2, {metrics.TOPIC: "b"}) in told
    assert (metrics.ROWS, 9, {}) in told
    retries = {has[metrics.REASON]: value for metric, value, has in told if metric is metrics.RETRIES}
    assert retries == {"commit-conflict": 2, "commit-state-unknown": 1}
    assert [value for metric, value, _ in told if metric is metrics.PROCESS_DURATION] == [2.5]
    told.clear()
    BatchMetrics("etl", "live", "run").record_committed(
        Ended(), WriteOutcome(WriteResult(None, 1, rewrote_files=False), Ended.batch), 1, ()
    )
    assert not {metrics.ROWS, metrics.RETRIES} & {metric for metric, *_ in told}


def test_a_batch_that_fails_is_traced_by_the_kind_of_its_error_alone(told):
    """What the error says is in no attribute; of several topics none is named."""
    error = kl.TransformError("a secret")
    with pytest.raises(kl.TransformError), BatchMetrics("etl", "live", "run").trace(Ended()):
        raise error
    [(name, _, attributes, failed)] = told
    assert (name, failed) == ("process etl", error)
    assert attributes["dagster.run.id"] == "run"
    assert metrics.TOPIC not in attributes
    assert "secret" not in str(attributes)


def test_a_fence_is_counted_by_its_reason(monkeypatch):
    """Once for each: that a run is back, and that it closed its consumer, are none."""
    told = []
    monkeypatch.setattr(
        "kafka_liveness_dagster.runs.run_context.telemetry.record", lambda *one: told.append(one)
    )

    @dg.op
    def work(context):
        link = run_context_of(context)
        for why in (
            FenceReport(FenceReason.POLL_TIMEOUT),
            FenceReport(FenceReason.POLL_TIMEOUT, is_back=True),
        ):
            link.report_fence(why)
        link.report_fence(FenceReport(FenceReason.CLOSED))

    @dg.job(tags=lane_tags("etl", "live"))
    def once():
        work()

    once.execute_in_process()
    labels = {metrics.GROUP: "etl", metrics.LANE: "live", metrics.REASON: "poll-timeout"}
    assert told == [(metrics.FENCES, 1, labels)]


def test_each_alert_of_the_page_has_its_section_in_the_runbook():
    """With a severity and a summary, for the person who is paged."""
    docs = Path(__file__).parents[1] / "docs"
    [rules] = re.findall(
        r"^```yaml\n(groups:.*?)^```", (docs / "metrics.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    alerts = yaml.safe_load(rules)["groups"][0]["rules"]
    sections = re.findall(r"^### (\w+)$", (docs / "runbook.md").read_text("utf-8"), re.MULTILINE)
    assert len(alerts) == 8
    for one in alerts:
        assert one["alert"] in sections
        assert one["labels"]["severity"] in {"critical", "warning"}
        assert one["annotations"]["summary"]
        assert one["annotations"]["runbook_url"].endswith(f"#{one['alert'].lower()}")
