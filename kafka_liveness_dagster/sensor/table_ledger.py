"""May a look at a group hold it against the table? Only if Spark answers at once: a look waits for nobody.

One Spark session per process and address, kept for the next look, as is what a table said: it is read again when
somebody has written to it. A server that does not answer is left alone for a while. Starts nothing, writes nothing.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from kafka_liveness_dagster.core.bad_records import OwedLetters
from kafka_liveness_dagster.core.errors import KafkaLivenessError, first_line
from kafka_liveness_dagster.core.ledger import NOTHING_READ, Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kafka_liveness_dagster.core.ledger import Accounts
    from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
    from kafka_liveness_dagster.resources.spark import SparkConnectResource

AT_ONCE_SECONDS = 3.0
_Answer = TypeVar("_Answer")
_ASK_SECONDS = 10.0
_LEAVE_ALONE_SECONDS = 30.0
_sessions: dict[str, Any] = {}
_silent_until: dict[str, tuple[float, float, str]] = {}
_readings: dict[str, Reading] = {}  # by the table's name: another one of that name has other snapshots


@dataclass
class TableLook:
    """The table of one look; ``cannot_tell`` says why it could not be asked, once it was ``asked``.

    ``exists`` after it was asked: a batch has been committed to it.

    Args:
        target: ``catalog.namespace.table``.
        spark: where the table is.
        connect_seconds: how long Spark may take to open a session, where there is none yet.
    """

    target: str
    spark: SparkConnectResource
    connect_seconds: float = AT_ONCE_SECONDS
    cannot_tell: str = field(default="", init=False)
    asked: bool = field(default=False, init=False)
    exists: bool = field(default=False, init=False)

    @classmethod
    def of(
        cls, table: str | None, resources: Any, spark_resource_key: str, connect_seconds: float = AT_ONCE_SECONDS
    ) -> TableLook | None:
        """The table with the resources of this look; None where there is no table."""
        return None if table is None else cls(table, getattr(resources, spark_resource_key), connect_seconds)

    def accounts(self, asked: Mapping[TopicPartition, Span]) -> Accounts | None:
        """What the table says; None where it cannot be asked, and then ``cannot_tell`` says why."""
        self.asked = True
        return self._told(lambda: self._ask(asked))

    def dead_letters(self, owed: Sequence[OffsetRange]) -> OwedLetters:
        """Those of these offsets, after the look; none where they cannot be asked for, and ``cannot_tell`` says why."""
        found = self._told(lambda: self._letters(owed)) if owed and not self.cannot_tell else None
        return found or OwedLetters()

    def learn(self, accounts: Accounts) -> None:
        """A look tells nothing."""

    def believe(self, accounts: Accounts) -> None:
        """Nor does it keep anything."""

    def _told(self, ask: Callable[[], _Answer]) -> _Answer | None:
        try:
            return ask()
        except KafkaLivenessError as error:
            self.cannot_tell = str(error)
        except Exception as error:  # noqa: BLE001 - of Spark or its transport: the look goes on without the table
            self.cannot_tell = self._why_dead() or f"Spark says {first_line(error)[:200]}"
            self._forget()
        return None

    def _why_dead(self) -> str:
        """Return whether the error is not the table's: the server can run no job at all. Empty where it can."""
        from kafka_liveness_dagster.spark.connect.health import FIX, why_dead  # noqa: PLC0415 - pyspark stays lazy

        with suppress(Exception):  # the server is busy or away: the error of the table is reported
            if why := why_dead(self._session(), _ASK_SECONDS):
                return f"{why} {FIX}"
        return ""

    def _letters(self, owed: Sequence[OffsetRange]) -> OwedLetters:
        from kafka_liveness_dagster.spark.connect.connection import line_of  # noqa: PLC0415
        from kafka_liveness_dagster.spark.table.dead_letters import DeadLetterTable  # noqa: PLC0415 - pyspark stays lazy

        session = self._session()
        with line_of(session).within(_ASK_SECONDS, f"{self.target} was asked for its dead letters"):
            return DeadLetterTable.beside(session, self.target).owed(owed)

    def _ask(self, asked: Mapping[TopicPartition, Span]) -> Accounts:
        from kafka_liveness_dagster.spark.table.ledger import TableLedger  # noqa: PLC0415 - pyspark stays lazy
        from kafka_liveness_dagster.spark.table.table import IcebergTable  # noqa: PLC0415

        last = _readings.get(self.target, NOTHING_READ)
        ledger = TableLedger(IcebergTable(self.target), self._session, _ASK_SECONDS, last)
        found = ledger.accounts(asked)
        _readings[self.target] = ledger.reading
        self.exists = ledger.reading.snapshot_id is not None
        return found

    def _session(self) -> Any:
        from kafka_liveness_dagster.spark.connect.connection import line_of  # noqa: PLC0415
        from kafka_liveness_dagster.spark.connect.session import connect  # noqa: PLC0415
        from kafka_liveness_dagster.spark.errors import SparkUnreachableError  # noqa: PLC0415

        remote = self.spark.running()
        if remote is None:
            raise SparkUnreachableError("the embedded Spark does not run; `kafka-liveness up` starts it")
        until, waited, why = _silent_until.get(remote, (0.0, 0.0, ""))
        if time.monotonic() < until and waited >= self.connect_seconds:  # who has more patience may try
            raise SparkUnreachableError(why)
        if remote not in _sessions or line_of(_sessions[remote]).is_cut:
            try:
                _sessions[remote] = connect(remote, timeout_seconds=self.connect_seconds)
            except SparkUnreachableError as error:
                until = time.monotonic() + _LEAVE_ALONE_SECONDS
                _silent_until[remote] = (until, self.connect_seconds, str(error))
                raise
        return _sessions[remote]

    def _forget(self) -> None:
        """The next look opens a session of its own: this one may have ended with its server."""
        remote = self.spark.running()
        if remote is not None:
            _sessions.pop(remote, None)
