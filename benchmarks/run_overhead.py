"""How long from a RunRequest to the first committed batch, and where does the time go?

Dagster's daemon and code server as processes, its default run launcher and run coordinator, and a warm Spark
server. A sensor asks for a run of the live job, which finds 1,000 records, and in turns for a run of an op
that does nothing: that one's time is Dagster's own. The parts come from Dagster's event log, from lines in
the run's log, and from the table's own `committed_at`.

    python -m benchmarks.run_overhead --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import re
import statistics
from functools import partial
from pathlib import Path

import click
import dagster as dg
from rich.console import Console

from benchmarks import one_run
from benchmarks.daemon import QUEUE, Daemon
from benchmarks.lake import Lake, fill, lake, new_topic
from benchmarks.report import Table, keep, show
from benchmarks.turns import Seconds, interleaved, median_and_range

TITLE = "From a RunRequest to the first committed batch"
LIVE, NOTHING = one_run.orders.live_job.name, one_run.nothing.name
RECORDS = 1_000
GOAL_SECONDS = 3.0
LAUNCHED = "launched"
_TOLD = re.compile(rf"{one_run.TOLD}(.+) at ([\d.]+)")
_EVENTS = {
    dg.DagsterEventType.RUN_ENQUEUED: "in the queue",
    dg.DagsterEventType.RUN_DEQUEUED: "taken from the queue",
    dg.DagsterEventType.RUN_STARTING: LAUNCHED,
    dg.DagsterEventType.RUN_START: "run started",
    dg.DagsterEventType.STEP_START: "step started",
}
_LINES = {"process timeout ": "joins the group", "Committed ": "offsets committed"}
Moments = dict[str, float]


@click.command()
@click.option(
    "--repetitions", default=5, show_default=True, help="Of each job, after one that is not counted."
)
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
def main(repetitions: int, write: Path | None) -> None:
    """Measure a run of the live job from its RunRequest, part by part, beside an op that does nothing.

    About 4 minutes: Dagster's sensor daemon and its queue look every few seconds.
    """
    console = Console()
    with lake() as services:
        topic, wanted = new_topic(services.servers, 1), services.home / "wanted"
        wanted.mkdir()
        env = {one_run.TOPIC: topic, one_run.WANTED: str(wanted)}
        home = services.home / "dagster"
        with Daemon(home, one_run.__name__, env, settings=QUEUE, code_server=True) as daemon:
            runs = Runs(services, daemon, wanted)

            def run(job: str) -> Moments:
                if job == LIVE:
                    fill(services.servers, topic, 1, RECORDS)
                return runs.run(job)

            ways = {job: partial(run, job) for job in (NOTHING, LIVE)}
            found = interleaved(console, "runs", ways, repetitions, list(ways))
    tables = [_parts(job, found[job]) for job in (LIVE, NOTHING)]
    seconds = {job: [max(told.values()) - told[LAUNCHED] for told in found[job]] for job in found}
    ratios = Seconds(seconds).ratios(LIVE, NOTHING)
    tables[0].note(
        f"from the launch on, {ratios} times as long as the op that does nothing, in the same repetition"
    )
    latest = [max(moments.values()) for moments in found[LIVE]]
    tables[0].note(f"goal: {GOAL_SECONDS:g} s at the median; measured: {statistics.median(latest):.2f} s")
    tables[0].note(
        "with `dequeue_interval_seconds: 1`: before the launch the run waits for the daemon's next check. "
        "Dagster's default is 5"
    )
    for table in tables:
        show(console, table)
    if write is not None:
        keep(write, TITLE, "python -m benchmarks.run_overhead", tables)
        console.print(f"kept in {write}")


class Runs:
    """Runs that a file asks the sensor of a code location for."""

    def __init__(self, services: Lake, daemon: Daemon, wanted: Path) -> None:
        self._services, self._daemon, self._wanted = services, daemon, wanted

    def run(self, job: str) -> Moments:
        """Ask for a run and wait for its end; seconds from its creation to each moment."""
        key = f"{job}-{len(list(self._wanted.iterdir()))}"
        (self._wanted / key).touch()
        asked = dg.RunsFilter(tags={"dagster/run_key": key})

        def ended() -> dg.RunRecord | None:
            records = self._daemon.instance.get_run_records(asked)
            return next((one for one in records if one.dagster_run.is_finished), None)

        record = self._daemon.await_(f"end of a run of {job}", ended)
        if not record.dagster_run.is_success:
            said = [entry.message for entry in self._daemon.instance.all_logs(record.dagster_run.run_id)]
            raise RuntimeError(f"a run of {job} failed:\n" + "\n".join(said[-5:]))
        return self._moments(record)

    def _moments(self, record: dg.RunRecord) -> Moments:
        created = record.create_timestamp.timestamp()
        found: Moments = {}
        for entry in self._daemon.instance.all_logs(record.dagster_run.run_id):
            text = entry.user_message or entry.message
            if entry.dagster_event is not None:
                if (name := _EVENTS.get(entry.dagster_event.event_type)) is not None:
                    found.setdefault(name, entry.timestamp - created)
            elif (told := _TOLD.search(text)) is not None:
                found.setdefault(told[1], float(told[2]) - created)
            else:
                names = (name for start, name in _LINES.items() if text.startswith(start))
                found.update({name: entry.timestamp - created for name in names if name not in found})
        if _LINES["Committed "] in found:
            last = self._services.session.sql(
                f"SELECT unix_millis(max(committed_at)) AS at FROM {one_run.TABLE}.snapshots"
            ).first()
            assert last is not None  # noqa: S101 - an aggregate has a row
            found["table committed"] = last["at"] / 1000 - created
        return found


def _parts(job: str, runs: list[Moments]) -> Table:
    """Each moment in the order of their medians, with what passed since the one before it."""
    title = f"a run of job {job}, {len(runs)} times: median (spread)"
    table = Table(title, ("moment", "seconds since the RunRequest", "since the row above"))
    names = [name for name in runs[0] if all(name in run for run in runs)]
    names.sort(key=lambda name: statistics.median(run[name] for run in runs))
    for before, name in zip(["", *names], names, strict=False):
        since = [run[name] - run.get(before, 0.0) for run in runs]
        table.add(
            name, median_and_range([run[name] for run in runs], unit=" s"), median_and_range(since, unit=" s")
        )
    return table


if __name__ == "__main__":
    main()
