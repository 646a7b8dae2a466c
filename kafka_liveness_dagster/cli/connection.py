"""How does a command reach Kafka and Spark? The addresses it is given, or the embedded services where they run.

Starts nothing.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TextIO

import click

from kafka_liveness_dagster.cli.arguments import REMOTE, SERVERS
from kafka_liveness_dagster.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.kafka.config import KafkaSettings

_QUIET_SECONDS = 60.0


class CannotAskError(click.ClickException):
    """A question could not be asked: exit code 2, since the answer is neither yes nor no."""

    exit_code = 2


at_bootstrap_servers = click.option(
    "--bootstrap-servers",
    type=SERVERS,
    default="embedded",
    show_default=True,
    help="Kafka brokers.",
)
with_command_config = click.option(
    "--command-config",
    type=click.File(encoding="utf-8"),
    help="File of `name=value` lines: librdkafka's security settings, like sasl.mechanism=PLAIN.",
)
at_spark = click.option(
    "--spark",
    type=REMOTE,
    default="embedded",
    show_default=True,
    help="Spark Connect server, sc://host:port/;token=…",
)


def reached(bootstrap_servers: str, command_config: TextIO | None) -> KafkaSettings:
    """The Kafka named; the embedded one is looked at where it runs, and not started for it."""
    from kafka_liveness_dagster.embedded import services  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.embedded.state import home_folder  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.config import KafkaSettings  # noqa: PLC0415

    if bootstrap_servers != "embedded":
        try:
            return KafkaSettings.of_properties(bootstrap_servers, command_config or ())
        except (InvalidSettingError, UnicodeDecodeError) as error:
            told = "it is no UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            raise click.BadParameter(told, param_hint="--command-config") from None
    found = services.running()
    if found is None or not found.bootstrap_servers:
        raise InvalidSettingError(
            f"the embedded Kafka does not run in {home_folder()}: start it with `kafka-liveness up`; if it was "
            "started in another folder, set KAFKA_LIVENESS_HOME to that one's; or name yours with --bootstrap-servers"
        )
    return KafkaSettings(found.bootstrap_servers)


@contextmanager
def session_at(remote: str) -> Iterator[Callable[[], SparkSession]]:
    """What opens a session when it is needed first, which ends with the block; a server is not started for it.

    In the block Spark may take its time, as long as it says something now and then.
    """
    opened: list[SparkSession] = []
    with ExitStack() as ends:

        def session() -> SparkSession:
            from kafka_liveness_dagster.spark.line import line_of  # noqa: PLC0415  only where there is a table
            from kafka_liveness_dagster.spark.session import connect, end  # noqa: PLC0415

            if not opened:
                opened.append(connect(spark_at(remote), say=partial(click.echo, err=True)))
                ends.callback(end, opened[0])
                ends.enter_context(line_of(opened[0]).unless_silent(_QUIET_SECONDS, "a command asked it for a table"))
            return opened[0]

        yield session


def spark_at(remote: str) -> str:
    """The Spark named; the embedded one is looked at where it runs."""
    from kafka_liveness_dagster.embedded import services  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.embedded.state import home_folder  # noqa: PLC0415

    if remote != "embedded":
        return remote
    found = services.running()
    if found is None or not found.spark_remote:
        raise InvalidSettingError(
            f"the embedded Spark does not run in {home_folder()}: start it with `kafka-liveness up`; if it was "
            "started in another folder, set KAFKA_LIVENESS_HOME to that one's; or name yours with --spark"
        )
    return found.spark_remote
