"""The first hour of a new user: commands and clicks of README and docs, in an empty folder, do what they say.

The pictures of docs/backfill.md are made on the way when KAFKA_LIVENESS_SCREENSHOTS names a folder for them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from playwright.sync_api import expect

from tests.end_to_end.browser import PATIENCE, browser
from tests.end_to_end.processes import processes_of
from tests.waiting import wait_for

DOCS = Path(__file__).parents[2] / "docs"
README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
START, LOOK = re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
READ = (DOCS / "examples" / "read_table.py").read_text(encoding="utf-8")
BASH = shutil.which("bash")
CATCH_UP_WROTE = "after a run of the catch-up lane wrote"
PICTURES = os.environ.get("KAFKA_LIVENESS_SCREENSHOTS")
HELD = """
import sys
assert not [name for name in sys.modules if name.startswith(("kafka_liveness", "pyspark", "dagster"))]
assert len(set(orders["order_json"].to_pylist())) == orders.num_rows
"""


class Terminal:
    """A shell in the new user's folder: README's first block goes on in it until ``leave``."""

    def __init__(self, project, installed):
        self.project, self.env, self.log = project, installed.env, project.with_suffix(".log")
        with self.log.open("wb") as log:
            self.shell = subprocess.Popen(
                [BASH, "-ec", START],
                cwd=project,
                env=self.env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def types(self, text, *command):
        """What it prints; it has to end well."""
        typed = [*(command or (BASH, "-ec")), text]
        done = subprocess.run(
            typed, cwd=self.project, env=self.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{text}: {done.stdout}{done.stderr}"
        return done.stdout

    def shows(self, pattern):
        """Something that the first block has printed."""
        return self.wait_until(pattern, lambda: re.search(pattern, self.log.read_text(errors="replace")))

    def wait_until(self, what, is_so):
        """Look until it is so; the thing found."""

        def look():
            if not (found := is_so()):
                assert self.shell.poll() is None, f"it ended, see {self.log}"
            return found

        return wait_for(look, what=what, details=lambda: f"see {self.log}", pause=0.05)

    def ends_the_feed(self):
        """What was produced by then is in the topic; gives how much."""

        def feed():
            return [one for one in processes_of(self.project) if "produce" in one.info["cmdline"]]

        for one in feed():
            one.terminate()
        self.wait_until("the end of the feed", lambda: not feed())
        described = self.types("kafka-liveness topic describe orders")
        return int(re.search(r" ([\d,]+) offsets", described)[1].replace(",", ""))

    def leave(self):
        """Ctrl-C, which a terminal sends to all in its foreground."""
        os.killpg(self.shell.pid, signal.SIGINT)
        self.shell.wait(PATIENCE)


@pytest.fixture
def terminal(tmp_path, installed):
    """The first block of the README is typed; whatever happens, nothing of it outlives this."""
    project = tmp_path / "my first project"
    project.mkdir()
    shutil.copy(DOCS / "examples" / "orders.py", project)  # the README's: tests/test_examples.py
    terminal = Terminal(project, installed)
    yield terminal
    for process in processes_of(project):
        process.kill()
    terminal.shell.wait()


class Dagster:
    """What its files say, read as any other process reads them."""

    def __init__(self, terminal):
        self._terminal = terminal
        self.instance = dg.DagsterInstance.from_config(str(terminal.project / ".dagster"))

    def live_run(self, *, after=()):
        """A live run that has committed something."""

        def found():
            runs = self.instance.get_runs(dg.RunsFilter(job_name="orders_job"))
            return [run for run in runs if run.run_id not in after and self.said(run.run_id, "Committed ")]

        return self._terminal.wait_until("a live run commits", found)[0].run_id

    def said(self, run_id, pattern):
        """The first line of a run's log that matches."""
        entries = (entry.user_message or entry.message for entry in self.instance.all_logs(run_id))
        return next(filter(None, (re.match(pattern, text) for text in entries)), None)

    def crash_lag(self):
        """The partitions of what was skipped."""
        return sorted(self.instance.get_dynamic_partitions("orders_crash_lag"))

    def row_count_after_backfill(self):
        """Time in milliseconds of the observation that a run of the catch-up lane left on the live asset."""
        observed = self.instance.fetch_observations(dg.AssetKey("orders"), limit=1000).records
        texts = {one.timestamp: one.asset_observation.description or "" for one in observed}
        return next((int(time * 1000) for time, text in texts.items() if CATCH_UP_WROTE in text), None)


def picture(page, name):
    """For the docs, when they are wanted."""
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"ui-{name}.png", animations="disabled")


def tab(page, name):
    return page.get_by_role("tab", name=name)


