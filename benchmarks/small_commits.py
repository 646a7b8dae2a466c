"""Measure tables after 1,000 small commits, with maintenance and without.

Measured are files, metadata, the next commit and a query.

Each commit is a batch of the sink's with its ledger: rows of ten minutes in each of Kafka's partitions. The
ways take turns of 100 commits, after which those that are maintained are, as every hour by the schedule.

    python -m benchmarks.small_commits --write benchmarks/RESULTS.md
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from uuid import uuid4

import click
from rich.console import Console
from rich.progress import track

from benchmarks.lake import lake
from benchmarks.report import Table, keep, show
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.table_layout import BY_KAFKA_PARTITION, TableLayout
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from kafka_liveness_dagster.spark.table.maintenance import TableMaintenance
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TITLE = "Small commits"
PARTITIONS = 8
_TURN = 100
_KEPT_SECONDS = 60.0
_MIN_FILES = 20
_DAY = "placed_at >= DATE '2026-01-02' AND placed_at < DATE '2026-01-03'"
LAYOUTS = {
    "by (topic, partition)": TableLayout(),
    "by days(placed_at)": TableLayout(partition_by=("days(placed_at)",)),
    "by (topic, partition, days(placed_at))": TableLayout(
        partition_by=(*BY_KAFKA_PARTITION, "days(placed_at)")
    ),
}


@dataclass
class Way:
    """One table, and what was seen of it."""

    layout: TableLayout
    is_maintained: bool
    session: SparkSession
    table: IcebergTable = field(default_factory=lambda: IcebergTable(f"lake.bench.orders_{uuid4().hex[:8]}"))
    commits: list[float] = field(default_factory=list)
    upkeep: float = 0.0

    def __post_init__(self) -> None:
        self._ledger = TableLedger(self.table, lambda: self.session)

    def turn(self, rows: int) -> None:
        """So many commits more, and the care that is due."""
        for _ in range(_TURN):
            at = len(self.commits) * rows
            ranges = [OffsetRange("orders", partition, at, at + rows) for partition in range(PARTITIONS)]
            began = time.perf_counter()
            write_table(self.session, self.table, ranges, lambda: self._rows(at, rows), ledger=self._ledger,  # noqa: B023
                  layout=self.layout)  # fmt: skip
            self.commits.append(time.perf_counter() - began)
        if self.is_maintained:
            began = time.perf_counter()
            settled = [OffsetRange("orders", p, 0, len(self.commits) * rows) for p in range(PARTITIONS)]
            work = TableMaintenance(self.session, self.table)
            for _ in work.compact(settled, _MIN_FILES):
                pass
            work.rewrite_manifests()
            work.expire(time.time(), max_age=_KEPT_SECONDS, max_snapshots=1_000)
            self.upkeep += time.perf_counter() - began

    def _rows(self, at: int, rows: int) -> DataFrame:
        """As they come from Kafka: a task for each partition."""
        return self.session.range(0, rows * PARTITIONS, 1, PARTITIONS).selectExpr(
            "'orders' AS topic", f"CAST(id div {rows} AS int) AS partition", f"{at} + id % {rows} AS offset",
            (
                f"timestamp'2026-01-01' + make_dt_interval(0, 0, 0, ({at} + id % {rows}) * 600 / {rows}) AS "
                "placed_at"
            ),
            "repeat(uuid(), 4) AS order_json",
        )  # fmt: skip

    def metadata(self) -> tuple[float, float]:
        """The newest metadata file and all of them, in kB."""
        entries = self.session.sql(f"SELECT file FROM {self.table.quoted}.`metadata_log_entries`").collect()
        newest = Path(entries[-1][0].removeprefix("file:"))
        every = sum(file.stat().st_size for file in newest.parent.iterdir())
        return newest.stat().st_size / 1000, every / 1000

    def seconds_of(self, where: str) -> float:
        """A query's, the median of five after one."""
        sql = f"SELECT count(*), sum(length(order_json)) FROM {self.table.quoted} WHERE {where}"
        seconds = []
        for _ in range(6):
            began = time.perf_counter()
            self.session.sql(sql).collect()
            seconds.append(time.perf_counter() - began)
        return median(seconds[1:])


@click.command()
@click.option("--commits", default=1_000, show_default=True, help="Of each table, in turns of 100.")
@click.option("--rows", default=25, show_default=True, help="Of each of the 8 partitions, in a commit.")
@click.option(
    "--write", "into", type=click.Path(dir_okay=False, path_type=Path), help="Keep the section in this file."
)
def main(commits: int, rows: int, into: Path | None) -> None:
    """Measure what small commits leave behind. About 25 minutes."""
    console = Console()
    with lake() as services:
        ways = {
            f"{name}, {'maintained' if cared else 'not maintained'}": Way(layout, cared, services.session)
            for name, layout in LAYOUTS.items()
            for cared in (False, True)
        }
        for _ in track(range(commits // _TURN), "committing", console=console):
            for way in ways.values():
                way.turn(rows)
        table = _told(ways, commits, rows)
        for way in ways.values():
            services.drop_exact(way.table, commits * rows * PARTITIONS)
    show(console, table)
    if into is not None:
        keep(into, TITLE, "python -m benchmarks.small_commits", [table])
        console.print(f"kept in {into}")


def _told(ways: dict[str, Way], commits: int, rows: int) -> Table:
    columns = ("table", "data files", "metadata.json", "all metadata", "snapshots", "commit, first 50",
               "commit, last 50", "query of one day", "query of all days", "maintenance")  # fmt: skip
    table = Table(f"{commits:,} commits of {rows * PARTITIONS:,} rows, {PARTITIONS} partitions", columns)
    for name, way in ways.items():
        figures, (newest, every) = TableMaintenance(way.session, way.table).statistics(), way.metadata()
        table.add(
            name, f"{figures.files:,}", f"{newest:,.0f} kB", f"{every:,.0f} kB", f"{figures.snapshots:,}",
            f"{median(way.commits[:50]):.2f} s", f"{median(way.commits[-50:]):.2f} s",
            f"{way.seconds_of(_DAY):.2f} s", f"{way.seconds_of('true'):.2f} s",
            f"{way.upkeep:.0f} s" if way.is_maintained else "",
        )  # fmt: skip
    table.note(
        f"maintained: after each {_TURN} commits, keeping the snapshots of a minute. Every table was exact"
    )
    return table


if __name__ == "__main__":
    main()
