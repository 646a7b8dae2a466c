"""How are numbers shown and kept?

A table on the terminal; the same in RESULTS.md, with where it was measured.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from typing import TYPE_CHECKING

import psutil
from rich import table as rich_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

_PACKAGES = ("dagster", "confluent-kafka", "pyspark")


@dataclass
class Table:
    """Rows under a title, and what is to be said of them."""

    title: str
    columns: Sequence[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """One more row."""
        self.rows.append(cells)

    def note(self, text: str) -> None:
        """A line below the table."""
        self.notes.append(text)

    @property
    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [self.columns, ["---", *["---:"] * (len(self.columns) - 1)], *self.rows]
        told = "".join(f"- {note}\n" for note in self.notes)
        return (
            f"**{self.title}**\n\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + f"\n{told}"
        )


def show(console: Console, table: Table) -> None:
    """Print a table."""
    drawn = rich_table.Table(*table.columns, title=table.title, title_justify="left")
    for row in table.rows:
        drawn.add_row(*row)
    console.print(drawn, *table.notes, sep="\n")


def keep(file: Path, title: str, command: str, tables: Sequence[Table]) -> None:
    """Write the tables into a section of the file; the sections of other benchmarks stay."""
    old = (
        file.read_text()
        if file.exists()
        else "# Results\n\nThe benchmarks write this page; `make bench` runs all except the soak.\n"
    )
    section = f"## {title}\n\n`{command}`, {_where()}\n\n" + "\n".join(table.markdown for table in tables)
    others = re.sub(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", "", old, flags=re.DOTALL | re.MULTILINE)
    file.write_text(f"{others.rstrip()}\n\n{section}")


def _where() -> str:
    memory = psutil.virtual_memory().total / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return (
        f"{datetime.now(timezone.utc):%Y-%m-%d}: {os.cpu_count()} cores, {memory:.0f} GB, "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {packages}, "
        f"embedded Kafka 4.3.1; load average {os.getloadavg()[0]:.1f} at the end."
    )
