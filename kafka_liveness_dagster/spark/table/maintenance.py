"""Compact a table and expire its snapshots by Iceberg's procedures, except ranges that a lane may rewrite.

If a lane commits first, the rewrite fails and is retried, so it never undoes a lane's commit. Never decides
which offsets are final (``core.table_layout`` does), and never deletes a file of a kept snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.errors import PySparkException

from kafka_liveness_dagster.core.ledger import TOTAL_AS_OF_KEY, SnapshotSummary, decode_total_as_of, lineage
from kafka_liveness_dagster.core.table_layout import expiry_cutoff
from kafka_liveness_dagster.spark.error_classification import is_server_error, retry_reason, summarize
from kafka_liveness_dagster.spark.errors import SparkFailedError
from kafka_liveness_dagster.spark.ranges import one_per_partition, ranges_condition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Row, SparkSession

    from kafka_liveness_dagster.core.offsets import OffsetRange
    from kafka_liveness_dagster.spark.table.table import IcebergTable

_MAX_TRIES = 3
_MAX_RANGES = 500  # in one rewrite, because Spark and Iceberg plan with a condition for each range
# Reading by Arrow keeps data of each file in the server permanently (#13937)
_BY_ARROW = "spark.sql.iceberg.vectorization.enabled"
_BY_PREFIX = ", prefix_listing => true"  # object stores have no folders to walk through
# Not for local files: a listing by prefix reads permissions with `ls`, which fails at a deleted file
_LOCAL = ("file:", "/")
_SNAPSHOTS = (
    f"SELECT snapshot_id, parent_id, unix_millis(committed_at), summary['{TOTAL_AS_OF_KEY}'] "
    "FROM {table}.`snapshots`"
)
_FIGURES = (
    "SELECT count_if(content = 0), coalesce(sum(if(content = 0, file_size_in_bytes, 0)), 0), "
    "count_if(content > 0), (SELECT count(*) FROM {table}.`manifests`), (SELECT count(*) FROM "
    "{table}.`snapshots`) FROM {table}.`files`"
)


class TableStatistics(NamedTuple):
    """A table's metadata in numbers."""

    files: int
    bytes: int
    delete_files: int
    manifests: int
    snapshots: int


class MaintenancePolicy(NamedTuple):
    """The rules in the table's own properties for its snapshots and files.

    Attributes:
        allows_delete: whether files may be deleted; False with ``gc.enabled=false``, because other tables may
            have the same files. Nessie sets it on each of its tables.
        max_age: shortest age in seconds of a snapshot that expires.
        min_snapshots: smallest number of snapshots to keep.
    """

    allows_delete: bool
    max_age: float
    min_snapshots: int


def maintenance_policy(properties: Mapping[str, str]) -> MaintenancePolicy:
    """Return the rules of a table's properties."""
    return MaintenancePolicy(
        allows_delete=properties.get("gc.enabled", "true").lower() != "false",
        max_age=_to_number(properties.get("history.expire.max-snapshot-age-ms")) / 1000,
        min_snapshots=max(1, _to_number(properties.get("history.expire.min-snapshots-to-keep"))),
    )


