"""Decide which groups of a sensor get a tick, and which have nothing that a tick could change.

Never decides from commits that were read earlier: a group gets a whole tick, which reads all, or none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.names import format_count

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

REFRESH_SECONDS = 50.0
"""Time in which every group is observed, so that an idle one gets a tick without a change. It is less than
``MAX_IDLE_SECONDS``, because a sensor's ticks may be late."""
MAX_IDLE_SECONDS = 60.0
"""Longest time without a tick of an idle group. An external commit is the only input that this delays."""
SETTLE_SECONDS = 3.0
"""Time without a change before a group may be idle. A run stores its last tags and materializations while it
ends, and Dagster's databases store whole seconds."""


@dataclass(frozen=True)
class LastTick:
    """The last tick of one group.

    Attributes:
        ticked_at: time of the tick, in seconds.
        changed_at: time of the last tick that found a change or something to do.
        runs: the group's runs, as they were read before the tick.
        kafka: state of the group and log bounds of its topics, likewise.
        is_idle: whether the tick found nothing that a later tick could act on without a change.
    """

    ticked_at: float
    changed_at: float
    runs: Hashable
    kafka: Hashable
    is_idle: bool

    @classmethod
    def after(
        cls, before: LastTick | None, now: float, *, runs: Hashable, kafka: Hashable, is_idle: bool
    ) -> LastTick:
        """Return the record of a tick that ended, from that of the tick before it."""
        is_same = before is not None and is_idle and (before.runs, before.kafka) == (runs, kafka)
        changed_at = before.changed_at if before is not None and is_same else now
        return cls(now, changed_at, runs=runs, kafka=kafka, is_idle=is_idle)

    def may_skip(self, now: float) -> bool:
        """Return whether the group needs no tick as long as its runs and its state in Kafka are the same."""
        is_settled = self.is_idle and self.ticked_at - self.changed_at >= SETTLE_SECONDS
        return is_settled and 0 <= now - self.ticked_at < MAX_IDLE_SECONDS


def groups_to_observe(
    observed_at: Mapping[str, float], now: float, seconds_since_last_tick: float
) -> list[str]:
    """Return the groups whose turn it is to be observed, those with the oldest observations.

    Each sensor tick observes a part of the groups. Otherwise all of them would be due in the same tick.
    """
    share = min(1.0, max(0.0, seconds_since_last_tick) / REFRESH_SECONDS)
    oldest = sorted(observed_at, key=lambda group: observed_at[group])
    # A group that has just been observed has no turn, however few groups there are
    return [
        group
        for group in oldest[: math.ceil(share * len(oldest))]
        if now - observed_at[group] >= REFRESH_SECONDS / 2
    ]


_MAX_NAMED_GROUPS = 5


def skip_reason(group_count: int, statuses: Mapping[str, str]) -> str:
    """Return why a sensor tick starts no run.

    Args:
        group_count: number of all groups.
        statuses: status of each group that is not idle.
    """
    named = [f"{group}: {status}" for group, status in list(statuses.items())[:_MAX_NAMED_GROUPS]]
    more = len(statuses) - len(named)
    idle = group_count - len(statuses)
    return ". ".join(
        [
            f"Nothing to start in {format_count(group_count, 'group')}, of which {idle:,} idle",
            *named,
            *([f"And {format_count(more, 'more group')}"] if more else []),
        ]
    )
