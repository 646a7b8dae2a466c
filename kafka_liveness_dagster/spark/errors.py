"""Named errors for failures between this process, Spark and the table.

The table's content is exact in every case: a refused or canceled write changed nothing, or it is complete.
"""

from __future__ import annotations

from kafka_liveness_dagster.core.errors import KafkaLivenessError


class SparkUnreachableError(KafkaLivenessError, ConnectionError):
    """No Spark Connect server answered at the address, or it refused the token."""


class SparkNotRespondingError(KafkaLivenessError, ConnectionError):
    """Spark, or a service that Spark waits for, did not respond in time; the connection was closed."""


class SparkCancelledError(KafkaLivenessError):
    """The job was canceled; the table contains all rows of its write, or none."""


class TableSchemaError(KafkaLivenessError, ValueError):
    """The rows or the table do not meet the conditions of exact replays; nothing was written."""


class RowsOutsideBatchError(KafkaLivenessError, ValueError):
    """A transform returned rows of offsets that are not in its batch; nothing was written."""


class WriteConflictError(KafkaLivenessError):
    """Other writers kept changing the same offsets; this writer wrote nothing."""


class TransformError(KafkaLivenessError):
    """A transform raised, or returned something other than rows; nothing was written."""


class UnreadableRecordError(KafkaLivenessError):
    """Spark's Kafka source fails at a record of the batch in any transform; nothing was written."""


class SparkFailedError(KafkaLivenessError):
    """Spark could not compute or write a batch.

    The table has the whole batch or nothing, and no offset was committed.
    """


class StorageError(SparkFailedError):
    """The table's catalog or store is unavailable, or refuses the request.

    The batch is in the table as a whole or not at all.
    """


class KafkaSourceError(SparkFailedError):
    """Spark's Kafka source could not read a batch; transform, records and table are not the cause.

    Attributes:
        is_lost: whether the brokers no longer have all records of the batch, or its partition.
    """

    def __init__(self, message: str, *, is_lost: bool = False) -> None:
        super().__init__(message)
        self.is_lost = is_lost


class TableUnreadableError(KafkaLivenessError):
    """Spark could not read the table, or its history."""
