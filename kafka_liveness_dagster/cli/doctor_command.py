"""The command ``kafka-liveness doctor``: print its findings for people and for programs.

Decides nothing: the rules in ``doctor`` do.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from kafka_liveness_dagster.cli.exit_codes import NOT_WELL, WELL
from kafka_liveness_dagster.cli.options import (
    GROUP,
    bootstrap_servers_option,
    check_code_location,
    code_location_options,
    command_config_option,
    json_option,
    kafka_settings,
    spark_address,
    spark_option,
)
from kafka_liveness_dagster.doctor.rules import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kafka_liveness_dagster.doctor.rules import Finding
    from kafka_liveness_dagster.kafka.settings import KafkaSettings

_EMBEDDED = "embedded"
_COLORS = {Outcome.WARN: "yellow", Outcome.FAIL: "red", Outcome.UNKNOWN: "magenta"}
_WIDTH = 24


@click.command()
@bootstrap_servers_option
@command_config_option
@spark_option
@click.option("--group", type=GROUP, help="Also check this consumer group and its topics.")
@click.option(
    "--probe-catalog",
    metavar="CATALOG[.NAMESPACE]",
    help="Try batches on a scratch table of this Spark catalog.",
)
@code_location_options(
    "The code location, as `dagster dev -m` takes it.", "The code location, as `dagster dev -f` takes it."
)
@click.option("--strict", is_flag=True, help="Exit code 1 for warnings and unknown results, too.")
@json_option
@click.pass_context
def doctor(
    context: click.Context,
    *,
    bootstrap_servers: str,
    command_config: TextIO | None,
    spark: str,
    group: str | None,
    probe_catalog: str | None,
    module: str | None,
    file: Path | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Check a deployment and advise on settings.

    Checks Kafka's limits and its retention of commits and records, and Spark's versions, settings and
    catalogs. For embedded services it also checks Java and the jars. With --group it checks how near the
    group's backlog is to being deleted. DAGSTER_HOME selects the Dagster instance, whose daemon is checked,
    too. With -m or -f it checks the groups of a code location, their sensors and intervals, and the executor.
    A part that you do not name is not checked, and has a ? in the list.

    Prints a line for each check: ok, warn, FAIL, or ? if it could not be checked, with the missing right.
    Joins nothing, commits nothing, writes nothing. Only --probe-catalog writes: it creates a table
    kafka_liveness_probe_…, in its own namespace or in NAMESPACE, writes batches to it, and drops it.

    Exit code 0: no check failed; 1: a check failed, for example because Kafka or Spark did not respond; 2:
    invalid command line.

    \b
    Example:
      kafka-liveness doctor
      kafka-liveness doctor --bootstrap-servers broker:9093 --command-config client.properties --group orders-etl
      DAGSTER_HOME=/opt/dagster kafka-liveness doctor -m orders.definitions --strict
    """  # noqa: D301, E501  click's own mark: do not rewrap what follows
    check_code_location(module, file)
    found = []
    kafka = partial(kafka_settings, bootstrap_servers, command_config)
    embedded = [one == _EMBEDDED for one in (bootstrap_servers, spark)]
    services = _check_services(
        kafka, partial(spark_address, spark), group, embedded=embedded, probed=probe_catalog
    )
    for finding in chain(services, _check_dagster(module, file, is_embedded=embedded[0])):
        found.append(finding)
        if not as_json:
            _show_finding(finding)
    counts = Counter(finding.outcome for finding in found)
    numbers = {outcome.name.lower(): counts[outcome] for outcome in Outcome}
    if as_json:
        click.echo(json.dumps({**numbers, "findings": [finding.as_json() for finding in found]}))
    else:
        click.echo(", ".join(f"{number} {name}" for name, number in numbers.items()))
    bad = [Outcome.FAIL, *([Outcome.WARN, Outcome.UNKNOWN] if strict else [])]
    context.exit(NOT_WELL if any(counts[outcome] for outcome in bad) else WELL)


def _check_services(
    kafka: Callable[[], KafkaSettings],
    spark: Callable[[], str],
    group: str | None,
    embedded: Sequence[bool],
    probed: str | None,
) -> Iterator[Finding]:
    from kafka_liveness_dagster.doctor import checkup  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.doctor import machine_facts as machine  # noqa: PLC0415

    if any(embedded):
        yield from machine.check_machine()
    yield from checkup.check_kafka(kafka, group, is_embedded=embedded[0])
    yield from checkup.check_spark(spark, probed)


def _check_dagster(module: str | None, file: Path | None, *, is_embedded: bool) -> Iterator[Finding]:
    from kafka_liveness_dagster.doctor import dagster_facts  # noqa: PLC0415  `--help` must not wait for it

    home = os.environ.get("DAGSTER_HOME")
    folder = Path(home).expanduser() if home else None
    yield from dagster_facts.check_dagster(folder, module, file, is_embedded=is_embedded)


def _show_finding(finding: Finding) -> None:
    outcome = finding.outcome
    answer = finding.result
    mark = click.style(f"{outcome.value:<4}", fg=_COLORS.get(outcome), bold=outcome is not Outcome.OK)
    click.echo(f"{mark}  {f'{finding.area} {finding.check}':<{_WIDTH}} {answer.message}")
    if answer.advice:
        click.echo(f"{'':<6}{'':<{_WIDTH}} → {answer.advice}")
