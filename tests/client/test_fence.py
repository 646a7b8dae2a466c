"""The fence of a lane, and the batches that it has cut off."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.fencing import FenceReason, PollTimer, RunState
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.kafka.errors import FencedError
from kafka_liveness_dagster.kafka.run_context import RunContext, now_ms
from kafka_liveness_dagster.kafka.watchdog import Fence, Watchdog

LAPSED = "planned before the consumer rejoined"
LINK = RunContext("0badcafe", "dagster/job/0badcafe/step", lambda: RunState.IN_PROGRESS)


def batch(epoch):
    """A batch that this membership, or a former one, has planned."""
    return Batch((OffsetRange("orders", 3, 70, 100),), 60.0, membership_epoch=epoch)


def leave(_reason):
    """Give nothing up: there is no group."""


@pytest.fixture
def watchdog():
    """A watchdog without its threads, and with much time."""
    return Watchdog(PollTimer(60_000, now_ms()), LINK, leave)


@pytest.fixture
def fence(watchdog):
    """The fence of a second membership."""
    made = Fence(watchdog, LAPSED, has_started=True)
    made.start_epoch(FenceReason.POLL_TIMEOUT)
    return made


def test_no_batch_is_open_while_the_fence_is_up(fence, watchdog):
    """Spark work of this membership is canceled too: the membership has ended."""
    assert fence.is_batch_current(batch(1))
    watchdog.fence(FenceReason.PARTITIONS_LOST, leave)
    assert not fence.is_batch_current(batch(1)), "a batch is closed while the fence is up"


def test_a_batch_of_a_former_membership_stays_closed(fence):
    """The fence is down since, and other members may have processed the partitions meanwhile."""
    assert fence.is_batch_current(batch(1))
    assert not fence.is_batch_current(batch(0))
    fence.check_batch(batch(1))
    with pytest.raises(FencedError, match=LAPSED):
        fence.check_batch(batch(0))
