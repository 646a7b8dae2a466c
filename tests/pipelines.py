"""Pipelines of tests that need neither Kafka nor Spark: their writes are the test's own."""

from __future__ import annotations


def pipeline_without_services(kind, *, max_in_flight):
    """Create a ``Pipeline`` of this class that reads, transforms and stores nothing by itself."""
    return kind(
        None,
        None,
        None,
        table="lake.shop.orders",
        sink=None,
        max_records=10,
        is_auto_sized=False,
        liveness="poll",
        on_slow_record="raise",
        max_in_flight=max_in_flight,
    )
