"""Build the sensor's events on assets, each with a text and its numbers.

Observations of the topic's asset are about the group, those of a crash lag partition about its range. Never
reads Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.events import LeaveReason, MemberLeft
from kafka_liveness_dagster.core.fencing import FenceReport
from kafka_liveness_dagster.core.names import join_some
from kafka_liveness_dagster.core.partition_keys import parse_key
from kafka_liveness_dagster.metadata import format_count, group_metadata, range_table
from kafka_liveness_dagster.runs.tags import CAUSE_LAG, CAUSE_RUN_TAG, CAUSE_TAG, FENCED_TAG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafka_liveness_dagster.core.events import GroupEvent
    from kafka_liveness_dagster.sensor.observation import GroupObservation

_MEMBERS = dg.TableSchema(
    [
        dg.TableColumn(
            "member", "string", description="the first 8 digits of its run's id, or another client"
        ),
        dg.TableColumn("partitions", "string"),
        dg.TableColumn("external", "bool", description="a consumer that is not a run of this package"),
        dg.TableColumn("static", "bool", description="it has a group.instance.id (KIP-345)"),
    ]
)
_KEYS = "crash_lag_keys"  # all keys, so that the checks find here since when one is pending
_DEPARTURES = "departures"  # runs that left, with the code of the reason: the report reads them
_MAX_KEYS = 1_000  # keys in one query of Dagster's storage
_MAX_EVENTS = 10  # events of one tick


def topic_key(topic: str) -> dg.AssetKey:
    """Return the key of a topic's asset.

    The lineage shows only its last part, which must differ from the name of a live asset.
    """
    return dg.AssetKey(["kafka", f"{topic}_topic"])


def group_observations(
    group_id: str,
    topics: Sequence[str],
    observed: GroupObservation,
    events: Sequence[GroupEvent],
    *,
    failed: Sequence[str] = (),
    windows: str = "",
) -> list[dg.AssetObservation]:
    """Return one observation per topic: the events and failed reactions, or else the state of the group.

    With windows it also shows how far they are complete.
    """
    seen = observed.snapshot
    members = [
        dg.TableRecord(
            {
                "member": member.name,
                "partitions": join_some(member.partitions) or "none",
                "external": member.is_foreign,
                "static": member.is_static,
            }
        )
        for member in seen.named_members
    ]
    told = [member.name for member in seen.named_members] + [
        gone.run for gone in seen.owners_without_member if not gone.reason.in_good_order
    ]
    links = {
        f"run {name}": dg.MetadataValue.dagster_run(run.run_id)
        for name in told
        if (run := observed.run_of_mark(name)) is not None
    }
    left = [
        {"run": event.run, "reason": event.reason.code} for event in events if isinstance(event, MemberLeft)
    ]
    lag = sum(p.lag for p in seen.partitions)
    pending = sum(p.pending_offsets for p in seen.partitions)
    group_size = format_count(seen.size, "member")
    quiet = f"group {group_id} is {seen.state.value}: {group_size}, lag {lag:,}, {pending:,} offsets pending"
    return [
        dg.AssetObservation(
            topic_key(topic),
            description="; ".join(_join_shortened([*map(str, events), *failed])) or quiet,
            metadata={
                **group_metadata(
                    group_id,
                    [p for p in seen.partitions if p.topic_partition.topic == topic],
                    seen.size,
                    left=seen.owners_without_member,
                ),
                "state": seen.state.value,
                "events": dg.MetadataValue.md(_markdown_lines(events) or "none"),
                **({_DEPARTURES: dg.MetadataValue.json(left)} if left else {}),
                **({"windows": windows} if windows else {}),
                **(
                    {"external_commits": dg.MetadataValue.md(_code_block(observed.external_commit_lines))}
                    if observed.external_commit_lines
                    else {}
                ),
                **({"member_table": dg.MetadataValue.table(members, schema=_MEMBERS)} if members else {}),
                **({"sensor_errors": dg.MetadataValue.md(_markdown_lines(failed))} if failed else {}),
                **links,
            },
        )
        for topic in topics
    ]


def reported_departures(event: dg.AssetObservation | None) -> list[tuple[str, LeaveReason]]:
    """Return the runs that left, with their reasons; reasons of a later version are left out."""
    stored = None if event is None else event.metadata.get(_DEPARTURES)
    rows = stored.data if isinstance(stored, dg.JsonMetadataValue) and isinstance(stored.data, list) else []
    found = [(row.get("run"), row.get("reason")) for row in rows if isinstance(row, dict)]
    return [
        (run, reason)
        for run, code in found
        if isinstance(run, str) and (reason := LeaveReason.of_code(str(code))) is not None
    ]


def _markdown_lines(told: Sequence[object]) -> str:
    return "\n".join(f"- {one}" for one in _join_shortened(told))


def _code_block(told: Sequence[object]) -> str:
    """Return lines with text of other programs as a code block, which renders no link and no HTML."""
    return "\n".join(f"- `{str(one).replace('`', '')}`" for one in _join_shortened(told))


def crash_lag_observations(
    instance: dg.DagsterInstance,
    asset: dg.AssetKey,
    group_id: str,
    keys: Sequence[str],
    observed: GroupObservation,
) -> list[dg.AssetObservation]:
    """Return observations with the reason for these partitions of the crash lag asset.

    There is one for each run that skipped offsets, with its cause.
    """
    jumps: dict[str | None, list[str]] = {}
    for key in keys:
        metadata = observed.partitions[parse_key(key).topic_partition].live_metadata
        jumps.setdefault(metadata.run_id if metadata else None, []).append(key)
    return [
        _jump_observation(instance, asset, group_id, keys=found, look=observed, by=by)
        for by, found in jumps.items()
    ]


def not_yet_materialized(instance: dg.DagsterInstance, asset: dg.AssetKey, keys: Sequence[str]) -> list[str]:
    """Return the new crash lag partitions that no run has reported.

    A run that quarantines single offsets reports them itself, with the reason.
    """
    if not keys:
        return []
    these = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=keys[:_MAX_KEYS])
    told = {record.partition_key for record in instance.fetch_observations(these, limit=_MAX_KEYS).records}
    return [key for key in keys if key not in told]


def jumped_partitions(event: dg.AssetObservation | None) -> set[str]:
    """Return the partitions that an observation of the crash lag asset reported when they were found."""
    told = None if event is None else event.metadata.get(_KEYS)
    return set(told.data) if isinstance(told, dg.JsonMetadataValue) and isinstance(told.data, list) else set()


def _jump_observation(  # noqa: PLR0917 - one call
    instance: dg.DagsterInstance,
    asset: dg.AssetKey,
    group_id: str,
    keys: Sequence[str],
    look: GroupObservation,
    by: str | None,
) -> dg.AssetObservation:
    finder = look.run_of_mark(by)
    # Read again: Dagster was read before the broker, and a run stores why it left before it joins again
    tags = (instance.get_run_by_id(finder.run_id) or finder).tags if finder else {}
    cause = _jump_cause(tags, by)
    crashed = look.run_of_mark(tags.get(CAUSE_RUN_TAG))
    pending = [parse_key(key) for key in keys]
    alone = len(keys) == 1
    offsets = sum(one.size for one in pending)
    these = "this partition is" if alone else "these partitions are"
    return dg.AssetObservation(
        asset,
        partition=keys[0] if alone else None,
        description=(
            f"{offsets:,} offsets the live lane jumped over ({cause or 'cause unknown'}): "
            f"{join_some(keys)}. They are in no table until {these} materialized"
        ),
        metadata={
            "group": group_id,
            "offsets": offsets,
            "crash_lag_partitions": len(keys),
            "ranges": range_table(pending),
            _KEYS: dg.MetadataValue.json(list(keys)),
            "cause": cause or "unknown",
            **({"crashed_run": dg.MetadataValue.dagster_run(crashed.run_id)} if crashed else {}),
            **({"found_by_run": dg.MetadataValue.dagster_run(finder.run_id)} if finder else {}),
        },
    )


def _jump_cause(tags: Mapping[str, str], by: str | None) -> str:
    """Return why a run skipped offsets.

    The cause is the end of another run, for which it was started, or its own absence from the group.
    """
    away = FenceReport.decode(tags.get(FENCED_TAG, ""))
    reason = away.reason.leave if away is not None else None
    own = [f"run {by} {reason.value}"] if reason is not None else []
    started_by = tags.get(CAUSE_TAG, "")
    return "; ".join([*([started_by] if started_by and not (own and started_by == CAUSE_LAG) else []), *own])


def _join_shortened(things: Sequence[object]) -> list[str]:
    """Return the first items and the number of further ones, because a long list is not read."""
    more = len(things) - _MAX_EVENTS
    return [*map(str, things[:_MAX_EVENTS]), *([f"and {more:,} more"] if more > 0 else [])]
