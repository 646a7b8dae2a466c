"""Encode the group sensor's memory between ticks as Dagster's cursor.

It contains only the facts that were reported; each tick reads everything else again. The sensor's page shows
it, so its times are texts such as ``2026-11-27T20:50:28.658Z``. Times of earlier versions are numbers, and
their ranges are texts such as ``orders:3:70-120``.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, PlainSerializer, ValidationError

from kafka_liveness_dagster.core.departures import GroupState  # noqa: TC001 - pydantic reads it
from kafka_liveness_dagster.core.event_detection import MAX_ABSENT, SeenMember, SensorMemory
from kafka_liveness_dagster.core.events import LeaveReason
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.core.orphaned_runs import Absence
from kafka_liveness_dagster.sensor.checks import StoredResults

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import dagster as dg


def _time_as_text(moment: float | None) -> str | None:
    if moment is None:
        return None
    digits = "seconds" if moment == int(moment) else "milliseconds"
    return (
        f"{datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec=digits).removesuffix('+00:00')}Z"
    )


def _parsed_time(stored: Any) -> Any:
    """Return a stored time in seconds since the epoch, and anything else as it is."""
    if not isinstance(stored, str):
        return stored
    return datetime.fromisoformat(f"{stored.removesuffix('Z')}+00:00").timestamp()


_NONE_STORED = StoredResults()


def _current_range(stored: Any) -> Any:
    """Return a stored range in the current form, so that the text of an earlier version is no change.

    Raises:
        InvalidSettingError: the text is no range; pydantic reports it as a ``ValidationError``.
    """
    return str(OffsetRange.parse(stored)) if isinstance(stored, str) else stored


_AS_TEXT = PlainSerializer(_time_as_text, when_used="json")
_Time = Annotated[float, BeforeValidator(_parsed_time), _AS_TEXT]


class WindowProgress(NamedTuple):
    """The progress of an asset's windows.

    Attributes:
        done_until: end of the last processed window, in seconds since the epoch; 0 before the first.
        watched_since: time since when the group is active and observed, likewise; 0 while it is not.
        last_late_event: last processed event of late records.
        identity: identity of these windows.
        status_text: how far the windows are complete, and what the next one waits for.
        first_window_start: begin of the first window that does not end before the group's first record; 0
            until one was passed.
    """

    events: Sequence[dg.AssetMaterialization] = ()
    done_until: float = 0.0
    watched_since: float = 0.0
    last_late_event: int = 0
    identity: str = ""
    status_text: str = ""
    first_window_start: float = 0.0


class GroupCursor(BaseModel, frozen=True):
    """The state that a tick stores for the next one; Dagster stores it each time, so it is about 2 kB.

    Attributes:
        observed_at: time of the last observation on the topic's asset, in seconds since the epoch.
        started_at: begin of this memory, 0 before the first tick; run keys contain it with ``event_count``.
        event_count: number of reported events.
        check_outcomes: outcomes of the checks that were stored last, such as ``lag passed, retention WARN``.
        checks_stored_at: time of that, in seconds since the epoch.
        check_facts: hash of the facts of each check's text, by the name of the check.
        check_facts_stored_at: time when a check was last stored for its facts, likewise.
        checked_materialization: storage id of the last materialization before ``checks_stored_at``.
        pending_hash: hash of the pending ranges whose partitions were last read from Dagster; 0 for none.
        windows_done_until: end of the last processed window, in seconds since the epoch; this and the next
            four are the fields of ``WindowProgress``.
        group_state: None before the first tick; this and the rest are the fields of
            ``core.event_detection.SensorMemory``.
        member_runs: names of the members by their keys, as in the next two.
        other_instance_runs: members that are runs of another Dagster instance.
        external_members: members that are no runs.
        reported_departures: runs of each reason, by its code, separated by blanks.
    """

    observed_at: _Time = 0.0
    started_at: Annotated[int, BeforeValidator(_parsed_time), _AS_TEXT] = 0
    event_count: int = 0
    check_outcomes: str = ""
    checks_stored_at: _Time = 0.0
    check_facts: dict[str, str] = {}
    check_facts_stored_at: _Time = 0.0
    checked_materialization: int = 0
    pending_hash: int = 0
    windows_done_until: _Time = 0.0
    windows_watched_since: _Time = 0.0
    last_late_event: int = 0
    windows_identity: str = ""
    first_window_start: _Time = 0.0
    group_state: GroupState | None = None
    member_runs: dict[str, str] = {}
    other_instance_runs: dict[str, str] = {}
    external_members: dict[str, str] = {}
    reported_departures: dict[str, str] = {}
    assignment_hash: str = ""
    rebalancing_since: Annotated[float | None, BeforeValidator(_parsed_time), _AS_TEXT] = None
    absent_runs: dict[str, tuple[int, int, int | None, bool]] = {}
    forgotten_ranges: tuple[Annotated[str, BeforeValidator(_current_range)], ...] = ()
    last_tick_at: _Time = 0.0

    @property
    def memory(self) -> SensorMemory | None:
        """The memory of ``core.event_detection``; None before the first tick."""
        if self.group_state is None:
            return None
        return SensorMemory(
            self.group_state,
            {
                **{key: SeenMember(name) for key, name in self.member_runs.items()},
                **{
                    key: SeenMember(name, is_of_other_instance=True)
                    for key, name in self.other_instance_runs.items()
                },
                **{key: SeenMember(name, is_foreign=True) for key, name in self.external_members.items()},
            },
            {
                run: reason
                for code, runs in self.reported_departures.items()
                if (reason := LeaveReason.of_code(code)) is not None
                for run in runs.split()
            },
            assignment_hash=self.assignment_hash,
            rebalancing_since=self.rebalancing_since,
            absent_runs={run: Absence(*one) for run, one in self.absent_runs.items()},
            forgotten_ranges=self.forgotten_ranges,
            last_tick_at=self.last_tick_at,
        )

    @property
    def stored_checks(self) -> StoredResults:
        """The check results that were stored last."""
        return StoredResults(
            self.check_outcomes, self.checks_stored_at, self.check_facts, self.check_facts_stored_at
        )

    @classmethod
    def of(
        cls,
        memory: SensorMemory,
        *,
        observed_at: float,
        started_at: int,
        event_count: int,
        checks: StoredResults = _NONE_STORED,
        checked_materialization: int = 0,
        pending_hash: int = 0,
        told: WindowProgress | None = None,
    ) -> GroupCursor:
        """Return the cursor with this memory."""
        return cls(
            observed_at=observed_at,
            started_at=started_at,
            event_count=event_count,
            check_outcomes=checks.outcomes,
            checks_stored_at=checks.stored_at,
            check_facts=dict(checks.facts),
            check_facts_stored_at=checks.facts_stored_at,
            checked_materialization=checked_materialization,
            pending_hash=pending_hash,
            **({} if told is None else _window_fields(told)),
            group_state=memory.group_state,
            member_runs=_member_names(memory),
            other_instance_runs=_member_names(memory, is_elsewhere=True),
            external_members=_member_names(memory, is_foreign=True),
            reported_departures=_departures_by_code(memory.reported_departures),
            assignment_hash=memory.assignment_hash,
            rebalancing_since=memory.rebalancing_since,
            # The last entries are the oldest absences, so these are kept
            absent_runs=dict(list(map(_decode_absence, memory.absent_runs.items()))[-MAX_ABSENT:]),
            forgotten_ranges=memory.forgotten_ranges,
            last_tick_at=round(memory.last_tick_at),
        )

    @classmethod
    def decode(cls, cursor: str | None) -> GroupCursor:
        """Read a cursor; one of another version counts as none, because a tick may be repeated."""
        try:
            return cls.model_validate_json(cursor) if cursor else cls()
        except ValidationError:
            return cls()

    def as_of(self, now: float) -> GroupCursor:
        """Return the cursor for the current clock; no stored time is in the future if it was turned back."""
        stored = (self.observed_at, self.checks_stored_at, self.check_facts_stored_at, self.last_tick_at)
        if max(stored) <= now + 1:  # times are rounded
            return self
        since = self.rebalancing_since
        return self.model_copy(
            update={
                "observed_at": 0.0,
                "checks_stored_at": min(self.checks_stored_at, now),
                "check_facts_stored_at": min(self.check_facts_stored_at, now),
                "windows_watched_since": min(self.windows_watched_since, now),
                "rebalancing_since": None if since is None else min(since, now),
                "absent_runs": {
                    run: (min(at, int(now)), min(heard, int(now)), *rest)
                    for run, (at, heard, *rest) in self.absent_runs.items()
                },
                "last_tick_at": min(self.last_tick_at, now),
            }
        )

    def encode(self) -> str:
        """Return the cursor as Dagster stores it."""
        return self.model_dump_json(exclude_defaults=True)


def decode_group_cursors(cursor: str | None) -> dict[str, str]:
    """Return the cursor of each group from that of a shared sensor; none from a cursor of another version."""
    try:
        found = json.loads(cursor) if cursor else {}
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {group_id: json.dumps(one) for group_id, one in found.items() if isinstance(one, dict)}


def encode_group_cursors(cursors: Mapping[str, str]) -> str:
    """Return the cursor of a shared sensor: an object with the cursor of each group under the group's id."""
    return json.dumps({group_id: json.loads(one) for group_id, one in cursors.items()}, separators=(",", ":"))


def _window_fields(told: WindowProgress) -> dict[str, Any]:
    return {
        "windows_done_until": told.done_until,
        "windows_watched_since": round(told.watched_since),
        "last_late_event": told.last_late_event,
        "windows_identity": told.identity,
        "first_window_start": told.first_window_start,
    }


def _decode_absence(found: tuple[str, Absence]) -> tuple[str, tuple[int, int, int | None, bool]]:
    run, one = found
    return run, (int(one.since), int(one.last_heartbeat_at), one.heartbeat, one.is_reported)


def _member_names(
    memory: SensorMemory, *, is_elsewhere: bool = False, is_foreign: bool = False
) -> dict[str, str]:
    """Return the members of one kind."""
    kind = (is_elsewhere, is_foreign)
    return {
        key: one.name
        for key, one in memory.members.items()
        if (one.is_of_other_instance, one.is_foreign) == kind
    }


def _departures_by_code(announced: Mapping[str, LeaveReason]) -> dict[str, str]:
    """Return the runs that left for each reason."""
    reasons = dict.fromkeys(announced.values())
    return {
        reason.code: " ".join(run for run, why in announced.items() if why is reason) for reason in reasons
    }
