"""Has a member nothing to do, or not yet?"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.kafka.view import GroupView

ORDERS = TopicPartition("orders", 0)


@pytest.mark.parametrize("owned", [{}, {TopicPartition("orders", 1): "settled"}], ids=["alone", "beside others"])
def test_what_arrived_is_waited_for_until_its_first_commit(owned):
    """A rebalance holds the commit up with which a partition becomes the member's: the run is not idle."""
    member = SimpleNamespace(arrived={ORDERS: 1}, owned=owned)
    view = GroupView(None, None, SimpleNamespace(lane=SimpleNamespace(member=member)), None)
    assert view.partitions_to_come() == "1 partitions have come, and a rebalance holds their first commit up"
    member.arrived.clear()
    member.owned[ORDERS] = "settled"
    assert view.partitions_to_come() == ""
