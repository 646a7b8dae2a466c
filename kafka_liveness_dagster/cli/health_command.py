"""The command ``kafka-liveness health``: a probe's question, answered by an exit code. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

import click

from kafka_liveness_dagster.cli.options import (
    GROUP,
    TOPIC,
    ConnectionOptionError,
    bootstrap_servers_option,
    command_config_option,
    kafka_settings,
)
from kafka_liveness_dagster.core.errors import KafkaLivenessError

if TYPE_CHECKING:
    from kafka_liveness_dagster.kafka.group_status import GroupStatus


@click.command()
@click.argument("group", type=GROUP)
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@click.option(
    "--max-lag", type=click.IntRange(0), help="Fail if the live lane is further behind.  [default: any]"
)
@click.option(
    "--max-pending", type=click.IntRange(0), help="Fail if more crash lag is pending.  [default: any]"
)
@bootstrap_servers_option
@command_config_option
@click.pass_context
def health(
    context: click.Context,
    group: str,
    *,
    topics: tuple[str, ...],
    max_lag: int | None,
    max_pending: int | None,
    bootstrap_servers: str,
    command_config: TextIO | None,
) -> None:
    """Probe the health of a group by exit code.

    Reads Kafka only. Consumer group GROUP is unhealthy if it has lag and no member, if lag or crash lag
    exceeds your limits, if records are behind a transaction that no producer ends, or if the broker has
    deleted, or is about to delete, records that neither lane has processed. Prints a line for each check;
    failed checks go to stderr.

    Between two live runs a group has lag and no member for some seconds: let a probe count only failures of
    half a minute. Exit code 0: healthy; 1: unhealthy; 2: Kafka did not respond.

    \b
    Example:
      kafka-liveness health orders-etl
      kafka-liveness health orders-etl --max-lag 100000 --max-pending 0 --bootstrap-servers broker:9092
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.core.health import Severity, health_probe  # noqa: PLC0415  `--help` must not wait for it

    try:
        found = _group_status(bootstrap_servers, command_config, group, topics=topics)
    except KafkaLivenessError as error:
        raise ConnectionOptionError(str(error)) from error
    seen = [one.snapshot for one in found.partitions]
    verdicts = health_probe(
        seen,
        len(found.members),
        max_lag=max_lag,
        max_pending=max_pending,
        open_transactions=found.open_transactions,
    )
    for verdict in verdicts:
        click.echo(verdict.message, err=verdict.severity is not Severity.FINE)
    context.exit(0 if all(verdict.severity is Severity.FINE for verdict in verdicts) else 1)


def _group_status(servers: str, config: TextIO | None, group: str, topics: tuple[str, ...]) -> GroupStatus:
    from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.group_status import group_status  # noqa: PLC0415

    return group_status(Cluster(kafka_settings(servers, config)), group, topics)
