"""Find what grows in weeks, within an hour: a commit about each second, and maintenance.

All is real: Dagster's daemon with its sensor, its schedule and its queue, run workers, Kafka, Spark with its
default memory. What takes weeks comes by the minute: live runs end by their `dagster/max_runtime` and the
sensor starts the next, the table is maintained each 2 minutes with snapshots of 2 minutes kept, and runs that
ended are deleted. Each 15 s all is looked at from outside; at the end the table has to be exact.

    python -m benchmarks.soak --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from benchmarks import soaking
from benchmarks.daemon import Daemon
from benchmarks.lake import Lake, new_topic, own_services
from benchmarks.report import keep, show
from benchmarks.soak_samples import Soak
from benchmarks.soak_told import draw, told
from benchmarks.steady import Steady
from kafka_liveness_dagster.spark.connect.session import connect
from kafka_liveness_dagster.spark.table.table import IcebergTable

if TYPE_CHECKING:
    from benchmarks.soak_samples import Sample

TITLE = "Soak"
PARTITIONS = 8
_PICTURE = Path("docs/images/soak.svg")
_EVERY_SECONDS = 15.0
_RUNS = 10  # live runs, one after the other
_LEAST_RUN_SECONDS = 60.0


@click.command()
@click.option("--minutes", default=60.0, show_default=True, help="From the first commit on.")
@click.option("--rate", default=640, show_default=True, help="Records a second, over 8 partitions.")
@click.option("--run-minutes", type=float, help="How long a live run lasts.  [default: a tenth of all]")
@click.option(
    "--samples", type=click.Path(dir_okay=False, path_type=Path), help="Write each sample here, as JSON."
)
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
@click.option(
    "--svg-file", type=click.Path(path_type=Path), help=f"Where to draw.  [default: {_PICTURE} with --write]"
)
def main(  # noqa: PLR0917 - as click gives them
    minutes: float,
    rate: int,
    run_minutes: float | None,
    samples: Path | None,
    write: Path | None,
    svg_file: Path | None,
) -> None:
    """Let a pipeline work for an hour as for weeks, and see what grows. Try it with `--minutes 3`."""
    console = Console()
    run_seconds = run_minutes * 60 if run_minutes else max(_LEAST_RUN_SECONDS, minutes * 60 / _RUNS)
    found, soak = _soaked(console, minutes * 60, rate, run_seconds, samples)
    table = told(found, soak, minutes, rate)
    show(console, table)
    if write is not None:
        command = "python -m benchmarks.soak" + ("" if minutes == 60 else f" --minutes {minutes:g}")  # noqa: PLR2004
        keep(write, TITLE, command, [table])
        console.print(f"kept in {write}")
    if svg_file or write:
        draw(svg_file or _PICTURE, found)


def _soaked(
    console: Console, seconds: float, rate: int, run_seconds: float, samples: Path | None
) -> tuple[list[Sample], Soak]:
    """The samples; all that was started has ended, and the table was exact."""
    with ExitStack() as stack:
        services, home = stack.enter_context(own_services())
        topic = new_topic(services.bootstrap_servers, PARTITIONS)
        env = {soaking.TOPIC: topic, soaking.RUN_SECONDS: f"{run_seconds:.0f}"}
        daemon = stack.enter_context(Daemon(home / "dagster", soaking.__name__, env, code_server=True))
        feed = stack.enter_context(Steady(services.bootstrap_servers, topic, PARTITIONS, rate))
        soak = Soak(services, home, daemon, feed)
        status = stack.enter_context(console.status("the first commit"))
        daemon.await_("commit", soak.table)
        found: list[Sample] = []
        began = time.monotonic()
        while (at := time.monotonic() - began) < seconds:
            found.append({"at": at, **soak.sample()})
            if samples is not None:
                with samples.open("a" if len(found) > 1 else "w") as file:
                    file.write(json.dumps(found[-1]) + "\n")
            status.update(_line(found[-1], seconds))
            due = began + math.floor(at / _EVERY_SECONDS + 1) * _EVERY_SECONDS
            daemon.await_("next sample", lambda: time.monotonic() >= due or None)  # noqa: B023 - called here
        feed.stop()
        status.update("the last commits, and whether the table is exact")
        daemon.await_("last commit", lambda: soak.written() >= feed.produced or None)
        session = connect(services.spark_remote)
        stack.callback(session.stop)
        Lake(services.bootstrap_servers, session, home, daemon.instance).drop_exact(
            IcebergTable(soaking.TABLE), feed.produced
        )
    return found, soak


def _line(sample: Sample, seconds: float) -> str:
    names = (
        "commit latency",
        "snapshots",
        "data files",
        "worker memory",
        "spark memory",
        "events",
        "seconds behind",
    )
    said = ", ".join(f"{name} {sample[name]:,.1f}" for name in names if name in sample)
    return f"{sample['at'] / 60:.1f} of {seconds / 60:g} minutes: {said}"


if __name__ == "__main__":
    main()
