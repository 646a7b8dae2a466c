"""The command ``kafka-liveness``: one function per command, and none of them decides anything.

Importing this module imports neither pyspark, confluent_kafka nor dagster: ``--help`` answers at once.
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
    report,
    topic_commands,
)
from kafka_liveness_dagster.cli.options import (
    Seconds,
    bootstrap_servers_option,
    command_config_option,
    kafka_settings,
)
from kafka_liveness_dagster.core.errors import KafkaLivenessError

_SECONDS = Seconds(min=0, min_open=True)
_FILE = click.Path(dir_okay=False, path_type=Path)


def _require_writable(_: click.Context, __: click.Parameter, file: Path | None) -> Path | None:
    """Refuse at the beginning what could not be written at the end."""
    if file is not None and not os.access(file.parent, os.W_OK):
        raise click.BadParameter(f"folder {file.parent} does not exist, or may not be written to")
    return file


_ALIASES = {"forgive": "write-off"}


class _Group(click.Group):
    """Shows our own errors as a message, without a traceback: they carry their numbers and their remedy."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name, or by its alias."""
        return super().get_command(ctx, _ALIASES.get(cmd_name, cmd_name))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KafkaLivenessError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kafka-liveness-dagster", prog_name="kafka-liveness")
def main() -> None:
    """Live, fair and crash-proof Kafka consumption for Dagster assets processed by Spark.

    Start with `kafka-liveness up`: a real Kafka and a real Spark on this machine, nothing to install but
    Java.
    """


@main.command()
@click.option("--kafka-port", type=click.IntRange(1, 65535), help="Kafka's port; a free one unless given.")
@click.option(
    "--spark-port", type=click.IntRange(1, 65535), help="Spark Connect's port; a free one unless given."
)
@click.option(
    "--spark-cores", type=click.IntRange(1), default=2, show_default=True, help="Spark tasks at once."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, with the token of Spark Connect."
)
def up(kafka_port: int | None, spark_port: int | None, spark_cores: int, *, as_json: bool) -> None:
    """Start the embedded Kafka and Spark Connect.

    They go on when this command ends, and keep topics, offsets and tables in .kafka_liveness (or in the
    folder KAFKA_LIVENESS_HOME names). Once a machine about 110 MB of jars are downloaded. Calling it again is
    harmless. A Spark that answers, but can run no job, is restarted.

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
    """Return whether a Spark that ran before can run no job. A busy one is left alone."""
    from kafka_liveness_dagster.spark.connect.health import dead_reason_at  # noqa: PLC0415  takes half a second

    try:
        why = dead_reason_at(spark_remote)
    except KafkaLivenessError as error:
        fix = "If it hangs, run `kafka-liveness down` and `kafka-liveness up`."
        click.echo(f"Spark is busy or hangs, and was left alone. {fix} ({error})", err=True)
        return False
    if why:
        click.echo(f"{why} It is restarted.", err=True)
    return bool(why)


@main.command()
def down() -> None:
    """Stop the embedded services.

    Topics, offsets and tables stay for the next `up`. From then on only `kafka-liveness up` starts them. Runs
    and sensor ticks do not: a tick is skipped and names this command, a run fails with ServicesDownError.

    \b
    Example:
      kafka-liveness down
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.embedded import services  # noqa: PLC0415  `--help` must not wait for it

    click.echo(f"stopped: {', '.join(services.stop_services(until_up=True)) or 'nothing ran'}")


@main.command()
def jars() -> None:
    """Print the folder of the jars for Spark.

    Your Spark server needs them: Kafka's connector, Iceberg's runtime, Avro. They go with the pyspark that is
    installed, and are downloaded if they are not there yet, 60 MB.

    \b
    Example:
      cp "$(kafka-liveness jars)"/*.jar /opt/pipeline/jars
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.embedded.jars import resolve_jars  # noqa: PLC0415  `--help` must not wait for it

    click.echo(resolve_jars("spark"))


@main.command()
@click.option("--json-file", type=_FILE, help="Write the verdict to this file, as JSON.")
@click.option("--keep", is_flag=True, help="Stay with Dagster's UI and the services running until Ctrl-C.")
@click.pass_context
def demo(context: click.Context, json_file: Path | None, *, keep: bool) -> None:
    """Show a crash and its backfill in two minutes.

    Runs on a real Kafka, Spark, Iceberg and Dagster. Orders flow, the sensor starts the live run, the run
    worker is killed in the middle of a batch, the live lane goes on at the log end, the skipped ranges become
    partitions and are backfilled; at the end the table is compared with what was produced. Exit code 1 unless
    nothing is lost and nothing is doubled.

    About two minutes, longer when the jars are still to be downloaded. Its state is in .kafka_liveness/demo
    of this folder, or in the folder KAFKA_LIVENESS_HOME names.

    KAFKA_BOOTSTRAP_SERVERS and SPARK_REMOTE name services of yours to tell it on. Topic `orders` and table
    `lake.shop.orders` are made there, unless they exist, which is refused, and stay; pyiceberg reads the
    table with its own settings of `lake`, in ~/.pyiceberg.yaml.

    \b
    Example:
      kafka-liveness demo --json-file verdict.json
      SPARK_REMOTE=sc://spark.example:15002 KAFKA_BOOTSTRAP_SERVERS=broker-1.example.com:9092 kafka-liveness demo
    """  # noqa: D301, E501  click's own mark: do not rewrap what follows
    story = _import_example("definitions.demo.story")
    _raise_on_signals()
    verdict = story.tell(keep=keep, json_file=json_file)
    context.exit(0 if verdict.holds else 1)


@main.command()
@click.option("--session", type=_SECONDS, default=2.0, show_default=True, help="Session timeout, in seconds.")
@click.option(
    "--poll-interval", type=_SECONDS, default=12.0, show_default=True, help="How long a batch may take."
)
@click.option(
    "--stall", type=_SECONDS, default=36.0, show_default=True, help="How long the first one does take."
)
@click.option("--protocol", type=click.Choice(["classic", "consumer"]), default="classic", show_default=True)
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
) -> None:
    """Show how a stalled consumer leaves its group.

    KIP-62, second by second. The consumer polls a batch and stalls. Heartbeats go on; at the poll interval it
    leaves its group; when it polls again it joins again and is given the uncommitted batch again. The op, the
    watchdog, librdkafka and the broker each tell what they saw. Exit code 1 unless it was so. The defaults
    are a session timeout of 10 s, a poll interval of 1 min and a stall of 3 min, divided by 5.

    Topic and group, both timeline-…, are made for it and deleted afterwards; a login needs all rights on
    these names. An ordinary broker allows session timeouts from 6 s (from 45 s with --protocol consumer).

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
    context.exit(
        0 if report.run_timeline(kafka, scenario, json_file=json_file, picture=picture).all_met else 1
    )


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


def _raise_on_signals() -> None:
    """Make both signals raise KeyboardInterrupt; a shell ignores SIGINT for background jobs."""
    for asked_to_end in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked_to_end, signal.default_int_handler)


def _import_example(module: str) -> Any:
    """Import a module of the example code location.

    The location is next to the package in a checkout, and inside the package in a wheel.
    """
    package = Path(__file__).parents[1]
    sys.path.insert(0, str(inside if (inside := package / "example").is_dir() else package.parent))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"it needs {error.name}: pip install 'kafka-liveness-dagster[ui]'"
        ) from error
