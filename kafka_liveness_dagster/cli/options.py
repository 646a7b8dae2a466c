"""Check the arguments of a command, and connect it to Kafka and Spark. Starts nothing.

Arguments are checked before any request: some texts end the process in Kafka's client library. Imports
neither it nor Dagster: ``--help`` answers at once.
"""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import click

from kafka_liveness_dagster.core import names
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import NameRule, display
from kafka_liveness_dagster.core.partition_keys import parse_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click import Context, Parameter
    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.kafka.settings import KafkaSettings


_DAY_SECONDS = 86_400


class _NamedText(click.ParamType):  # type: ignore[type-arg]  # of click 8.1 it takes none
    """A text of one kind, or one word; a secret is not shown."""

    def __init__(
        self, name: str, kind: NameRule, or_else: str | None = None, *, is_secret: bool = False
    ) -> None:
        self.name = name
        self._rule = kind
        self._alternative = or_else
        self._is_secret = is_secret

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> str:
        if value != self._alternative and not self._rule.matches(value):
            told = "" if self._is_secret else f"{display(value)}: "
            self.fail(
                f"{told}wanted "
                f"{self._rule.description}{f', or {self._alternative}' if self._alternative else ''}",
                param,
                ctx,
            )
        return value


class _Range(click.ParamType):  # type: ignore[type-arg]  # of click 8.1 it takes none
    """A crash lag range, as Dagster's partitions are called."""

    name = "range"

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> str:
        try:
            parse_key(value)
        except InvalidSettingError as error:
            self.fail(str(error), param, ctx)
        return value


class Seconds(click.FloatRange):
    """A time that ends: ``nan`` and ``inf`` are floats to click, and in no range and every one."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(max=_DAY_SECONDS, **limits)

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> Any:  # noqa: D102 - click's
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return found


class _Moment(click.ParamType):  # type: ignore[type-arg]  # of click 8.1 it takes none
    """A time as ISO 8601 has it; without an offset it is UTC."""

    name = "time"

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> datetime:
        try:
            found = datetime.fromisoformat(value[:-1] + "+00:00" if value[-1:] in "zZ" else value)
        except ValueError:
            self.fail(
                f"{display(value)}: wanted a time like 2026-11-22T10:00:00Z, or 2026-11-22T11:00+01:00",
                param,
                ctx,
            )
        return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


MOMENT = _Moment()
TEXT = _NamedText("text", names.TEXT)
GROUP = _NamedText("group", names.GROUP_ID)
TOPIC = _NamedText("topic", names.TOPIC)
TABLE = _NamedText("table", names.TABLE)
SERVERS = _NamedText("host:port", names.SERVERS, "embedded")
REMOTE = _NamedText("sc://host:port", names.REMOTE, "embedded", is_secret=True)
RANGE = _Range()


_QUIET_SECONDS = 60.0


class ConnectionOptionError(click.ClickException):
    """A question could not be asked: exit code 2, since the answer is neither yes nor no."""

    exit_code = 2


bootstrap_servers_option = click.option(
    "--bootstrap-servers",
    type=SERVERS,
    default="embedded",
    show_default=True,
    help="Kafka brokers.",
)
command_config_option = click.option(
    "--command-config",
    type=click.File(encoding="utf-8"),
    help="File of `name=value` lines: librdkafka's security settings, like sasl.mechanism=PLAIN.",
)
spark_option = click.option(
    "--spark",
    type=REMOTE,
    default="embedded",
    show_default=True,
    help="Spark Connect server, sc://host:port/;token=…",
)


def kafka_settings(bootstrap_servers: str, command_config: TextIO | None) -> KafkaSettings:
    """The Kafka named; the embedded one is looked at where it runs, and not started for it."""
    from kafka_liveness_dagster.embedded import services  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.embedded.state import home_folder  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.settings import KafkaSettings  # noqa: PLC0415

    if bootstrap_servers != "embedded":
        try:
            return KafkaSettings.from_properties(bootstrap_servers, command_config or ())
        except (InvalidSettingError, UnicodeDecodeError) as error:
            told = "it is no UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            raise click.BadParameter(told, param_hint="--command-config") from None
    found = services.running_services()
    if found is None or not found.bootstrap_servers:
        raise InvalidSettingError(
            f"the embedded Kafka does not run in {home_folder()}: start it with `kafka-liveness up`; if it "
            "was started in another folder, set KAFKA_LIVENESS_HOME to that one's; or name yours with "
            "--bootstrap-servers"
        )
    return KafkaSettings(found.bootstrap_servers)


@contextmanager
def lazy_session(remote: str) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that opens a session at its first call; the session ends with the block.

    No server is started for it. In the block Spark may take its time, as long as it says something now and
    then.
    """
    opened: list[SparkSession] = []
    with ExitStack() as ends:

        def session() -> SparkSession:
            from kafka_liveness_dagster.spark.connect.connection import connection_of  # noqa: PLC0415  only where there is a table
            from kafka_liveness_dagster.spark.connect.session import close, connect  # noqa: PLC0415

            if not opened:
                opened.append(connect(spark_address(remote), report=partial(click.echo, err=True)))
                ends.callback(close, opened[0])
                ends.enter_context(
                    connection_of(opened[0]).abort_if_silent(_QUIET_SECONDS, "a command asked it for a table")
                )
            return opened[0]

        yield session


def spark_address(remote: str) -> str:
    """The Spark named; the embedded one is looked at where it runs."""
    from kafka_liveness_dagster.embedded import services  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.embedded.state import home_folder  # noqa: PLC0415

    if remote != "embedded":
        return remote
    found = services.running_services()
    if found is None or not found.spark_remote:
        raise InvalidSettingError(
            f"the embedded Spark does not run in {home_folder()}: start it with `kafka-liveness up`; if it "
            "was started in another folder, set KAFKA_LIVENESS_HOME to that one's; or name yours with "
            "--spark"
        )
    return found.spark_remote
