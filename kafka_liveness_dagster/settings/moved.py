"""Where is a setting now that once stood beside all others? Whoever writes it there is shown what to write instead."""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core.names import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

MOVED = {  # as it was: the group that it is in now, and its name there
    "batching": ("batching", "allocation"),
    "batches_in_flight": ("batching", "in_flight"),
    "on_slow_record": ("batching", "on_slow_record"),
    "min_crash_lag": ("crash_lag", "min_offsets"),
    "max_owed_ranges": ("crash_lag", "max_ranges"),
    "auto_catch_up": ("crash_lag", "auto_catch_up"),
    "max_crash_lag_age_seconds": ("crash_lag", "max_age_seconds"),
    "backfill_policy": ("crash_lag", "backfill_policy"),
    "auto_offset_reset": ("offsets", "auto_offset_reset"),
    "on_data_loss": ("offsets", "on_data_loss"),
    "on_missing_rows": ("offsets", "on_missing_rows"),
    "liveness": ("membership", "liveness"),
    "group_instance_id": ("membership", "group_instance_id"),
    "max_live_runs": ("sensor", "max_live_runs"),
    "sensor_interval_seconds": ("sensor", "minimum_interval_seconds"),
    "minimum_interval_seconds": ("sensor", "minimum_interval_seconds"),
    "sensor_status": ("sensor", "default_status"),
    "default_status": ("sensor", "default_status"),
    "on_event": ("sensor", "on_event"),
    "event_jobs": ("sensor", "event_jobs"),
    "max_lag": ("sensor", "max_lag"),
    "ghost_after_seconds": ("sensor", "ghost_after_seconds"),
    "fail_ghost_runs": ("sensor", "fail_ghost_runs"),
    "kafka_resource_key": ("resources", "kafka"),
    "spark_resource_key": ("resources", "spark"),
}


def in_python(group: str, kind: str, settings: Mapping[str, Any]) -> str:
    """A group as an argument.

    >>> in_python("batching", "Batching", {"in_flight": 2})
    'batching=kl.Batching(in_flight=2)'
    """
    return f"{group}=kl.{kind}({', '.join(f'{name}={_code(value)}' for name, value in settings.items())})"


def in_yaml(group: str, _kind: str, settings: Mapping[str, Any]) -> str:
    """A group as a section.

    >>> in_yaml("batching", "Batching", {"in_flight": 2})
    'batching: {in_flight: 2}'
    """
    return f"{group}: {{{', '.join(f'{name}: {json.dumps(value, default=str)}' for name, value in settings.items())}}}"


def _code(value: Any) -> str:
    if isinstance(value, Enum):
        return f"dg.{value}"
    if type(value) in (list, tuple):  # a job is a tuple, too
        return f"[{', '.join(map(_code, value))}]"
    named = getattr(value, "__name__", None) or getattr(value, "name", None)  # a function, or a job
    return named if isinstance(named, str) and not isinstance(value, str) else shown(value)
