"""What real runs export is what they did.

At a collector, in a scrape, and on the dashboard in a real Prometheus.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from kafka_liveness_dagster.embedded.processes import free_port
from kafka_liveness_dagster.telemetry import metrics
from kafka_liveness_dagster.telemetry.metrics import METRICS
from tests.receiver import over_http, plain
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "docs" / "grafana" / "kafka-liveness.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
RECORDS, BATCH, WAITING = 60, 20, 5
QUIET = {metrics.FENCES, metrics.RETRIES, metrics.THROTTLE_TIME}  # nothing in this story is counted by them


class Prometheus:
    """A real one that scrapes a port every second."""

    def __init__(self, folder, target):
        self.address = f"127.0.0.1:{free_port()}"
        config = folder / "prometheus.yml"
        scraped = {"job_name": "measured", "static_configs": [{"targets": [f"localhost:{target}"]}]}
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [scraped]}))
        words = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
        words.append(f"--web.listen-address={self.address}")
        self._process = subprocess.Popen(words, stderr=(folder / "log").open("w"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def asked(self, expression):
        """What an expression gives at this moment; of a dashboard's too."""
        expression = expression.replace("$__rate_interval", "1m").replace("$group", ".*")
        try:
            with urlopen(f"http://{self.address}/api/v1/query?{urlencode({'query': expression})}") as answer:
                return json.load(answer)["data"]["result"]
        except OSError:
            return []  # it starts


@pytest.fixture
def told(services, make_topic, produce, table, warm_spark):
    """What a child is told: an asset with records in two partitions, of which one is bad."""
    topic = make_topic(2)
    half = RECORDS // 2
    for partition in range(2):
        produce(
            services.bootstrap_servers,
            topic,
            partition,
            map(str, range(partition * half, (partition + 1) * half)),
        )
    asset = {
        "name": "orders",
        "topics": [topic],
        "group_id": f"etl-{topic}",
        "table": table,
        "max_poll_records": BATCH,
        "max_batch_seconds": 60,
        "idle_seconds": 0.5,
        "batching": {"on_bad_record": "dead_letter"},
    }
    kafka = {"bootstrap_servers": services.bootstrap_servers}
    return {"asset": asset, "kafka": kafka, "spark": services.spark_remote, "owed": f"p0:{topic}:7-8"}


@pytest.fixture
def child(told):
    """The process that runs, and looks: ``child(**environment)``; one at a time."""
    started = []

    def start(**environment):
        words = [sys.executable, "-m", "tests.integration.telemetry_run", json.dumps(told)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(
            subprocess.Popen(words, cwd=ROOT, env={**os.environ, **environment}, text=True, **pipes)
        )
        return started[0]

    yield start
    for one in started:
        one.kill()
        one.communicate()


def says(child, word):
    """Wait until the child has come so far."""
    assert child.stdout.readline() == f"{word}\n"


def go_on(child):
    """Let it go on."""
    child.stdin.write("\n")
    child.stdin.flush()


def promtool(*words, of=None):
    """What Prometheus' own tool has to say against it."""
    subprocess.run(["promtool", *words], input=of, text=True, check=True)  # noqa: S607


def ours(scraped):
    """Of a scrape what is of this package."""
    return "".join(
        line for line in scraped.splitlines(keepends=True) if re.match(r"(# \w+ )?(messaging|kafka)_", line)
    )


def test_the_alerts_of_the_page_are_rules(tmp_path):
    """Prometheus takes them; their metrics are in the table, by tests/test_telemetry.py."""
    [rules] = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "rules.yml").write_text(rules)
    promtool("check", "rules", str(tmp_path / "rules.yml"))


def test_what_is_measured_is_what_was_done(services, told, child, produce, tmp_path):
    """Three batches with a dead letter, what waits and is owed, and the run that catches up."""
    topic, port = told["asset"]["topics"][0], free_port()
    with over_http() as (received, address):
        process = child(
            OTEL_METRICS_EXPORTER="otlp,prometheus",
            OTEL_TRACES_EXPORTER="otlp",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_EXPORTER_OTLP_ENDPOINT=address,
            OTEL_EXPORTER_PROMETHEUS_PORT=str(port),
        )
        says(process, "ran")
        produce(services.bootstrap_servers, topic, 1, map(str, range(WAITING)))
        go_on(process)
        says(process, "looked")
        with Prometheus(tmp_path, port) as prometheus:
            wait_for(lambda: prometheus.asked("count_over_time(kafka_liveness_group_members[1m]) > 1"))
            unanswered = {one for one in EXPRESSIONS if not prometheus.asked(one)}
            assert unanswered == {
                one for one in EXPRESSIONS if any(metric.prometheus in one for metric in QUIET)
            }
            [waits] = prometheus.asked("kafka_liveness_lag_offsets")
            assert (waits["metric"]["messaging_destination_name"], waits["value"][1]) == (topic, str(WAITING))
        with urlopen(f"http://localhost:{port}/metrics") as answer:
            scraped = ours(answer.read().decode())
        families = set(re.findall(r"^# TYPE (\w+)", scraped, re.MULTILINE))
        assert families == {metric.prometheus for metric in METRICS if metric not in QUIET}
        promtool("check", "metrics", of=scraped)
        out, _ = process.communicate("\n")
    assert process.returncode == 0
    live, caught_up = json.loads(out)
    lanes = {"live": RECORDS - 1, "catch-up": 1}
    batches = {"live": RECORDS // BATCH, "catch-up": 1}
    for lane, records in lanes.items():
        assert received.total(metrics.OFFSETS, TOPIC=topic, LANE=lane) == records
        assert received.total(metrics.ROWS, LANE=lane) == records
        assert received.count(metrics.PROCESS_DURATION, LANE=lane) == batches[lane]
        assert received.count(metrics.CLIENT_DURATION, LANE=lane, OPERATION="poll") == batches[lane]
        assert received.count(metrics.CLIENT_DURATION, LANE=lane, OPERATION="commit") == batches[lane]
        assert received.count(metrics.PHASE_DURATION, LANE=lane, PHASE="write") == batches[lane]
    assert received.count(metrics.PHASE_DURATION, PHASE="dead letters") == 1
    assert received.total(metrics.DEAD_LETTERS, TOPIC=topic, REASON="bad-record") == 1
    assert (received.total(metrics.LAG), received.total(metrics.PENDING)) == (WAITING, 1)
    assert 0 < received.total(metrics.PENDING_AGE) < 600
    assert received.total(metrics.EVENTS, EVENT="CrashLagFound") == 1

    roots = [span for span in received.spans if not span.parent_span_id]
    runs = [plain(span.attributes)["dagster.run.id"] for span in roots]
    assert (runs.count(live), runs.count(caught_up), len(runs)) == (3, 1, 4)
    assert len({span.trace_id for span in roots}) == 4
    for root in roots:
        phases = [span for span in received.spans if span.parent_span_id == root.span_id]
        assert {span.name for span in phases} >= {"transform", "write", "commit"}
        assert {span.trace_id for span in phases} == {root.trace_id}
        assert root.start_time_unix_nano <= min(span.start_time_unix_nano for span in phases)
        assert root.end_time_unix_nano >= max(span.end_time_unix_nano for span in phases)
    told_of = " ".join(map(str, received.labels()))
    assert [secret for secret in ("secret", "localhost", "127.0.0.1", "sc://") if secret in told_of] == []
