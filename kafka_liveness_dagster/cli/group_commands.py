"""The commands about one consumer group: ``kafka-liveness status`` and ``forgive``; ``audit_command`` has the third."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import TYPE_CHECKING, TextIO

import click

from kafka_liveness_dagster.cli.arguments import GROUP, MOMENT, RANGE, TABLE, TEXT, TOPIC, Seconds
from kafka_liveness_dagster.cli.connection import (
    at_bootstrap_servers,
    at_spark,
    reached,
    session_at,
    with_command_config,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.spark.ledger import TableLedger

_EVERY = Seconds(min=0.2)


@click.command()
@click.argument("group", type=GROUP)
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@at_bootstrap_servers
@with_command_config
@click.option("--table", type=TABLE, help="catalog.namespace.table: query it too for what is processed.")
@at_spark
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--prometheus", is_flag=True, help="Print gauges in Prometheus' text format, a series for each topic.")
@click.option("--by-partition", is_flag=True, help="With --prometheus: a series for each partition.")
@click.option("--watch", type=_EVERY, is_flag=False, flag_value=2.0, help="Look every 2 (or so many) s until Ctrl-C.")
def status(
    group: str,
    *,
    topics: tuple[str, ...],
    bootstrap_servers: str,
    command_config: TextIO | None,
    table: str | None,
    spark: str,
    as_json: bool,
    prometheus: bool,
    by_partition: bool,
    watch: float | None,
) -> None:
    """Show both commit logs of consumer group GROUP, what it owes, its lag and its members.

    "both lanes" is KIP-333's committed(): every offset before it is processed, in whichever lane. "done above" is
    what the catch-up lane did beyond the first offset still owed. Owed ranges that expired, or lie in the oldest
    tenth of a log that the broker is already deleting, are marked.

    All of it is by the commit logs, which a dropped or rolled back table does not change. With --table the table is
    queried too, and the rows that it lacks count as not processed. `audit` certifies the table.

    Never joins, never commits. Exit code 1 when there is no such group, or its topic was made anew: the broker deletes
    a group's commits with the topic, so with --table the table is asked whose offsets it has.

    \b
    Example:
      kafka-liveness status orders-etl
      kafka-liveness status orders-etl --topic orders --watch 5
      kafka-liveness status orders-etl --json | jq '.partitions[] | select(.pending_offsets > 0)'
      kafka-liveness status orders-etl --prometheus > orders.tmp && mv orders.tmp orders.prom
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.cli import status as group_status  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.cli import status_shown  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415

    if as_json + prometheus + (watch is not None) > 1:
        raise click.UsageError("--json and --prometheus print once, --watch never ends: choose one")
    if by_partition and not prometheus:
        raise click.UsageError("--by-partition is of --prometheus: all else shows each partition anyway")
    cluster = Cluster(reached(bootstrap_servers, command_config))
    with session_at(spark) as session:
        witness = _ledger(table, session) if table else None
        look = functools.partial(group_status.look, cluster, group, topics, witness)
        if watch is not None:
            with contextlib.suppress(KeyboardInterrupt):
                status_shown.watch(look, watch)
            return
        found = look()
    if prometheus:
        from kafka_liveness_dagster.cli.status_metrics import exposition  # noqa: PLC0415  needs an extra

        click.echo(exposition(cluster, found, by_partition=by_partition), nl=False)
    elif as_json:
        click.echo(json.dumps(found.as_json()))
    else:
        status_shown.terminal().print(status_shown.show(found))


@click.command()
@click.argument("group", type=GROUP)
@click.argument("ranges", type=RANGE, nargs=-1, required=True, metavar="RANGE...")
@click.option("--reason", type=TEXT, required=True, help="Why nobody will process them; kept in Dagster.")
@click.option("--asset", type=TEXT, help="The group's crash lag asset, like orders_crash_lag, if it has several.")
@at_bootstrap_servers
@with_command_config
@click.option("--yes", is_flag=True, help="Do not ask.")
def forgive(
    group: str,
    *,
    ranges: tuple[str, ...],
    reason: str,
    asset: str | None,
    bootstrap_servers: str,
    command_config: TextIO | None,
    yes: bool,
) -> None:
    """Close owed ranges of consumer group GROUP by hand: they count as done, though nobody processed them.

    For crash lag that expired, or that nobody wants. Each RANGE is topic:partition:start-end, as `status` and the
    partitions of the crash lag asset show it. Nothing is written before all of them were found to be owed, and
    you said yes.

    A RANGE may also be a partition that failed when its offsets were processed again, like orders:3:70-120@replay-…:
    the former rows stay in the table, and the partition counts as materialized. It needs DAGSTER_HOME.

    With DAGSTER_HOME set, who forgave what, when and why becomes an event of the crash lag asset, on the partitions
    concerned; it is written before the commit log.

    \b
    Example:
      kafka-liveness forgive orders-etl orders:3:70-120 --reason "expired, replaced from the archive"
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.cli import forgive as by_hand  # noqa: PLC0415  `--help` must not wait for it

    kafka = reached(bootstrap_servers, command_config)
    audit = by_hand.Audit.of(group, asset)
    asked = by_hand.examine(kafka, group, ranges, reason, audit)
    for line in asked.told():
        click.echo(line)
    click.echo(audit.told(asked))
    if not yes:
        click.confirm(asked.question, abort=True)
    by_hand.forgive(kafka, asked, audit)
    click.echo(asked.outcome)


@click.command()
@click.argument("group", type=GROUP)
@click.argument("target", type=TEXT, metavar="TABLE")
@at_bootstrap_servers
@with_command_config
def move(group: str, *, target: str, bootstrap_servers: str, command_config: TextIO | None) -> None:
    """Say that the rows of consumer group GROUP are in TABLE from now on, or in the sink of that name.

    For a table that was renamed or moved with its snapshots: a run that writes to another table than the group's
    commits are about is refused, since two assets with one group would have a part of the records each. Nothing else
    is changed: no row, no offset. A table without the snapshots lacks what was committed (on_missing_rows).

    Exit code 1 while the group has members: end the live runs first.

    \b
    Example:
      kafka-liveness move orders-etl lake.sales.orders
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.cli import moved  # noqa: PLC0415  `--help` must not wait for it

    for line in moved.move(reached(bootstrap_servers, command_config), group, target):
        click.echo(line)


