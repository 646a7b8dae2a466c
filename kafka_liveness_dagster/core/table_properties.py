"""Choose the properties of a new table, and find properties that prevent batches.

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
    # Conflicts between writers are detected by each file's first and last offset
    "write.metadata.metrics.column.offset": "full",
    # A dictionary that saves nothing is given up after the first page; else the files of a small batch are
    # encoded twice
    "write.parquet.page-row-limit": "5000",
    "write.metadata.delete-after-commit.enabled": "true",  # else each batch's commit leaves a metadata file
    "write.metadata.compression-codec": "gzip",  # each commit rewrites the summaries of all snapshots
    # Each overwrite reads all manifests, to find files of its offsets. Each commit adds a manifest, and by
    # default Iceberg merges them at 100. With 20 a small batch took 9 % less CPU time in Spark: the
    # mean of four rounds of 100 batches, from 17 % less to 4 % more
    "commit.manifest.min-count-to-merge": "20",
    "commit.retry.num-retries": "10",  # writers of other ranges commit at the same time
}
_MERGE_PROPERTIES = {  # where batches are merged: see ``spark.table.commits``
    # Merge-on-read marks replaced rows; copy-on-write reads whole files into a full join
    "write.merge.mode": "merge-on-read",
    "write.merge.isolation-level": "serializable",
    "write.merge.distribution-mode": "none",
    "write.metadata.metrics.column.topic": "full",  # if no partition has a file's topic, bounds do
    "write.metadata.metrics.column.partition": "full",
}
_MAX_INFERRED = f"{_METRICS}.max-inferred-column-defaults"
_MAX_INFERRED_DEFAULT = 100
_MODES_WITHOUT_BOUNDS = ("none", "counts")
_FORMATS_WITH_BOUNDS = ("parquet", "orc")


class RefusedProperty(NamedTuple):
    """A property that must be changed before a batch can be written.

    Attributes:
        setting: property and value; only the property if Iceberg's default is the problem.
        reason: effect on a batch.
        name: property to set,
        value: and the required value.
    """

    setting: str
    reason: str
    name: str
    value: str


def needed_bounds(*, is_by_kafka_partition: bool) -> tuple[str, ...]:
    """Return the columns for which each file must record its first and last values.

    Partition values replace two of these columns.
    """
    return KEY[2:] if is_by_kafka_partition else KEY


def refused_properties(
    properties: Mapping[str, str], bounds: Iterable[str], columns: Sequence[str] | None = None
) -> Iterator[RefusedProperty]:
    """Yield each property that prevents batches.

    Args:
        properties: properties of the table.
        bounds: columns whose bounds decide conflicts, from ``needed_bounds``.
        columns: the table's columns in their order; None if they are not known yet. Then defaults count as
            sufficient.
    """
    if (kind := properties.get("write.format.default", "parquet")).lower() not in _FORMATS_WITH_BOUNDS:
        yield RefusedProperty(
            f"write.format.default={kind}",
            "its files have no column bounds, which Iceberg needs to find the files of a batch",
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
                f"its files keep no statistics of {column}, which Iceberg needs to detect two writers "
                "of the same offsets"
            )
            yield RefusedProperty(setting, why, f"{_METRICS}.column.{column}", value="full")


def new_table_properties(layout: TableLayout) -> dict[str, str]:
    """Return the properties of a new table; the user's properties come last."""
    is_merged = layout.snapshots == "append" or not layout.is_by_kafka_partition
    return {**_NEW_TABLE_PROPERTIES, **(_MERGE_PROPERTIES if is_merged else {}), **layout.table_properties}


def refused_new_table_properties(
    layout: TableLayout, default: Mapping[str, str] = NO_BOUNDS, override: Mapping[str, str] = NO_BOUNDS
) -> list[RefusedProperty]:
    """Return the properties of a new table that would prevent later batches.

    Args:
        layout: declared layout.
        default: properties that the catalog sets unless they are set otherwise.
        override: properties that the catalog always sets.
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
    """Return the setting because of which files lack bounds of a column; empty if they have them."""
    for name in (f"{_METRICS}.column.{column}", f"{_METRICS}.default"):
        if mode := properties.get(name):
            return f"{name}={mode}" if mode.lower() in _MODES_WITHOUT_BOUNDS else ""
    most = properties.get(_MAX_INFERRED, str(_MAX_INFERRED_DEFAULT))
    if columns is None or not most.isdecimal() or columns.index(column) < int(most):
        return ""
    return f"{_MAX_INFERRED}={most}"
