"""The commands for topics: ``kafka-liveness topic create``, ``list``, ``describe``, and ``produce``."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import click

from kafka_liveness_dagster.cli.options import (
    TEXT,
    TOPIC,
    bootstrap_servers_option,
    command_config_option,
    json_option,
    kafka_settings,
)
from kafka_liveness_dagster.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kafka_liveness_dagster.kafka.topics import ProducerRecord

_INTERNAL_PREFIX = "__"  # Kafka's own topics begin so


@click.group()
def topic() -> None:
    """Create, list and describe topics.

    Replaces Kafka's own tools, which the embedded broker does not include.
    """


@topic.command()
@click.argument("name", type=TOPIC)
@click.option(
    "--partitions", type=click.IntRange(1, 100_000), help="Number of partitions.  [default: the broker's]"
)
@click.option("--replication-factor", type=click.IntRange(1, 32_767), help="Copies.  [default: the broker's]")
@click.option(
    "--config", "config", multiple=True, metavar="NAME=VALUE", help="Like retention.ms=600000; repeatable."
)
@json_option
@bootstrap_servers_option
@command_config_option
def create(
    name: str,
    *,
    partitions: int | None,
    replication_factor: int | None,
    config: tuple[str, ...],
    as_json: bool,
    bootstrap_servers: str,
    command_config: TextIO | None,
) -> None:
    """Create topic NAME.

    The number of partitions limits how many live runs can share the work. You can add partitions later, but
    not remove them.

    \b
    Example:
      kafka-liveness topic create orders --partitions 4
    """  # noqa: D301  click's own mark: do not rewrap what follows
    settings = dict(_parse_setting(one) for one in config)
    kafka = kafka_settings(bootstrap_servers, command_config)
    from kafka_liveness_dagster.kafka import topics  # noqa: PLC0415  `--help` must not wait for it

    given = {"partitions": partitions or -1, "replication_factor": replication_factor or -1}
    count = topics.create_topic(kafka, name, **given, config=settings)
    if as_json:
        click.echo(json.dumps({"topic": name, "partitions": count}))
    else:
        click.echo(f"Created topic {name} with {count} partition{'s' if count > 1 else ''}")


@topic.command("list")
@json_option
@bootstrap_servers_option
@command_config_option
def list_(*, as_json: bool, bootstrap_servers: str, command_config: TextIO | None) -> None:
    """List topics, without Kafka's internal topics.

    \b
    Example:
      kafka-liveness topic list
    """  # noqa: D301  click's own mark: do not rewrap what follows
    kafka = kafka_settings(bootstrap_servers, command_config)
    from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415  `--help` must not wait for it

    found = [name for name in Cluster(kafka).topics() if not name.startswith(_INTERNAL_PREFIX)]
    if as_json:
        click.echo(json.dumps(found))
        return
    for name in found:
        click.echo(name)
    if not found:
        click.echo("The broker has no topic. Fix: kafka-liveness topic create NAME", err=True)


@topic.command()
@click.argument("name", type=TOPIC)
@json_option
@bootstrap_servers_option
@command_config_option
def describe(name: str, *, as_json: bool, bootstrap_servers: str, command_config: TextIO | None) -> None:
    """Show id, offsets and settings of a topic.

    Offsets are those of `read_committed`: the log end is the last stable offset.

    \b
    Example:
      kafka-liveness topic describe orders
    """  # noqa: D301  click's own mark: do not rewrap what follows
    kafka = kafka_settings(bootstrap_servers, command_config)
    from kafka_liveness_dagster.kafka import topics  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415

    cluster = Cluster(kafka)
    bounds = cluster.log_bounds(cluster.partitions([name]))
    config = topics.topic_config(kafka, name)
    topic_id = cluster.topic_ids([name])[name]
    if as_json:
        logs = [
            {"partition": tp.partition, "log_start": start, "log_end": end}
            for tp, (start, end) in bounds.items()
        ]
        click.echo(json.dumps({"topic": name, "topic_id": topic_id, "partitions": logs, "config": config}))
        return
    total = sum(end - start for start, end in bounds.values())
    click.echo(f"topic {name}, id {topic_id or 'unknown'}, {len(bounds)} partitions, {total:,} offsets")
    width = max(len(str(end)) for _, end in bounds.values())
    for tp, (start, end) in bounds.items():
        click.echo(f"  {tp.partition:>5}  {start:>{width}} - {end:>{width}}")
    for key, value in config.items():
        click.echo(f"  {key}={value}")


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--json-lines", is_flag=True, help="Require JSON in each line; ignore empty lines.")
@click.option("--key", type=TEXT, help="With --json-lines: the field that holds the record's key.")
@click.option("--key-separator", type=TEXT, help="Text between key and value in each line.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True, max=1e6),
    help="Records per second.  [default: no limit]",
)
@json_option
@bootstrap_servers_option
@command_config_option
def produce(
    topic: str,
    file: BinaryIO,
    *,
    json_lines: bool,
    key: str | None,
    key_separator: str | None,
    rate: float | None,
    as_json: bool,
    bootstrap_servers: str,
    command_config: TextIO | None,
) -> None:
    """Write lines of a file to a topic.

    Each line of FILE, or of standard input, becomes a record of TOPIC, written once and in order. Records
    with one key go to one partition. The embedded broker creates a missing topic. A malformed line ends the
    command: the error names the line and the number of records in the topic. A terminal shows the progress.

    \b
    Example:
      seq 1000 | kafka-liveness produce orders --rate 100
      echo 'ada:{"item": "tea"}' | kafka-liveness produce orders --key-separator :
      kafka-liveness produce orders --json-lines --key customer orders.jsonl
    """  # noqa: D301  click's own mark: do not rewrap what follows
    _check_key_options(key, key_separator, json_lines=json_lines)
    kafka = kafka_settings(bootstrap_servers, command_config)
    from kafka_liveness_dagster.cli.produce_progress import ProduceProgress  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.kafka import topics  # noqa: PLC0415

    if bootstrap_servers == "embedded":
        topics.create_missing_topics(kafka, [topic], lambda words: click.echo(words, err=True))
    producing = topics.RecordProducer(kafka, topic)
    sent = 0
    ended_by: InvalidSettingError | click.Abort | None = None
    with ProduceProgress(file, is_shown=not as_json) as progress:
        try:
            for record in _records(progress.lines, as_json=json_lines, key=key, separator=key_separator):
                producing.send(record)
                sent += 1
                progress.update(sent)
                if rate is not None and (ahead := sent / rate - progress.seconds) > 0:
                    time.sleep(ahead)
        except InvalidSettingError as error:
            ended_by = error
        except KeyboardInterrupt:  # the records that were sent by then are in the topic, and counted
            ended_by = click.Abort()
        count = producing.flush()
        seconds = progress.seconds
    partitions = {str(tp.partition): taken for tp, taken in sorted(producing.written.items())}
    if as_json:
        outcome = {"topic": topic, "records": count, "partitions": partitions, "seconds": round(seconds, 3)}
        click.echo(json.dumps(outcome))
    else:
        shares = ", ".join(f"{partition}: {taken:,}" for partition, taken in partitions.items())
        of = f" (partition {shares})" if shares else ""
        speed = f"{count / max(seconds, 0.001):,.0f} per second"
        click.echo(f"{count:,} records to {topic}{of} in {seconds:,.1f} s, {speed}", err=True)
    if ended_by is not None:
        raise ended_by


def _check_key_options(key: str | None, key_separator: str | None, *, json_lines: bool) -> None:
    if key is not None and not json_lines:
        raise click.UsageError(
            "--key needs JSON. Fix: add --json-lines, or use --key-separator for other lines."
        )
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator exclude each other. Fix: choose one.")
    if key_separator == "":
        raise click.UsageError("--key-separator is empty. Fix: give the text between key and value, like :")


def _records(
    lines: Iterable[bytes], *, as_json: bool, key: str | None, separator: str | None
) -> Iterator[ProducerRecord]:
    from kafka_liveness_dagster.kafka.topics import ProducerRecord  # noqa: PLC0415  `--help` must not wait for it

    for number, raw in enumerate(lines, 1):
        line = raw.rstrip(b"\r\n")
        if as_json:
            if line.strip():
                yield ProducerRecord(line, _key_of(_parse_line(line, number), key, number))
        elif separator is not None:
            before, found, value = line.partition(separator.encode())
            if not found:
                raise InvalidSettingError(
                    f"Line {number} has no {separator!r} in it. It and all later lines were not produced."
                )
            yield ProducerRecord(value, before)
        else:
            yield ProducerRecord(line)


def _parse_line(line: bytes, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise InvalidSettingError(
            f"Line {number} is not JSON ({error}). It and all later lines were not produced."
        ) from None


def _key_of(value: Any, field: str | None, number: int) -> bytes | None:
    if field is None:
        return None
    if not isinstance(value, dict) or field not in value:
        raise InvalidSettingError(
            f"Line {number} has no field {field!r}. It and all later lines were not produced."
        )
    found = value[field]
    if found is None:
        return None
    text = found if isinstance(found, str) else json.dumps(found)
    return text.encode()


def _parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(
            f"{text!r}: wanted NAME=VALUE, like retention.ms=600000", param_hint="--config"
        )
    return name, value
