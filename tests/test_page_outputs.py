"""The outputs of audit and status on docs/audit.md and docs/tutorial.md are those of the program.

The pages have 72 columns in a block of code. So they leave columns of a table out (`…`), and fold long lines.
"""

from __future__ import annotations

import re
import textwrap
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from kafka_liveness_dagster.audit.certificate import GroupCertificate, PartitionCertificate
from kafka_liveness_dagster.audit.rows import OffsetRun, RowComparison
from kafka_liveness_dagster.cli.audit_command import certificate_as_text
from kafka_liveness_dagster.cli.status_output import show_status
from kafka_liveness_dagster.core.commit_metadata import (
    CatchUpCommitMetadata,
    GroupOrigin,
    LiveCommitMetadata,
    OwnerState,
)
from kafka_liveness_dagster.core.ledger import LedgerEntry
from kafka_liveness_dagster.core.offsets import Span, TopicPartition, difference
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
from kafka_liveness_dagster.core.partition_state import PartitionState
from kafka_liveness_dagster.core.sink_ledger import LedgerCommit
from kafka_liveness_dagster.kafka.group_description import MemberDescription
from kafka_liveness_dagster.kafka.group_status import GroupStatus, MemberStatus, PartitionStatus
from website.prose import MAX_COLUMNS

DOCS = Path(__file__).parents[1] / "docs"
OUTPUT = re.compile(r"^```\n\$ (kafka-liveness (?:audit|status).*?)\n(.*?)^```", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"(partition|\S+:\d+)  ")
LEFT_OUT = {"audit": {"log", "from", "committed"}, "status": {"log", "done above"}}


def outputs(page):
    """Return each command of a page with its output."""
    return OUTPUT.findall((DOCS / page).read_text(encoding="utf-8"))


