"""How long does Dagster's page of the crash lag asset take, in a browser, with up to 10,000 partitions?

A tenth of them is materialized. Chromium opens the page of a running webserver, in a window of its own each
time, until the list shows its first partition and the page how many are missing. No broker is needed.

    python -m benchmarks.crash_lag_page --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

import click
import dagster as dg
import psutil
from playwright.sync_api import Browser, expect, sync_playwright
from rich.console import Console

from benchmarks import partitioned
from benchmarks.report import Table, keep, show
from benchmarks.turns import quartiles
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.embedded import processes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TITLE = "The page of crash lag partitions"
_TOPIC = "orders"
_PATIENCE = 120.0


@click.command()
@click.option("--partitions", "sizes", default=(10, 100, 1_000, 10_000), show_default=True, multiple=True)
@click.option("--repetitions", default=5, show_default=True, help="Of each, after one that is not counted.")
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
def main(sizes: Sequence[int], repetitions: int, write: Path | None) -> None:
    """Measure how long the page of a crash lag asset takes to be there. Two minutes; needs Chromium."""
    console = Console()
    table = Table("seconds until the page shows its partitions", ("partitions", "median", "spread"))
    asset = partitioned.asset_of(_TOPIC, "lake.shop.orders").crash_lag.key
    with (
        tempfile.TemporaryDirectory() as home,
        webserver(Path(home)) as (instance, url),
        chromium() as browser,
    ):
        for size in sorted(sizes):
            with console.status(f"{size:,} partitions"):
                _grow(instance, asset, size)
                page = f"{url}/assets/{asset.to_python_identifier()}?view=partitions"
                taken = [_seconds(browser, page, size - size // 10) for _ in range(repetitions + 1)][1:]
            table.add(f"{size:,}", f"{quartiles(taken)[1]:.2f} s", f"{min(taken):.2f}-{max(taken):.2f} s")
    show(console, table)
    if write is not None:
        keep(write, TITLE, "python -m benchmarks.crash_lag_page", [table])
        console.print(f"kept in {write}")


@contextmanager
def webserver(home: Path) -> Iterator[tuple[dg.DagsterInstance, str]]:
    """Dagster's webserver on an instance of its own, with one Kafka asset."""
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    told = [sys.executable, "-m", "dagster_webserver", "-m", partitioned.__name__, "-p", str(port)]
    env = {**os.environ, "DAGSTER_HOME": str(home), "PYTHONPATH": str(Path.cwd()),
           partitioned.TOPIC: _TOPIC, partitioned.TABLE: "lake.shop.orders"}  # fmt: skip
    with (home / "webserver.log").open("wb") as log:
        child = subprocess.Popen(told, env=env, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        _await(url, child, home / "webserver.log")
        with dg.DagsterInstance.from_config(str(home)) as instance:
            yield instance, url
    finally:
        processes.end_processes([psutil.Process(child.pid)])
        child.wait()


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's, without a window."""
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=shutil.which("chromium"))


def _grow(instance: dg.DagsterInstance, asset: dg.AssetKey, size: int) -> None:
    """As many partitions, of which each tenth is materialized."""
    known = len(instance.get_dynamic_partitions(asset.to_python_identifier()))
    new = [str(OffsetRange(_TOPIC, one % 8, 10 * one, 10 * one + 5)) for one in range(known, size)]
    instance.add_dynamic_partitions(asset.to_python_identifier(), new)
    for key in new[::10]:
        instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=key))


def _seconds(browser: Browser, page: str, missing: int) -> float:
    began = time.perf_counter()
    with browser.new_page(viewport={"width": 1400, "height": 900}) as window:
        window.goto(page)
        for shown in (f"p0:{_TOPIC}:0-5", re.compile(rf"^Missing \(({missing}|{missing:,})\)$")):
            expect(window.get_by_text(shown, exact=True).first).to_be_visible(timeout=1000 * _PATIENCE)
        return time.perf_counter() - began


def _await(url: str, child: subprocess.Popen[bytes], log: Path) -> None:
    give_up_at = time.monotonic() + _PATIENCE
    while True:
        try:
            with urlopen(f"{url}/server_info"):  # noqa: S310 - its own address
                return
        except URLError as error:
            if child.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(processes.last_lines(log)) from error
            time.sleep(0.2)


if __name__ == "__main__":
    main()
