"""Show the status of a group in a terminal, once or repeatedly, or as Prometheus metrics.

The metrics are those of the sensor, by the same names.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kafka_liveness_dagster.core.commit_metadata import OwnerState
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import join_some
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.partition_snapshot import Expiry, ignored_pending_lines, replaced_log_lines
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError
from kafka_liveness_dagster.telemetry.group_metrics import gauge_points, measure_topics
from kafka_liveness_dagster.telemetry.metrics import prometheus_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import ConsoleOptions, RenderResult

    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.group_status import GroupStatus, PartitionStatus
    from kafka_liveness_dagster.telemetry.metrics import Metric


def prometheus_text(cluster: Cluster, found: GroupStatus, *, by_partition: bool = False) -> str:
    """The status in Prometheus' text format.

    Args:
        cluster: asked for the records' timestamps.
        found: the group.
        by_partition: a series for each partition, of all but the times; else one for each topic.

    Raises:
        InvalidSettingError: the client library of Prometheus is not installed.
        BrokerUnreachableError: no broker answers.
        KafkaRefusedError: the broker refuses to tell.
    """
    try:
        from prometheus_client import CollectorRegistry, Gauge, generate_latest  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidSettingError(
            "--prometheus needs the client library of Prometheus: pip install "
            "'kafka-liveness-dagster[metrics]'"
        ) from error
    registry = CollectorRegistry()
    gauges: dict[Metric, Gauge] = {}
    seen = [one.snapshot for one in found.partitions]
    known = measure_topics(cluster, found.group_id, seen, open_transactions=found.open_transactions)
    for metric, value, labels in gauge_points(
        found.group_id, len(found.members), seen, topic_times=known, by_partition=by_partition
    ):
        names = [prometheus_name(label) for label in labels]
        if metric not in gauges:
            gauges[metric] = Gauge(metric.prometheus, metric.description, names, registry=registry)
        gauges[metric].labels(*labels.values()).set(value)
    return generate_latest(registry).decode()


_NO_WIDTH = 1_000_000
_WARNING = {Expiry.NEARLY: "about to expire", Expiry.PARTLY: "partly expired", Expiry.EXPIRED: "expired"}


def show_status(found: GroupStatus) -> Group:
    """The same for a terminal."""
    numbers = found.as_json()
    words = (
        f"lag {numbers['lag']:,}, {numbers['pending_offsets']:,} offsets pending, members: "
        f"{len(found.members)}"
    )
    by = f"by the commit logs; for the table: kafka-liveness audit {found.group_id}"
    title = Text(f"group {found.group_id}: {words}", "bold")
    source = Text(f"by both commit logs and {found.table}" if found.table else by, "dim")
    seen = [p.snapshot for p in found.partitions]
    if missing := [OffsetRange(*one.topic_partition, *span) for one in seen for span in one.missing_rows]:
        lacks = (
            f"{found.table} lacks {join_some(missing)}, {sum(r.size for r in missing):,} committed offsets"
        )
        source.append(f"\n{lacks}. Fix: restore the table, or set on_missing_rows='crash_lag'", "red")
    first = [
        f"{p.snapshot.topic_partition}: not this package's metadata: {one.metadata[:80]!r}"
        for p in found.partitions
        for one in p.external_commits
        if one.log == "first"
    ]
    warnings = [
        Text(line, "yellow") for line in (*first, *replaced_log_lines(seen), *ignored_pending_lines(seen))
    ]
    held = [Text(str(one), "red" if one.is_hanging else "yellow") for one in found.open_transactions]
    members = [_members_table(found)] if found.members else []
    return Group(title, source, _partitions_table(found), *warnings, *held, *members)


def watch_status(read_status: Callable[[], GroupStatus], seconds: float) -> None:
    """Look again and again until Ctrl-C; a broker that is away for a while is waited for."""
    with Live(show_status(read_status()), console=create_console(), auto_refresh=False) as live:
        live.refresh()
        while True:
            time.sleep(seconds)
            try:
                live.update(show_status(read_status()), refresh=True)
            except BrokerUnreachableError as error:
                live.update(Text(str(error), "red"), refresh=True)


def create_console() -> Console:
    """Where it is shown.

    What is no terminal, a pipe or a file, has no width, and nothing is folded to one.
    """
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _NO_WIDTH
    return console


@dataclass
class _StatusTable:
    """A table where it fits in the width there is; else a few lines for each row.

    No word is cut, no column dropped.
    """

    columns: Sequence[str]
    rows: list[tuple[list[Text], str]] = field(default_factory=list)

    def add(self, *cells: str | Text, style: str = "") -> None:
        """Add a row. A text is shown as it is: a member's name may hold what rich takes for its own marks."""
        self.rows.append(([Text(cell) if isinstance(cell, str) else cell for cell in cells], style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, pad_edge=False)
        for column in self.columns:
            table.add_column(column, no_wrap=True)
        for cells, style in self.rows:
            table.add_row(*cells, style=style)
        if Measurement.get(console, options.update(width=_NO_WIDTH), table).maximum <= options.max_width:
            yield table
            return
        for (first, *others), style in self.rows:
            yield Text.assemble((str(first), "bold"), style=style)
            for column, cell in zip(self.columns[1:], others, strict=True):
                if str(cell):
                    yield Padding(
                        Text.assemble(f"{column} ", cell, style=style, overflow="fold"), (0, 0, 0, 2)
                    )


def _partitions_table(found: GroupStatus) -> _StatusTable:
    table = _StatusTable(
        ("partition", "log", "committed", "owner state", "lag", "pending", "done above", "both lanes")
    )
    for p in found.partitions:
        seen = p.snapshot
        metadata = p.snapshot.live_metadata
        table.add(
            str(seen.topic_partition),
            f"{seen.log_start}-{seen.log_end}",
            _or_dash(seen.committed),
            f"{metadata.owner_state.value} {metadata.run_id}" if metadata else _without_owner_state(p),
            f"{seen.lag:,}",
            _pending_text(p),
            join_some(p.catch_up_log.done),
            _or_dash(p.committed),
            style="dim" if metadata and metadata.owner_state is OwnerState.PAUSED else "",
        )
    return table


def _members_table(found: GroupStatus) -> _StatusTable:
    table = _StatusTable(("member", "run", "host", "instance id", "partitions"))
    for m in found.members:
        held = join_some(sorted(map(str, m.member.partitions)))
        runs = " ".join(m.runs) or "external"
        table.add(m.member.client_id, runs, m.member.host, m.member.group_instance_id or "", held)
    return table


def _without_owner_state(p: PartitionStatus) -> str:
    return "external" if any(one.log == "first" for one in p.external_commits) else "none"


def _pending_text(p: PartitionStatus) -> Text:
    warnings = [_WARNING.get(p.expiry(span), "") for span in p.snapshot.outstanding]
    words = [
        f"{span} {warning}".rstrip() for span, warning in zip(p.snapshot.outstanding, warnings, strict=True)
    ]
    return Text(join_some(words), "red" if any(warnings) else "")


def _or_dash(offset: int | None) -> str:
    return "none" if offset is None else str(offset)
