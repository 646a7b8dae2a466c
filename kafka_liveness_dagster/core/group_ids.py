"""Which names may a consumer group have? Any but those that mean a second commit log."""

from __future__ import annotations

from kafka_liveness_dagster.core.commit_log import CATCH_UP_SUFFIX
from kafka_liveness_dagster.core.errors import InvalidSettingError


def check_group_id(group_id: str) -> None:
    """Refuse a group id that could not be told from a second log.

    Raises:
        InvalidSettingError: the id is empty or ends in ``.catch-up``.
    """
    if not group_id or group_id.endswith(CATCH_UP_SUFFIX):
        raise InvalidSettingError(
            f"group_id {group_id!r} must not be empty nor end in {CATCH_UP_SUFFIX!r}, which names the second commit log"
        )
