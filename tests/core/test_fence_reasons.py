"""Each reason to fence, and each leave, has an answer to each question; a new one fails until decided."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.events import LeaveReason
from kafka_liveness_dagster.core.fencing import REJOINING_LEAVES, FenceReason

REJOINS, FINAL = True, False
RELEASES, KEEPS = True, False
REMEDY, NO_REMEDY = True, False
ORDERLY, ABRUPT = True, False
DECIDED = {
    # may it rejoin, does it release, is there a remedy, does every run end so, and what others call the leave
    "POLL_TIMEOUT": (REJOINS, KEEPS, REMEDY, ABRUPT, LeaveReason.POLL_TIMEOUT),
    "PARTITIONS_LOST": (REJOINS, KEEPS, REMEDY, ABRUPT, LeaveReason.PARTITIONS_LOST),
    "BROKERS_UNAVAILABLE": (REJOINS, KEEPS, REMEDY, ABRUPT, LeaveReason.BROKERS_UNAVAILABLE),
    "HANDED_OVER": (REJOINS, KEEPS, NO_REMEDY, ABRUPT, None),
    "REPLACED": (FINAL, KEEPS, REMEDY, ABRUPT, LeaveReason.REPLACED),
    "MAX_RUNTIME_REACHED": (FINAL, KEEPS, NO_REMEDY, ABRUPT, LeaveReason.MAX_RUNTIME_REACHED),
    "RUN_CANCELED": (FINAL, RELEASES, NO_REMEDY, ABRUPT, LeaveReason.CANCELED),
    "RUN_ENDED": (FINAL, KEEPS, NO_REMEDY, ABRUPT, None),
    "ORPHANED": (FINAL, KEEPS, NO_REMEDY, ABRUPT, LeaveReason.CRASHED),
    "CLOSED": (FINAL, KEEPS, NO_REMEDY, ORDERLY, LeaveReason.CRASHED),
    "INTERRUPTED": (FINAL, KEEPS, NO_REMEDY, ORDERLY, None),
}
"""By name: all answers of ``core.fencing``."""
IN_ORDER, OUT_OF_ORDER = True, False
SUCCESSOR, NO_SUCCESSOR = True, False
DECIDED_LEAVES = {
    # did it give its partitions up, does the run join again, is a live run requested without lag
    "GRACEFUL": (IN_ORDER, FINAL, NO_SUCCESSOR),
    "CANCELED": (IN_ORDER, FINAL, NO_SUCCESSOR),
    "STATIC": (IN_ORDER, FINAL, NO_SUCCESSOR),
    "OTHER_INSTANCE": (IN_ORDER, FINAL, NO_SUCCESSOR),
    "INTERRUPTED": (IN_ORDER, FINAL, NO_SUCCESSOR),
    "POLL_TIMEOUT": (OUT_OF_ORDER, REJOINS, NO_SUCCESSOR),
    "PARTITIONS_LOST": (OUT_OF_ORDER, REJOINS, NO_SUCCESSOR),
    "BROKERS_UNAVAILABLE": (OUT_OF_ORDER, REJOINS, NO_SUCCESSOR),
    "CRASHED": (OUT_OF_ORDER, FINAL, SUCCESSOR),
    "UNRELEASED": (OUT_OF_ORDER, FINAL, SUCCESSOR),
    "UNRESPONSIVE": (OUT_OF_ORDER, FINAL, NO_SUCCESSOR),
    "MAX_RUNTIME_REACHED": (OUT_OF_ORDER, FINAL, NO_SUCCESSOR),
    "REPLACED": (OUT_OF_ORDER, FINAL, NO_SUCCESSOR),
    "UNEXPLAINED": (OUT_OF_ORDER, FINAL, NO_SUCCESSOR),
    "EXTERNAL_CLIENT": (OUT_OF_ORDER, FINAL, NO_SUCCESSOR),
}
"""By name: the answers of ``core.events``, and whether ``core.health`` waits for the next poll."""


def test_each_reason_is_decided():
    """A reason or leave without a line has answers that nobody decided."""
    assert set(DECIDED) == {reason.name for reason in FenceReason}
    assert set(DECIDED_LEAVES) == {reason.name for reason in LeaveReason}


@pytest.mark.parametrize("reason", FenceReason, ids=lambda reason: reason.code)
def test_each_question_has_the_decided_answer(reason):
    """Before, during and after the fence."""
    answers = (
        reason.may_rejoin,
        reason.releases_partitions,
        bool(reason.remedy),
        reason.is_orderly_close,
        reason.leave,
    )
    assert answers == DECIDED[reason.name]


@pytest.mark.parametrize("leave", LeaveReason, ids=lambda leave: leave.code)
def test_each_leave_has_the_decided_answer(leave):
    """In the events, in the health of a group, and in the requests for runs."""
    answers = (leave.in_good_order, leave in REJOINING_LEAVES, leave.needs_successor)
    assert answers == DECIDED_LEAVES[leave.name]
