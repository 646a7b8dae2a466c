"""What does the group sensor remember between ticks? Only what it has already told: everything else is looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ValidationError

from kafka_liveness_dagster.core.events import LeaveReason
from kafka_liveness_dagster.core.ghosts import Absence
from kafka_liveness_dagster.core.group_snapshot import GroupState  # noqa: TC001 - pydantic reads it
from kafka_liveness_dagster.core.watch import MAX_ABSENT, Memory, Remembered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import dagster as dg


class ToldWindows(NamedTuple):
    """What a tick tells of windows.

    Attributes:
        told_to: the end of the last window that was dealt with, in seconds since the epoch; 0 before the first.
        watched: since when the group is at work and looked at, likewise; 0 while it is not.
        late_seen: the last event of late records that was dealt with.
        identity: of the windows that this is about.
        said: how far the windows are, and what the next one waits for.
        first: the begin of the first window that does not end before the group's first record; 0 until one was passed.
    """

    events: Sequence[dg.AssetMaterialization] = ()
    told_to: float = 0.0
    watched: float = 0.0
    late_seen: int = 0
    identity: str = ""
    said: str = ""
    first: float = 0.0


class GroupCursor(BaseModel, frozen=True):
    """Stored with every tick, so it stays at about 2 kB.

    Attributes:
        observed_at: when the group was last observed on its topic asset, seconds since the epoch.
        epoch: when this memory began, 0 before the first look; with ``events`` it names the requests that answer them.
        events: how many events were told so far.
        outcomes: of the checks as they were stored last, in a letter each.
        checked_at: when, seconds since the epoch.
        judged_of: the number of the last materialization before that.
        owed: which ranges were owed when Dagster was asked last which of them have partitions, as a number; 0 for none.
        told_to: the end of the last window of time that was dealt with, in seconds since the epoch; this and the next
            four are those of ``ToldWindows``.
        state: of the group, None before the first look; this and the rest are ``core.watch.Memory``'s.
        runs: names of its members by their keys, and so are the next two.
        elsewhere: those that are runs of another Dagster instance.
        foreign: those that are no runs.
        left: departures that were told: the runs of each reason, by its code, with blanks between them.
    """

    observed_at: float = 0.0
    epoch: int = 0
    events: int = 0
    outcomes: str = ""
    checked_at: float = 0.0
    judged_of: int = 0
    owed: int = 0
    told_to: float = 0.0
    watched: float = 0.0
    late_seen: int = 0
    windows: str = ""
    first: float = 0.0
    state: GroupState | None = None
    runs: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    foreign: dict[str, str] = {}
    left: dict[str, str] = {}
    dealt: str = ""
    rebalancing_since: float | None = None
    absent: dict[str, tuple[int, int, int | None, bool]] = {}
    forgotten: tuple[str, ...] = ()
    looked_at: float = 0.0

    @property
    def memory(self) -> Memory | None:
        """What ``core.watch`` left behind, None before the first look."""
        if self.state is None:
            return None
        return Memory(
            self.state,
            {
                **{key: Remembered(name) for key, name in self.runs.items()},
                **{key: Remembered(name, is_elsewhere=True) for key, name in self.elsewhere.items()},
                **{key: Remembered(name, is_foreign=True) for key, name in self.foreign.items()},
            },
            {
                run: reason
                for code, runs in self.left.items()
                if (reason := LeaveReason.of_code(code)) is not None
                for run in runs.split()
            },
            self.dealt,
            self.rebalancing_since,
            {run: Absence(*one) for run, one in self.absent.items()},
            self.forgotten,
            self.looked_at,
        )

    @classmethod
    def of(
        cls,
        memory: Memory,
        *,
        observed_at: float,
        epoch: int,
        events: int,
        outcomes: str = "",
        checked_at: float = 0.0,
        judged_of: int = 0,
        owed: int = 0,
        told: ToldWindows | None = None,
    ) -> GroupCursor:
        """The cursor that keeps a memory."""
        return cls(
            observed_at=observed_at,
            epoch=epoch,
            events=events,
            outcomes=outcomes,
            checked_at=checked_at,
            judged_of=judged_of,
            owed=owed,
            **({} if told is None else _of_windows(told)),
            state=memory.state,
            runs=_names(memory),
            elsewhere=_names(memory, is_elsewhere=True),
            foreign=_names(memory, is_foreign=True),
            left=_by_code(memory.announced),
            dealt=memory.dealt,
            rebalancing_since=memory.rebalancing_since,
            absent=dict(list(map(_absence, memory.absent.items()))[-MAX_ABSENT:]),  # the oldest are the last
            forgotten=memory.forgotten,
            looked_at=round(memory.looked_at),
        )

    @classmethod
    def decode(cls, cursor: str | None) -> GroupCursor:
        """Read a cursor; another version's is as good as none, since ticks may repeat themselves."""
        try:
            return cls.model_validate_json(cursor) if cursor else cls()
        except ValidationError:
            return cls()

    def as_of(self, now: float) -> GroupCursor:
        """The same for a clock that was set back since: nothing waits for a moment that was past already."""
        if max(self.observed_at, self.checked_at, self.looked_at) <= now + 1:  # which is rounded
            return self
        since = self.rebalancing_since
        return self.model_copy(
            update={
                "observed_at": 0.0,
                "checked_at": min(self.checked_at, now),
                "watched": min(self.watched, now),
                "rebalancing_since": None if since is None else min(since, now),
                "absent": {
                    run: (min(at, int(now)), min(heard, int(now)), *rest)
                    for run, (at, heard, *rest) in self.absent.items()
                },
                "looked_at": min(self.looked_at, now),
            }
        )

    def encode(self) -> str:
        """The cursor as Dagster stores it."""
        return self.model_dump_json(exclude_defaults=True)


def _of_windows(told: ToldWindows) -> dict[str, Any]:
    return {
        "told_to": told.told_to,
        "watched": round(told.watched),
        "late_seen": told.late_seen,
        "windows": told.identity,
        "first": told.first,
    }


def _absence(found: tuple[str, Absence]) -> tuple[str, tuple[int, int, int | None, bool]]:
    run, one = found
    return run, (int(one.since), int(one.heard), one.beat, one.announced)


def _names(memory: Memory, *, is_elsewhere: bool = False, is_foreign: bool = False) -> dict[str, str]:
    """The members of one kind."""
    kind = (is_elsewhere, is_foreign)
    return {key: one.name for key, one in memory.members.items() if (one.is_elsewhere, one.is_foreign) == kind}


def _by_code(announced: Mapping[str, LeaveReason]) -> dict[str, str]:
    """The runs that left for each reason."""
    reasons = dict.fromkeys(announced.values())
    return {reason.code: " ".join(run for run, why in announced.items() if why is reason) for reason in reasons}
