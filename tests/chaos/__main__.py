"""``python -m tests.chaos``: see its ``--help``."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import click

from tests.chaos.environment import ChaosEnvironment
from tests.chaos.faults import FAULTS, strikes
from tests.chaos.verdict import FaultResult, audit, ends_of_runs, settle, table_of
from tests.history.checker import check
from tests.history.planted_defects import PLANTS, plant
from tests.history.report import report

_WARM_UP, _SETTLE, _LATEST = 600.0, 600.0, 240.0  # seconds

_TEACHES = """\
Harass a real pipeline, and say whether anything was lost, doubled or late.

Starts, in a folder of its own: a Kafka broker and a Spark Connect server, each behind a proxy; `dagster dev`
with tests/chaos/orders.py (two live runs, crash lag mode, the sensor on); a producer of orders whose values
are known. Then one fault after the other, and after each the wait until every partition has a row that was
produced after it. At last all that is missing is backfilled, every row is counted by its offset and value,
without Spark, and the product's own `kafka-liveness audit --deep` has to certify the table. The history of
all of it (history.jsonl: records, commits, reports, reads after each fault and at the end) is checked by
tests/history, which imports nothing of the product.
"""
_MORE = """\
The seed decides the order of the faults, how long each lasts, who is struck, the group protocol (even:
classic, odd: consumer, KIP-848) and who does the crash lag (the sensor, for every second pair of seeds; else
backfills as people launch them). The same seed is the same plan, not the same interleaving.

faults, and within how many seconds each partition is to be fresh after it: what is waited for, and what is
work. Work counts as often as there are processes that want a core (the load average over the cores), for they
have to share it:
{faults}

Exit code 0: lost 0, duplicated 0, certified, never late, and a history without anomalies. 1: not so; the
folder with all logs is kept, and named. --plant alters a row of the table before the last read: the history
has to show it. Ctrl-C stops everything that was started. It keeps two cores busy and takes 4 GB.

example:
  python -m tests.chaos --minutes 10 --seed 1
  python -m tests.chaos --minutes 3 --seed 7 --only "Spark silent" --only "run killed"
"""


def _arguments(argv):
    faults = "\n".join(f"  {one.name:<40}{one.waits:>4.0f} + {one.works:>2.0f}  {one.why}" for one in FAULTS)
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=_TEACHES,
        epilog=_MORE.format(faults=faults),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to go on with faults (10)")
    parser.add_argument("--seed", type=int, default=1, help="decides the faults (1)")
    parser.add_argument("--rate", type=float, default=40.0, help="orders a second, over 4 partitions (40)")
    names = [one.name for one in FAULTS]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="FAULT", help="only this fault; repeatable"
    )
    parser.add_argument(
        "--plant", choices=PLANTS, help="delete a row, or append it twice, before the last read"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder even if all is well")
    return parser.parse_args(argv)


class _ProgressLog:
    """Lines with the time since the beginning and the machine's load."""

    def __init__(self):
        self._began = time.monotonic()

    def __call__(self, what):
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        click.echo(f"{minutes:02}:{seconds:02}  load {os.getloadavg()[0]:4.1f}  {what}")


def _slow():
    """How many processes want each core, over the last minute."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def _harass(stage, told, arguments):
    """Faults until the time is over or the lane has stopped; what came of each."""
    struck, until = [], time.monotonic() + 60 * arguments.minutes
    for strike in strikes(arguments.seed):
        if arguments.only and strike.fault.name not in arguments.only:
            continue
        if time.monotonic() > until:
            break
        time.sleep(strike.pause)
        did = strike.fault.strike(stage, strike.seconds, strike.lot)
        if not did:
            told(f"{strike.fault.name}: there was nobody to do it to")
            continue
        seconds = stage.seconds_to_fresh(strike.fault.bound(_slow()) + _LATEST)
        stage.observe()
        struck.append(one := FaultResult(strike.fault, seconds, strike.fault.bound(_slow())))
        after = "never fresh again" if seconds is None else f"fresh after {seconds:5.1f} s"
        told(f"{did:<62} {after}, bound {one.bound:3.0f} s{'  LATE' if one.late else ''}")
        if one.seconds is None:
            break
    return struck


def _run(arguments, home):
    protocol = "classic" if arguments.seed % 2 == 0 else "consumer"
    catch_up = "sensor" if arguments.seed // 2 % 2 else "people"
    snapshots = "append" if arguments.seed // 4 % 2 else "overwrite"
    told = _ProgressLog()
    told(
        f"seed {arguments.seed}: {protocol} protocol, {snapshots} snapshots, crash lag done by {catch_up}; "
        f"in {home}"
    )
    with ChaosEnvironment(home, protocol, catch_up, snapshots, arguments.rate) as stage:
        told("broker, Spark, feed and Dagster are started")
        warm = stage.seconds_to_fresh(_WARM_UP)
        if warm is None:
            told(f"no row in {_WARM_UP:.0f} s:\n{stage.dev.log_messages()}")
            return False
        told(f"each partition has rows after {warm:.1f} s")
        struck = _harass(stage, told, arguments)
        told("no more faults, no more orders: what is owed is done now")
        found = settle(stage, _SETTLE, told)
        stage.end_reads()
        stage.observe()
        certified, sentence = audit(stage)
        if arguments.plant:
            topic, partition, offset = plant(arguments.plant, stage.load_table)
            told(f"planted a {arguments.plant} at {topic}:{partition}:{offset}")
        stage.observe()
        history = stage.history.file.events()
        anomalies = check(history)
        ends, errors = ends_of_runs(stage)
    click.echo("\nruns: " + ", ".join(f"{count} {end}" for end, count in sorted(ends.items())))
    for error, count in errors.most_common():
        click.echo(f"  {count} x {error}")
    click.echo("\n" + "\n".join(table_of(struck)))
    late = sum(one.late for one in struck)
    holds = found.lost == found.duplicated == late == 0 and certified and bool(struck) and not anomalies
    click.echo(f"\nproduced {found.produced:,}, in the table {found.in_table:,}")
    click.echo(f"lost {found.lost}, duplicated {found.duplicated}, late {late} of {len(struck)}")
    click.echo(f"audit --deep: {sentence}")
    click.echo("\n".join(report(history, anomalies)))
    click.echo(f"seed {arguments.seed}: {'holds' if holds else 'DOES NOT HOLD'}")
    return holds


def main(argv=None):
    """Run it; the exit code."""
    arguments = _arguments(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: everything is stopped
    home, holds = Path(tempfile.mkdtemp(prefix="chaos-")), False
    try:
        holds = _run(arguments, home)
    except KeyboardInterrupt:
        click.echo("stopped; everything that was started is ended")
        return 130
    finally:
        if holds and not arguments.keep:
            shutil.rmtree(home, ignore_errors=True)
        else:
            click.echo(f"logs and data: {home}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