@dataclass
class TableMaintenance:
    """The maintenance of one table, in single steps.

    Attributes:
        conflicts: number of rewrites that were given up because lanes committed first.
    """

    session: SparkSession
    table: IcebergTable
    conflicts: int = 0

    def statistics(self) -> TableStatistics:
        """Return the table's current metadata in numbers."""
        found: Row = self.session.sql(_FIGURES.format(table=self.table.quoted)).collect()[0]
        return TableStatistics(*found)

    def policy(self) -> MaintenancePolicy:
        """Read the rules of the table's own properties."""
        return maintenance_policy(self.table.properties(self.session))

    def compact(self, settled: Sequence[OffsetRange], min_files: int) -> Iterator[tuple[int, int]]:
        """Rewrite small files into large ones, in the table's order if it has one.

        Yield the numbers of files before and after each rewrite.

        Args:
            settled: ranges that no lane writes again; each is compacted by itself, so that no file spans a
                pending range in between.
            min_files: number of small files in a table partition from which they are compacted.
        """
        shape = self.table.shape(self.session)
        if shape is None:
            return
        self.session.conf.set(_BY_ARROW, "false")
        options = f"map('min-input-files', '{min_files}', 'remove-dangling-deletes', 'true')"
        strategy = "sort" if self._is_sorted() else "binpack"
        for ranges in _compaction_rounds(settled, together=shape.is_by_kafka_partition):
            where = ranges_condition(ranges).replace("\\", "\\\\").replace("'", "\\'")
            told = f"strategy => '{strategy}', options => {options}, where => '{where}'"
            for row in self._call_with_retries(f"rewrite_data_files({{table}}, {told})"):
                yield row["rewritten_data_files_count"], row["added_data_files_count"]

    def rewrite_manifests(self) -> None:
        """Reduce the number of manifests, and of files of deleted rows."""
        before = self.statistics()
        if before.delete_files > 1:
            self._call_with_retries("rewrite_position_delete_files({table})")
        if before.manifests > 1:
            self._call_with_retries("rewrite_manifests({table})")

    def expire(self, now: float, *, max_age: float, max_snapshots: int) -> None:
        """Expire old snapshots with their own files; keep those that record the table's offsets.

        The table's own ``history.expire`` properties may keep more snapshots, never fewer.

        Args:
            now: current time in seconds since 1970.
            max_age: age in seconds at which snapshots expire.
            max_snapshots: number of younger snapshots to keep; see ``core.table_layout``.
        """
        current = self.table.current_snapshot_id(self.session)
        if current is None:
            return
        policy = self.policy()
        rows = self.session.sql(_SNAPSHOTS.format(table=self.table.quoted)).collect()
        snapshots = {
            one: SnapshotSummary(one, parent, total_as_of=decode_total_as_of(one, since))
            for one, parent, _, since in rows
        }
        at = {one: millis / 1000 for one, _, millis, _ in rows}
        found = lineage(snapshots, current)
        before = expiry_cutoff(
            sorted(at.values(), reverse=True),
            needed_since=[at[one] for one in (*found.path, *found.totals)],
            now=now,
            max_age=max(max_age, policy.max_age),
            max_snapshots=max_snapshots,
        )
        if policy.max_age:
            before = min(before, now - policy.max_age)
        if min(at.values()) < before:
            kept = f"older_than => {_timestamp_literal(before)}, retain_last => {policy.min_snapshots}"
            self._call_with_retries(f"expire_snapshots({{table}}, {kept})")

    def remove_orphans(self, now: float, *, min_age: float) -> int:
        """Delete files of dead batches: those in no snapshot and without a change for ``min_age`` seconds.

        Return their number.
        """
        before = _timestamp_literal(now - min_age)
        sql = f"SELECT file FROM {self.table.quoted}.`metadata_log_entries` LIMIT 1"
        listed = "" if self.session.sql(sql).collect()[0]["file"].startswith(_LOCAL) else _BY_PREFIX
        return len(self._call_with_retries(f"remove_orphan_files({{table}}, older_than => {before}{listed})"))

    def _is_sorted(self) -> bool:
        found = self.session.sql(f"SHOW TBLPROPERTIES {self.table.quoted} ('sort-order')").collect()
        return bool(found) and not found[0]["value"].startswith("Table ")  # "… does not have property"

    def _call_with_retries(self, procedure: str) -> list[Row]:
        """Call a procedure; retry if a lane committed first, and return no rows after the last try."""
        for _ in range(_MAX_TRIES):
            try:
                return self._call(procedure)
            except PySparkException as error:
                if is_server_error(error):
                    raise
                if retry_reason(error, self.table.name, self.table.quoted) is None:
                    what = procedure.partition("(")[0]
                    raise SparkFailedError(
                        f"Maintenance of {self.table.name} failed ({summarize(error)}). {what} changed "
                        "nothing, and both lanes continue. Fix: remove the cause in this message; Spark's "
                        "log has the whole error"
                    ) from error
                self.table.refresh(self.session)
        self.conflicts += 1
        return []

    def _call(self, procedure: str) -> list[Row]:
        catalog, _, name = self.table.quoted.partition(".")
        with_name = procedure.format(table=f"table => '{name}'")
        found: list[Row] = self.session.sql(f"CALL {catalog}.system.{with_name}").collect()
        return found


def _compaction_rounds(settled: Sequence[OffsetRange], *, together: bool) -> Iterator[list[OffsetRange]]:
    """Yield the ranges of each compaction; one per Kafka partition if files have one partition each."""
    for layer in one_per_partition(settled):
        size = _MAX_RANGES if together else 1
        for start in range(0, len(layer), size):
            yield layer[start : start + size]


def _to_number(text: str | None) -> int:
    """Return a property as a number; 0 if it is not set or no number."""
    return int(text) if text is not None and text.isdecimal() else 0


def _timestamp_literal(seconds: float) -> str:
    return f"timestamp_millis({int(seconds * 1000)}L)"
