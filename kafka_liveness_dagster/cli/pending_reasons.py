"""Find why partitions of a crash lag asset are not materialized, in Dagster's events and failed runs.

Reads a limited number of each. Writes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg

from kafka_liveness_dagster.core.group_verdict import PendingCause, PendingReason
from kafka_liveness_dagster.core.partition_keys import parse_key
from kafka_liveness_dagster.runs.tags import PARTITION_RANGE_TAGS, PARTITION_TAG, lane_tags
from kafka_liveness_dagster.sensor.asset_events import jumped_partitions
from kafka_liveness_dagster.telemetry.metrics import BAD_RECORD, SLOW_RECORD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_EVENTS = 1_000  # the newest events of the asset
_MAX_RUNS = 200  # the newest failed runs of the group
_MAX_ERRORS = 20  # runs whose error is read
_CAUSES = {BAD_RECORD: PendingCause.BAD_RECORD, SLOW_RECORD: PendingCause.SLOW_RECORD}


def find_pending_reasons(
    instance: dg.DagsterInstance,
    asset: dg.AssetKey,
    group_id: str,
    *,
    keys: Sequence[str],
    existing: Sequence[str],
) -> list[PendingReason]:
    """Return a reason for each partition.

    Args:
        instance: Dagster instance.
        asset: key of the crash lag asset.
        group_id: the live lane's group.
        keys: partitions with pending offsets.
        existing: all partitions of the asset, in Dagster's order.
    """
    causes = _causes(instance, asset, keys)
    failed = _failed_runs(instance, group_id, keys, existing)
    errors = {
        run: _error_of(instance, run) for run in list({runs[0]: 0 for runs in failed.values()})[:_MAX_ERRORS]
    }
    found = []
    for key in keys:
        cause, detail = causes.get(key, (None, ""))
        runs = failed.get(key, [])
        found.append(
            PendingReason(
                parse_key(key),
                cause,
                detail,
                failures=len(runs),
                error=errors.get(runs[0], "") if runs else "",
            )
        )
    return found


def _causes(
    instance: dg.DagsterInstance, asset: dg.AssetKey, keys: Sequence[str]
) -> dict[str, tuple[PendingCause, str]]:
    """Return the cause of each partition by its newest event; a write-off and the like has none."""
    found: dict[str, tuple[PendingCause, str]] = {}
    wanted = {*keys}
    for record in instance.fetch_observations(asset, limit=_MAX_EVENTS).records:
        event = record.asset_observation
        if event is None or "cause" not in event.metadata:
            continue
        cause = str(event.metadata["cause"].value)
        named = {*jumped_partitions(event), *([event.partition] if event.partition else [])}
        for key in named & wanted - {*found}:
            if cause in _CAUSES:
                found[key] = _CAUSES[cause], _record_error(event.description or "")
            else:
                found[key] = PendingCause.SKIPPED, "" if cause == "unknown" else cause
    return found


def _record_error(description: str) -> str:
    """Return the error in the message of a record that fails alone; empty if it has none.

    >>> _record_error("offset 75 of orders:3 fails alone, with ValueError: 'x'. Recorded as a dead letter; …")
    "ValueError: 'x'"
    """
    _, _, rest = description.partition(" alone, with ")
    return rest.partition(". Recorded as ")[0]


def _failed_runs(
    instance: dg.DagsterInstance, group_id: str, keys: Sequence[str], existing: Sequence[str]
) -> dict[str, list[str]]:
    """Return the failed catch-up runs of each partition, the newest first."""
    failed = dg.RunsFilter(tags=dict(lane_tags(group_id, "catch-up")), statuses=[dg.DagsterRunStatus.FAILURE])
    found: dict[str, list[str]] = {}
    wanted = {*keys}
    for record in instance.get_run_records(failed, limit=_MAX_RUNS):
        run = record.dagster_run
        for key in wanted & {*_keys_of_run(run.tags, existing)}:
            found.setdefault(key, []).append(run.run_id)
    return found


def _keys_of_run(tags: Mapping[str, str], existing: Sequence[str]) -> Sequence[str]:
    """Return the partitions of a run: one, or those between two."""
    first, last = (tags.get(name) for name in PARTITION_RANGE_TAGS)
    if first in existing and last in existing:
        return existing[existing.index(first) : existing.index(last) + 1]
    return [tags[PARTITION_TAG]] if PARTITION_TAG in tags else []


def _error_of(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return the first line of the first cause of a run's failure; empty if Dagster has none."""
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_FAILURE, limit=1).records
    event = records[0].event_log_entry.dagster_event if records else None
    error: Any = getattr(event.step_failure_data, "error", None) if event else None
    while error is not None and error.cause is not None:
        error = error.cause
    lines = error.message.strip().splitlines() if error is not None else ()
    return _without_module(lines[0]) if lines else ""


def _without_module(line: str) -> str:
    """Return the line of an error without the module of its class.

    >>> _without_module("shop.errors.NoColumnError: no x"), _without_module("killed")
    ('NoColumnError: no x', 'killed')
    """
    name, colon, rest = line.partition(":")
    return f"{name.rpartition('.')[2]}{colon}{rest}" if colon and " " not in name else line
