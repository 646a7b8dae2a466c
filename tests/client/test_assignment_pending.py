"""Has a member nothing to do, or not yet?"""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka.live.consumer import GroupView
from kafka_liveness_dagster.lanes import assignment_wait
from kafka_liveness_dagster.lanes.assignment_wait import AssignmentWait

ORDERS = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    "owned", [{}, {TopicPartition("orders", 1): "settled"}], ids=["alone", "beside others"]
)
def test_what_arrived_is_waited_for_until_its_first_commit(owned):
    """A rebalance holds the commit up with which a partition becomes the member's: the run is not idle."""
    member = SimpleNamespace(pending={ORDERS: 1}, owned=owned)
    view = GroupView(None, None, SimpleNamespace(planner=SimpleNamespace(member=member)), None)
    found = view.why_partitions_pending()
    assert found == "1 partitions are assigned, and a rebalance delays their first commit"
    member.pending.clear()
    member.owned[ORDERS] = "settled"
    assert view.why_partitions_pending() == ""


class Consumer:
    """A member of a group with a process timeout of 60 s and a session of 10 s.

    Attributes:
        why: a reason to wait; empty without one.
        is_joined: whether the group has let it in.
    """

    timeouts = SimpleNamespace(process_timeout_ms=60_000, session_timeout_ms=10_000)
    why, is_joined = "", True

    def why_partitions_pending(self):
        return self.why

    def is_assignment_pending(self):
        return False


@pytest.fixture
def run(monkeypatch):
    """A run that may wait: its consumer, the time, and its tags."""
    run = SimpleNamespace(consumer=Consumer(), now=0.0, tags=[])
    storage = SimpleNamespace(
        log=Mock(), add_tags=lambda tags: run.tags.extend(tags.values()), is_behind=False
    )
    monkeypatch.setattr(assignment_wait, "time", SimpleNamespace(monotonic=lambda: run.now))
    run.goes_on = AssignmentWait(run.consumer, storage).should_continue
    return run


def test_a_run_that_the_group_has_not_let_in_waits(run):
    """Its partitions come with the membership."""
    run.consumer.is_joined = False
    assert run.goes_on(), "a run that is no member yet is not idle"
    run.now, run.consumer.is_joined = 2.0, True
    assert not run.goes_on()


def test_a_run_waits_for_a_partition_as_long_as_other_members_may_hold_it(run):
    """A process timeout and a session; a tag on the run's page shows it meanwhile."""
    run.consumer.why = "1 partitions are others'"
    for run.now in (0.0, 30.0, 70.0):
        assert run.goes_on()
    assert run.tags == ["partitions: 1 partitions are others'"]
    run.now = 71.5
    assert not run.goes_on(), "the wait has an end"
    assert run.tags[1:] == [""]
