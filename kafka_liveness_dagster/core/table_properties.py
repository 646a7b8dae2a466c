"""Table properties: those of a new table, and those that no batch can be written with.

With the latter Iceberg or Spark refuses a later batch, or lets two writers of the same offsets commit.
Decides by the properties alone, and never reads a table.

>>> [one.setting for one in refused_properties({"write.format.default": "avro"}, ["offset"])]
['write.format.default=avro']
>>> format_set_properties([*refused_properties({"write.merge.isolation-level": "snapshot"}, ["offset"])])
"'write.merge.isolation-level'='serializable'"
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kafka_liveness_dagster.core.table_layout import TableLayout

KEY = ("topic", "partition", "offset")
NO_BOUNDS: Mapping[str, str] = MappingProxyType({})
_METRICS = "write.metadata.metrics"
_NEW_TABLE_PROPERTIES = {  # docs/table.md has the reason for each of them
    "format-version": "2",  # the lowest with row-level deletes, which a MERGE needs
    "write.distribution-mode": "none",  # each task writes its own ranges: no shuffle before the files
    # Conflicts are decided by each file's first and last offset
    "write.metadata.metrics.column.offset": "full",
    # A dictionary that does not pay is given up with the first page: files of a small batch would else be
    # encoded twice
    "write.parquet.page-row-limit": "5000",
    "write.metadata.delete-after-commit.enabled": "true",  # a commit a batch would pile up metadata files
    "write.metadata.compression-codec": "gzip",  # each commit writes all snapshots' summaries again
    "commit.retry.num-retries": "10",  # writers of other ranges commit at the same time
}
_MERGE_PROPERTIES = {  # where batches are merged: see ``spark.table.commits``
    # Merge-on-read marks what is replaced; copy-on-write reads whole files into a full join
    "write.merge.mode": "merge-on-read",
    "write.merge.isolation-level": "serializable",
    "write.merge.distribution-mode": "none",
    "write.metadata.metrics.column.topic": "full",  # what no partition says of a file, its bounds say
    "write.metadata.metrics.column.partition": "full",
}
_MAX_INFERRED = f"{_METRICS}.max-inferred-column-defaults"
_MAX_INFERRED_DEFAULT = 100
_MODES_WITHOUT_BOUNDS = ("none", "counts")
_MODES_WITH_BOUNDS = ("parquet", "orc")


class RefusedProperty(NamedTuple):
    """One property that has to be changed before a batch can be written.

    Attributes:
        setting: the property and its value; the property alone if it is Iceberg's default that does not do.
        reason: what it does to a batch.
        name: the property to set,
        value: and the value that it needs.
    """

    setting: str
    reason: str
    name: str
    value: str


def needed_bounds(*, is_by_kafka_partition: bool) -> tuple[str, ...]:
    """Return the columns whose first and last values the files must have.

    Partition values replace two of them.
    """
    return KEY[2:] if is_by_kafka_partition else KEY


def refused_properties(
    properties: Mapping[str, str], bounds: Iterable[str], columns: Sequence[str] | None = None
) -> Iterator[RefusedProperty]:
    """Give each property that prevents batches.

    Args:
        properties: the table's.
        bounds: the columns whose bounds decide conflicts, as ``needed_bounds`` has them.
        columns: the table's columns in their order; None if they are not known yet. Then defaults count as
            sufficient.
    """
    if (kind := properties.get("write.format.default", "parquet")).lower() not in _MODES_WITH_BOUNDS:
        yield RefusedProperty(
            f"write.format.default={kind}",
            "its files have no column bounds, by which Iceberg finds the files of a batch",
            "write.format.default",
            value="parquet",
        )
    if properties.get(name := "write.spark.accept-any-schema", "").lower() == "true":
        yield RefusedProperty(
            f"{name}=true",
            (
                "Spark matches columns by position, and runs no MERGE; new columns are added without this "
                "property"
            ),
            name,
            value="false",
        )
    if (level := properties.get(name := "write.merge.isolation-level", "")).lower() == "snapshot":
        yield RefusedProperty(
            f"{name}={level}",
            "two writers of the same offsets would both commit, and the rows would be in the table twice",
            name,
            value="serializable",
        )
    for column in bounds:
        if setting := _setting_without_bounds(properties, column, columns):
            why = (
                f"its files keep no statistics of {column}, by which two writers of the same offsets are "
                "detected"
            )
            yield RefusedProperty(setting, why, f"{_METRICS}.column.{column}", value="full")


def new_table_properties(layout: TableLayout) -> dict[str, str]:
    """Return the properties of a table that is created, the user's own last."""
    is_merged = layout.snapshots == "append" or not layout.is_by_kafka_partition
    return {**_NEW_TABLE_PROPERTIES, **(_MERGE_PROPERTIES if is_merged else {}), **layout.table_properties}


def refused_new_table_properties(
    layout: TableLayout, default: Mapping[str, str] = NO_BOUNDS, override: Mapping[str, str] = NO_BOUNDS
) -> list[RefusedProperty]:
    """Return the properties of a table that is created with which later batches could not be written.

    Args:
        layout: what was declared.
        default: properties that the catalog sets where nobody else does.
        override: properties that the catalog sets in any case.
    """
    bounds = needed_bounds(is_by_kafka_partition=layout.is_by_kafka_partition)
    return [*refused_properties({**default, **new_table_properties(layout), **override}, bounds)]


def format_set_properties(found: Iterable[RefusedProperty]) -> str:
    """Return the properties as ``ALTER TABLE … SET TBLPROPERTIES (…)`` takes them."""
    return ", ".join(f"'{one.name}'='{one.value}'" for one in found)


def describe_refused(found: Iterable[RefusedProperty]) -> str:
    """Return the settings, each with its reason."""
    return "; ".join(f"{one.setting} ({one.reason})" for one in found)


def _setting_without_bounds(properties: Mapping[str, str], column: str, columns: Sequence[str] | None) -> str:
    """Return the setting by which files have no bounds of a column; empty if they have."""
    for name in (f"{_METRICS}.column.{column}", f"{_METRICS}.default"):
        if mode := properties.get(name):
            return f"{name}={mode}" if mode.lower() in _MODES_WITHOUT_BOUNDS else ""
    most = properties.get(_MAX_INFERRED, str(_MAX_INFERRED_DEFAULT))
    if columns is None or not most.isdecimal() or columns.index(column) < int(most):
        return ""
    return f"{_MAX_INFERRED}={most}"
