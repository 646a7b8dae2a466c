"""What does the group sensor remember between ticks? Only what it has already told: everything else is looked up."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError


class GroupCursor(BaseModel, frozen=True):
    """Stored with every tick, so it stays below 2 kB.

    Attributes:
        told: departures already reported, ``run reason`` each; forgotten once their marks are gone.
        observed_at: when the group was last observed on its topic asset, seconds since the epoch.
    """

    told: tuple[str, ...] = ()
    observed_at: float = 0.0

    @classmethod
    def decode(cls, cursor: str | None) -> GroupCursor:
        """Read a cursor; another version's is as good as none, since ticks may repeat themselves."""
        try:
            return cls.model_validate_json(cursor) if cursor else cls()
        except ValidationError:
            return cls()

    def encode(self) -> str:
        """The cursor as Dagster stores it."""
        return self.model_dump_json()
