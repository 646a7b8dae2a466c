"""Name the steps of a run at which a test can kill the process: a crash must cost nothing there.

``KAFKA_LIVENESS_FAILPOINT=after_plan:2`` ends the process by SIGKILL when it reaches that step for the second
time: no handler runs, nothing is released, no LeaveGroup is sent. Without the variable a step is one
comparison.

>>> failpoint(Failpoint.AFTER_PLAN)
>>> Failpoint("after_lunch")
Traceback (most recent call last):
ValueError: 'after_lunch' is not a valid Failpoint
"""

from __future__ import annotations

import itertools
import os
import signal
from enum import Enum

VARIABLE = "KAFKA_LIVENESS_FAILPOINT"


class Failpoint(Enum):
    """The steps of a run, in their order. Each lane has the steps that apply to it."""

    AFTER_JOIN = "after_join"
    """Live: partitions are assigned, nothing is committed.

    Catch-up: the requested ranges are known to be pending.
    """
    AFTER_TOKEN_COMMIT = "after_token_commit"  # noqa: S105 - KIP-333's word for the two offsets of a skipped range
    """Live: the skipped range is in the live commit log as crash lag, and is not reported yet."""
    AFTER_PLAN = "after_plan"
    AFTER_TABLE_COMMIT = "after_table_commit"
    AFTER_OFFSET_COMMIT = "after_offset_commit"
    BEFORE_MATERIALIZATION = "before_materialization"
    """All batches are committed and the live lane's partitions released; Dagster has no event of them."""


_name, _, _nth = os.environ.get(VARIABLE, "").partition(":")
_armed = Failpoint(_name) if _name else None  # an unknown name ends the process at its import
_nth_arrival = int(_nth or 1)
_arrivals = itertools.count(1)


def failpoint(step: Failpoint) -> None:
    """Return, or kill the process if the environment names this step."""
    if step is _armed and next(_arrivals) == _nth_arrival:
        os.kill(os.getpid(), signal.SIGKILL)
