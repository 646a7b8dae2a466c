"""May a look at a group hold it against the table? Only if Spark answers at once: a look waits for nobody.

One Spark session per process and address, kept for the next look, as is what a table said: it is read again
when somebody has written to it. A server that does not answer is left alone for a while. Starts nothing,
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
# Keyed by the table's name: another table of that name has other snapshots
_snapshots: dict[str, LedgerSnapshot] = {}


@dataclass
class TableLedgerReader:
    """The table of one look; ``unavailable_reason`` says why it could not be asked, once it was ``was_read``.

    ``exists`` after it was asked: a batch has been committed to it.

    Args:
        target: ``catalog.namespace.table``.
        spark: where the table is.
        connect_seconds: how long Spark may take to open a session, where there is none yet.
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
        """The table with the resources of this look; None where there is no table."""
        return None if table is None else cls(table, getattr(resources, spark_resource_key), connect_seconds)

    def read(self, partitions: Mapping[TopicPartition, Span]) -> LedgerEntries | None:
        """What the table says; None where it cannot be asked, and then ``unavailable_reason`` says why."""
        self.was_read = True
        return self._query(lambda: self._read_ledger(partitions))

    def dead_letters(self, pending: Sequence[OffsetRange]) -> PendingDeadLetters:
        """Those of these offsets, after the look.

        None where nobody can tell, and ``unavailable_reason`` says why.
        """
        found = (
            self._query(lambda: self._pending_letters(pending))
            if pending and not self.unavailable_reason
            else None
        )
        return found or PendingDeadLetters()

    def _query(self, ask: Callable[[], _Answer]) -> _Answer | None:
        try:
            return ask()
        except KafkaLivenessError as error:
            self.unavailable_reason = str(error)
        except Exception as error:  # noqa: BLE001 - of Spark or its transport: the look goes on without the table
            self.unavailable_reason = self._dead_reason() or f"Spark says {summary_line(error)[:200]}"
            self._drop_session()
        return None

    def _dead_reason(self) -> str:
        """Return whether the error is not the table's: the server can run no job at all.

        Empty where it can.
        """
        from kafka_liveness_dagster.spark.connect.health import FIX, dead_reason  # noqa: PLC0415 - pyspark stays lazy

        with suppress(Exception):  # the server is busy or away: the error of the table is reported
            if why := dead_reason(self._session(), QUERY_TIMEOUT_SECONDS):
                return f"{why} {FIX}"
        return ""

    def _pending_letters(self, pending: Sequence[OffsetRange]) -> PendingDeadLetters:
        from kafka_liveness_dagster.spark.connect.connection import connection_of  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.dead_letters import DeadLetterTable  # noqa: PLC0415 - pyspark stays lazy

        session = self._session()
        with connection_of(session).abort_after(
            QUERY_TIMEOUT_SECONDS, f"{self.target} was asked for its dead letters"
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

    def _session(self) -> Any:
        from kafka_liveness_dagster.spark.connect.connection import connection_of  # noqa: PLC0415
        from kafka_liveness_dagster.spark.connect.session import connect  # noqa: PLC0415
        from kafka_liveness_dagster.spark.errors import SparkUnreachableError  # noqa: PLC0415

        remote = self.spark.running_address()
        if remote is None:
            raise SparkUnreachableError("the embedded Spark does not run; `kafka-liveness up` starts it")
        until, waited, why = _retry_at.get(remote, (0.0, 0.0, ""))
        if time.monotonic() < until and waited >= self.connect_seconds:  # who has more time may try
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
        """The next look opens a session of its own: this one may have ended with its server."""
        remote = self.spark.running_address()
        if remote is not None:
            _sessions.pop(remote, None)
