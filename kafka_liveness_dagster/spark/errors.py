"""What can go wrong between this process, Spark and the table, each as a named error.

The table's content is exact in every case: a refused or cancelled write left it as it was, or complete.
"""

from __future__ import annotations

from kafka_liveness_dagster.core.errors import KafkaLivenessError


class SparkUnreachableError(KafkaLivenessError, ConnectionError):
    """No Spark Connect server answered at the address, or it refused the token."""


class SparkNotRespondingError(KafkaLivenessError, ConnectionError):
    """Spark, or what it waits for itself, did not answer in time; the connection to it was given up."""


class SparkCancelledError(KafkaLivenessError):
    """The job was cancelled: what it was writing is either in the table as a whole or not at all."""


class TableSchemaError(KafkaLivenessError, ValueError):
    """The rows or the table lack what exact replays need; nothing was written."""


class RowsOutsideBatchError(KafkaLivenessError, ValueError):
    """A transform gave rows of offsets that are not in its batch; nothing was written."""


class WriteConflictError(KafkaLivenessError):
    """Other writers kept changing the same offsets; nothing was written by this one."""


class TransformError(KafkaLivenessError):
    """A transform raised, or gave something else than rows; nothing was written."""


class UnreadableRecordError(KafkaLivenessError):
    """Spark's Kafka source fails at a record of the batch, whatever is made of it; nothing was written."""


class SparkFailedError(KafkaLivenessError):
    """Spark could not compute or write a batch.

    The table has all of it or nothing, and nothing was committed.
    """


class StorageError(SparkFailedError):
    """The table's catalog or its store is away, or refuses.

    What the batch wrote is in the table as a whole or not.
    """


class KafkaSourceError(SparkFailedError):
    """Spark's Kafka source could not read a batch: no fault of the transform, of a record or of the table.

    Attributes:
        is_lost: whether the brokers no longer have all records of the batch, or its partition.
    """

    def __init__(self, message: str, *, is_lost: bool = False) -> None:
        super().__init__(message)
        self.is_lost = is_lost


class TableUnreadableError(KafkaLivenessError):
    """Spark could not read the table, or its history."""
