"""The command ``kafka-liveness audit``: print a certificate for people and for programs.

Decides nothing: ``audit.certificate`` does.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

import click

from kafka_liveness_dagster.audit.certificate import SPAN_FINDINGS
from kafka_liveness_dagster.cli.exit_codes import NOT_WELL, WELL, errors_as_exit_codes
from kafka_liveness_dagster.cli.options import (
    GROUP,
    TABLE,
    TOPIC,
    bootstrap_servers_option,
    command_config_option,
    json_option,
    kafka_settings,
    lazy_session,
    spark_option,
)
from kafka_liveness_dagster.core.errors import summary_line
from kafka_liveness_dagster.core.offsets import OffsetRange, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Group

    from kafka_liveness_dagster.audit.certificate import GroupCertificate, PartitionCertificate
    from kafka_liveness_dagster.audit.rows import OffsetRun, RowComparison
    from kafka_liveness_dagster.core.sink_ledger import SinkLedger

_FINDINGS = ("outside", "unrecorded", "without_rows", "doubled")
_MAX_EXTERNAL_SHOWN = 6


@click.command()
@click.argument("group", type=GROUP)
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@click.option(
    "--table", type=TABLE, help="catalog.namespace.table.  [default: the table in the group's commits]"
)
@click.option(
    "--sink",
    "sink_name",
    metavar="MODULE:NAME",
    help="The custom sink, or the asset that has it.",
)
@bootstrap_servers_option
@command_config_option
@spark_option
@click.option("--deep", is_flag=True, help="Also compare all rows with all records.")
@json_option
@click.pass_context
def audit(
    context: click.Context,
    group: str,
    *,
    topics: tuple[str, ...],
    table: str | None,
    sink_name: str | None,
    bootstrap_servers: str,
    command_config: TextIO | None,
    spark: str,
    deep: bool,
    as_json: bool,
) -> None:
    """Certify that the table has each offset once.

    Compares metadata: both commit logs of consumer group GROUP, the broker's offsets, and the offsets that
    the table's snapshots record. Offsets that are pending, written off or lost are named and allowed. Any
    other missing offset fails the audit, and so does a recreated topic.

    --sink audits a custom sink that returns its ledger_commits(). MODULE is imported from this folder.

    --deep also reads all rows and all records. It finds rows of unrecorded offsets, and records without rows.

    Never joins, never commits, never writes. Exit code 0: certified; 1: not certified, or the group has no
    commit; 2: invalid command line, or no known target; 3: Kafka, Spark or the catalog did not respond.

    \b
    Example:
      kafka-liveness audit orders-etl
      kafka-liveness audit orders-etl --table lake.shop.orders --deep
      kafka-liveness audit orders-database --sink definitions:orders
      kafka-liveness audit orders-etl --json | jq -e '.certified and .pending_offsets == 0'
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.audit.audit import GroupAudit  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.cli.status_output import create_console  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415

    with errors_as_exit_codes(reads_only=True):
        sink_ledger = _sink_ledger(sink_name, table) if sink_name else None
        cluster = Cluster(kafka_settings(bootstrap_servers, command_config))
        with lazy_session(spark) as session:
            found = GroupAudit(
                cluster, group, session, topics=topics, table=table, sink_ledger=sink_ledger
            ).certificate(deep=deep)
        shown = json.dumps(certificate_as_json(found)) if as_json else certificate_as_text(found)
    if isinstance(shown, str):
        click.echo(shown)
    else:
        create_console().print(shown, soft_wrap=True)
    context.exit(WELL if found.is_certified else NOT_WELL)


def _sink_ledger(name: str, table: str | None) -> SinkLedger[Any]:
    """Import the sink, or the asset that has it, and return its ledger.

    Raises:
        click.UsageError: there is no such sink, or it has no ledger.
    """
    from kafka_liveness_dagster.spark.sink import SinkLedgerAdapter  # noqa: PLC0415

    if table is not None:
        raise click.UsageError("--sink and --table name two targets. Fix: leave one of them out.")
    module, _, attribute = name.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise click.UsageError(
            f"--sink {name} could not be imported ({summary_line(error)}). Fix: give MODULE:NAME, importable "
            "from this folder."
        ) from error
    finally:
        sys.path.remove("")
    sink = getattr(getattr(found, "settings", None), "sink", found)
    ledger = SinkLedgerAdapter.from_sink(sink)
    if ledger is None:
        raise click.UsageError(
            f"--sink {name} is not a sink with a ledger: it has neither ledger_commits() nor covered(). Fix: "
            "docs/sinks.md shows a sink that stores the ledger_text of each batch; without --sink both "
            "commit logs are audited."
        )
    return ledger


