"""Plain offsets that a user commits: split between the two logs, and limited to planned offsets."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from kafka_liveness_dagster.core.commit_metadata import (
    CatchUpCommitMetadata,
    GroupOrigin,
    LiveCommitMetadata,
    OwnerState,
)
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_state import PartitionState
from kafka_liveness_dagster.core.resume import OwnedPartition, ResumeDecision
from kafka_liveness_dagster.kafka.errors import CommitRefusedError
from kafka_liveness_dagster.kafka.live.planner import ResumeReport
from kafka_liveness_dagster.kafka.live.session import OffsetCommits

AT = TopicPartition("orders", 3)


class Lane:
    """Both logs, the fence and the group in one.

    The partition has crash lag 70-100, commit 120 and position 150.

    Args:
        owed: the crash lag, of one range or more.
        committed: of the live lane.
        position: of the live lane.

    Attributes:
        first: spans that were committed to the live commit log.
        second: ranges that were recorded in the second.
    """

    def __init__(self, *owed, committed=120, position=150):
        self.first, self.second = [], []
        self._committed, self._owed = committed, owed or (Span(70, 100),)
        self.owned = {AT: OwnedPartition(committed, position, self._owed, assignment_id=1)}
        self.fence = SimpleNamespace(check=lambda: None, epoch=1)

    def partition_states(self, _group_id, _partitions):
        mark = LiveCommitMetadata(OwnerState.RUNNING, "0badcafe", self._owed, origin=GroupOrigin(0))
        return {
            AT: PartitionState(
                self._committed,
                mark,
                0,
                log_end=200,
                catch_up_log=CatchUpCommitMetadata(origin=GroupOrigin(0)),
            )
        }

    def commit(self, batch):
        assert (batch.membership_epoch, batch.assignment_ids) == (1, {AT: 1})
        self.first.append(batch.spans)
        return ()

    def mark_done(self, ranges, _may_go_on):
        self.second += ranges


@pytest.fixture
def lane():
    """The target of the commits."""
    return Lane()


@pytest.fixture
def found():
    """What the memberships of the consumer found."""
    return ResumeReport()


@pytest.fixture
def commits(lane, found):
    """The commits of one consumer."""
    return commits_of(lane, found)


def commits_of(lane, found=None):
    """The commits of a consumer with this lane."""
    return OffsetCommits(
        lane,
        "orders-etl",
        lane,
        resume_report=found or ResumeReport(),
        catch_up_log=lambda: lane,
    )


@pytest.mark.parametrize(
    ("offset", "first", "second"),
    [
        pytest.param(90, [], [OffsetRange("orders", 3, 70, 90)], id="inside of crash lag"),
        pytest.param(99, [], [OffsetRange("orders", 3, 70, 99)], id="the last offset inside of crash lag"),
        pytest.param(120, [], [], id="the live lane's own commit"),
        pytest.param(121, [{AT: Span(120, 121)}], [], id="the first offset of the plan"),
        pytest.param(130, [{AT: Span(120, 130)}], [], id="inside of the plan"),
        pytest.param(150, [{AT: Span(120, 150)}], [], id="the end of the plan"),
    ],
)
def test_an_offset_goes_to_the_log_whose_range_it_lies_in(lane, commits, offset, first, second):
    """KIP-333 splits them so: crash lag to the catch-up commit log, everything else to the first."""
    commits.commit({AT: offset})
    assert (lane.first, lane.second) == (first, second)


def test_the_live_lanes_own_position_records_no_crash_lag_as_done():
    """After a jump over 70-120 position() is 120, and so is the end of what nobody has read."""
    lane = Lane(Span(70, 120), committed=120, position=120)
    commits_of(lane).commit({AT: lane.owned[AT].position})
    assert (lane.first, lane.second) == ([], [])


@pytest.mark.parametrize(
    ("committed", "owed", "offset"),
    [
        pytest.param(150, [(70, 120)], 120, id="the live lane has moved on since the jump"),
        pytest.param(200, [(70, 120), (140, 190)], 120, id="the older of two ranges"),
        pytest.param(190, [(70, 120), (140, 190)], 120, id="the newer one ends at the commit"),
    ],
)
def test_the_end_of_a_pending_range_is_refused(committed, owed, offset):
    """The live lane went on there: such an offset does not show who processed the range."""
    lane = Lane(*(Span(*one) for one in owed), committed=committed, position=committed + 10)
    with pytest.raises(CommitRefusedError, match=r"120 of orders:3 ends the pending range 70-120"):
        commits_of(lane).commit({AT: offset})
    assert (lane.first, lane.second) == ([], [])


def test_two_pending_ranges_are_counted_apart():
    """An offset inside of the newer one proves nothing about the older; one call may write both logs."""
    lane = Lane(Span(70, 120), Span(140, 190), committed=190, position=200)
    commits_of(lane).commit({AT: 170})
    commits_of(lane).commit({AT: 195})
    assert (lane.first, lane.second) == ([{AT: Span(190, 195)}], [OffsetRange("orders", 3, 140, 170)])


@pytest.mark.parametrize(
    ("offset", "second"),
    [
        pytest.param(130, [OffsetRange("orders", 3, 120, 130)], id="of the batch that was cut off"),
        pytest.param(100, [OffsetRange("orders", 3, 70, 100)], id="of what was pending before"),
    ],
)
def test_a_late_commit_of_a_former_membership_counts_from_where_it_began(found, offset, second):
    """Two jumps of one process, 70 to 120 and 120 to 140, are one pending range.

    120-130 says nothing of 70-120.
    """
    lane = Lane(Span(70, 140), committed=140, position=140)
    for resumed in (ResumeDecision(120, (Span(70, 120),)), ResumeDecision(140, (Span(70, 140),))):
        found.add({AT: resumed}, logging.getLogger(__name__))
    commits_of(lane, found=found).commit({AT: offset})
    assert (lane.first, lane.second) == ([], second)


def test_a_former_position_inside_of_a_pending_range_is_refused(found):
    """After the second jump 120 is as little a proof as it was before."""
    lane = Lane(Span(70, 140), committed=140, position=140)
    for resumed in (ResumeDecision(120, (Span(70, 120),)), ResumeDecision(140, (Span(70, 140),))):
        found.add({AT: resumed}, logging.getLogger(__name__))
    with pytest.raises(CommitRefusedError, match=r"120 of orders:3 ends the pending range"):
        commits_of(lane, found=found).commit({AT: 120})
    assert (lane.first, lane.second) == ([], [])


@pytest.mark.parametrize(
    "offset", [151, 110, 70], ids=["not planned yet", "below the commit", "the first pending one"]
)
def test_an_offset_out_of_the_hands_of_this_consumer_is_refused(lane, commits, offset):
    """Nothing of it is committed, in either log."""
    with pytest.raises(CommitRefusedError, match="this consumer does not hold it"):
        commits.commit({AT: offset})
    assert (lane.first, lane.second) == ([], [])
