"""What does the broker allow a group, and what does it decide for it? Its answers; nothing is asked here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BrokerLimits:
    """What the broker's own config says of groups: ``group.min.session.timeout.ms``, and its ``max``.

    Attributes:
        offsets_retention_seconds: how long the offsets of a group without members are kept.
    """

    min_session_ms: int
    max_session_ms: int
    offsets_retention_seconds: float = 7 * 86_400.0

    @property
    def renew_seconds(self) -> float:
        """How often offsets must be committed anew that may not expire: an hour, or a quarter of what they are kept."""
        return min(3_600.0, self.offsets_retention_seconds / 4)


@dataclass(frozen=True)
class GroupTimeouts:
    """What the broker's group config says: ``consumer.session.timeout.ms``, ``consumer.heartbeat.interval.ms``."""

    session_ms: int
    heartbeat_ms: int
