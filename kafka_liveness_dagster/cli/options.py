"""Check the arguments of a command, and connect it to Kafka and Spark. Starts nothing.

Checks arguments before any request, because some texts end the process in Kafka's client library. Imports
neither that library nor Dagster at its import, so ``--help`` prints at once.
"""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from kafka_liveness_dagster.cli.exit_codes import NotRunningError
from kafka_liveness_dagster.core import names
from kafka_liveness_dagster.core.errors import InvalidSettingError
from kafka_liveness_dagster.core.names import NameRule, display
from kafka_liveness_dagster.core.partition_keys import parse_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from click import Context, Parameter
    from pyspark.sql import SparkSession

    from kafka_liveness_dagster.kafka.settings import KafkaSettings


_DAY_SECONDS = 86_400


class _NamedText(click.ParamType):  # type: ignore[type-arg]  # of click 8.1 it takes none
    """A text that a rule accepts, or one other word; errors do not show a secret."""

    def __init__(
        self, name: str, kind: NameRule, or_else: str | None = None, *, is_secret: bool = False
    ) -> None:
        self.name = name
        self._rule = kind
        self._alternative = or_else
        self._is_secret = is_secret

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> str:
        if value != self._alternative and not self._rule.matches(value):
            shown = "" if self._is_secret else f"{display(value)}: "
            self.fail(
                f"{shown}wanted "
                f"{self._rule.description}{f', or {self._alternative}' if self._alternative else ''}",
                param,
                ctx,
            )
        return value


class _Range(click.ParamType):  # type: ignore[type-arg]  # of click 8.1 it takes none
    """A crash lag range, in the form of the crash lag asset's partition keys."""

    name = "range"

    def convert(self, value: str, param: Parameter | None, ctx: Context | None) -> str:
        try:
            parse_key(value)
        except InvalidSettingError as error:
            self.fail(str(error), param, ctx)
        return value


class FiniteRange(click.FloatRange):
    """A finite number in a range: click's range check lets ``nan`` pass."""

    kind = "finite number"

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> Any:  # noqa: D102 - click's
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a {self.kind}", param, ctx)
        return found


class Seconds(FiniteRange):
    """A finite number of seconds, at most a day."""

    kind = "number of seconds"

    def __init__(self, **limits: Any) -> None:
        super().__init__(max=_DAY_SECONDS, **limits)


class _Moment(click.ParamType):  # type: ignore[type-arg]  # of click 8.1 it takes none
    """A time in ISO 8601; UTC unless it has an offset."""

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
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")


def code_location_options(
    module_help: str, file_help: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds ``-m`` and ``-f``, as ``dagster dev`` has them."""
    by_module = click.option("-m", "--module-name", "module", help=module_help)
    by_file = click.option(
        "-f",
        "--python-file",
        "file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help=file_help,
    )
    return lambda command: by_module(by_file(command))


def check_code_location(module: str | None, file: Path | None) -> None:
    """Check that at most one option names the code location.

    Raises:
        click.UsageError: both do.
    """
    if module and file:
        raise click.UsageError("-m and -f both name the code location. Fix: choose one.")


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
spark_option = click.option(
    "--spark",
    type=REMOTE,
    default="embedded",
    show_default=True,
    help="Spark Connect server, sc://host:port/;token=…",
)


def show_lines(lines: Iterable[str], *, as_json: bool) -> None:
    """Print lines for people: on stdout, or on stderr if stdout gets a JSON document."""
    for line in lines:
        click.echo(line, err=as_json)


def kafka_settings(bootstrap_servers: str, command_config: TextIO | None) -> KafkaSettings:
    """Return the settings of the cluster that the options name; the embedded broker is not started.

    Raises:
        click.BadParameter: ``--command-config`` is invalid.
        NotRunningError: the embedded broker does not run.
    """
    from kafka_liveness_dagster.embedded import services  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.embedded.state import home_folder  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.settings import KafkaSettings  # noqa: PLC0415

    if bootstrap_servers != "embedded":
        try:
            return KafkaSettings.from_properties(bootstrap_servers, command_config or ())
        except (InvalidSettingError, UnicodeDecodeError) as error:
            why = "the file is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            raise click.BadParameter(why, param_hint="--command-config") from None
    found = services.running_services()
    if found is None or not found.bootstrap_servers:
        raise NotRunningError(
            f"The embedded Kafka does not run in {home_folder()}. Fix: run `kafka-liveness up`, or set "
            "KAFKA_LIVENESS_HOME to the folder in which it runs, or name yours with --bootstrap-servers."
        )
    return KafkaSettings(found.bootstrap_servers)


@contextmanager
def lazy_session(remote: str) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that opens a session at its first call; the session ends with the block.

    Starts no server. A request has no time limit while Spark responds at least every 60 s.
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
    """Return the address of the Spark server that the option names; the embedded one is not started.

    Raises:
        NotRunningError: the embedded Spark does not run.
    """
    from kafka_liveness_dagster.embedded import services  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.embedded.state import home_folder  # noqa: PLC0415

    if remote != "embedded":
        return remote
    found = services.running_services()
    if found is None or not found.spark_remote:
        raise NotRunningError(
            f"The embedded Spark does not run in {home_folder()}. Fix: run `kafka-liveness up`, or set "
            "KAFKA_LIVENESS_HOME to the folder in which it runs, or name yours with --spark."
        )
    return found.spark_remote
