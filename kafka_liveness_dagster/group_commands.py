"""The commands about one consumer group: ``kafka-liveness status`` and ``forgive``; ``audit_command`` has the third."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, TextIO

import click

from kafka_liveness_dagster.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from kafka_liveness_dagster.kafka.config import KafkaSettings

at_bootstrap_servers = click.option(
    "--bootstrap-servers", default="embedded", show_default=True, help="The Kafka the group is at, host:port."
)
with_command_config = click.option(
    "--command-config",
    type=click.File(encoding="utf-8"),
    help="File of `name=value` lines: librdkafka's security settings, like sasl.mechanism=PLAIN.",
)
_EVERY = click.FloatRange(min=0.2)


@click.command()
@click.argument("group")
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@at_bootstrap_servers
@with_command_config
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--watch", type=_EVERY, is_flag=False, flag_value=2.0, help="Look every 2 (or so many) s until Ctrl-C.")
def status(
    group: str,
    *,
    topics: tuple[str, ...],
    bootstrap_servers: str,
    command_config: TextIO | None,
    as_json: bool,
    watch: float | None,
) -> None:
    """Show both commit logs of consumer group GROUP, what it owes, its lag and its members.

    "both lanes" is KIP-333's committed(): every offset before it is processed, in whichever lane. "done above" is
    what the catch-up lane did beyond the first offset still owed. Owed ranges that expired, or lie in the oldest
    tenth of a log that the broker is already deleting, are marked.

    Never joins, never commits. Exit code 1 when there is no such group.

    \b
    Example:
      kafka-liveness status orders-etl
      kafka-liveness status orders-etl --topic orders --watch 5
      kafka-liveness status orders-etl --json | jq '.partitions[] | select(.owed_offsets > 0)'
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from rich.console import Console  # noqa: PLC0415  `--help` must not wait for it

    from kafka_liveness_dagster import status as group_status  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415

    if as_json and watch is not None:
        raise click.UsageError("--json prints one object, --watch never ends: choose one")
    cluster = Cluster(reached(bootstrap_servers, command_config))
    if watch is not None:
        with contextlib.suppress(KeyboardInterrupt):
            group_status.watch(cluster, group, topics, watch)
        return
    found = group_status.look(cluster, group, topics)
    if as_json:
        click.echo(json.dumps(found.as_json()))
    else:
        Console(highlight=False).print(group_status.show(found))


@click.command()
@click.argument("group")
@click.argument("ranges", nargs=-1, required=True, metavar="RANGE...")
@click.option("--reason", required=True, help="Why nobody will process them; kept in Dagster.")
@click.option("--asset", help="The crash lag asset, like orders_crash_lag, when Dagster knows several or none.")
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

    With DAGSTER_HOME set, who forgave what, when and why becomes an event of the crash lag asset, on the partitions
    concerned; it is written before the commit log.

    \b
    Example:
      kafka-liveness forgive orders-etl orders:3:70-120 --reason "expired, replaced from the archive"
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster import forgive as by_hand  # noqa: PLC0415  `--help` must not wait for it

    kafka = reached(bootstrap_servers, command_config)
    asked = by_hand.examine(kafka, group, ranges, reason)
    audit = by_hand.Audit.of(group, asset)
    for line in asked.told():
        click.echo(line)
    click.echo(audit.told(asked))
    if not yes:
        click.confirm(f"Count these {asked.size:,} offsets as done, unprocessed?", abort=True)
    by_hand.forgive(kafka, asked, audit)
    click.echo(f"{asked.size:,} offsets forgiven")


def reached(bootstrap_servers: str, command_config: TextIO | None) -> KafkaSettings:
    """The Kafka named; the embedded one is looked at where it runs, and not started for it."""
    from kafka_liveness_dagster.embedded import services  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.embedded.state import home_folder  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.config import KafkaSettings  # noqa: PLC0415

    if bootstrap_servers != "embedded":
        return KafkaSettings.of_properties(bootstrap_servers, command_config or ())
    found = services.running()
    if found is None or not found.bootstrap_servers:
        raise InvalidSettingError(
            f"the embedded Kafka does not run in {home_folder()}: start it with `kafka-liveness up`; if it was "
            "started in another folder, set KAFKA_LIVENESS_HOME to that one's; or name yours with --bootstrap-servers"
        )
    return KafkaSettings(found.bootstrap_servers)
