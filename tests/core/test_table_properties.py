"""Table properties that a batch cannot be written with are refused by name; all others pass."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.table_properties import KEY, change, in_words, needed_bounds, refused

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
    found = [*refused(properties, ["offset"], COLUMNS)]
    assert [one.setting for one in found] == [setting]
    assert change(found) == fix
    assert in_words(found) == f"{setting} ({found[0].why})"


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
    assert [*refused(properties, ["offset"], COLUMNS)] == []


def test_bounds_of_topic_and_partition_are_needed_where_no_partition_value_has_them():
    """A default cannot be judged before the columns are known."""
    nothing = {f"{METRICS}.max-inferred-column-defaults": "0"}
    assert [one.name[-6:] for one in refused(nothing, needed_bounds(is_by_kafka_partition=True), COLUMNS)] == ["offset"]
    assert len([*refused(nothing, needed_bounds(is_by_kafka_partition=False), COLUMNS)]) == 3
    assert [*refused(nothing, KEY)] == []
