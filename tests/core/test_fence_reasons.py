"""Each reason to fence has an answer to each question: a new one is decided everywhere, or fails here."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.departures import leave_reason_of
from kafka_liveness_dagster.core.events import LeaveReason
from kafka_liveness_dagster.core.fencing import FenceReason, FenceReport

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
"""By name. The tests of departures and of health say what follows from each leave."""


def test_each_reason_is_decided():
    """A reason without a line has no tag text, no remedy and no event that anybody decided."""
    assert set(DECIDED) == {reason.name for reason in FenceReason}


@pytest.mark.parametrize("reason", FenceReason, ids=lambda reason: reason.code)
def test_each_question_has_the_decided_answer(reason):
    """Each of them is a set of reasons in another module."""
    answers = (
        reason.may_rejoin,
        reason.releases_partitions,
        bool(reason.remedy),
        reason.is_orderly_close,
        leave_reason_of(FenceReport(reason)),
    )
    assert answers == DECIDED[reason.name]