@click.command()
@click.argument("group", type=GROUP)
@click.argument("table", type=TABLE)
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@at_bootstrap_servers
@with_command_config
@at_spark
@click.option("--yes", is_flag=True, help="Do not ask.")
def adopt(
    group: str,
    *,
    table: str,
    topics: tuple[str, ...],
    bootstrap_servers: str,
    command_config: TextIO | None,
    spark: str,
    yes: bool,
) -> None:
    """Let consumer group GROUP take over rows that another group wrote to TABLE.

    A run is refused if another group wrote rows of its topics to its table, because the rows of two groups replace
    each other. Use this command for a group that was renamed.

    If GROUP has no commits of a topic, both commit logs of the former group are copied, and GROUP goes on where that
    group stopped, pending ranges included. The table gets one snapshot without rows. No row is changed.

    Exit code 1 while one of the groups has members: end their live runs first.

    \b
    Example:
      kafka-liveness adopt orders-etl-2 lake.shop.orders
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.cli.adopted import Adoption  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415

    cluster = Cluster(reached(bootstrap_servers, command_config))
    with session_at(spark) as session:
        found = Adoption.of(cluster, session(), group, table, topics)
        for line in found.lines():
            click.echo(line)
        if not yes:
            click.confirm(f"Let group {group} take over these rows of {table}?", abort=True)
        for line in found.adopt():
            click.echo(line)


@click.command()
@click.argument("group", type=GROUP)
@click.option("--from", "begin", type=MOMENT, required=True, help="ISO 8601, UTC unless it says otherwise.")
@click.option("--to", "end", type=MOMENT, help="Up to before this time; all that is committed unless given.")
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@click.option("--asset", type=TEXT, help="The group's crash lag asset, like orders_crash_lag, if it has several.")
@click.option("--what-is-left", is_flag=True, help="Go on although the broker has deleted records, maybe of that time.")
@at_bootstrap_servers
@with_command_config
def replay(
    group: str,
    *,
    begin: datetime,
    end: datetime | None,
    topics: tuple[str, ...],
    asset: str | None,
    what_is_left: bool,
    bootstrap_servers: str,
    command_config: TextIO | None,
) -> None:
    """Add the partitions by which consumer group GROUP processes a window of time again, by today's transform.

    For a transform that was mended, or has a new column. By the records' timestamps, of each partition from the first
    record that is not older than --from to the first that is not older than --to. What is owed has partitions of
    its own, and what is not committed the live lane comes to. Nothing is processed before you materialize the
    partitions of the crash lag asset: each replaces exactly its offsets' rows.

    Needs DAGSTER_HOME, the instance that has the asset. Exit code 1, and nothing added, where the broker has deleted
    records that may be of that time.

    \b
    Example:
      kafka-liveness replay orders-etl --from 2026-11-22T10:00:00Z --to 2026-11-22T11:00:00Z
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.cli import replay as by_hand  # noqa: PLC0415  `--help` must not wait for it

    kafka = reached(bootstrap_servers, command_config)
    found = by_hand.window(kafka, group, topics, begin, end, what_is_left=what_is_left)
    for line in by_hand.told(found):
        click.echo(line)
    added, keys = by_hand.add_partitions(group, asset, found.ranges)
    name = added.to_user_string()
    click.echo(f"added to {name}, to be materialized in the UI or with `dg launch --assets {name} --partition …`:")
    for key in keys:
        click.echo(f"  {key}")


def _ledger(table: str, session: Callable[[], SparkSession]) -> TableLedger:
    from kafka_liveness_dagster.spark.ledger import TableLedger  # noqa: PLC0415  only where there is a table
    from kafka_liveness_dagster.spark.table import IcebergTable  # noqa: PLC0415

    return TableLedger(IcebergTable(table), session)
