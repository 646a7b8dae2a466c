"""Define the command ``kafka-liveness`` and the sections of its help; each command is one function.

No command decides anything. Importing this module imports neither pyspark, confluent_kafka nor dagster, so
``--help`` prints at once.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TextIO

import click

from kafka_liveness_dagster.cli import (
    audit_command,
    doctor_command,
    group_commands,
    health_command,
    init,
    report,
    topic_commands,
)
from kafka_liveness_dagster.cli.exit_codes import NOT_WELL, WELL, CommandError, errors_as_exit_codes
from kafka_liveness_dagster.cli.options import (
    Seconds,
    bootstrap_servers_option,
    command_config_option,
    json_option,
    kafka_settings,
)
from kafka_liveness_dagster.core.errors import KafkaLivenessError

_SECONDS = Seconds(min=0, min_open=True)
_FILE = click.Path(dir_okay=False, path_type=Path)


def _require_writable(_: click.Context, __: click.Parameter, file: Path | None) -> Path | None:
    """Check a file before the work whose result it gets."""
    if file is not None and not os.access(file.parent, os.W_OK):
        raise click.BadParameter(f"Folder {file.parent} does not exist, or is not writable.")
    return file


SECTIONS = {
    "Services": ("up", "down", "jars"),
    "Inspect": ("status", "health", "audit", "doctor", "timeline", "report"),
    "Repair": ("replay", "write-off", "move", "adopt", "start"),
    "Topics": ("topic", "produce"),
    "Try it": ("demo", "init"),
}
"""The sections of the help, with their commands in order; a command that is not registered is left out."""
_ALIASES = {"forgive": "write-off"}


class _Group(click.Group):
    """The root command: lists commands by section, and ends each error with a message and an exit code."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name, or by its alias."""
        return super().get_command(ctx, _ALIASES.get(cmd_name, cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, with their summaries in one column."""
        del ctx  # click's own signature
        width = max(map(len, self.commands))
        for title, names in SECTIONS.items():
            known = [(name, self.commands[name]) for name in names if name in self.commands]
            rows = [
                (name.ljust(width), command.get_short_help_str(formatter.width)) for name, command in known
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; turn this package's errors into a message and an exit code."""
        with errors_as_exit_codes():
            return super().invoke(ctx)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kafka-liveness-dagster", prog_name="kafka-liveness")
def main() -> None:
    """Live, fair and crash-proof Kafka consumption for Dagster assets processed by Spark.

    Start with `kafka-liveness up`: a real Kafka and a real Spark on this machine, nothing to install but
    Java.

    Exit codes of all commands: 0 well or done; 1 not well or not done; 2 invalid command line; 3 no response.
    """


@main.command()
@click.option("--kafka-port", type=click.IntRange(1, 65535), help="Kafka's port.  [default: a free one]")
@click.option(
    "--spark-port", type=click.IntRange(1, 65535), help="Spark Connect's port.  [default: a free one]"
)
@click.option(
    "--spark-cores", type=click.IntRange(1), default=2, show_default=True, help="Spark tasks at once."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, with the token of Spark Connect."
)
def up(kafka_port: int | None, spark_port: int | None, spark_cores: int, *, as_json: bool) -> None:
    """Start the embedded Kafka and Spark Connect.

    The services keep running when this command ends. They keep topics, offsets and tables in .kafka_liveness
    of this folder, or in the folder that KAFKA_LIVENESS_HOME names. The first start on a machine downloads
    about 110 MB of jars. The command is idempotent. It restarts a Spark that responds but can run no job.

    \b
    Example:
      kafka-liveness up
      export KAFKA_BOOTSTRAP_SERVERS=$(kafka-liveness up --json | jq -r .bootstrap_servers)
      export SPARK_REMOTE=$(kafka-liveness up --json | jq -r .spark_remote)
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.embedded import services, state  # noqa: PLC0415  `--help` must not wait for it

    def ensure() -> services.Services:
        return services.ensure_services(
            kafka_port=kafka_port, spark_port=spark_port, spark_cores=spark_cores, even_if_down=True
        )

    home = state.home_folder()
    before = state.read_state(home).get("spark")
    found = ensure()
    if (
        before is not None
        and before == state.read_state(home)["spark"]
        and _is_spark_dead(found.spark_remote)
    ):
        services.mark_for_restart(before)
        found = ensure()
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    click.echo(f"Kafka          {found.bootstrap_servers}")
    click.echo(f"Spark Connect  {found.spark_remote.partition('/;')[0]} (with its token: up --json)")
    click.echo(f"catalog        {found.catalog_name}, in {found.catalog_uri}")
    click.echo(f"warehouse      {found.warehouse}")


def _is_spark_dead(spark_remote: str) -> bool:
    """Return whether a Spark that ran before can run no job; a busy one may still run one."""
    from kafka_liveness_dagster.spark.connect.health import dead_reason_at  # noqa: PLC0415  takes half a second

    try:
        why = dead_reason_at(spark_remote)
    except KafkaLivenessError as error:
        fix = "Fix: if it hangs, run `kafka-liveness down` and `kafka-liveness up`."
        click.echo(f"Spark is busy or hangs, and was not restarted. {fix} ({error})", err=True)
        return False
    if why:
        click.echo(f"{why} Restarting it.", err=True)
    return bool(why)


@main.command()
@json_option
def down(*, as_json: bool) -> None:
    """Stop the embedded services.

    Topics, offsets and tables stay for the next `up`. Until then runs and sensor ticks do not start the
    services: a tick is skipped and names this command, and a run fails with ServicesDownError.

    \b
    Example:
      kafka-liveness down
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.embedded import services  # noqa: PLC0415  `--help` must not wait for it

    stopped = list(services.stop_services(until_up=True))
    if as_json:
        click.echo(json.dumps({"stopped": stopped}))
    else:
        click.echo(f"stopped: {', '.join(stopped) or 'nothing ran'}")


@main.command()
@json_option
def jars(*, as_json: bool) -> None:
    """Print the folder of the jars for Spark.

    Your Spark server needs these jars: Kafka's connector, Iceberg's runtime and Avro, in the versions that
    fit the installed pyspark. The command downloads missing jars, 60 MB.

    \b
    Example:
      cp "$(kafka-liveness jars)"/*.jar /opt/pipeline/jars
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.embedded.jars import resolve_jars  # noqa: PLC0415  `--help` must not wait for it

    folder = resolve_jars("spark")
    click.echo(json.dumps({"folder": str(folder)}) if as_json else folder)


@main.command()
@click.option("--json-file", type=_FILE, help="Write the verdict to this file, as JSON.")
@click.option("--keep", is_flag=True, help="Keep Dagster's UI and the services running until Ctrl-C.")
@json_option
@click.pass_context
def demo(context: click.Context, json_file: Path | None, *, keep: bool, as_json: bool) -> None:
    """Show a crash and its backfill in two minutes.

    Runs on a real Kafka, Spark, Iceberg and Dagster. Orders flow, the sensor starts the live run, and the
    run worker is killed in the middle of a batch. The live lane continues at the log end. The skipped ranges
    become partitions and are backfilled. At the end the table is compared with the produced orders. Exit code
    1 if an order is lost or duplicated. With --json the progress goes to stderr.

    Takes about two minutes, and longer if the jars must be downloaded. The state is in .kafka_liveness/demo
    of this folder, or in the folder that KAFKA_LIVENESS_HOME names.

    KAFKA_BOOTSTRAP_SERVERS and SPARK_REMOTE select your own services. There the command creates topic
    `orders` and table `lake.shop.orders`, and keeps them; it refuses to run if they exist. pyiceberg reads
    the table with its own settings of `lake`, in ~/.pyiceberg.yaml.

    \b
    Example:
      kafka-liveness demo --json-file verdict.json
      SPARK_REMOTE=sc://spark.example:15002 KAFKA_BOOTSTRAP_SERVERS=broker-1.example.com:9092 kafka-liveness demo
    """  # noqa: D301, E501  click's own mark: do not rewrap what follows
    story = _import_example("definitions.demo.story")
    _raise_on_signals()
    verdict = story.tell(keep=keep, json_file=json_file, as_json=as_json)
    context.exit(WELL if verdict.holds else NOT_WELL)


@main.command()
@click.option("--session", type=_SECONDS, default=2.0, show_default=True, help="Session timeout, in seconds.")
@click.option(
    "--poll-interval",
    type=_SECONDS,
    default=12.0,
    show_default=True,
    help="Longest time of a batch, in seconds.",
)
@click.option(
    "--stall", type=_SECONDS, default=36.0, show_default=True, help="Time of the first batch, in seconds."
)
@click.option(
    "--protocol",
    type=click.Choice(["classic", "consumer"]),
    default="classic",
    show_default=True,
    help="Group protocol; consumer is KIP-848's.",
)
@bootstrap_servers_option
@command_config_option
@click.option(
    "--json-file",
    type=_FILE,
    callback=_require_writable,
    help="Write verdict and events to this file, as JSON.",
)
@click.option(
    "--svg-file",
    "picture",
    type=_FILE,
    callback=_require_writable,
    help="Draw the events in this file, as SVG.",
)
@json_option
@click.pass_context
def timeline(
    context: click.Context,
    *,
    session: float,
    poll_interval: float,
    stall: float,
    protocol: Literal["classic", "consumer"],
    bootstrap_servers: str,
    command_config: TextIO | None,
    json_file: Path | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Show how a stalled consumer leaves its group.

    KIP-62, second by second. The consumer polls a batch and stalls. Its heartbeats continue. At the poll
    interval it leaves its group. Its next poll joins again and gets the uncommitted batch again. The op, the
    watchdog, librdkafka and the broker each report their events. Exit code 1 if one of them differs. The
    defaults are a session timeout of 10 s, a poll interval of 1 min and a stall of 3 min, divided by 5. With
    --json the progress goes to stderr.

    The command creates a topic and a group, both timeline-…, and deletes them afterwards; a login needs all
    rights on these names. An ordinary broker allows session timeouts from 6 s (from 45 s with --protocol
    consumer).

    \b
    Example:
      kafka-liveness timeline
      kafka-liveness timeline --session 6 --poll-interval 10 --stall 20 --bootstrap-servers broker-1.example.com:9092
    """  # noqa: D301, E501  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.resources.kafka import KafkaLivenessResource  # noqa: PLC0415  `--help` must not wait for it

    report = _import_example("definitions.timeline.report")
    scenario = report.Scenario(protocol, session, poll_interval, stall)
    _raise_on_signals()
    is_embedded = bootstrap_servers == "embedded"  # which is started for it
    kafka = (
        KafkaLivenessResource().settings()
        if is_embedded
        else kafka_settings(bootstrap_servers, command_config)
    )
    verdict = report.run_timeline(kafka, scenario, json_file=json_file, picture=picture, as_json=as_json)
    context.exit(WELL if verdict.all_met else NOT_WELL)


main.add_command(doctor_command.doctor)
main.add_command(group_commands.status)
main.add_command(group_commands.write_off)
main.add_command(group_commands.move)
main.add_command(group_commands.adopt)
main.add_command(group_commands.start)
main.add_command(group_commands.replay)
main.add_command(audit_command.audit)
main.add_command(health_command.health)
main.add_command(report.report)
main.add_command(topic_commands.topic)
main.add_command(topic_commands.produce)
main.add_command(init.init)


def _raise_on_signals() -> None:
    """Make both signals raise KeyboardInterrupt; a shell ignores SIGINT for background jobs."""
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)


def _import_example(module: str) -> Any:
    """Import a module of the example code location.

    The location is next to the package in a checkout, and inside the package in a wheel.
    """
    package = Path(__file__).parents[1]
    sys.path.insert(0, str(inside if (inside := package / "example").is_dir() else package.parent))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CommandError(
            f"The command needs {error.name}. Fix: pip install 'kafka-liveness-dagster[ui]'."
        ) from error
