"""Plain offsets that a user commits: split between the two logs, and limited to planned offsets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kafka_liveness_dagster.core.commit_log import DoneLog, LiveMark, Mark, Origin
from kafka_liveness_dagster.core.fairness import Batch, Rotation
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.resume import Owned
from kafka_liveness_dagster.core.witnesses import PartitionFacts
from kafka_liveness_dagster.kafka.commits import Commits
from kafka_liveness_dagster.kafka.errors import CommitRefusedError

AT = TopicPartition("orders", 3)


class Lane:
    """Both logs, the fence and the group in one; the partition has crash lag 70-100, commit 120 and position 150.

    Attributes:
        first: spans that were committed to the first log.
        second: ranges that were recorded in the second.
        events: calls of ``worked``.
    """

    def __init__(self):
        self.first, self.second, self.events = [], [], []
        self.owned = {AT: Owned(120, 150, (Span(70, 100),), arrival=1)}
        self.fence = SimpleNamespace(check=lambda: None, check_epoch=lambda _: None, heartbeat=lambda: None)

    def facts(self, _group_id, _partitions):
        mark = LiveMark(Mark.RUNNING, "0badcafe", (Span(70, 100),), origin=Origin(0))
        return {AT: PartitionFacts(120, mark, 0, 200, DoneLog(origin=Origin(0)))}

    def with_group(self, commit):
        return commit(self)

    def commit(self, spans, _arrivals, _waiting, _left_out):
        self.first.append(dict(spans))
        return ()

    def record(self, ranges, _may_go_on):
        self.second += ranges

    def worked(self):
        self.events.append("worked")


@pytest.fixture
def lane():
    """The target of the commits."""
    return Lane()


@pytest.fixture
def rotation():
    """The rotation of the lane."""
    return Rotation()


@pytest.fixture
def commits(lane, rotation):
    """The commits of one consumer."""
    return Commits(lane, "orders-etl", lane, rotation, second=lambda: lane, link=lane)


@pytest.mark.parametrize(
    ("offset", "first", "second"),
    [
        pytest.param(90, [], [OffsetRange("orders", 3, 70, 90)], id="inside of crash lag"),
        pytest.param(100, [], [OffsetRange("orders", 3, 70, 100)], id="the end of crash lag"),
        pytest.param(130, [{AT: Span(120, 130)}], [], id="inside of the plan"),
        pytest.param(150, [{AT: Span(120, 150)}], [], id="the end of the plan"),
    ],
)
def test_an_offset_goes_to_the_log_whose_range_it_lies_in(lane, commits, offset, first, second):
    """KIP-333 splits them so: crash lag to the second commit log, everything else to the first."""
    commits.commit({AT: offset})
    assert (lane.first, lane.second) == (first, second)


@pytest.mark.parametrize("offset", [151, 110], ids=["not planned yet", "below the commit"])
def test_an_offset_out_of_the_hands_of_this_consumer_is_refused(lane, commits, offset):
    """Nothing of it is committed, in either log."""
    with pytest.raises(CommitRefusedError, match="not in this consumer's hands"):
        commits.commit({AT: offset})
    assert (lane.first, lane.second) == ([], [])


def test_the_turn_goes_on_behind_the_partition_of_the_last_commit(commits, rotation, lane):
    """Else one partition would come first in every batch. ``worked`` is called at the first commit only."""
    for _ in range(2):
        commits.commit(Batch((OffsetRange("orders", 3, 120, 150),), 60.0, last=AT))
    assert (rotation.committed, lane.events) == (AT, ["worked"])
