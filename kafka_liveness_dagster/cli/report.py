"""The command ``kafka-liveness report``: the history of a group, and its share of time within the SLA.

Decides nothing: ``core.report`` computes.
"""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from kafka_liveness_dagster.cli.exit_codes import NOT_WELL, WELL, errors_as_exit_codes
from kafka_liveness_dagster.cli.options import (
    GROUP,
    MOMENT,
    TABLE,
    TOPIC,
    FiniteRange,
    bootstrap_servers_option,
    check_code_location,
    code_location_options,
    command_config_option,
    json_option,
    kafka_settings,
    lazy_session,
    spark_option,
)
from kafka_liveness_dagster.core.errors import summary_line

if TYPE_CHECKING:
    from click import Context, Parameter

    from kafka_liveness_dagster.core.freshness import ServiceLevel

_SPAN = re.compile(r"(\d{1,6})(s|min|m|h|d)")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_MAX_LIMIT = 10**9  # 31 years in seconds, as for the setting sla


class _TimeAgo(click.ParamType):  # type: ignore[type-arg]  # of click 8.1 it takes none
    """A moment, or a time span before now, in seconds since the epoch."""

    name = "time"

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> float:
        if isinstance(value, float):
            return value
        if span := _SPAN.fullmatch(value):
            return time.time() - int(span[1]) * _UNITS[span[2]]
        found = MOMENT.convert(value, param, ctx)
        return found.timestamp() if isinstance(found, datetime) else found


_TIME_AGO = _TimeAgo()
_LIMIT = FiniteRange(min=0, min_open=True, max=_MAX_LIMIT)


@click.command()
@click.argument("group", type=GROUP)
@click.option(
    "--since", type=_TIME_AGO, default="24h", show_default=True, help="Begin: 90min, 24h, 7d, or ISO 8601."
)
@click.option("--until", type=_TIME_AGO, help="End, in the same form.  [default: now]")
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@click.option(
    "--table", type=TABLE, help="catalog.namespace.table.  [default: the table in the group's commits]"
)
@click.option(
    "--fresh-seconds", type=_LIMIT, help="Limit of seconds behind.  [default: the asset's sla, from Dagster]"
)
@click.option(
    "--complete-minutes", type=_LIMIT, help="Limit of missing records' age.  [default: the asset's sla]"
)
@code_location_options("The code location with the asset's sla.", "The same, as `dagster dev -f` takes it.")
@bootstrap_servers_option
@command_config_option
@spark_option
@click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the report to this file, as one HTML page.",
)
@json_option
@click.pass_context
def report(
    context: click.Context,
    group: str,
    *,
    since: float,
    until: float | None,
    topics: tuple[str, ...],
    table: str | None,
    fresh_seconds: float | None,
    complete_minutes: float | None,
    module: str | None,
    file: Path | None,
    bootstrap_servers: str,
    command_config: TextIO | None,
    spark: str,
    html_file: Path | None,
    as_json: bool,
) -> None:
    """Report freshness, crashes and SLA of a group.

    Shows for a time span how far consumer group GROUP was behind, and which offsets were pending. Lists its
    crashes, fences and backfills, the share of time within the SLA, and the share that each crash cost.

    The history comes from the table's snapshots, the timestamps of Kafka's records, and the runs and events
    of the Dagster instance that DAGSTER_HOME names. The report names each time and fact that is missing.
    Never joins, never commits, never writes to any of them.

    Exit code 0: no limit was missed; 1: a limit was missed, or the group has no commit.
    2: invalid command line; 3: a broker, Spark or the table did not respond.

    \b
    Example:
      kafka-liveness report orders-etl
      kafka-liveness report orders-etl --since 7d --html report.html
      kafka-liveness report orders-etl --fresh-seconds 30 --complete-minutes 15 --json | jq .within_sla
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.cli.report_sources import ReportSources  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.core.report import Report  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415

    now = time.time()
    end = now if until is None else min(until, now)
    if since >= end:
        raise click.UsageError("The time span is empty. Fix: choose a --since before --until and before now.")
    check_code_location(module, file)
    sla = _limits(fresh_seconds, complete_minutes)
    if sla is None and (module or file):
        sla = declared_sla(module, file, group)
    if html_file is not None and not html_file.absolute().parent.is_dir():
        raise click.UsageError(f"The folder of --html {html_file} does not exist. Fix: create it.")
    with errors_as_exit_codes(reads_only=True):
        cluster = Cluster(kafka_settings(bootstrap_servers, command_config))
        with lazy_session(spark) as session:
            sources = ReportSources(cluster, session, group, topics=topics, table=table)
            history, stored = sources.read(since, end)
    found = Report(history, stored if sla is None else sla)
    if html_file is not None:
        from kafka_liveness_dagster.cli.report_html import report_as_html  # noqa: PLC0415

        html_file.write_text(report_as_html(found), encoding="utf-8")
    if as_json:
        from kafka_liveness_dagster.cli.report_output import report_as_json  # noqa: PLC0415

        click.echo(json.dumps(report_as_json(found)))
    else:
        from kafka_liveness_dagster.cli.report_output import report_as_text  # noqa: PLC0415
        from kafka_liveness_dagster.cli.status_output import create_console  # noqa: PLC0415

        create_console().print(report_as_text(found))
    context.exit(WELL if found.is_well else NOT_WELL)


def _limits(fresh_seconds: float | None, complete_minutes: float | None) -> ServiceLevel | None:
    from kafka_liveness_dagster.core.freshness import ServiceLevel  # noqa: PLC0415  `--help` must not wait for it

    if fresh_seconds is None and complete_minutes is None:
        return None
    return ServiceLevel(fresh_seconds, None if complete_minutes is None else 60 * complete_minutes)


def declared_sla(module: str | None, file: Path | None, group_id: str) -> ServiceLevel:
    """Return the limits that a code location declares for a group.

    Raises:
        click.UsageError: the code location cannot be loaded, or declares no asset with the group.
    """
    from kafka_liveness_dagster.assets.owners import settings_of_group  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.doctor.dagster_facts import load_definitions  # noqa: PLC0415

    try:
        definitions = load_definitions(module, file)
    except Exception as error:
        raise click.UsageError(f"The code location could not be loaded ({summary_line(error)}).") from error
    settings = settings_of_group(group_id)
    del definitions  # not earlier: it keeps the assets
    if settings is None:
        raise click.UsageError(
            f"The code location declares no asset of group {group_id}. Fix: name the file or module with it."
        )
    return settings.sla.service_level
