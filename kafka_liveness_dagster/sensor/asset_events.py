"""Build the sensor's events on assets, each with a text and its numbers.

Observations of the topic's asset are about the group, those of a crash lag partition about its range. Never
reads Kafka.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import dagster as dg

from kafka_liveness_dagster.core.events import LeaveReason, MemberJoined, MemberLeft
from kafka_liveness_dagster.core.fencing import FenceReport
from kafka_liveness_dagster.core.names import format_count, join_some
from kafka_liveness_dagster.core.partition_keys import parse_key
from kafka_liveness_dagster.metadata import group_metadata, range_table, stored_list
from kafka_liveness_dagster.runs.tags import CAUSE_LAG, CAUSE_RUN_TAG, CAUSE_TAG, FENCED_TAG

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kafka_liveness_dagster.core.departures import MemberSnapshot
    from kafka_liveness_dagster.core.events import GroupEvent
    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.sensor.observation import GroupObservation

_MEMBERS = dg.TableSchema(
    [
        dg.TableColumn(
            "member", "string", description="the first 8 digits of its run's id, or another client"
        ),
        dg.TableColumn("state", "string", description="a run, an ended run or an external client"),
        dg.TableColumn("partitions", "string"),
        dg.TableColumn("static", "bool", description="it has a group.instance.id (KIP-345)"),
    ]
)
_KEYS = "crash_lag_keys"  # all keys, so that the checks find here since when one is pending
_DEPARTURES = "departures"  # runs that left, with the code of the reason: the report reads them
_JOINED = "joined"  # runs that joined: the report reads them
_MAX_KEYS = 1_000  # keys in one query of Dagster's storage
_MAX_EVENTS = 10  # events of one tick
_ENDED = "its run has ended; the broker removes it after the session timeout"


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
    """Return one observation per topic: events and failed reactions, then the state of the group.

    The state and the numbers of the description are those of the metadata. With windows it also shows how far
    they are complete.
    """
    seen = observed.snapshot
    departed = {gone.run for gone in seen.owners_without_member if not gone.reason.in_good_order}
    members = [
        dg.TableRecord(
            {
                "member": member.name,
                "state": _member_state(member, departed),
                "partitions": join_some(member.partitions) or "none",
                "static": member.is_static or member.group_instance_id is not None,
            }
        )
        for member in seen.named_members
    ]
    named = dict.fromkeys([*(member.name for member in seen.named_members), *sorted(departed)])
    links = {
        f"run {name}": dg.MetadataValue.dagster_run(run.run_id)
        for name in named
        if (run := observed.run_of_mark(name)) is not None
    }
    ended = len({member.name for member in seen.named_members} & departed)
    size = format_count(seen.size, "member") + (f", of which {ended} has ended" if ended else "")
    external = observed.external_commit_lines
    left = [
        {"run": event.run, "reason": event.reason.code} for event in events if isinstance(event, MemberLeft)
    ]
    joined = [event.name for event in events if isinstance(event, MemberJoined) and not event.is_foreign]
    of_group = {
        "state": seen.state.value,
        "members": size,
        **({"events": dg.MetadataValue.md(_markdown_lines(events))} if events else {}),
        **({_DEPARTURES: dg.MetadataValue.json(left)} if left else {}),
        **({_JOINED: dg.MetadataValue.json(joined[:_MAX_EVENTS])} if joined else {}),
        **({"windows": windows} if windows else {}),
        **({"external_commits": dg.MetadataValue.md(_code_block(external))} if external else {}),
        **({"member_table": dg.MetadataValue.table(members, schema=_MEMBERS)} if members else {}),
        **({"sensor_errors": dg.MetadataValue.md(_markdown_lines(failed))} if failed else {}),
        **links,
    }
    found = []
    for topic in topics:
        partitions = [p for p in seen.partitions if p.topic_partition.topic == topic]
        lag = sum(p.lag for p in partitions)
        pending = format_count(sum(p.pending_offsets for p in partitions), "offset")
        of_topic = f" of topic {topic}" if len(topics) > 1 else ""
        state = f"group {group_id} is {seen.state.value}: {size}, lag {lag:,}, {pending} pending{of_topic}"
        found.append(
            dg.AssetObservation(
                topic_key(topic),
                description="; ".join([*_join_shortened([*map(str, events), *failed]), state]),
                metadata={**group_metadata(group_id, partitions, seen.owners_without_member), **of_group},
            )
        )
    return found


def _member_state(member: MemberSnapshot, departed: Collection[str]) -> str:
    if member.is_foreign:
        return "external client"
    return _ENDED if member.name in departed else "at work"


def reported_departures(event: dg.AssetObservation | None) -> list[tuple[str, LeaveReason]]:
    """Return the runs that left, with their reasons; reasons of a later version are left out."""
    rows = stored_list(event, _DEPARTURES)
    found = [(row.get("run"), row.get("reason")) for row in rows if isinstance(row, dict)]
    return [
        (run, reason)
        for run, code in found
        if isinstance(run, str) and (reason := LeaveReason.of_code(str(code))) is not None
    ]


def reported_joins(event: dg.AssetObservation | None) -> list[str]:
    """Return the runs that joined the group."""
    return [run for run in stored_list(event, _JOINED) if isinstance(run, str)]


def _markdown_lines(told: Sequence[object]) -> str:
    return "\n".join(f"- {one}" for one in _join_shortened(told))


def _code_block(told: Sequence[object]) -> str:
    """Return lines with text of other programs as a code block, which renders no link and no HTML."""
    return "\n".join(f"- `{str(one).replace('`', '')}`" for one in _join_shortened(told))


def crash_lag_observations(  # noqa: PLR0917 - one call
    instance: dg.DagsterInstance,
    asset: dg.AssetKey,
    group_id: str,
    keys: Sequence[str],
    observed: GroupObservation,
    event_times: Mapping[OffsetRange, tuple[float, float]],
) -> list[dg.AssetObservation]:
    """Return observations that show what these new partitions of the crash lag asset contain, and why.

    There is one for each run that skipped offsets, with its cause.

    Args:
        instance: Dagster instance.
        asset: key of the crash lag asset.
        group_id: the live lane's group.
        keys: new partitions.
        observed: the group now.
        event_times: timestamps of the first and the last record of the ranges, in seconds since the epoch;
            without the ranges whose timestamps are unknown.
    """
    jumps: dict[str | None, list[str]] = {}
    for key in keys:
        metadata = observed.partitions[parse_key(key).topic_partition].live_metadata
        jumps.setdefault(metadata.run_id if metadata else None, []).append(key)
    return [
        _jump_observation(
            instance, asset, group_id, keys=found, look=observed, by=by, event_times=event_times
        )
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
    return set(stored_list(event, _KEYS))


def _jump_observation(  # noqa: PLR0917 - one call
    instance: dg.DagsterInstance,
    asset: dg.AssetKey,
    group_id: str,
    keys: Sequence[str],
    look: GroupObservation,
    by: str | None,
    event_times: Mapping[OffsetRange, tuple[float, float]],
) -> dg.AssetObservation:
    finder = look.run_of_mark(by)
    # Read again: Dagster was read before the broker, and a run stores why it left before it joins again
    tags = (instance.get_run_by_id(finder.run_id) or finder).tags if finder else {}
    cause = _jump_cause(tags, by)
    crashed = look.run_of_mark(tags.get(CAUSE_RUN_TAG))
    pending = [parse_key(key) for key in keys]
    times = {one: event_times[one] for one in pending if one in event_times}
    offsets = format_count(sum(one.size for one in pending), "offset")
    event_time = _event_time(times.values())
    these = "this partition" if len(keys) == 1 else "these partitions"
    return dg.AssetObservation(
        asset,
        partition=keys[0] if len(keys) == 1 else None,
        description=(
            f"{offsets} are pending, because the live lane skipped them ({cause or 'cause unknown'}): "
            f"{join_some(keys)}. Event time {event_time}. They are not in the table until a backfill "
            f"materializes {these}"
        ),
        metadata={
            "group": group_id,
            "offsets": offsets,
            "event_time": event_time,
            "oldest_record_age": _oldest_age(times.values(), time.time()),
            "ranges": range_table(pending, {one: _event_time([found]) for one, found in times.items()}),
            _KEYS: dg.MetadataValue.json(list(keys)),
            "cause": cause or "unknown",
            **({"crashed_run": dg.MetadataValue.dagster_run(crashed.run_id)} if crashed else {}),
            **({"found_by_run": dg.MetadataValue.dagster_run(finder.run_id)} if finder else {}),
        },
    )


def _event_time(spans: Collection[tuple[float, float]]) -> str:
    """Return the time from the oldest to the newest record as text; ``unknown`` without a record's time.

    >>> _event_time([(1_795_812_520.0, 1_795_812_531.0), (1_795_812_516.2, 1_795_812_522.0)])
    '2026-11-27 20:48:36 to 20:48:51 UTC'
    """
    if not spans:
        return "unknown"
    begin, end = (
        datetime.fromtimestamp(moment, timezone.utc)
        for moment in (min(min(span) for span in spans), max(max(span) for span in spans))
    )
    until = f"{end:%H:%M:%S}" if begin.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
    return f"{begin:%Y-%m-%d %H:%M:%S} to {until} UTC"


def _oldest_age(spans: Collection[tuple[float, float]], now: float) -> str:
    if not spans:
        return "unknown"
    return f"{max(0.0, now - min(min(span) for span in spans)):,.0f} s when its partition was added"


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
