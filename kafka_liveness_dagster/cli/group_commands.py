"""The commands for one group: ``status``, ``write-off``, ``move``, ``adopt``, ``start`` and ``replay``."""

from __future__ import annotations

import contextlib
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from kafka_liveness_dagster.cli.exit_codes import NOT_WELL, WELL, CommandError, errors_as_exit_codes
from kafka_liveness_dagster.cli.options import (
    GROUP,
    MOMENT,
    RANGE,
    TABLE,
    TEXT,
    TOPIC,
    Seconds,
    bootstrap_servers_option,
    command_config_option,
    json_option,
    kafka_settings,
    lazy_session,
    show_lines,
    spark_option,
    yes_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.spark.table.ledger import TableLedger

_REFRESH_INTERVAL = Seconds(min=0.2)


@click.command()
@click.argument("group", type=GROUP)
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@bootstrap_servers_option
@command_config_option
@click.option("--table", type=TABLE, help="catalog.namespace.table: also read its processed offsets.")
@spark_option
@json_option
@click.option(
    "--prometheus", is_flag=True, help="Print gauges in Prometheus' text format, one series per topic."
)
@click.option("--by-partition", is_flag=True, help="With --prometheus: a series for each partition.")
@click.option(
    "--watch",
    type=_REFRESH_INTERVAL,
    is_flag=False,
    flag_value=2.0,
    help="Refresh every 2 s, or every so many seconds, until Ctrl-C.",
)
@click.pass_context
def status(
    context: click.Context,
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
    """Show lag, crash lag and members of a group.

    The first line is the verdict: well, or what is wrong, by the checks of `health`. Then come the next
    steps, a table of the partitions, and each pending range with its size and the age of its oldest record.
    "pending" is crash lag: offsets that no lane has processed. "complete to" is KIP-333's committed(): every
    offset before it is processed, in either lane. "done beyond" is what the catch-up lane processed above the
    first pending offset. Pending ranges that expired, or lie in the oldest tenth of a log that the broker is
    already deleting, are marked.

    If DAGSTER_HOME is set, the runs of that instance are read too: a killed run shows as crashed at once.
    Without it, Kafka shows that a run is gone after its session timeout.

    All of it is by the commit logs, which a dropped or rolled back table does not change. With --table the
    table is queried too, and the rows that it lacks count as not processed. `audit` certifies the table.

    Never joins, never commits. Exit code 0: well; 1: not well, or the group has not begun yet; 2: invalid
    command line; 3: no response. --prometheus ends with 0 once it has printed the gauges.

    \b
    Example:
      kafka-liveness status orders-etl
      kafka-liveness status orders-etl --topic orders --watch 5
      kafka-liveness status orders-etl --json | jq '.partitions[] | select(.pending_offsets > 0)'
      kafka-liveness status orders-etl --prometheus > orders.tmp && mv orders.tmp orders.prom
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.cli import status_output  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.kafka import group_status  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415

    if as_json + prometheus + (watch is not None) > 1:
        raise click.UsageError("--json and --prometheus print once, and --watch never ends. Fix: choose one.")
    if by_partition and not prometheus:
        raise click.UsageError("--by-partition needs --prometheus. Fix: leave it out, or add --prometheus.")
    with errors_as_exit_codes(reads_only=True):
        cluster = Cluster(kafka_settings(bootstrap_servers, command_config))
        with lazy_session(spark) as session:
            ledger = _table_ledger(table, session) if table else None
            read = functools.partial(group_status.group_status, cluster, group, topics, ledger=ledger)
            read_report = functools.partial(status_output.StatusReport.read, cluster, read)
            if watch is not None:
                with contextlib.suppress(KeyboardInterrupt):
                    status_output.watch_status(read_report, watch)
                return
            try:
                if prometheus:
                    text = status_output.prometheus_text(cluster, read(), by_partition=by_partition)
                    click.echo(text, nl=False)
                    return
                report = read_report()
            except group_status.NoSuchGroupError as error:
                if prometheus:
                    raise CommandError(str(error)) from error
                _show_not_begun(group, str(error), as_json=as_json)
                context.exit(NOT_WELL)
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        status_output.create_console().print(status_output.show_status(report))
    context.exit(WELL if report.is_well else NOT_WELL)


def _show_not_begun(group: str, why: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"group": group, "well": False, "begun": False, "problems": [why]}))
    else:
        click.echo(f"group {group} is not well: it has not begun yet\n{why}")


@click.command("write-off")
@click.argument("group", type=GROUP)
@click.argument("ranges", type=RANGE, nargs=-1, required=True, metavar="RANGE...")
@click.option(
    "--reason", type=TEXT, required=True, help="Why these offsets stay unprocessed; recorded in Dagster."
)
@click.option(
    "--asset", type=TEXT, help="The group's crash lag asset, like orders_crash_lag, if it has several."
)
@bootstrap_servers_option
@command_config_option
@yes_option
@json_option
def write_off(
    group: str,
    *,
    ranges: tuple[str, ...],
    reason: str,
    asset: str | None,
    bootstrap_servers: str,
    command_config: TextIO | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Mark pending ranges as done, unprocessed.

    For crash lag of consumer group GROUP that expired or is not needed. RANGE
    p3:orders:70-120 is partition 3 of topic orders, from offset 70 to before 120. Copy it from `status` or
    from the partitions of the crash lag asset. The command writes nothing unless all ranges are pending and
    you confirm.

    A RANGE may also be a partition that failed when its offsets were reprocessed, like
    p3:orders:70-120@replay-…: the earlier rows stay in the table, and the partition counts as materialized.
    This needs DAGSTER_HOME.

    If DAGSTER_HOME is set, the crash lag asset gets an event for each partition concerned: who wrote off
    what, when and why. The event is written before the commit log. `forgive` is an alias of this command.

    \b
    Example:
      kafka-liveness write-off orders-etl p3:orders:70-120 --reason "expired, replaced from the archive"
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.cli import forgive as by_hand  # noqa: PLC0415  `--help` must not wait for it

    kafka = kafka_settings(bootstrap_servers, command_config)
    record = by_hand.DagsterRecord.find(group, asset)
    asked = by_hand.validate(kafka, group, ranges, reason=reason, record=record)
    show_lines((*asked.lines(), record.describe(asked)), as_json=as_json)
    if not yes:
        click.confirm(asked.question, abort=True, err=as_json)
    by_hand.write_off(kafka, asked, record)
    click.echo(json.dumps(asked.as_json()) if as_json else asked.outcome)


@click.command()
@click.argument("group", type=GROUP)
@click.argument("target", type=TEXT, metavar="TABLE")
@bootstrap_servers_option
@command_config_option
@json_option
def move(
    group: str, *, target: str, bootstrap_servers: str, command_config: TextIO | None, as_json: bool
) -> None:
    """Set the table that holds the rows of a group.

    From now on the rows of consumer group GROUP are in TABLE, or in the sink of that name. Use this command
    for a table that was renamed or moved with its snapshots. A run that writes to another table than the
    group's commits name is refused, because two assets with one group would each get a part of the records.
    The command changes no row and no offset. If TABLE lacks the snapshots, it lacks the committed rows
    (on_missing_rows).

    Exit code 1 while the group has members: end the live runs first.

    \b
    Example:
      kafka-liveness move orders-etl lake.sales.orders
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.cli import move as move_module  # noqa: PLC0415  `--help` must not wait for it

    moved = move_module.change_target(kafka_settings(bootstrap_servers, command_config), group, target)
    if as_json:
        click.echo(json.dumps({"group": group, "target": target, "former_targets": moved}))
        return
    for partition, former in moved.items():
        click.echo(f"{partition}: {former} -> {target}")


@click.command()
@click.argument("group", type=GROUP)
@click.argument("table", type=TABLE)
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@bootstrap_servers_option
@command_config_option
@spark_option
@yes_option
@json_option
def adopt(
    group: str,
    *,
    table: str,
    topics: tuple[str, ...],
    bootstrap_servers: str,
    command_config: TextIO | None,
    spark: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Take over the rows of another group.

    Lets consumer group GROUP take over rows that another group wrote to TABLE. A run is refused if another
    group wrote rows of its topics to its table, because the rows of two groups replace each other. Use this
    command for a group that was renamed.

    If GROUP has no commits of a topic, both commit logs of the former group are copied, and GROUP goes on
    where that group stopped, pending ranges included. The table gets one snapshot without rows. No row is
    changed.

    Exit code 1 while one of the groups has members: end their live runs first.

    \b
    Example:
      kafka-liveness adopt orders-etl-2 lake.shop.orders
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.cli.adopt import Adoption  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415

    cluster = Cluster(kafka_settings(bootstrap_servers, command_config))
    with lazy_session(spark) as session:
        found = Adoption.read(cluster, session(), group, table=table, topics=topics)
        show_lines(found.lines(), as_json=as_json)
        if not yes:
            click.confirm(f"Let group {group} take over these rows of {table}?", abort=True, err=as_json)
        show_lines(found.adopt(), as_json=as_json)
    if as_json:
        click.echo(json.dumps(found.as_json()))


@click.command()
@click.argument("group", type=GROUP)
@click.option("--from-group", "other", type=GROUP, help="Flink's group.id, or connect-NAME of a sink.")
@click.option(
    "--from-checkpoint",
    "checkpoint",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="checkpointLocation of Structured Streaming.",
)
@click.option(
    "--from-file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='JSON: {"orders": {"0": 70, "1": 66}}.',
)
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@bootstrap_servers_option
@command_config_option
@yes_option
@json_option
def start(
    group: str,
    *,
    other: str | None,
    checkpoint: Path | None,
    file: Path | None,
    topics: tuple[str, ...],
    bootstrap_servers: str,
    command_config: TextIO | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Start a group where another engine stopped.

    Commits the offsets of another group, of a checkpoint or of a file as the beginning of consumer group
    GROUP. Its first run reads from there, without a gap. GROUP must be new: no members and no commits of
    these topics. Stop the other engine first. Nothing is committed if the broker has deleted records that
    were not read.

    Exit code 1 if a check fails; nothing is changed then.

    \b
    Example:
      kafka-liveness start orders-etl --from-group connect-orders-sink
      kafka-liveness start orders-etl --from-checkpoint ./checkpoint
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.cli import start as start_module  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415

    if sum(source is not None for source in (other, checkpoint, file)) != 1:
        raise click.UsageError("Name one source: --from-group, --from-checkpoint or --from-file.")
    cluster = Cluster(kafka_settings(bootstrap_servers, command_config))
    warning = ""
    if other is not None:
        offsets = start_module.read_group(cluster, other, topics)
    elif checkpoint is not None:
        offsets, warning = start_module.read_checkpoint(checkpoint)
    else:
        assert file is not None  # noqa: S101 - one of the three is given
        offsets = start_module.read_file(file)
    if topics:
        offsets = {tp: offset for tp, offset in offsets.items() if tp.topic in topics}
    found = start_module.GroupStart.check(cluster, group, offsets)
    show_lines((*found.lines(), *([f"warning: {warning}"] if warning else [])), as_json=as_json)
    if not yes:
        click.confirm(f"Start group {group} at these offsets?", abort=True, err=as_json)
    outcome = found.commit()
    click.echo(json.dumps(found.as_json(warning)) if as_json else outcome)


@click.command()
@click.argument("group", type=GROUP)
@click.option("--from", "begin", type=MOMENT, required=True, help="ISO 8601, in UTC unless it has an offset.")
@click.option("--to", "end", type=MOMENT, help="Exclusive end.  [default: all committed records]")
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@click.option(
    "--asset", type=TEXT, help="The group's crash lag asset, like orders_crash_lag, if it has several."
)
@click.option("--allow-expired", is_flag=True, help="Replay the records that the broker still has.")
@bootstrap_servers_option
@command_config_option
@json_option
def replay(
    group: str,
    *,
    begin: datetime,
    end: datetime | None,
    topics: tuple[str, ...],
    asset: str | None,
    allow_expired: bool,
    bootstrap_servers: str,
    command_config: TextIO | None,
    as_json: bool,
) -> None:
    """Add partitions that reprocess a time window.

    Use it after you fixed a transform, or added a column. Consumer group GROUP reprocesses the window with
    the current transform. The records' timestamps decide: in each partition the window begins at the first
    record that is not older than --from, and ends before the first that is not older than --to. Pending
    ranges have their own partitions already, and the live lane reads offsets that are not committed. Nothing
    is processed before you materialize the new partitions of the crash lag asset. Each replaces exactly the
    rows of its offsets.

    Needs DAGSTER_HOME, the instance that has the asset. Exit code 1, and no partition added, if the broker
    has deleted records that may be of that time.

    \b
    Example:
      kafka-liveness replay orders-etl --from 2026-11-22T10:00:00Z --to 2026-11-22T11:00:00Z
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.cli import replay as by_hand  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.cli.backfill_command import materialize_command  # noqa: PLC0415

    kafka = kafka_settings(bootstrap_servers, command_config)
    found = by_hand.find_ranges(kafka, group, topics, begin=begin, end=end, allow_expired=allow_expired)
    show_lines(by_hand.describe_window(found), as_json=as_json)
    added, keys = by_hand.add_partitions(group, asset, found.ranges)
    name = added.to_user_string()
    if as_json:
        ranges = list(map(str, found.ranges))
        click.echo(json.dumps({"group": group, "asset": name, "partitions": keys, "ranges": ranges}))
        return
    # New partitions are Dagster's last ones, so there is no other one between two of them
    command = materialize_command(Path.cwd(), name, keys, keys)
    command = command or f"dagster asset materialize -f FILE --select {name} --partition …"
    click.echo(f"Added to {name}; materialize them in the UI, or with `{command}`:")
    for key in keys:
        click.echo(f"  {key}")


def _table_ledger(table: str, session: Callable[[], SparkSession]) -> TableLedger:
    from kafka_liveness_dagster.spark.table.ledger import TableLedger  # noqa: PLC0415  only where there is a table
    from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415

    return TableLedger(IcebergTable(table), session)
