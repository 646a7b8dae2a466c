"""Runs over windows of time: only a whole window is replayed, and only new records count as late."""

from __future__ import annotations

import time
from types import SimpleNamespace

import dagster as dg
import pytest

from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.kafka import timestamps as module
from kafka_liveness_dagster.kafka.timestamps import ProcessedRanges
from kafka_liveness_dagster.lanes.late_records import LateRecords
from kafka_liveness_dagster.lanes.runs import IncompleteWindowError, _processed_offsets
from kafka_liveness_dagster.settings.windows import Window

FIRST, SECOND = OffsetRange("orders", 3, 0, 70), OffsetRange("orders", 3, 70, 120)
WINDOW = Window("2026-11-22-10:00", 1_000.0, 4_600.0)
ASSET = SimpleNamespace(
    group_id="orders-etl", topics=("orders",), crash_lag_key=dg.AssetKey("orders_crash_lag")
)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        pytest.param(ProcessedRanges((FIRST,), (SECOND,), 0), "50 offsets are pending", id="crash lag"),
        pytest.param(ProcessedRanges((FIRST,), (), 50), "50 are not read yet", id="not read yet"),
    ],
)
def test_a_window_with_missing_offsets_is_not_replayed(monkeypatch, found, why):
    """The window would look whole, and the missing records would stay missing."""
    monkeypatch.setattr(module, "processed_ranges", lambda *_, **__: found)
    windows = SimpleNamespace(allowed_lateness_seconds=60.0)
    with pytest.raises(IncompleteWindowError, match=why):
        _processed_offsets(ASSET, windows, None, WINDOW)


@pytest.mark.parametrize("lateness_seconds", [60.0, 0.0])
def test_a_window_is_replayed_once_its_lateness_has_passed(monkeypatch, lateness_seconds):
    """The user allows it, and records of that time belong to the window."""
    bounds = []
    monkeypatch.setattr(
        module,
        "processed_ranges",
        lambda *_, begin_ms, end_ms: bounds.append((begin_ms, end_ms)) or ProcessedRanges((FIRST,), (), 0),
    )
    windows = SimpleNamespace(allowed_lateness_seconds=lateness_seconds)
    assert _processed_offsets(ASSET, windows, None, WINDOW) == (FIRST,)
    assert bounds == [(1_000_000, round(1_000 * (4_600 + lateness_seconds)))]
    now = time.time()
    with pytest.raises(IncompleteWindowError, match="records of 2026-11-22-10:00 may arrive until"):
        _processed_offsets(ASSET, SimpleNamespace(allowed_lateness_seconds=now), None, WINDOW)


def test_replayed_records_are_not_late():
    """They were in time at first; if they counted, each replay would reopen its window."""
    late = LateRecords(SimpleNamespace(), SimpleNamespace(begin=1_000.0), "orders-etl", again=[FIRST])
    one = SimpleNamespace(frame=SimpleNamespace(oldest_ms=lambda: pytest.fail("a replay is not late")))
    assert late.report(one, Batch((FIRST,), 60.0)) == 1_000.0
    assert late._without_reprocessed((FIRST, SECOND)) == [SECOND]
