"""The command ``kafka-liveness health``: report a group's health as an exit code for probes.

Decides nothing: ``core.health`` does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TextIO

import click

from kafka_liveness_dagster.cli.exit_codes import NOT_WELL, WELL, errors_as_exit_codes
from kafka_liveness_dagster.cli.marks import marked_line
from kafka_liveness_dagster.cli.options import (
    GROUP,
    TOPIC,
    bootstrap_servers_option,
    command_config_option,
    json_option,
    kafka_settings,
)

if TYPE_CHECKING:
    from kafka_liveness_dagster.core.health import Verdict
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
@click.option(
    "--allow-no-member", is_flag=True, help="Do not fail because lag or pending ranges have no member."
)
@json_option
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
    allow_no_member: bool,
    as_json: bool,
    bootstrap_servers: str,
    command_config: TextIO | None,
) -> None:
    """Probe the health of a group by exit code.

    Reads Kafka only. Consumer group GROUP is unhealthy if it has lag or pending ranges and no member, if lag
    or crash lag exceeds your limits, if records are behind a transaction that no producer ends, or if the
    broker has deleted, or is about to delete, records that neither lane has processed. A group without any
    commit has not begun yet, and is unhealthy. Prints the verdict, then a line for each check.

    Between two live runs a group has lag and no member for some seconds: let a probe count only failures of
    half a minute. Use --allow-no-member for live runs that a schedule starts.

    Exit code 0: healthy; 1: unhealthy; 2: invalid command line; 3: Kafka did not respond.

    \b
    Example:
      kafka-liveness health orders-etl
      kafka-liveness health orders-etl --max-lag 100000 --max-pending 0 --bootstrap-servers broker:9092
    """  # noqa: D301  click's own mark: do not rewrap what follows
    from kafka_liveness_dagster.core.health import Severity, health_probe  # noqa: PLC0415  `--help` must not wait for it
    from kafka_liveness_dagster.kafka.group_status import NoSuchGroupError  # noqa: PLC0415

    verdicts: list[Verdict] = []
    not_begun = ""
    with errors_as_exit_codes(reads_only=True):
        try:
            found = _group_status(bootstrap_servers, command_config, group, topics=topics)
            verdicts = health_probe(
                [one.snapshot for one in found.partitions],
                len(found.members),
                max_lag=max_lag,
                max_pending=max_pending,
                allow_no_member=allow_no_member,
                open_transactions=found.open_transactions,
            )
        except NoSuchGroupError as error:
            not_begun = str(error)
    failed = sum(verdict.severity is not Severity.FINE for verdict in verdicts)
    is_well = not (failed or not_begun)
    if as_json:
        click.echo(json.dumps(health_as_json(group, verdicts, is_well=is_well, not_begun=not_begun)))
    else:
        click.echo(f"group {group} is {_summary(verdicts, failed, not_begun=not_begun)}")
        for verdict in verdicts:
            click.echo(marked_line(verdict.message, passed=verdict.severity is Severity.FINE))
    context.exit(WELL if is_well else NOT_WELL)


def _summary(verdicts: list[Verdict], failed: int, *, not_begun: str) -> str:
    if not_begun:
        return f"not well: it has not begun yet\n{not_begun}"
    if failed:
        return f"not well: {failed} of {len(verdicts)} checks failed"
    return f"well: {len(verdicts)} checks passed"


def health_as_json(
    group: str, verdicts: list[Verdict], *, is_well: bool, not_begun: str
) -> dict[str, object]:
    """Return the verdict and the checks; ``not_begun`` is the reason of a group without commits."""
    from kafka_liveness_dagster.core.health import Severity  # noqa: PLC0415  `--help` must not wait for it

    failed = [one.message for one in verdicts if one.severity is not Severity.FINE]
    return {
        "group": group,
        "well": is_well,
        "begun": not not_begun,
        "problems": [not_begun] if not_begun else failed,
        "checks": [
            {"severity": one.severity.value, "message": one.message, "numbers": dict(one.numbers)}
            for one in verdicts
        ],
    }


def _group_status(servers: str, config: TextIO | None, group: str, topics: tuple[str, ...]) -> GroupStatus:
    from kafka_liveness_dagster.kafka.admin import Cluster  # noqa: PLC0415
    from kafka_liveness_dagster.kafka.group_status import group_status  # noqa: PLC0415

    return group_status(Cluster(kafka_settings(servers, config)), group, topics)
