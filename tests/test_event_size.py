"""What is told of a group stays as short with a thousand partitions.

Each event is a row that Dagster keeps.
"""

from __future__ import annotations

import dagster as dg
import pytest
from dagster._serdes import serialize_value

from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.departures import GroupSnapshot, GroupState, Run, RunFate
from kafka_liveness_dagster.core.events import CrashLagFound, MemberJoined
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
from kafka_liveness_dagster.metadata import Tally, range_table
from kafka_liveness_dagster.sensor.asset_events import crash_lag_observations, group_observations
from kafka_liveness_dagster.sensor.observation import GroupObservation

RUN = "0badcafe-1111-4222-8333-444444444444"
MOST = {"observation": 7_100, "materialization": 4_000}


def ranges(partitions):
    """So many, of which the last is the largest."""
    return [OffsetRange("orders", p, 100_000, 200_000 + p) for p in range(partitions)]


def look(partitions):
    """All of them owed by one jump, and with lag."""
    seen = tuple(
        PartitionSnapshot(
            one.topic_partition,
            one.end,
            LiveCommitMetadata(OwnerState.RUNNING, RUN[:8]),
            log_end=300_000 + one.partition,
            outstanding=(one.span,),
        )
        for one in ranges(partitions)
    )
    return GroupObservation(
        GroupSnapshot(GroupState.STABLE, (), seen, runs={RUN[:8]: Run(RunFate.FAILED)}), []
    )


def told(partitions):
    """What one look, and one batch, of so many partitions leave in the event log."""
    keys = [str(one) for one in ranges(partitions)]
    events = [
        MemberJoined("0badcafe", tuple(TopicPartition("orders", p) for p in range(partitions))),
        *(CrashLagFound(key, 100_000) for key in keys),
    ]
    (observation,) = group_observations("etl", ["orders"], look(partitions), events)
    with dg.DagsterInstance.ephemeral() as instance:
        (jump,) = crash_lag_observations(
            instance, dg.AssetKey("orders_crash_lag"), "etl", keys, look(partitions), event_times={}
        )
    tally = Tally()
    tally.add(Batch(tuple(ranges(partitions)), 60.0), 5, 1.0)
    materialized = dg.AssetMaterialization("orders", metadata=tally.metadata())
    return {"observation": observation, "crash lag": jump, "materialization": materialized}


@pytest.mark.parametrize("kind", ["observation", "materialization"])
def test_a_thousand_partitions_weigh_as_much_as_a_hundred(kind):
    """And both of them little."""
    few, hundred, thousand = (len(serialize_value(told(partitions)[kind])) for partitions in (8, 100, 1_000))
    assert few <= hundred <= thousand <= 1.05 * hundred
    assert thousand <= MOST[kind]


def test_one_event_tells_of_a_jump():
    """Of all its partitions by name, since somebody will ask since when one of them is owed; once."""
    few, thousand = (len(serialize_value(told(partitions)["crash lag"])) for partitions in (10, 1_000))
    assert thousand <= few + 40 * 1_000


def test_totals_are_of_all_and_the_worst_are_shown():
    """Ten of them by name, in their order, and what the others sum up to."""
    observation, jump = (told(1_000)[kind] for kind in ("observation", "crash lag"))
    rows = [row.data for row in observation.metadata["partitions"].records]
    assert [row["partition"] for row in rows] == [*(f"orders:{p}" for p in range(990, 1_000)), "990 more"]
    assert (
        sum(int(row["lag"].replace(",", "")) for row in rows)
        == observation.metadata["lag"].value
        == 1_000 * 100_000
    )
    assert observation.metadata["pending_offsets"].value == sum(100_000 + p for p in range(1_000))
    assert observation.description.startswith("run 0badcafe joined with orders:0, orders:1,")
    assert "; and 991 more; group etl is stable: 0 members, lag 100,000,000, " in observation.description
    assert jump.partition is None
    told_of_it = "100,499,500 offsets are pending, because the live lane skipped them (cause unknown): "
    assert jump.description.startswith(f"{told_of_it}p0:orders:100000-")
    sizes = [row.data["offsets"] for row in jump.metadata["ranges"].records]
    assert sum(int(size.replace(",", "")) for size in sizes) == 100_499_500


def test_all_of_ten_are_shown():
    """Nobody is said to be left out."""
    found = range_table([OffsetRange("orders", p, 0, 1 + p) for p in range(10)])
    assert [row.data["partition"] for row in found.records] == [f"orders:{p}" for p in range(10)]
    assert range_table([OffsetRange("orders", 0, *Span(5, 7))]).records[0].data["range"] == "5-7"