def backfill_by_clicking(page, url, keys, crashed, dagster):
    """docs/backfill.md: skipped ranges are found as missing, explained, launched and watched with clicks."""
    key, missing = keys[0], len(keys)
    spans = [key.rpartition(":")[2].split("-") for key in keys]
    skipped = sum(int(end) - int(start) for start, end in spans)
    page.goto(f"{url}/asset-groups")
    page.get_by_role("button", name="Skip").click()  # Dagster's invitation to its community
    for told in ("orders_topic", "orders", "orders_crash_lag", "4 / 4 Passed"):
        expect(page.get_by_text(told, exact=True).first).to_be_visible()
    picture(page, "lineage")

    page.goto(f"{url}/assets")
    page.locator('a[href$="/assets/orders_crash_lag"]').first.click()
    expect(page.get_by_text("skipped ahead to the log end after a crash")).to_be_visible()
    picture(page, "asset")

    tab(page, "Events").click()
    told = (
        f"{skipped:,} offsets are pending, because the live lane skipped them (run {crashed[:8]} crashed): "
        f"{', '.join(keys)}."
    )
    expect(page.get_by_text(told).first).to_be_visible()
    picture(page, "why")

    tab(page, "Partitions").click()
    expect(page.get_by_text(f"Missing ({missing})")).to_be_visible()
    picture(page, "missing")
    page.get_by_role("button", name="Materialize…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Failed and missing", exact=True).click()
    expect(dialog.get_by_text(f"{missing} partition")).to_be_visible()
    picture(page, "launch")
    dialog.get_by_role("button", name="Launch backfill").click()

    page.get_by_role("link", name="View", exact=True).click()
    expect(page).to_have_url(re.compile("/runs/b/"))
    expect(page.get_by_text("Succeeded", exact=True).first).to_be_visible()
    expect(page.get_by_text("100% completed")).to_be_visible()
    picture(page, "backfill")

    page.get_by_role("link", name="orders_crash_lag").first.click()
    tab(page, "Partitions").click()
    expect(page.get_by_text(f"Materialized ({missing})")).to_be_visible()
    page.get_by_text(key).first.click()
    expect(page.get_by_text("processed by this run")).to_be_visible()
    picture(page, "done")

    # the page opens the newest event, and the sensor adds one at any time: ask for this one
    observed = wait_for(dagster.row_count_after_backfill, what="the row count after the backfill")
    page.goto(f"{url}/assets/orders?view=events&asOf={observed}")
    expect(page.get_by_text(CATCH_UP_WROTE).first).to_be_visible()
    picture(page, "row-count")
    expect(page.get_by_text("dagster/row_count", exact=True).first).to_be_visible()

    def newest_is_materialization():  # the live run is still at work
        page.goto(f"{url}/assets/orders?view=events")
        expect(page.get_by_text("snapshot_id", exact=True).first).to_be_visible()
        return page.get_by_text("rows_written", exact=True).count() > 0

    wait_for(newest_is_materialization, what="a materialization after the backfill", pause=2.0)
    for told in ("summary", "rows_written", "seconds_behind", "snapshot_id"):
        expect(page.get_by_text(told, exact=True).first).to_be_visible()
    picture(page, "materialized")
    page.goto(f"{url}/assets/orders_crash_lag?view=events")
    page.get_by_text(key, exact=True).first.click()
    expect(page.get_by_text(f"Partition {key} materialized in run")).to_be_visible()


def test_from_nothing_to_rows_through_a_crash(terminal, tmp_path):
    """Typed, killed, backfilled in the browser, certified, and read by who knows nothing of the package."""
    url = terminal.shows(r"Serving dagster-webserver on (http://\S+)")[1]
    dagster = Dagster(terminal)
    first = dagster.live_run()
    pid = int(dagster.said(first, r"Started process for run \(pid: (\d+)\)")[1])
    os.kill(pid, signal.SIGKILL)
    dagster.live_run(after=[first])
    keys = terminal.wait_until("partitions of what was skipped", dagster.crash_lag)
    with browser(tmp_path) as page:
        backfill_by_clicking(page, url, keys, first, dagster)
    assert dagster.crash_lag() == keys
    doctor = terminal.types(
        'DAGSTER_HOME="$PWD/.dagster" kafka-liveness doctor --group orders-etl -f orders.py'
    )
    assert re.search(r"dagster daemon +the sensor daemon was alive \S+ s ago", doctor), doctor
    assert re.search(r"location period +orders_sensor ticks every \S+ s; its interval is 5 s", doctor), doctor

    produced = terminal.ends_the_feed()
    done = f"every committed offset of 4 partitions is in the table once, {produced:,} in all\n"
    terminal.wait_until(done, lambda: done in terminal.types(LOOK))
    assert terminal.types(READ + HELD, sys.executable, "-c").startswith(f"{produced:,} rows")

    terminal.leave()
    assert set(re.findall(r"\w+", terminal.types("kafka-liveness down"))) == {"stopped", "kafka", "spark"}

    def commands_left():
        return [process.info["cmdline"] for process in processes_of(terminal.project)]

    # the code server has heard of it, and takes its time on a busy machine
    wait_for(lambda: not commands_left(), details=lambda: f"still there: {commands_left()}", pause=0.1)
    left = {path.name for path in terminal.project.iterdir()}
    assert left - {"__pycache__"} == {"orders.py", ".dagster", ".kafka_liveness"}
