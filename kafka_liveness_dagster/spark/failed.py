"""What does Spark's error mean: try again, or give up, and with which words? Never asks Spark.

>>> from pyspark.errors import PySparkException
>>> in_short(PySparkException("Job aborted: Lost task 0.0 in stage 1.0 (TID 1) (host driver): x.E: disk is full"))
'x.E: disk is full'
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.errors import PythonException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from kafka_liveness_dagster.spark.errors import RowsOutsideBatchError
from kafka_liveness_dagster.spark.inside import stray

if TYPE_CHECKING:
    from pyspark.errors import PySparkException


CUTS_A_FILE = "where some, but not all, rows match"
_CONFLICTS = (
    "Found conflicting",  # "… files", "… deleted files": somebody wrote to the ranges after our snapshot
    "Found new conflicting",
    "Missing required files to delete",
    "Cannot determine history",  # our snapshot was expired meanwhile
    "AlreadyExistsException",  # the table, made by somebody else since we looked
    "CommitFailedException",  # lost every race for the table's metadata pointer
)
CATALOG = "UncheckedSQLException"  # its database is held by others, or two made the same namespace at once
NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
_MADE_MEANWHILE = ("TABLE_OR_VIEW_ALREADY_EXISTS", "FIELD_ALREADY_EXISTS", "SCHEMA_NOT_FOUND")  # or gone: a namespace
_LONGEST = 300
_TASK = re.compile(r"^Job aborted.*?Lost task .*?\): ", re.DOTALL)
_STACK = "\n\nJVM stacktrace:"


def in_short(error: PySparkException) -> str:
    """What happened, without how Spark came to it; of a Python function's error its last line."""
    lines = _TASK.sub("", str(error).partition(_STACK)[0].strip()).splitlines() or [type(error).__name__]
    line = lines[-1] if isinstance(error, PythonException) else lines[0]
    if line.rstrip().endswith(":") and lines[1:]:
        line = f"{line.rstrip()} {lines[1].lstrip('- ')}"
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def is_the_servers(error: PySparkException) -> bool:
    """Whether Spark did not fail at this work but is away, or was told to stop: whoever watches the job names it."""
    return type(error) is SparkConnectGrpcException or "OPERATION_CANCELED" in str(error)


def is_timestamp(error: PySparkException) -> bool:
    """Whether a record's timestamp is beyond what Spark holds: its Kafka source fails whatever is asked of it."""
    return "long overflow" in str(error) and "KafkaRecordToRowConverter" in str(error)


def is_missing(error: PySparkException, table: str) -> bool:
    """Whether there is no table of that name, as SQL takes it; one that a view or a transform reads is another."""
    return error.getCondition() == NOT_FOUND and (error.getMessageParameters() or {}).get("relationName") == table


def refusal(error: PySparkException, table: str, quoted: str) -> str | None:
    """Why Iceberg refused the commit, when beginning again can help; None when it cannot.

    Raises:
        RowsOutsideBatchError: a row is not of its batch.
    """
    message, condition = str(error), error.getCondition()
    if is_missing(error, quoted):
        return message  # dropped under the batch: the next attempt says so, or makes it
    if condition in _MADE_MEANWHILE:
        return message
    if row := stray(message):
        raise RowsOutsideBatchError(
            f"the transform gave a row of {row}, which is not in the batch written to {table}: nothing was "
            "written; keep topic, partition and offset as they are in the batch"
        ) from error
    return message if any(sign in message for sign in (CUTS_A_FILE, CATALOG, *_CONFLICTS)) else None
