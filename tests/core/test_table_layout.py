"""Which partition and sort fields a table may be declared with, and what Iceberg gets of them."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.table_layout import (
    PARTITION_FIELD,
    SORT_FIELD,
    Field,
    TableLayout,
    parse_partition_field,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("topic", Field("", "topic", 0)),
        ("customer.address.city", Field("", "customer.address.city", 0)),
        ("days(placed_at)", Field("days", "placed_at", 0)),
        ("hours(event.placed_at)", Field("hours", "event.placed_at", 0)),
        ("bucket(16, customer_id)", Field("bucket", "customer_id", 16)),
        ("bucket(16,customer_id)", Field("bucket", "customer_id", 16)),
    ],
)
def test_a_partition_field_is_split_into_transform_and_column(text, expected):
    """A text that is accepted when an asset is declared can also be sent to Spark."""
    assert PARTITION_FIELD.matches(text)
    assert parse_partition_field(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "truncate(4, id)",
        "bucket(0, id)",
        "bucket(id)",
        "days(placed_at",
        "days(a b)",
        "a.",
        "1a",
        "ä",
        "a; DROP",
        "a\n",
    ],
)
def test_another_transform_or_no_column_is_refused(text):
    """The refusal comes before a statement is made of the text."""
    assert not PARTITION_FIELD.matches(text)
    with pytest.raises(ValueError) as refusal:
        parse_partition_field(text)
    assert str(refusal.value) == text


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("placed_at", True),
        ("a.b DESC NULLS FIRST", True),
        ("a asc", True),
        ("a nulls last", True),
        ("a  desc", False),
        ("a nulls", False),
        ("days(a)", False),
        ("a, b", False),
    ],
)
def test_a_sort_field_is_a_column_with_an_order(text, fits):
    """Spark sorts by columns alone; one text is one column."""
    assert SORT_FIELD.matches(text) is fits


@pytest.mark.parametrize(
    ("partition_by", "expected"),
    [
        (("topic", "partition"), True),
        (("days(placed_at)", "partition", "topic"), True),
        (("topic",), False),
        (("bucket(16, topic)", "partition"), False),
        ((), False),
    ],
)
def test_files_hold_one_kafka_partition_only_if_both_columns_divide_them(partition_by, expected):
    """A transform of a column may put two values into one file."""
    assert TableLayout(partition_by=partition_by).is_by_kafka_partition is expected
