"""Table properties that a batch cannot be written with are refused by name; all others pass."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.table_layout import TableLayout
from kafka_liveness_dagster.core.table_properties import (
    KEY,
    describe_refused,
    format_set_properties,
    needed_bounds,
    new_table_properties,
    refused_new_table_properties,
    refused_properties,
)

METRICS = "write.metadata.metrics"
COLUMNS = ["note", *KEY]


@pytest.mark.parametrize(
    ("properties", "setting", "fix"),
    [
        ({"write.format.default": "AVRO"}, "write.format.default=AVRO", "'write.format.default'='parquet'"),
        (
            {"write.spark.accept-any-schema": "true"},
            "write.spark.accept-any-schema=true",
            "'write.spark.accept-any-schema'='false'",
        ),
        (
            {"write.merge.isolation-level": "SNAPSHOT"},
            "write.merge.isolation-level=SNAPSHOT",
            "'write.merge.isolation-level'='serializable'",
        ),
        (
            {f"{METRICS}.column.offset": "counts"},
            f"{METRICS}.column.offset=counts",
            f"'{METRICS}.column.offset'='full'",
        ),
        ({f"{METRICS}.default": "none"}, f"{METRICS}.default=none", f"'{METRICS}.column.offset'='full'"),
        (
            {f"{METRICS}.max-inferred-column-defaults": "3"},
            f"{METRICS}.max-inferred-column-defaults=3",
            f"'{METRICS}.column.offset'='full'",
        ),
    ],
)
def test_a_property_that_prevents_batches_is_refused_with_the_value_that_it_needs(properties, setting, fix):
    """With the reason, for the table's owner."""
    found = [*refused_properties(properties, ["offset"], COLUMNS)]
    assert [one.setting for one in found] == [setting]
    assert format_set_properties(found) == fix
    assert describe_refused(found) == f"{setting} ({found[0].reason})"


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"write.format.default": "orc"},
        {"write.spark.accept-any-schema": "false", "write.merge.isolation-level": "serializable"},
        {f"{METRICS}.default": "none", f"{METRICS}.column.offset": "full"},
        {f"{METRICS}.default": "truncate(16)", f"{METRICS}.max-inferred-column-defaults": "0"},
        {f"{METRICS}.max-inferred-column-defaults": "4"},
        {f"{METRICS}.max-inferred-column-defaults": "many"},
    ],
)
def test_other_properties_pass(properties):
    """What Iceberg itself refuses, as a number that is none, is left to it."""
    assert [*refused_properties(properties, ["offset"], COLUMNS)] == []


def test_bounds_of_topic_and_partition_are_needed_where_no_partition_value_has_them():
    """A default cannot be judged before the columns are known."""
    nothing = {f"{METRICS}.max-inferred-column-defaults": "0"}
    assert [
        one.name[-6:]
        for one in refused_properties(nothing, needed_bounds(is_by_kafka_partition=True), COLUMNS)
    ] == ["offset"]
    assert len([*refused_properties(nothing, needed_bounds(is_by_kafka_partition=False), COLUMNS)]) == 3
    assert [*refused_properties(nothing, KEY)] == []


def test_a_new_table_has_what_its_layout_needs_and_the_users_own_last():
    """MERGE has settings of its own, where batches are merged or no partition separates them."""
    merge = "write.merge.isolation-level"
    assert merge not in new_table_properties(TableLayout())
    assert new_table_properties(TableLayout(snapshots="append"))[merge] == "serializable"
    own = {"commit.retry.num-retries": "3"}
    assert new_table_properties(TableLayout(table_properties=own))["commit.retry.num-retries"] == "3"


def test_a_catalogs_properties_count_where_it_sets_them():
    """Its default is below the layout, its override above the user's own."""
    avro, full = {"write.format.default": "avro"}, {f"{METRICS}.column.offset": "none"}
    assert refused_new_table_properties(TableLayout()) == []
    assert [one.name for one in refused_new_table_properties(TableLayout(), avro, full)] == [*avro, *full]
    assert (
        refused_new_table_properties(TableLayout(table_properties={"write.format.default": "orc"}), avro)
        == []
    )
    assert refused_new_table_properties(TableLayout(), full) == []
