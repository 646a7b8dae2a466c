"""One membership after the other: the fence ends each, and the next one begins when it has left."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.fencing import FenceReason, PollTimer, RunState
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.kafka.errors import FencedError
from kafka_liveness_dagster.kafka.live.session import GroupSession
from kafka_liveness_dagster.kafka.run_context import RunContext, now_ms

TIMEOUT_SECONDS = 20.0


class Lane:
    """A lane that records its leave.

    Attributes:
        held: the first leave waits for it.
    """

    def __init__(self, steps):
        self.steps, self.held, self.entered = steps, threading.Event(), threading.Event()
        self.held.set()
        self.member = SimpleNamespace(
            is_joined=True,
            fenced_by=None,
            owned={},
            poll=lambda *_: None,
            leave=self.end,
            commit=self.commit,
        )

    def leave(self, reason):
        if not self.held.is_set() and not self.entered.is_set():
            self.entered.set()
            assert self.held.wait(TIMEOUT_SECONDS)
        self.steps.append(("left", reason))

    def end(self, *, release):
        self.steps.append(("closed", release))

    def commit(self, *_):
        self.steps.append(("committed", None))
        return ()

    def check_topics(self, batch):
        """No topic was recreated."""

    def record_commit(self, batch, handed_over):
        """Nothing is kept of it."""

    def resume_assigned(self):
        """Nothing has arrived."""


@pytest.fixture
def steps():
    """The joins and leaves, in order."""
    return []


@pytest.fixture
def timer():
    """The poll timer, with much time."""
    return PollTimer(60_000, now_ms())


@pytest.fixture
def consumer(steps, timer):
    """The memberships of a consumer that has not joined yet."""

    def join():
        steps.append(("joined", None))
        return Lane(steps)

    link = RunContext("0badcafe", "dagster/job/0badcafe/step", lambda: RunState.IN_PROGRESS)
    made = GroupSession(timer, link, join, answers_while_busy=False)
    yield made
    made.watchdog.stop()


@pytest.fixture
def memberships(consumer, steps):
    """The memberships of a consumer that has joined."""
    consumer.join_and_poll()
    steps.clear()
    return consumer


def test_the_next_membership_begins_when_the_one_before_has_left(memberships, steps):
    """The watchdog's thread has raised the fence and has not left yet: two members would be in the group."""
    before = memberships.planner
    before.held.clear()
    fence = (FenceReason.PARTITIONS_LOST, before.leave)
    watchdogs = threading.Thread(target=memberships.watchdog.fence, args=fence, daemon=True)
    watchdogs.start()
    assert before.entered.wait(TIMEOUT_SECONDS)
    memberships.join_and_poll()
    before.held.set()
    watchdogs.join(TIMEOUT_SECONDS)
    assert steps[:2] == [("left", FenceReason.PARTITIONS_LOST), ("joined", None)], "leave comes before join"


@pytest.mark.parametrize(
    ("reason", "released"),
    [(FenceReason.RUN_ENDED, False), (FenceReason.RUN_CANCELED, True)],
    ids=["run ended", "run canceled"],
)
def test_a_fence_decides_whether_the_partitions_are_released(memberships, steps, reason, released):
    """An ended run leaves them as a crash does, however the block of the consumer is left."""
    memberships.watchdog.fence(reason, memberships.planner.leave)
    memberships.close(release=not released)
    assert steps == [("left", reason), ("closed", released)], "the fence decides"


@pytest.mark.parametrize("release", [True, False])
def test_without_a_fence_the_consumer_decides(memberships, steps, release):
    """By how its block is left."""
    memberships.close(release=release)
    assert steps == [("closed", release)]


def test_a_new_membership_has_the_whole_process_timeout(memberships, timer, steps):
    """The time of the slow batch before it does not count."""
    timer.polled_at_ms -= 60_000
    memberships.join_and_poll()
    assert ("joined", None) in steps
    assert memberships.watchdog.reason is None, "a new membership begins with its own time"


def test_a_run_that_has_ended_does_not_join_again(memberships, steps):
    """Its partitions belong to another run by now."""
    memberships.watchdog.fence(FenceReason.RUN_ENDED, memberships.planner.leave)
    with pytest.raises(FencedError, match="no longer in progress"):
        memberships.join_and_poll()
    assert steps == [("left", FenceReason.RUN_ENDED)]


def test_a_consumer_that_was_closed_before_its_first_poll_does_not_join(consumer, steps):
    """The member would never be closed."""
    consumer.close(release=True)
    with pytest.raises(FencedError, match="the consumer was closed"):
        consumer.join_and_poll()
    assert steps == []


def test_a_commit_of_a_member_that_the_group_put_out_meanwhile_is_refused(memberships):
    """The group gave its partitions to other members while the commit waited."""
    lane = memberships.planner

    def commit(*_):
        lane.member.fenced_by = FenceReason.PARTITIONS_LOST
        return ()

    lane.member.commit = commit
    with pytest.raises(FencedError, match="removed this consumer from the group"):
        memberships.commit(Batch((OffsetRange("orders", 3, 120, 150),), 60.0, membership_epoch=1))


def test_a_batch_is_not_committed_after_the_membership_that_planned_it(memberships, timer, steps):
    """The broker would accept the commit: it fences members, and this process has joined a second time."""
    before, now = (
        Batch((OffsetRange("orders", 3, 120, 150),), 60.0, membership_epoch=epoch) for epoch in (1, 2)
    )
    timer.polled_at_ms -= 60_000
    memberships.join_and_poll()
    with pytest.raises(FencedError, match="the batch was planned before the consumer rejoined"):
        memberships.commit(before)
    with pytest.raises(FencedError, match="the batch was planned before the consumer rejoined"):
        memberships.confirm(before)
    assert ("committed", None) not in steps
    memberships.commit(now)
    assert steps[-1] == ("committed", None)
