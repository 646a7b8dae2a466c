"""The command ``kafka-liveness health``: a probe's question, answered by an exit code. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

import click

from kafka_liveness_dagster.cli.arguments import GROUP, TOPIC
from kafka_liveness_dagster.cli.connection import CannotAskError, at_bootstrap_servers, reached, with_command_config
from kafka_liveness_dagster.core.errors import KafkaLivenessError

if TYPE_CHECKING:
    from kafka_liveness_dagster.cli.status import GroupStatus


@click.command()
@click.argument("group", type=GROUP)
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@click.option("--max-lag", type=click.IntRange(0), help="Offsets that may wait for the live lane.  [default: any]")
@click.option("--max-owed", type=click.IntRange(0), help="Offsets of crash lag that may be owed.  [default: any]")
@at_bootstrap_servers
@with_command_config
@click.pass_context
def health(
    context: click.Context,
    group: str,
    *,
    topics: tuple[str, ...],
    max_lag: int | None,
    max_owed: int | None,
    bootstrap_servers: str,
    command_config: TextIO | None,
) -> None:
    """Tell a probe whether consumer group GROUP is well, by Kafka's word alone.

    It is not while records wait and it has no member, while more waits or is owed than you allow, while records wait
    behind a transaction that no producer ends, or when the broker has deleted, or is about to delete, what neither
    lane has processed. A line for each of these; those that are wrong go to stderr.

    Between two live runs records wait for some seconds and nobody is there: let a probe count only what fails for
    half a minute. Exit code 0: well; 1: not; 2: it could not be asked.

    \b
    Example:
      kafka-liveness health orders-etl
      kafka-liveness health orders-etl --max-lag 100000 --max-owed 0 --bootstrap-servers broker:9092
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.core.health import Gravity  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.core.probe import probe  # noqa: PLC0415

    try:
        found = _look(bootstrap_servers, command_config, group, topics)
    except KafkaLivenessError as error:
        raise CannotAskError(str(error)) from error
    seen = [one.seen for one in found.partitions]
    verdicts = probe(seen, len(found.members), max_lag=max_lag, max_owed=max_owed, held=found.held)
    for verdict in verdicts:
        click.echo(verdict.sentence, err=verdict.gravity is not Gravity.FINE)
    context.exit(0 if all(verdict.gravity is Gravity.FINE for verdict in verdicts) else 1)


def _look(servers: str, config: TextIO | None, group: str, topics: tuple[str, ...]) -> GroupStatus:
    from kafka_liveness_dagster.cli.status import look  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415

    return look(Cluster(reached(servers, config)), group, topics)
