"""A person, a browser and the Dagster UI: the crash lag of the worked example is found, explained and backfilled."""

from __future__ import annotations

import os
import re
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from definitions.feed import OrdersFeed
from definitions.orders import orders
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.core.run_marks import run_mark
from kafka_liveness_dagster.kafka.admin import Cluster
from kafka_liveness_dagster.kafka.config import KafkaSettings
from kafka_liveness_dagster.status import look
from tests.ui.dagster_ui import PATIENCE, DagsterUi, wait_until

PICTURES = os.environ.get("KAFKA_LIVENESS_SCREENSHOTS")  # folder to write them to, such as docs/images
CHROMIUM = shutil.which("chromium")
TOPIC = orders.topics[0]
COMMITTED, CRASHED, LOG_END = {1: 40, 2: 10, 3: 70}, {1: 60, 2: 20, 3: 100}, {1: 80, 2: 30, 3: 120}
KEYS = ["orders:1:40-80", "orders:2:10-30", "orders:3:70-120"]


@pytest.fixture
def ui(services, tmp_path):
    """The webserver of a Dagster that knows nothing yet; its children find the services by their environment."""
    assert CHROMIUM, "Chromium is missing: apt-get install chromium"
    with DagsterUi(tmp_path) as found:
        yield found


@pytest.fixture
def cluster(services):
    return Cluster(KafkaSettings(services.bootstrap_servers))


@pytest.fixture
def crashed_run(ui, cluster, services, produce, warm_spark):
    """A live run was killed: committed 70, crashed at 100, log end 120 on return; two more partitions fared alike."""

    def grow(before, after):
        for partition, end in after.items():
            produce(services.bootstrap_servers, TOPIC, partition, map(str, range(before.get(partition, 0), end)))

    def committed():
        assert process.poll() is None, f"the live run ended with code {process.returncode}: see {ui.home}/live_run.log"
        commits = cluster.commits(orders.group_id, [TopicPartition(TOPIC, p) for p in COMMITTED])
        return {tp.partition: commit.offset for tp, commit in commits.items()} == COMMITTED

    OrdersFeed(services.bootstrap_servers).create_topic()
    grow({}, COMMITTED)
    process = ui.start_live_run_that_is_killed()
    wait_until("the live run has committed its first batch", committed)
    grow(COMMITTED, CRASHED)
    assert process.wait(PATIENCE) == -signal.SIGKILL
    grow(CRASHED, LOG_END)
    [run] = ui.instance.get_runs()
    ui.instance.report_run_failed(run)  # as the code server does for a worker that died
    return run


@contextmanager
def browser(folder):
    """A page of Debian's Chromium; when the test fails, its error names a picture of the page."""
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        page = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments).new_page(
            viewport={"width": 1280, "height": 800}
        )
        page.set_default_timeout(PATIENCE * 1000)
        expect.set_options(timeout=PATIENCE * 1000)
        try:
            yield page
        except Exception as error:
            page.screenshot(path=folder / "failed.png")
            raise AssertionError(f"{page.url} looked like {folder / 'failed.png'} when it failed: {error}") from error
        finally:
            page.context.browser.close()


def picture(page, name):
    """For the docs, when they are wanted."""
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"ui-{name}.png", animations="disabled")


def test_crash_lag_is_backfilled_by_clicking(ui, crashed_run, cluster, rows, tmp_path):
    """What was skipped is found as missing, explained, launched and watched with clicks alone; then nothing is owed."""
    wait_until("the webserver answers", ui.answers)
    ui.start_daemon()

    def partitions():
        return sorted(ui.instance.get_dynamic_partitions("orders_crash_lag"))

    wait_until("the sensor has added three partitions", lambda: len(partitions()) == len(KEYS))
    assert partitions() == KEYS
    with browser(tmp_path) as page:
        page.goto(f"{ui.url}/asset-groups")
        for told in ("orders_topic", "orders", "orders_crash_lag", "4 / 4 Passed"):  # checks, though a run has ended
            expect(page.get_by_text(told, exact=True).first).to_be_visible()
        picture(page, "lineage")

        page.goto(f"{ui.url}/assets")
        page.locator('a[href$="/assets/orders_crash_lag"]').first.click()
        expect(page.get_by_text("jumped over after a crash")).to_be_visible()
        picture(page, "asset")

        tab(page, "Events").click()
        page.get_by_text("orders:3:70-120").first.click()
        expect(page.get_by_text("Partition orders:3:70-120 observed")).to_be_visible()
        why = f"50 offsets the live lane jumped over (run {run_mark(crashed_run.run_id)} crashed)"
        expect(page.get_by_text(why)).to_be_visible()
        picture(page, "why")

        tab(page, "Partitions").click()
        expect(page.get_by_text("Missing (3)")).to_be_visible()
        picture(page, "missing")
        page.get_by_role("button", name="Materialize…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Missing", exact=True).click()
        expect(dialog.get_by_text("3 partitions")).to_be_visible()
        picture(page, "launch")
        dialog.get_by_role("button", name="Launch backfill").click()

        page.get_by_role("link", name="View", exact=True).click()
        expect(page).to_have_url(re.compile("/runs/b/"))
        expect(page.get_by_text("Succeeded", exact=True).first).to_be_visible()
        expect(page.get_by_text("100% completed")).to_be_visible()
        picture(page, "backfill")

        page.get_by_role("link", name="orders_crash_lag").first.click()
        tab(page, "Partitions").click()
        expect(page.get_by_text("Materialized (3)")).to_be_visible()
        page.get_by_text("orders:3:70-120").first.click()
        expect(page.get_by_text("done by this run")).to_be_visible()
        picture(page, "done")

        tab(page, "Events").click()
        events = page.get_by_text("orders:3:70-120", exact=True)  # the newest first
        events.nth(0).click()
        expect(page.get_by_text("Partition orders:3:70-120 materialized in run")).to_be_visible()
        events.nth(1).click()
        expect(page.get_by_text("Partition orders:3:70-120 observed")).to_be_visible()

    assert [(row["partition"], row["offset"], row["order_json"]) for row in rows(orders.table)] == [
        (partition, offset, str(offset)) for partition, end in LOG_END.items() for offset in range(end)
    ]
    status = look(cluster, orders.group_id).as_json()
    assert (status["lag"], status["owed_offsets"]) == (0, 0)
    assert partitions() == KEYS


def tab(page, name):
    return page.get_by_role("tab", name=name)
