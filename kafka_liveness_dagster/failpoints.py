"""Where must a crash cost nothing? At these steps, and a test can have the process die at each of them.

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
    """The steps of a run, in their order; the two lanes share them as far as they have them."""

    AFTER_JOIN = "after_join"
    """Live: partitions are assigned, nothing is committed.

    Catch-up: what was asked for is known to be pending.
    """
    AFTER_TOKEN_COMMIT = "after_token_commit"  # noqa: S105 - KIP-333's word for the two numbers of a jump
    """Live: the jump and what it owes are in the live commit log, and nobody was told."""
    AFTER_PLAN = "after_plan"
    AFTER_TABLE_COMMIT = "after_table_commit"
    AFTER_OFFSET_COMMIT = "after_offset_commit"
    BEFORE_MATERIALIZATION = "before_materialization"
    """All batches are committed, the live lane's partitions released; Dagster knows of nothing."""


_name, _, _nth = os.environ.get(VARIABLE, "").partition(":")
_armed = Failpoint(_name) if _name else None  # a name that is none ends the process at its import
_nth_arrival = int(_nth or 1)
_arrivals = itertools.count(1)


def failpoint(step: Failpoint) -> None:
    """Pass; or die here, when this is the step the environment names."""
    if step is _armed and next(_arrivals) == _nth_arrival:
        os.kill(os.getpid(), signal.SIGKILL)
