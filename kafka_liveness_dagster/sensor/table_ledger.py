"""Read the table's ledger for a sensor tick, if Spark responds at once. Never delays a tick for long.

One Spark session per process and address is kept for the next tick. So is the ledger of a table, which is
read again after a write. A server that does not respond is not queried again for a while. Starts nothing and
writes nothing.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from kafka_liveness_dagster.core.bad_records import PendingDeadLetters
from kafka_liveness_dagster.core.errors import KafkaLivenessError, summary_line
from kafka_liveness_dagster.core.ledger import EMPTY_LEDGER_SNAPSHOT, LedgerSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kafka_liveness_dagster.core.ledger import LedgerEntries
    from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
    from kafka_liveness_dagster.resources.spark import SparkConnectResource

QUICK_CONNECT_SECONDS = 3.0
QUERY_TIMEOUT_SECONDS = 10.0
_Answer = TypeVar("_Answer")
_RETRY_SECONDS = 30.0
_sessions: dict[str, Any] = {}
_retry_at: dict[str, tuple[float, float, str]] = {}
# By the table's name; another table of that name has other snapshots, so the ledger is read again
_snapshots: dict[str, LedgerSnapshot] = {}


@dataclass
class TableLedgerReader:
    """The table of one tick; after ``was_read``, ``unavailable_reason`` has the cause of a failed read.

    After a read ``exists`` is True if a batch has been committed to the table.

    Args:
        target: ``catalog.namespace.table``.
        spark: Spark resource of the table.
        connect_seconds: longest time to open a session, if there is none yet.
    """

    target: str
    spark: SparkConnectResource
    connect_seconds: float = QUICK_CONNECT_SECONDS
    _: KW_ONLY
    unavailable_reason: str = field(default="", init=False)
    was_read: bool = field(default=False, init=False)
    exists: bool = field(default=False, init=False)

    @classmethod
    def from_resources(
        cls,
        table: str | None,
        resources: Any,
        spark_resource_key: str,
        connect_seconds: float = QUICK_CONNECT_SECONDS,
    ) -> TableLedgerReader | None:
        """Return the table with the resources of this tick; None without a table."""
        return None if table is None else cls(table, getattr(resources, spark_resource_key), connect_seconds)

    def read(self, partitions: Mapping[TopicPartition, Span]) -> LedgerEntries | None:
        """Return the table's entries; None if the read fails, with the cause in ``unavailable_reason``."""
        self.was_read = True
        return self._query(lambda: self._read_ledger(partitions))

    def dead_letters(self, pending: Sequence[OffsetRange]) -> PendingDeadLetters:
        """Return the dead letters of these offsets, after the ledger was read.

        Empty if the read fails, with the cause in ``unavailable_reason``.
        """
        found = (
            self._query(lambda: self._pending_letters(pending))
            if pending and not self.unavailable_reason
            else None
        )
        return found or PendingDeadLetters()

    def end_session(self, session_id: str) -> None:
        """End the Spark session of a run whose process is gone.

        Raises:
            SparkUnreachableError: the embedded Spark does not run.
            Exception: of Spark or its transport.
        """
        from kafka_liveness_dagster.spark.connect.session import end_session  # noqa: PLC0415 - pyspark stays lazy

        end_session(self._address(), session_id)

    def _query(self, ask: Callable[[], _Answer]) -> _Answer | None:
        try:
            return ask()
        except KafkaLivenessError as error:
            self.unavailable_reason = str(error)
        except Exception as error:  # noqa: BLE001 - of Spark or its transport: the look goes on without the table
            self.unavailable_reason = self._dead_reason() or f"Spark failed with {summary_line(error)[:200]}"
            self._drop_session()
        return None

    def _dead_reason(self) -> str:
        """Return why the server can run no job at all, so that the error is not the table's.

        Empty if it can run jobs.
        """
        from kafka_liveness_dagster.spark.connect.health import FIX, dead_reason  # noqa: PLC0415 - pyspark stays lazy

        with suppress(Exception):  # the server is busy or unavailable: the error of the table is reported
            if why := dead_reason(self._session(), QUERY_TIMEOUT_SECONDS):
                return f"{why} {FIX}"
        return ""

    def _pending_letters(self, pending: Sequence[OffsetRange]) -> PendingDeadLetters:
        from kafka_liveness_dagster.spark.connect.connection import connection_of  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.dead_letters import DeadLetterTable  # noqa: PLC0415 - pyspark stays lazy

        session = self._session()
        with connection_of(session).abort_after(
            QUERY_TIMEOUT_SECONDS, f"waiting for the dead letters of {self.target}"
        ):
            return DeadLetterTable.of_table(session, self.target).pending(pending)

    def _read_ledger(self, asked: Mapping[TopicPartition, Span]) -> LedgerEntries:
        from kafka_liveness_dagster.spark.table.ledger import TableLedger  # noqa: PLC0415 - pyspark stays lazy
        from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415

        last = _snapshots.get(self.target, EMPTY_LEDGER_SNAPSHOT)
        ledger = TableLedger(IcebergTable(self.target), self._session, QUERY_TIMEOUT_SECONDS, last=last)
        found = ledger.read(asked)
        _snapshots[self.target] = ledger.snapshot
        self.exists = ledger.snapshot.snapshot_id is not None
        return found

    def _address(self) -> str:
        from kafka_liveness_dagster.spark.errors import SparkUnreachableError  # noqa: PLC0415 - pyspark stays lazy

        remote = self.spark.running_address()
        if remote is None:
            raise SparkUnreachableError("the embedded Spark does not run. Fix: run `kafka-liveness up`")
        return remote

    def _session(self) -> Any:
        from kafka_liveness_dagster.spark.connect.connection import connection_of  # noqa: PLC0415
        from kafka_liveness_dagster.spark.connect.session import connect  # noqa: PLC0415
        from kafka_liveness_dagster.spark.errors import SparkUnreachableError  # noqa: PLC0415

        remote = self._address()
        until, waited, why = _retry_at.get(remote, (0.0, 0.0, ""))
        if time.monotonic() < until and waited >= self.connect_seconds:  # a longer limit may retry
            raise SparkUnreachableError(why)
        if remote not in _sessions or connection_of(_sessions[remote]).is_aborted:
            try:
                _sessions[remote] = connect(remote, timeout_seconds=self.connect_seconds)
            except SparkUnreachableError as error:
                until = time.monotonic() + _RETRY_SECONDS
                _retry_at[remote] = (until, self.connect_seconds, str(error))
                raise
        return _sessions[remote]

    def _drop_session(self) -> None:
        """Drop the session, which may have ended with its server; the next tick opens another one."""
        remote = self.spark.running_address()
        if remote is not None:
            _sessions.pop(remote, None)
