"""Show the status of a group in a terminal, once or repeatedly, as JSON, or as Prometheus metrics.

The metrics are those of the sensor, by the same names. Judges nothing: ``core.group_verdict`` does.
"""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, asdict, dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kafka_liveness_dagster.core.commit_metadata import OwnerState
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.group_verdict import next_steps, problems
from kafka_liveness_dagster.core.names import escape, format_duration
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.partition_snapshot import Expiry, ignored_pending_lines, replaced_log_lines
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError
from kafka_liveness_dagster.kafka.group_status import NoSuchGroupError
from kafka_liveness_dagster.telemetry.group_metrics import gauge_points, measure_topics
from kafka_liveness_dagster.telemetry.metrics import prometheus_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import ConsoleOptions, RenderResult

    from kafka_liveness_dagster.core.group_verdict import GroupRuns
    from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.group_status import GroupStatus, PartitionStatus
    from kafka_liveness_dagster.telemetry.metrics import Metric


def prometheus_text(cluster: Cluster, found: GroupStatus, *, by_partition: bool = False) -> str:
    """Return the status in Prometheus' text format.

    Args:
        cluster: cluster of the group, for the records' timestamps.
        found: status of the group.
        by_partition: whether all metrics but the times have a series for each partition; else for each topic.

    Raises:
        InvalidSettingError: the client library of Prometheus is not installed.
        BrokerUnreachableError: no broker responds.
        KafkaRefusedError: the broker refuses the request.
    """
    try:
        from prometheus_client import CollectorRegistry, Gauge, generate_latest  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidSettingError(
            "--prometheus needs the client library of Prometheus. Fix: pip install "
            "'kafka-liveness-dagster[metrics]'."
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
_MAX_CELL = 120  # characters; the JSON has the whole text
_MAX_READS = 3  # until Kafka and Dagster show the same moment
_WARNING = {Expiry.NEARLY: "about to expire", Expiry.PARTLY: "partly expired", Expiry.EXPIRED: "expired"}
_COLUMNS = (
    "complete to: every offset below it is processed; done beyond: processed above the first pending offset"
)


@dataclass(frozen=True)
class StatusReport:
    """The status of a group with its runs, for people and programs.

    Attributes:
        oldest_seconds: timestamp of the first record of each pending range, in seconds since the epoch.
        now_seconds: time of the report in seconds since the epoch.
    """

    found: GroupStatus
    runs: GroupRuns
    _: KW_ONLY
    oldest_seconds: Mapping[OffsetRange, float]
    now_seconds: float

    @classmethod
    def read(cls, cluster: Cluster, read_status: Callable[[], GroupStatus]) -> StatusReport:
        """Read a group, its runs, and the age of its pending records.

        Raises:
            NoSuchGroupError: the group has no member and no commit.
            BrokerUnreachableError: no broker responds.
            KafkaRefusedError: the broker refuses the request.
        """
        from kafka_liveness_dagster.cli.group_runs import find_runs  # noqa: PLC0415  confluent_kafka stays lazy
        from kafka_liveness_dagster.kafka.timestamps import oldest_timestamps  # noqa: PLC0415

        for _ in range(_MAX_READS):
            found = read_status()
            runs, is_same_moment = find_runs(cluster, found)
            if is_same_moment:
                break
        kept = [one for one, p in pending_ranges(found) if one.start >= p.snapshot.log_start]
        ages = oldest_timestamps(cluster, found.group_id, kept) if kept else {}
        return cls(found, runs, oldest_seconds=ages, now_seconds=time.time())

    @cached_property
    def problems(self) -> list[str]:
        """A sentence for each condition that is not well."""
        found = self.found
        return problems(self._snapshots, len(found.members), self.runs, found.open_transactions)

    @property
    def is_well(self) -> bool:
        """Whether the group is well."""
        return not self.problems

    @property
    def next_steps(self) -> list[str]:
        """The next steps, of the sensor and of a person."""
        return next_steps(self.found.group_id, self._snapshots, len(self.found.members), self.runs)

    @property
    def verdict(self) -> str:
        """The verdict in one line."""
        why = f"not well: {'; '.join(self.problems)}" if self.problems else f"well: {self.numbers}"
        return f"group {self.found.group_id} is {why}"

    @property
    def numbers(self) -> str:
        """The numbers of the group in one line."""
        sizes = [one.size for one, _ in pending_ranges(self.found)]
        ranges = f" in {len(sizes):,} ranges" if len(sizes) > 1 else ""
        lag = sum(p.lag for p in self._snapshots)
        return f"lag {lag:,}, {sum(sizes):,} offsets pending{ranges}, members: {len(self.found.members)}"

    def age_seconds(self, pending: OffsetRange) -> float | None:
        """Return the age of a range's first record; None if it is unknown."""
        oldest = self.oldest_seconds.get(pending)
        return None if oldest is None else max(0.0, self.now_seconds - oldest)

    def why(self, pending: OffsetRange) -> str:
        """Return why a range is pending, by Dagster's events; empty if it is unknown."""
        return "; ".join(dict.fromkeys(filter(None, (one.text for one in self.runs.reasons_of(pending)))))

    def as_json(self) -> dict[str, Any]:
        """Return one object; offsets are half-open ranges, times are in UTC."""
        told = self.found.as_json()
        for partition, p in zip(told["partitions"], self.found.partitions, strict=True):
            partition["first_log"]["run_state"] = _run_state(p, self.runs)
            for pending in partition["pending"]:
                one = OffsetRange(*p.snapshot.topic_partition, pending["start"], pending["end"])
                oldest = self.oldest_seconds.get(one)
                pending["oldest_record_at"] = None if oldest is None else _utc(oldest)
                pending["age_seconds"] = self.age_seconds(one)
                pending["why"] = self.why(one)
        return {
            "group": told.pop("group"),
            "well": self.is_well,
            "begun": True,
            "problems": self.problems,
            "next_steps": self.next_steps,
            "live_runs": [asdict(run) for run in self.runs.live],
            **told,
        }

    @property
    def _snapshots(self) -> list[PartitionSnapshot]:
        return [p.snapshot for p in self.found.partitions]


def pending_ranges(found: GroupStatus) -> list[tuple[OffsetRange, PartitionStatus]]:
    """Return each pending range with its partition."""
    return [
        (OffsetRange(*p.snapshot.topic_partition, *span), p)
        for p in found.partitions
        for span in p.snapshot.outstanding
    ]


def show_status(report: StatusReport) -> Group:
    """Return the status for a terminal: the verdict, the next steps, then the tables."""
    found = report.found
    verdict = [Text(report.verdict, "bold green" if report.is_well else "bold red")]
    if not report.is_well:
        verdict.append(Text(report.numbers, "bold"))
    verdict += [Text(f"next: {step}", "bold") for step in report.next_steps]
    if report.runs.unread_reason:
        verdict.append(Text(f"without Dagster's runs: {report.runs.unread_reason}", "yellow"))
    by = f"by the commit logs; for the table: kafka-liveness audit {found.group_id}"
    source = Text(f"by both commit logs and {found.table}" if found.table else by, "dim")
    seen = [p.snapshot for p in found.partitions]
    if missing := [OffsetRange(*one.topic_partition, *span) for one in seen for span in one.missing_rows]:
        lacks = f"{found.table} lacks {_join(missing)}, {sum(r.size for r in missing):,} committed offsets"
        source.append(f"\n{lacks}. Fix: restore the table, or set on_missing_rows='crash_lag'", "red")
    first = [
        f"{p.snapshot.topic_partition}: not this package's metadata: {one.metadata!r}"
        for p in found.partitions
        for one in p.external_commits
        if one.log == "first"
    ]
    warnings = [
        Text(line, "yellow") for line in (*first, *replaced_log_lines(seen), *ignored_pending_lines(seen))
    ]
    held = [Text(str(one), "red" if one.is_hanging else "yellow") for one in found.open_transactions]
    pending = [_pending_table(report)] if any(p.outstanding for p in seen) else []
    members = [_members_table(found)] if found.members else []
    return Group(
        *verdict,
        source,
        _partitions_table(found, report.runs),
        Text(_COLUMNS, "dim"),
        *pending,
        *warnings,
        *held,
        *members,
    )


def watch_status(read_report: Callable[[], StatusReport], seconds: float) -> None:
    """Refresh until Ctrl-C; wait for a broker that is unavailable."""
    with Live(_now(read_report), console=create_console(), auto_refresh=False) as live:
        live.refresh()
        while True:
            time.sleep(seconds)
            try:
                live.update(_now(read_report), refresh=True)
            except BrokerUnreachableError as error:
                live.update(Text(str(error), "red"), refresh=True)


def _now(read_report: Callable[[], StatusReport]) -> Group | Text:
    try:
        return show_status(read_report())
    except NoSuchGroupError as error:
        return Text(str(error), "yellow")


def create_console(*, stderr: bool = False) -> Console:
    """Return a console with the terminal's width; a pipe or a file has none, so nothing is cut or folded."""
    console = Console(highlight=False, stderr=stderr)
    if not console.is_terminal:
        console.width = _NO_WIDTH
    return console


@dataclass
class _StatusTable:
    """A table if it fits the width; else a few lines for each row. Cuts no word and drops no column."""

    columns: Sequence[str]
    rows: list[tuple[list[Text], str]] = field(default_factory=list)

    def add(self, *cells: str | Text, style: str = "") -> None:
        """Add a row. Shows text as it is: a member's name may contain rich's own markup."""
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


def _partitions_table(found: GroupStatus, runs: GroupRuns) -> _StatusTable:
    table = _StatusTable(
        ("partition", "log", "committed", "run", "lag", "pending", "complete to", "done beyond")
    )
    for p in found.partitions:
        seen = p.snapshot
        metadata = p.snapshot.live_metadata
        state = _run_state(p, runs)
        table.add(
            str(seen.topic_partition),
            f"{seen.log_start}-{seen.log_end}",
            _offset_text(seen.committed),
            f"{state} {metadata.run_id}" if metadata else _without_owner_state(p),
            f"{seen.lag:,}",
            f"{seen.pending_offsets:,}",
            _offset_text(p.committed),
            _join(p.catch_up_log.done),
            style="dim" if metadata and metadata.owner_state is OwnerState.PAUSED else "",
        )
    return table


def _pending_table(report: StatusReport) -> _StatusTable:
    reason_column = ("why",) if report.runs.pending_reasons else ()
    table = _StatusTable(("pending range", "offsets", "oldest record", "retention", *reason_column))
    for one, p in pending_ranges(report.found):
        age = report.age_seconds(one)
        warning = _WARNING.get(p.expiry(one.span), "")
        table.add(
            str(one),
            f"{one.size:,}",
            "unknown" if age is None else f"{format_duration(round(age))} ago",
            Text(warning, "red") if warning else "",
            *(_shorten(report.why(one)) for _ in reason_column),
        )
    return table


def _shorten(text: str) -> str:
    """Return the text for a cell: one line of printable characters, cut if it is long."""
    line = escape(text)
    return line if len(line) <= _MAX_CELL else f"{line[: _MAX_CELL - 1]}…"


def _members_table(found: GroupStatus) -> _StatusTable:
    table = _StatusTable(("member", "run", "host", "instance id", "partitions"))
    for m in found.members:
        held = _join(sorted(map(str, m.member.partitions)))
        runs = " ".join(m.runs) or "external"
        table.add(m.member.client_id, runs, m.member.host, m.member.group_instance_id or "", held)
    return table


def _run_state(p: PartitionStatus, runs: GroupRuns) -> str | None:
    """Return the state of the run that owns a partition; a run that left is not running."""
    metadata = p.snapshot.live_metadata
    if metadata is None:
        return None
    left = runs.state_of(metadata.run_id) if metadata.owner_state is OwnerState.RUNNING else None
    return left or metadata.owner_state.value


def _without_owner_state(p: PartitionStatus) -> str:
    return "external" if any(one.log == "first" for one in p.external_commits) else "none"


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="milliseconds")


def _join(items: Sequence[object]) -> str:
    return ", ".join(map(str, items))


def _offset_text(offset: int | None) -> str:
    return "none" if offset is None else str(offset)
