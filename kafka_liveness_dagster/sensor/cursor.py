"""What does the group sensor remember between ticks? Only what it has already told: everything else is looked up."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from kafka_liveness_dagster.core.ghosts import Absence
from kafka_liveness_dagster.core.watch import MAX_ABSENT, GroupState, Memory

_LETTERS = 9  # of a departure: the run's 8, and how it left


class GroupCursor(BaseModel, frozen=True):
    """Stored with every tick, so it stays below 2 kB.

    Attributes:
        observed_at: when the group was last observed on its topic asset, seconds since the epoch.
        epoch: when this memory began, 0 before the first look; with ``events`` it names the requests that answer them.
        events: how many events were told so far.
        outcomes: of the checks as they were stored last, in a letter each.
        checked_at: when, seconds since the epoch.
        judged_of: the number of the last materialization before that.
        state: of the group, None before the first look; this and the rest are ``core.watch.Memory``'s.
        told: its departures, without anything between them.
    """

    observed_at: float = 0.0
    epoch: int = 0
    events: int = 0
    outcomes: str = ""
    checked_at: float = 0.0
    judged_of: int = 0
    state: GroupState | None = None
    members: dict[str, str] = {}
    told: str = ""
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
        told = tuple(self.told[at : at + _LETTERS] for at in range(0, len(self.told), _LETTERS))
        absent = {run: Absence(*one) for run, one in self.absent.items()}
        seen = (self.state, self.members, told, self.dealt, self.rebalancing_since)
        return Memory(*seen, absent, self.forgotten, self.looked_at)

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
    ) -> GroupCursor:
        """The cursor that keeps a memory."""
        return cls(
            observed_at=observed_at,
            epoch=epoch,
            events=events,
            outcomes=outcomes,
            checked_at=checked_at,
            judged_of=judged_of,
            state=memory.state,
            members=dict(memory.members),
            told="".join(memory.told),
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

    def encode(self) -> str:
        """The cursor as Dagster stores it."""
        return self.model_dump_json(exclude_defaults=True)


def _absence(found: tuple[str, Absence]) -> tuple[str, tuple[int, int, int | None, bool]]:
    run, one = found
    return run, (int(one.since), int(one.heard), one.beat, one.told)