def printed(shown):
    """Return the text that a pipe would receive."""
    out = StringIO()
    Console(file=out, width=1_000_000, highlight=False).print(shown, soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def as_on_page(text, left_out):
    """Leave columns of the table out, and fold lines that are too long."""
    lines = text.splitlines()
    rows = [line for line in lines if ROW.match(line)]
    narrow = dict(zip(rows, without_columns(rows, left_out), strict=True))
    folded = [
        textwrap.wrap(narrow.get(line, line), MAX_COLUMNS, subsequent_indent="    ", break_on_hyphens=False)
        if len(narrow.get(line, line)) > MAX_COLUMNS
        else [narrow.get(line, line)]
        for line in lines
    ]
    return "".join(f"{line}\n" for parts in folded for line in parts)


def without_columns(rows, left_out):
    """Return the rows of a table with one `…` for each group of columns that is left out."""
    width = max(map(len, rows))
    padded = [row.ljust(width) for row in rows]
    blank = [all(row[at] == " " for row in padded) for at in range(width)]
    starts = [0, *(at + 1 for at in range(1, width - 1) if blank[at - 1] and blank[at] and not blank[at + 1])]
    columns = [[row[start:end].rstrip() for row in padded] for start, end in pairwise([*starts, width])]
    kept = []
    for column in columns:
        if column[0].strip() not in left_out:
            kept.append(column)
        elif not kept or kept[-1][0] != "…":
            kept.append(["…"] * len(rows))
    widths = [max(map(len, column)) for column in kept]
    return [
        "  ".join(cell.ljust(size) for cell, size in zip(cells, widths, strict=True)).rstrip()
        for cells in zip(*kept, strict=True)
    ]


def metadata(*pending, run="0badcafe", state=OwnerState.RUNNING):
    return LiveCommitMetadata(state, run, pending, origin=GroupOrigin(0))


def partition(tp, committed, *, log_end, written, mark, rows=None):
    state = PartitionState(
        committed,
        mark,
        log_start=0,
        log_end=log_end,
        catch_up_log=CatchUpCommitMetadata(origin=GroupOrigin(0)),
        ledger_entry=LedgerEntry(written, first_offset=0),
    )
    return PartitionCertificate(TopicPartition(*tp), state, rows=rows)


def history(ours, rows, *others):
    """Return the table's snapshots: so many of the package, which added so many rows, and others."""
    added = [rows] + [0] * (ours - 1)
    return [
        *others,
        *(LedgerCommit(7, "", "overwrite", added_rows=n, deleted_rows=0, text="kl1") for n in added),
    ]


def audit_page():
    def group(written, mark, snapshot, snapshots, rows=None):
        found = partition(("orders_eu", 0), 120, log_end=120, written=written, mark=mark, rows=rows)
        return GroupCertificate(
            "etl-orders_eu",
            "lake.orders_eu.orders",
            is_table=True,
            snapshot_id=snapshot,
            partitions=(found,),
            history=snapshots,
        )

    by_others = LedgerCommit(
        8, "2026-11-22 09:28:15.000", "overwrite", added_rows=36, deleted_rows=63, text=""
    )
    ends_in_7 = [OffsetRun(at, at + 1, 1) for at in range(7, 120, 10) if not 20 <= at < 50]
    without_rows = sorted([*ends_in_7, OffsetRun(20, 50, 30)], key=lambda run: run.start)
    once, done = (Span(0, 70),), (Span(0, 120),)
    yield group(once, metadata(Span(70, 120)), 292962493186479063, history(1, 63))
    yield group(once, None, 292962493186479063, history(1, 63))
    rows = RowComparison(81, without_rows=tuple(without_rows))
    yield group(done, metadata(), 4048019768411030697, history(2, 108, by_others), rows)


def tutorial_audit(rows, snapshot, ours, added):
    found = [
        partition(
            ("orders", n),
            committed,
            log_end=log_end,
            written=difference([Span(0, written)], pending),
            mark=metadata(*pending),
        )
        for n, (log_end, committed, written, *pending) in enumerate(rows)
    ]
    return GroupCertificate(
        "orders-etl",
        "lake.shop.orders",
        is_table=True,
        snapshot_id=snapshot,
        partitions=tuple(found),
        history=history(ours, added),
    )


def tutorial_status(run, rows):
    found = [
        PartitionStatus(
            PartitionSnapshot(
                TopicPartition("orders", n),
                committed,
                metadata(*pending, run=run),
                log_end=log_end,
                outstanding=tuple(pending),
            ),
            CatchUpCommitMetadata(),
            (),
        )
        for n, (log_end, committed, *pending) in enumerate(rows)
    ]
    member = MemberStatus(MemberDescription("m", "a client", "/127.0.0.1", partitions=()), (run,))
    return GroupStatus("orders-etl", tuple(found), (member,))


def tutorial_page():
    yield tutorial_status("fe1b9a80", [(2000, 1853), (2134, 1916), (2092, 1880), (1850, 1658)])
    crash_lag = [Span(1947, 2492), Span(2023, 2601), Span(1974, 2561), Span(1756, 2236)]
    then = [(3245, 3141), (3460, 3358), (3389, 3280), (2924, 2824)]
    yield tutorial_status("61d51625", [(*ends, span) for ends, span in zip(then, crash_lag, strict=True)])
    then = [(3325, 3263, 3322), (3545, 3470, 3470), (3473, 3415, 3415), (2975, 2947, 2947)]
    rows = [(*ends, span) for ends, span in zip(then, crash_lag, strict=True)]
    yield tutorial_audit(rows, 2146123481369490197, 20, 11_119)
    yield tutorial_audit(
        [(end, end, end) for end in (5495, 5706, 5609, 5127)], 4137078194544925811, 75, 21_937
    )


@pytest.mark.parametrize(("page", "found"), [("audit.md", audit_page), ("tutorial.md", tutorial_page)])
def test_an_output_of_the_page_is_the_programs(page, found):
    """A line with `…` alone stands for all lines after it."""
    results = list(found())
    for (command, shown), result in zip(outputs(page), results, strict=True):
        is_status = isinstance(result, GroupStatus)
        text = printed(show_status(result) if is_status else certificate_as_text(result))
        expected = as_on_page(text, LEFT_OUT[command.split()[1]])
        begin, mark, rest = shown.partition("\n…\n")
        assert rest == ""
        assert (begin == expected.removesuffix("\n")[: len(begin)]) if mark else shown == expected, (
            f"{page}: {command} prints now:\n{expected}"
        )


def test_columns_are_left_out_and_lines_are_folded():
    """A row keeps its other cells, and a sentence its words."""
    sentence = "orders:0: " + "every offset " * 7
    table = "partition  log  from  lag\norders:0   0-9  0       7\n"
    shown = as_on_page(f"{table}{sentence.rstrip()}\n", {"log", "from"})
    assert shown.startswith("partition  …  lag\norders:0   …    7\norders:0: every offset")
    assert "\n    offset every" in shown
    assert shown.split()[6:] == sentence.split()
    assert max(map(len, shown.splitlines())) <= MAX_COLUMNS
