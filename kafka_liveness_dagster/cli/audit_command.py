"""The command ``kafka-liveness audit``, and how a certificate looks to people and to programs. Decides nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

import click

from kafka_liveness_dagster.cli.options import (
    GROUP,
    TABLE,
    TOPIC,
    CannotAskError,
    at_bootstrap_servers,
    at_spark,
    reached,
    session_at,
    with_command_config,
)
from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.offsets import size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Group

    from kafka_liveness_dagster.audit.certificate import Certificate, PartitionCertificate
    from kafka_liveness_dagster.audit.rows import RowFindings, Stretch

_SPANS = {  # as it is printed: the attribute of a certificate
    "in_table": "in_table",
    "pending": "owed",
    "pending_expired": "dead",
    "written_off": "lost",
    "missing": "missing",
    "by_commits_only": "by_word",
    "uncommitted": "ahead",
    "rewritten": "overlaps",
}
_FINDINGS = ("outside", "unrecorded", "without_rows", "doubled")
_SHOWN_STRANGERS = 6


@click.command()
@click.argument("group", type=GROUP)
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@click.option("--table", type=TABLE, help="catalog.namespace.table.  [default: the table in the group's commits]")
@at_bootstrap_servers
@with_command_config
@at_spark
@click.option("--deep", is_flag=True, help="Also compare all rows with all records.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def audit(
    context: click.Context,
    group: str,
    *,
    topics: tuple[str, ...],
    table: str | None,
    bootstrap_servers: str,
    command_config: TextIO | None,
    spark: str,
    deep: bool,
    as_json: bool,
) -> None:
    """Certify that the table has each offset once.

    Compares metadata: both commit logs of consumer group GROUP, the broker's offsets, and the offsets that the table's
    snapshots record. Offsets that are pending, written off or lost are named and allowed. Any other missing offset
    fails the audit, and so does a recreated topic.

    --deep also reads all rows and all records. It finds rows of unrecorded offsets, and records without rows.

    Never joins, never commits, never writes. Exit code 0: certified; 1: not certified; 2: Kafka or Spark did not
    respond.

    \b
    Example:
      kafka-liveness audit orders-etl
      kafka-liveness audit orders-etl --table lake.shop.orders --deep
      kafka-liveness audit orders-etl --json | jq -e '.certified and .pending_offsets == 0'
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from rich.console import Console  # noqa: PLC0415  `--help` must not wait for it

    from kafka_liveness_dagster.audit.audit import Audit  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415

    try:
        cluster = Cluster(reached(bootstrap_servers, command_config))
        with session_at(spark) as session:
            found = Audit(cluster, group, session, topics, table).certificate(deep=deep)
        told = json.dumps(told_to_programs(found)) if as_json else shown(found)
    except KafkaLivenessError as error:
        raise CannotAskError(str(error)) from error
    if isinstance(told, str):
        click.echo(told)
    else:
        Console(highlight=False).print(told, soft_wrap=True)
    context.exit(0 if found.certified else 1)


def told_to_programs(found: Certificate) -> dict[str, Any]:
    """One object; offsets are half-open ranges ``[start, end)``."""
    return {
        "group": found.group_id,
        "target": found.target,
        "is_table": found.is_table,
        "certified": found.certified,
        "sentence": found.sentence,
        "snapshot_id": found.snapshot_id,
        **{f"{name}_offsets": sum(size(getattr(p, of)) for p in found.partitions) for name, of in _SPANS.items()},
        "partitions": [_partition_json(p) for p in found.partitions],
        "snapshots": [
            {
                "snapshot_id": write.snapshot_id,
                "parent_id": write.parent_id,
                "committed_at": write.committed_at,
                "operation": write.operation,
                "added_rows": write.added_rows,
                "deleted_rows": write.deleted_rows,
                "written": [f"{tp}:{span}" for tp, spans in write.wrote.items() for span in spans],
            }
            for write in found.history
        ],
    }


def shown(found: Certificate) -> Group:
    """The same for a terminal; the certificate is the last line."""
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for column in (
        "partition",
        "log",
        "from",
        "committed",
        "in table",
        "pending",
        "written off",
        "missing",
        "written twice",
    ):
        table.add_column(column, no_wrap=True, justify="left" if column in ("partition", "log") else "right")
    for p in found.partitions:
        spans = (p.in_table, p.owed, p.lost, p.missing, p.overlaps)
        ends = ("none" if offset is None else str(offset) for offset in (p.start, p.facts.committed))
        log = f"{p.facts.log_start}-{p.facts.log_end}"
        table.add_row(str(p.at), log, *ends, *(f"{size(one):,}" for one in spans), style="" if p.certified else "red")
    sentences = [Text(f"{p.at}: {p.sentence}", "" if p.certified else "red") for p in found.partitions]
    history = [Text(line, "dim") for line in _history(found)]
    return Group(table, *history, *sentences, Text(found.sentence, "bold green" if found.certified else "bold red"))


def _partition_json(p: PartitionCertificate) -> dict[str, Any]:
    return {
        "topic": p.at.topic,
        "partition": p.at.partition,
        "topic_id": p.facts.topic_id,
        "certified": p.certified,
        "sentence": p.sentence,
        "start": p.start,
        "committed": p.facts.committed,
        "log_start": p.facts.log_start,
        "log_end": p.facts.log_end,
        "external_commits": [asdict(one) for one in p.foreign],
        "ledger_complete": p.facts.account.complete if p.facts.account else None,
        **{name: [list(span) for span in getattr(p, of)] for name, of in _SPANS.items()},
        "missing_is_forgotten": p.forgotten if p.missing else None,
        "rows": _rows_json(p.rows) if p.rows else None,
    }


def _rows_json(found: RowFindings) -> dict[str, Any]:
    def stretch(one: Stretch) -> dict[str, int]:
        return {"start": one.start, "end": one.end, "offsets": one.offsets}

    named = {name: [stretch(one) for one in getattr(found, name)] for name in _FINDINGS}
    return {"rows": found.rows, "compacted": found.compacted, **named}


def _history(found: Certificate) -> Iterator[str]:
    if not found.is_table:
        yield f"the rows go to the sink {found.target}, which was not asked: only both commit logs were"
        return
    if found.snapshot_id is None:
        yield f"{found.target} does not exist, or has no snapshot"
        return
    ours = [write for write in found.history if write.text]
    yield (
        f"{found.target} at snapshot {found.snapshot_id}; snapshots: {len(found.history):,}, by this package: "
        f"{len(ours):,}, which added {sum(write.added_rows for write in ours):,} rows"
    )
    others = [write for write in found.history if not write.text]
    for write in others[:_SHOWN_STRANGERS]:
        yield (
            f"  {write.committed_at[:19]} {write.operation} by others: {write.added_rows:,} rows added, "
            f"{write.deleted_rows:,} deleted"
        )
    if rest := others[_SHOWN_STRANGERS:]:
        yield f"  and {len(rest):,} more by others"