def certificate_as_json(found: GroupCertificate) -> dict[str, Any]:
    """Return one object; offsets are half-open ranges ``[start, end)``."""
    return {
        "group": found.group_id,
        "target": found.target,
        "is_table": found.is_table,
        "certified": found.is_certified,
        "sentence": found.verdict,
        "snapshot_id": found.snapshot_id,
        **{
            f"{one.key}_offsets": sum(size(getattr(p, one.attribute)) for p in found.partitions)
            for one in SPAN_FINDINGS
        },
        "partitions": [_partition_json(p) for p in found.partitions],
        "snapshots": [
            {
                "snapshot_id": write.commit_id,
                "parent_id": write.parent_id,
                "committed_at": write.committed_at,
                "operation": write.operation,
                "added_rows": write.added_rows,
                "deleted_rows": write.deleted_rows,
                "written": [
                    str(OffsetRange(*tp, *span)) for tp, spans in write.written.items() for span in spans
                ],
            }
            for write in found.history
        ],
    }


def certificate_as_text(found: GroupCertificate) -> Group:
    """Return the certificate for a terminal; the verdict is the last line."""
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    shown = [one for one in SPAN_FINDINGS if one.column]
    for column in ("partition", "log", "from", "committed", *(one.column for one in shown)):
        table.add_column(column, no_wrap=True, justify="left" if column in ("partition", "log") else "right")
    for p in found.partitions:
        spans = [getattr(p, one.attribute) for one in shown]
        ends = ("none" if offset is None else str(offset) for offset in (p.start, p.state.committed))
        log = f"{p.state.log_start}-{p.state.log_end}"
        table.add_row(
            str(p.topic_partition),
            log,
            *ends,
            *(f"{size(one):,}" for one in spans),
            style="" if p.is_certified else "red",
        )
    sentences = [
        Text(f"{p.topic_partition}: {p.verdict}", "" if p.is_certified else "red") for p in found.partitions
    ]
    history = [Text(line, "dim") for line in _history_lines(found)]
    return Group(
        table, *history, *sentences, Text(found.verdict, "bold green" if found.is_certified else "bold red")
    )


def _partition_json(p: PartitionCertificate) -> dict[str, Any]:
    return {
        "topic": p.topic_partition.topic,
        "partition": p.topic_partition.partition,
        "topic_id": p.state.topic_id,
        "certified": p.is_certified,
        "sentence": p.verdict,
        "start": p.start,
        "committed": p.state.committed,
        "log_start": p.state.log_start,
        "log_end": p.state.log_end,
        "external_commits": [asdict(one) for one in p.state.external_commits],
        "ledger_complete": p.state.ledger_entry.is_complete if p.state.ledger_entry else None,
        **{one.key: [list(span) for span in getattr(p, one.attribute)] for one in SPAN_FINDINGS},
        "missing_is_forgotten": p.is_record_replaced if p.missing_rows else None,
        "rows": _rows_json(p.rows) if p.rows else None,
    }


def _rows_json(found: RowComparison) -> dict[str, Any]:
    def stretch(one: OffsetRun) -> dict[str, int]:
        return {"start": one.start, "end": one.end, "offsets": one.offsets}

    named = {name: [stretch(one) for one in getattr(found, name)] for name in _FINDINGS}
    return {"rows": found.rows, "compacted": found.compacted, **named}


def _history_lines(found: GroupCertificate) -> Iterator[str]:
    if not found.is_table and not any(p.state.ledger_entry is not None for p in found.partitions):
        yield f"the rows go to the sink {found.target}, which was not read: both commit logs were"
        return
    if not found.is_table:
        rows = sum(write.added_rows for write in found.history)
        yield f"sink {found.target}; commits: {len(found.history):,}, which added {rows:,} rows"
        return
    if found.snapshot_id is None:
        yield f"{found.target} does not exist, or has no snapshot"
        return
    ours = [write for write in found.history if write.text]
    yield (
        f"{found.target} at snapshot {found.snapshot_id}; snapshots: {len(found.history):,}, by this "
        f"package: {len(ours):,}, which added {sum(write.added_rows for write in ours):,} rows"
    )
    others = [write for write in found.history if not write.text]
    for write in others[:_MAX_EXTERNAL_SHOWN]:
        yield (
            f"  {write.committed_at[:19]} {write.operation} by others: {write.added_rows:,} rows added, "
            f"{write.deleted_rows:,} deleted"
        )
    if rest := others[_MAX_EXTERNAL_SHOWN:]:
        yield f"  and {len(rest):,} more by others"
