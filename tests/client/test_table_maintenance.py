"""What the maintenance of a table deletes, and what it keeps."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.spark.table.maintenance import TableMaintenance
from kafka_liveness_dagster.spark.table.table import IcebergTable
from tests.client.fake_connect_server import RECORDS

QUOTED = "`lake`.`shop`.`orders`"
DAY = 86_400.0


@pytest.fixture
def upkeep(server, session):
    """The maintenance of a table at snapshot 7."""
    server.has_table(QUOTED, RECORDS)
    return TableMaintenance(session, IcebergTable("lake.shop.orders"))


def snapshot(snapshot_id, since=None):
    """A snapshot that was committed so many days after the beginning."""
    parent = snapshot_id - 1 or None
    return {"id": snapshot_id, "parent": parent, "millis": round(1000 * DAY * snapshot_id), "since": since}


def test_the_snapshots_that_hold_the_ledger_are_kept(server, upkeep):
    """Snapshot 6 sums up all before 4; what 5 and 6 wrote is in their own summaries alone."""
    rows = [snapshot(number) for number in (1, 2, 3, 4, 5)]
    server.gives("unix_millis(committed_at)", [*rows, snapshot(6, "4"), snapshot(7)])
    upkeep.expire(8 * DAY, max_age=0.5 * DAY, max_snapshots=100)
    [plan, *_] = server.executed_with("expire_snapshots")
    assert f"older_than => timestamp_millis({round(1000 * DAY * 5)}L)" in plan


def test_files_of_writes_that_may_go_on_are_no_orphans(server, upkeep):
    """Only older ones are deleted: a commit may still name the others."""
    server.gives("metadata_log_entries", [{"file": "/warehouse/shop/orders/metadata/7.json"}])
    upkeep.remove_orphans(8 * DAY, min_age=3 * DAY)
    [plan, *_] = server.executed_with("remove_orphan_files")
    assert f"older_than => timestamp_millis({round(1000 * DAY * 5)}L)" in plan


def test_only_settled_ranges_are_compacted(server, upkeep):
    """No file spans what a lane may write again."""
    list(upkeep.compact([OffsetRange("orders", 0, 7, 12), OffsetRange("orders", 0, 20, 30)], 5))
    plans = server.executed_with("rewrite_data_files")
    assert any("`offset` >= 7 AND `offset` < 12" in plan for plan in plans)
    assert not any("`offset` < 12" in plan and "`offset` >= 20" in plan for plan in plans)
