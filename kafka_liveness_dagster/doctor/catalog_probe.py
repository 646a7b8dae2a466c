"""Probe a catalog with a scratch table, for ``kafka-liveness doctor``.

Tries each operation that the sink and the ledger rely on, with the sink's own code. Drops the table at the
end. Never touches another table or Kafka.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.errors import PySparkException

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.ledger import WRITTEN_KEY
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.sink_ledger import LaneLedger
from kafka_liveness_dagster.core.table_layout import DEFAULT_LAYOUT
from kafka_liveness_dagster.core.table_properties import (
    KEY,
    describe_refused,
    needed_bounds,
    new_table_properties,
    refused_properties,
)
from kafka_liveness_dagster.doctor.rules import FAIL, OK, UNKNOWN, WARN, Finding, Outcome
from kafka_liveness_dagster.spark.error_classification import retry_reason, summarize
from kafka_liveness_dagster.spark.table.commits import ATTEMPT
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from kafka_liveness_dagster.spark.table.maintenance import TableMaintenance, maintenance_policy
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import TableWrite, write_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from kafka_liveness_dagster.doctor.rules import CheckResult

_TOPIC = "probe"
_KEYS = (ATTEMPT, WRITTEN_KEY)
_ANSWER_SECONDS = 120.0  # a cold metastore needs long for its first response
_MERGE_AT_ONCE = 9  # as many rejected attempts make the next one a MERGE


def probe_catalog(session: SparkSession, catalog_name: str) -> Iterator[Finding]:
    """Create a table, try each step and drop the table; yield a finding for each step.

    Args:
        session: a Spark session on a server that has the catalog.
        catalog_name: ``catalog``, in which the probe creates and drops a namespace; or
            ``catalog.namespace``, which must exist.
    """
    name = f"kafka_liveness_probe_{uuid4().hex[:8]}"
    is_own = "." not in catalog_name
    table = IcebergTable(f"{catalog_name}.{name}.{name}" if is_own else f"{catalog_name}.{name}")
    tried = _CatalogProbe(session, table)
    area = f"catalog {catalog_name}"
    is_created = False
    for check, step in tried.steps().items():
        if check != "create" and not is_created:
            yield Finding(area, check, UNKNOWN("not tried: the scratch table was not created"))
            continue
        try:
            answer = step()
            is_created = True
        except PySparkException as error:
            answer = FAIL(f"Spark failed: {summarize(error)}")
        except KafkaLivenessError as error:
            answer = FAIL(str(error))
        yield Finding(area, check, answer)
    yield Finding(area, "drop", tried.drop(with_namespace=is_own))


@dataclass
class _CatalogProbe:
    """The steps of a probe on one scratch table."""

    session: SparkSession
    table: IcebergTable

    def steps(self) -> dict[str, Callable[[], CheckResult]]:
        """Return the steps by name, in their order."""
        return {
            "create": self.create,
            "properties": self.properties,
            "summaries": self.summaries,
            "replace": self.replace,
            "merge": self.merge,
            "race": self.race,
            "history": self.history,
            "expiry": self.expiry,
        }

    def create(self) -> CheckResult:
        """Create the table with its first batch."""
        self._write(0, 10)
        return OK(f"created {self.table.name} with its first batch")

    def properties(self) -> CheckResult:
        """Compare the table's properties with those that it was created with."""
        found = self.table.properties(self.session)
        wanted = new_table_properties(DEFAULT_LAYOUT)
        bounds = needed_bounds(is_by_kafka_partition=True)
        if wrong := [*refused_properties(found, bounds, KEY)]:
            return FAIL(
                f"the catalog sets {describe_refused(wrong)}", "change the catalog's defaults for new tables"
            )
        others = {key: found.get(key, "not set") for key, value in wanted.items() if found.get(key) != value}
        others.pop("format-version", None)  # in the metadata; not every version of Iceberg shows it
        own = [f"{key}={value}" for key, value in sorted(others.items())]
        if not maintenance_policy(found).allows_delete:
            own.append("gc.enabled=false")
        if own:
            return WARN(
                f"the catalog overrides {', '.join(own)}",
                "see docs/table.md for the purpose of each property",
            )
        return OK("the table has the properties that it was created with")

    def summaries(self) -> CheckResult:
        """Check that the snapshot's summary has the ledger's keys."""
        sql = f"SELECT summary FROM {self.table.quoted}.`snapshots` ORDER BY committed_at DESC LIMIT 1"
        kept = dict(self.session.sql(sql).collect()[0][0])
        if lacking := [key for key in _KEYS if key not in kept]:
            advice = "use another catalog. Without these keys no ledger records the offsets of the table"
            return FAIL(f"the catalog drops {', '.join(lacking)} from a snapshot's summary", advice)
        return OK("snapshots keep the ledger's keys of each batch")

    def replace(self) -> CheckResult:
        """Write a second batch twice, then a batch that overlaps both files."""
        for start, end in ((10, 20), (10, 20), (5, 15)):
            self._write(start, end)
        return self._check_exact(20, "a batch that is retried replaces its rows")

    def merge(self) -> CheckResult:
        """Write a batch with a MERGE, and check that its summary has the ledger's keys."""
        self._prepare_write(18, 25, cuts=_MERGE_AT_ONCE)()
        exact = self._check_exact(25, "a MERGE replaces rows")
        return self.summaries() if exact.outcome is Outcome.OK else exact

    def race(self) -> CheckResult:
        """Start two writers from one snapshot with the same offsets.

        The later commit must fail.
        """
        later = self._prepare_write(25, 35)
        self._write(25, 30)
        try:
            later()
        except PySparkException as error:
            if retry_reason(error, self.table.name, self.table.quoted) is None:
                raise
            return self._check_exact(30, "the catalog rejects the later of two writers of one range")
        advice = (
            "use another catalog. A dead writer's late commit could add its rows to those of its successor"
        )
        return FAIL("two writers of the same offsets both committed", advice)

    def history(self) -> CheckResult:
        """Read the offsets back from the table alone."""
        return self._check_offsets("the table's history has each offset")

    def expiry(self) -> CheckResult:
        """Expire snapshots, then read the offsets again."""
        work = TableMaintenance(self.session, self.table)
        if not work.policy().allows_delete:
            return OK("gc.enabled=false: maintenance expires no snapshot and removes no orphan file")
        before = work.statistics().snapshots
        work.expire(time.time() + 1, max_age=0.0, max_snapshots=1)
        after = work.statistics().snapshots
        return self._check_offsets(f"snapshots {before} → {after}; the ledger still has each offset")

    def drop(self, *, with_namespace: bool) -> CheckResult:
        """Drop the table with its files, and the namespace if the probe created it."""
        # Iceberg rejects PURGE with gc.enabled=false
        kept = self._error_of(f"DROP TABLE IF EXISTS {self.table.quoted} PURGE")
        if kept and (why := self._error_of(f"DROP TABLE IF EXISTS {self.table.quoted}")):
            return WARN(f"{self.table.name} could not be dropped: {why}", "drop it by hand")
        namespace = self.table.quoted.rpartition(".")[0]
        if with_namespace and (why := self._error_of(f"DROP NAMESPACE IF EXISTS {namespace}")):
            return WARN(f"namespace {namespace} could not be dropped: {why}", "drop it by hand")
        return (
            WARN(f"dropped, but its files are still there: {kept}", "remove the files by hand")
            if kept
            else OK("dropped")
        )

    def _error_of(self, sql: str) -> str:
        """Run a statement; return its error, or an empty text."""
        try:
            self.session.sql(sql)
        except PySparkException as error:
            return summarize(error)
        except KafkaLivenessError as error:
            return str(error)
        return ""

    def _prepare_write(self, start: int, end: int, cuts: int = 0) -> Callable[[], int]:
        """Prepare a batch on the current snapshot; return the function that commits it."""

        def nothing() -> None:
            """Do nothing: no other run uses the scratch table."""

        ranges = [OffsetRange(_TOPIC, 0, start, end=end)]
        rows = partial(self._rows, start, end)
        ledger = self._ledger()
        return TableWrite(
            self.session,
            self.table,
            ranges,
            make_frame=rows,
            may_go_on=nothing,
            may_replace=nothing,
            ledger=LaneLedger.of(ledger),
            _partial_file_conflicts=cuts,
        ).prepare()

    def _write(self, start: int, end: int) -> None:
        ranges = [OffsetRange(_TOPIC, 0, start, end=end)]
        ledger = self._ledger()
        ledger.read([TopicPartition(_TOPIC, 0)])  # so that each commit carries the total of the earlier ones
        write_table(
            self.session, self.table, ranges, make_frame=lambda: self._rows(start, end), ledger=ledger
        )

    def _rows(self, start: int, end: int) -> DataFrame:
        columns = (f"'{_TOPIC}' AS topic", "0 AS partition", "id AS offset", "cast(id AS string) AS value")
        return self.session.range(start, end, 1, 1).selectExpr(*columns)

    def _ledger(self) -> TableLedger:
        return TableLedger(self.table, lambda: self.session, _ANSWER_SECONDS)

    def _check_exact(self, end: int, told: str) -> CheckResult:
        rows = self.session.sql(
            f"SELECT count(*), count(DISTINCT `offset`) FROM {self.table.quoted}"
        ).collect()[0]
        if tuple(rows) == (end, end):
            return OK(told)
        return FAIL(
            f"the table has {rows[0]} rows of {rows[1]} offsets instead of {end}", "use another catalog"
        )

    def _check_offsets(self, told: str) -> CheckResult:
        with suppress(PySparkException):
            self.table.refresh(self.session)
        tp = TopicPartition(_TOPIC, 0)
        account = self._ledger().read([tp])[tp]
        if account.is_complete and account.written == (Span(0, 30),):
            return OK(told)
        advice = (
            "keep snapshots for longer than a crash lag range stays pending, and run kafka-liveness audit"
        )
        return WARN(f"the table's history has {account.written or 'nothing'} of the offsets 0 to 30", advice)
