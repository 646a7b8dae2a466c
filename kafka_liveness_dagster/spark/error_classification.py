"""Classify Spark errors: retry or fail, catalog or storage, and the remedy.

>>> from pyspark.errors import PySparkException
>>> text = "Job aborted: Lost task 0.0 in stage 1.0 (TID 1) (host driver): x.E: disk is full"
>>> summarize(PySparkException(text))
'x.E: disk is full'

Iceberg wraps an error of the catalog or the storage several times. Spark shows the outermost exception:
"Failed to close current writer". Only the innermost one has the cause.

>>> from pyspark.errors import PySparkException
>>> kind = "org.apache.iceberg.exceptions.ServiceUnavailableException"
>>> text = f"({kind}) Service unavailable: maintenance until 4 pm"
>>> print(storage_read_error(PySparkException(text), "lake.shop.orders"))
lake.shop.orders could not be read: its catalog lake does not respond (Service unavailable: maintenance...
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from grpc import StatusCode
from pyspark.errors import PySparkException, PythonException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from kafka_liveness_dagster.core.hidden_values import error_kind, is_enabled
from kafka_liveness_dagster.spark.errors import (
    RowsOutsideBatchError,
    SparkUnreachableError,
    StorageError,
    TableUnreadableError,
)
from kafka_liveness_dagster.spark.row_guard import (
    has_existing_rows,
    metadata_column_advice,
    row_outside_ranges,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafka_liveness_dagster.spark.connect.connection import SparkConnection


class RetryReason(Enum):
    """The reason why a commit was refused that can be retried."""

    OTHER_WRITER = "a second writer of the same offsets"
    CATALOG = "the program that holds the catalog's database"
    PARTIAL_FILE_CONFLICT = "files that hold more than the batch"
    ROWS_EXIST = "rows of these offsets, from an earlier attempt"
    COMMIT_STATE_UNKNOWN = "a catalog that did not confirm a commit"


@dataclass(frozen=True)
class RefusedCommit:
    """A refused commit, with its reason and Spark's message."""

    reason: RetryReason
    message: str


NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
_NO_SESSION = (
    "NO_ACTIVE_SESSION",
    *(f"INVALID_HANDLE.SESSION_{what}" for what in ("CHANGED", "CLOSED", "NOT_FOUND")),
)
_CREATED_CONCURRENTLY = (
    "TABLE_OR_VIEW_ALREADY_EXISTS",
    "FIELD_ALREADY_EXISTS",
    "SCHEMA_NOT_FOUND",  # or the namespace was dropped
)
# Iceberg has no error conditions: class of the exception, beginning of its message, reason
_OF_ICEBERG = (
    (
        "ValidationException",
        "Cannot delete file where some, but not all, rows match",
        RetryReason.PARTIAL_FILE_CONFLICT,
    ),
    # "… files", "… deleted files": another writer committed since
    ("ValidationException", "Found conflicting", RetryReason.OTHER_WRITER),
    ("ValidationException", "Found new conflicting", RetryReason.OTHER_WRITER),
    ("ValidationException", "Missing required files to delete", RetryReason.OTHER_WRITER),
    # A lane's commit merged the manifests, as its 100th commit since the last merge does
    ("ValidationException", "Deleted manifest", RetryReason.OTHER_WRITER),
    # The snapshot that this write began from expired meanwhile
    ("ValidationException", "Cannot determine history", RetryReason.OTHER_WRITER),
    # Another writer created the table since the check
    ("AlreadyExistsException", "", RetryReason.OTHER_WRITER),
    # The commit lost every race for the table's metadata pointer
    ("CommitFailedException", "", RetryReason.OTHER_WRITER),
    ("UncheckedSQLException", "", RetryReason.CATALOG),
)
_MAX_CHARS = 300
_TASK = re.compile(r"^Job aborted.*?Lost task .*?\): ", re.DOTALL)
_STACK = "\n\nJVM stacktrace:"
_CONVERTS = re.compile(r"^\tat [\w.$]*\bKafkaRecordToRowConverter\b", re.MULTILINE)
_KAFKA_READ_CLASS = re.compile(
    r"org\.apache\.(?:kafka\.(?!clients\.producer\.)|spark\.sql\.kafka010\.)[\w.$]*\Z"
)
_DATA_LOSS_CONDITIONS = ("KAFKA_DATA_LOSS.", "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED")
_TOPIC_GONE_EXCEPTIONS = ("UnknownTopicOrPartitionException", "UnknownTopicIdException")
_PROCESS_LOST = re.compile(  # Spark and its executors exit when they run out of memory
    r"\A(?:\([\w.$]+\) )?(?:\[[\w.]+\] )?(?:Job \d+ cancelled because SparkContext was shut down|"
    r"Job aborted[^\n]*Lost task [^\n]*\): ExecutorLostFailure)"
)
_OPTIONS = re.compile(r"^\tat [\w.$]*\bKafkaSourceProvider[\w.$]*\.validate\w*Options\b", re.MULTILINE)
# A column of the table, not a field in a column
_COLUMN_ADDED = re.compile(r"\.CANNOT_FIND_DATA\] .* output column `(?:[^`]|``)+`\.(?: |$)")
_RAISED = re.compile(  # Spark Connect names an exception as the outer one, as a cause, or in a lost task
    r"(?:\A\(|^Caused by: |\AJob aborted(?s:.*?)Lost task (?s:.*?)\): )"
    r"(?P<kind>[\w.$]+)(?:\)(?: |$)|: )(?P<said>.*)",
    re.MULTILINE,
)


def summarize(error: PySparkException) -> str:
    """Return the message without Spark's preamble; the last line for an error of a Python function."""
    if is_enabled():
        return error_kind(error)
    lines = _TASK.sub("", str(error).partition(_STACK)[0].strip()).splitlines() or [type(error).__name__]
    line = lines[-1] if isinstance(error, PythonException) else lines[0]
    if line.rstrip().endswith(":") and lines[1:]:
        line = f"{line.rstrip()} {lines[1].lstrip('- ')}"
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}…"


def is_cancelled(error: BaseException | None) -> bool:
    """Return whether Spark canceled the operation on request."""
    return isinstance(error, PySparkException) and error.getCondition() == "OPERATION_CANCELED"


def is_server_error(error: PySparkException) -> bool:
    """Return whether the server is unavailable, or canceled the operation on request.

    Such an error is no failure of the work itself. ``SparkJob`` raises the named error for it.
    """
    known = is_unavailable(error) or is_session_gone(error) or is_process_lost(error) or is_cancelled(error)
    return known or type(error) is SparkConnectGrpcException


def is_unavailable(error: BaseException | None) -> bool:
    """Return whether the connection to the server was lost.

    PySpark 4.0 keeps no status code; after its last attempt it raises ``RETRIES_EXCEEDED``.
    """
    if type(error) is SparkConnectGrpcException:
        return f"status = {StatusCode.UNAVAILABLE}" in str(error)
    return isinstance(error, PySparkException) and error.getCondition() == "RETRIES_EXCEEDED"


def is_session_gone(error: BaseException | None) -> bool:
    """Return whether the server lacks the session: it restarted, or it ended the session.

    PySpark replaces the server's message by its own: it closes the session before it fetches the error's
    details.
    """
    return isinstance(error, PySparkException) and error.getCondition() in _NO_SESSION


def is_process_lost(error: BaseException | None) -> bool:
    """Return whether Spark or an executor ended during the work: out of memory most of the time.

    The server still responds for some seconds after that. It rejects each request, because its SparkContext
    is stopped.
    """
    if not isinstance(error, PySparkException):
        return False
    if any(
        kind == "java.lang.OutOfMemoryError"
        or said.startswith("Cannot call methods on a stopped SparkContext")
        for kind, said in server_exceptions(error)
    ):
        return True
    return bool(_PROCESS_LOST.search(str(error)))


def lost_server_error(error: PySparkException, connection: SparkConnection) -> SparkUnreachableError | None:
    """Return the error for a batch that lost Spark on this connection; None for other errors."""
    memory = "read the server's log for the cause"
    if is_process_lost(error):
        why = f"the server or one of its executors ended ({summarize(error)})"
        memory = (
            "raise spark.driver.memory (on a cluster spark.executor.memory) in the server's settings, or "
            "lower max_poll_records. Most often Spark ran out of memory; the server's log shows it"
        )
    elif is_session_gone(error) and connection.is_released:
        why = "this process ended its session"
        memory = "leave out `spark.stop()` in the transform and in the sink"
    elif is_session_gone(error):
        why = "the server restarted, or it ended this session"
    elif is_unavailable(error):
        why = "the server did not respond to half a minute of retries"
        memory += ". The system may have killed the server for its memory"
    else:
        return None
    return SparkUnreachableError(
        f"Spark at {connection.address} was lost in the middle of a batch: {why}. Nothing was committed, "
        f"and the batch is retried. Fix: {memory}."
    )


def is_timestamp_error(error: PySparkException) -> bool:
    """Return whether a record's timestamp is above Spark's maximum.

    Spark's Kafka source fails at such a record in every query. Java's own exception has no condition; only
    its stack shows that the Kafka source raised it.
    """
    overflowed = ("java.lang.ArithmeticException", "long overflow") in server_exceptions(error)
    return overflowed and bool(_CONVERTS.search(str(error)))


def is_source_options_error(error: PySparkException) -> bool:
    """Return whether Spark's Kafka source rejected its options, which it does while it plans.

    No record causes this error.
    """
    return bool(_OPTIONS.search(str(error)))


def is_data_deleted(error: PySparkException) -> bool:
    """Return whether the brokers deleted records, the partition or the topic that Spark was to read."""
    is_lost = (error.getCondition() or "").startswith(_DATA_LOSS_CONDITIONS)
    return is_lost or any(
        _KAFKA_READ_CLASS.match(kind) and kind.endswith(_TOPIC_GONE_EXCEPTIONS) for kind, _ in _unwrap(error)
    )


def is_read_failure(error: PySparkException) -> bool:
    """Return whether Spark's Kafka source or its client failed: brokers unavailable, or access refused."""
    return any(_KAFKA_READ_CLASS.match(kind) for kind, _ in _unwrap(error))


def _unwrap(error: PySparkException) -> list[tuple[str, str]]:
    """Return the exceptions; an ``ExecutionException`` around one of Kafka's is replaced by the inner one."""
    return [
        (inner, text)
        if kind.endswith("ExecutionException") and _KAFKA_READ_CLASS.match(inner)
        else (kind, said)
        for kind, said in server_exceptions(error)
        for inner, _, text in [said.partition(": ")]
    ]


def is_table_missing(error: PySparkException, table: str) -> bool:
    """Return whether the table is missing.

    Return False for another missing table, which a view or a transform reads.

    Args:
        error: Spark's error.
        table: quoted name, as in SQL.
    """
    return (
        error.getCondition() == NOT_FOUND
        and (error.getMessageParameters() or {}).get("relationName") == table
    )


def is_column_added_concurrently(message: str) -> bool:
    """Return whether Spark 4.0 misses a column that was added to the table after the rows were planned.

    Spark 4.1 writes null there.
    """
    return bool(_COLUMN_ADDED.search(message))


def retry_reason(error: PySparkException, table: str, quoted: str) -> RefusedCommit | None:
    """Return why Iceberg refused the commit; None if a retry cannot help.

    Args:
        error: Spark's error.
        table: name of the table, for people.
        quoted: name of the table in SQL.

    Raises:
        RowsOutsideBatchError: a row has an offset outside of its batch.
    """
    if is_table_missing(error, quoted) or error.getCondition() in _CREATED_CONCURRENTLY:
        # The table was dropped during the batch: the next attempt creates it, or raises the named error
        return RefusedCommit(RetryReason.OTHER_WRITER, str(error))
    if is_column_added_concurrently(str(error)):
        return RefusedCommit(RetryReason.OTHER_WRITER, str(error))
    if row := row_outside_ranges(error):
        raise RowsOutsideBatchError(
            f"the transform returned a row of {row}, which is not in the batch written to {table}. Nothing "
            f"was written. Fix: {metadata_column_advice(row)}."
        ) from error
    if has_existing_rows(error):
        return RefusedCommit(RetryReason.ROWS_EXIST, str(error))
    for kind, said in server_exceptions(error):
        for of_iceberg, beginning, why in _OF_ICEBERG:
            if kind.rpartition(".")[2] == of_iceberg and said.startswith(beginning):
                return RefusedCommit(why, str(error))
    return (
        RefusedCommit(RetryReason.COMMIT_STATE_UNKNOWN, str(error))
        if is_commit_state_unknown(error)
        else None
    )


def is_commit_state_unknown(error: PySparkException) -> bool:
    """Return whether a commit was sent, and the catalog's response to it was lost."""
    found = list(server_exceptions(error))
    if any(kind.endswith(".CommitStateUnknownException") for kind, _ in found):
        return True
    sent = any(kind.endswith(".RESTException") and said.endswith("POST request") for kind, said in found)
    return sent and not found[-1][0].endswith("ConnectException")  # no catalog received the commit


def server_exceptions(error: PySparkException) -> Iterator[tuple[str, str]]:
    """Yield class and first message line of each exception without a condition, outermost first."""
    return ((found["kind"], found["said"]) for found in _RAISED.finditer(str(error)))


_UNAVAILABLE = (
    "RESTException",
    "ServiceFailureException",
    "ServiceUnavailableException",
    "UncheckedSQLException",
)
_REFUSES = ("ForbiddenException", "NotAuthorizedException")
_NO_NAMESPACE = "NoSuchNamespaceException"
_STORE_ERRORS = "software.amazon.awssdk."
_FILE_ACCESS_ERRORS = ("java.io.", "java.nio.file.", "org.apache.hadoop.fs.")
_FILE_ERRORS = (
    "org.apache.iceberg.exceptions.RuntimeIOException",
    "org.apache.iceberg.exceptions.NotFoundException",
)
_ICEBERG_AT_WORK = "\tat org.apache.iceberg."
_DISK_FULL = ("No space left on device", "Disk quota exceeded", "There is not enough space on the disk")
_FREE_SPACE = "free space on the disk of spark.local.dir of the Spark server, or lower `max_poll_records`"
_CATALOG_LOAD_FRAME = "at org.apache.spark.sql.connector.catalog.Catalogs$.load("
_MISSING_CLIENT = "Cannot find constructor for interface org.apache.iceberg.io.FileIO"


@dataclass(frozen=True)
class _StorageProblem:
    """A failure of the catalog, the store or a disk: its message and the remedy."""

    message: str
    remedy: str


def storage_write_error(error: PySparkException, table: str, ranges: str) -> StorageError | None:
    """Return the error for a batch that failed because of catalog or store; None for other errors."""
    if (found := _storage_problem(error, table)) is None:
        return None
    return StorageError(
        f"{ranges} could not be written to {table}: {found.message}. The table has all of the batch or "
        f"nothing, no offset of it was committed, and it is retried. Fix: {found.remedy}."
    )


def disk_full_error(error: PySparkException, ranges: str) -> StorageError | None:
    """Return the error for rows that Spark could not compute because a disk is full; None otherwise."""
    found = list(server_exceptions(error))
    if not _is_full(found):
        return None
    return StorageError(
        f"{ranges} could not be processed: a disk that Spark works on is full ({_root_cause(found)}). "
        f"Nothing of the batch was written or committed, and it is retried. Fix: {_FREE_SPACE}."
    )


def storage_read_error(error: PySparkException, table: str) -> TableUnreadableError | None:
    """Return the error for a read that failed because of catalog or store; None for other errors."""
    if (found := _storage_problem(error, table)) is None:
        return None
    return TableUnreadableError(
        f"{table} could not be read: {found.message}. Nothing was changed. Fix: {found.remedy}."
    )


def _storage_problem(error: PySparkException, table: str) -> _StorageProblem | None:
    """Return the first failure that applies, of a catalog or a store with an S3 API; None if none does."""
    found = list(server_exceptions(error))
    is_at_files = any(kind.startswith(_FILE_ACCESS_ERRORS) or kind in _FILE_ERRORS for kind, _ in found)
    is_of_table = is_at_files and _ICEBERG_AT_WORK in str(error)
    names = {kind.rpartition(".")[2] for kind, _ in found}
    catalog = table.partition(".")[0]
    settings = f"the settings spark.sql.catalog.{catalog}.* of the Spark server"
    cases = (
        (
            is_commit_state_unknown(error),
            f"its catalog {catalog} did not respond whether it took the commit",
            (
                "check the catalog and its address in "
                f"{settings}; rows that were committed all the same are replaced by the retry"
            ),
        ),
        (
            _is_full(found),
            "its store is full" if is_of_table else "a disk that Spark works on is full",
            "free space in it" if is_of_table else _FREE_SPACE,
        ),
        (
            any(kind.startswith(_STORE_ERRORS) for kind, _ in found) or is_of_table,
            "its store does not accept or return files",
            (
                "check that the store responds, its rights and space, and address, keys and region in "
                f"{settings}"
            ),
        ),
        (
            any(said == _MISSING_CLIENT for _, said in found),
            "the Spark server lacks the client of its store",
            (
                "put it on the class path that has Iceberg (for S3: iceberg-aws-bundle), or correct io-impl "
                f"in {settings}"
            ),
        ),
        (
            not names.isdisjoint(_REFUSES),
            f"its catalog {catalog} refuses the request",
            (
                f"check the login in {settings}, and its rights to read, write, and create tables and "
                "namespaces"
            ),
        ),
        (
            _NO_NAMESPACE in names,
            f"its catalog {catalog} lacks its namespace, or the namespace above it",
            "create the namespace",
        ),
        (
            not names.isdisjoint(_UNAVAILABLE),
            f"its catalog {catalog} does not respond",
            f"check that the catalog runs, and its address in {settings}",
        ),
        (
            _CATALOG_LOAD_FRAME in str(error),
            f"the Spark server cannot open its catalog {catalog}",
            f"correct {settings}",
        ),
    )
    said = f" ({_root_cause(found) or summarize(error)})"
    return next((_StorageProblem(what + said, remedy) for is_so, what, remedy in cases if is_so), None)


def _is_full(found: list[tuple[str, str]]) -> bool:
    return any(kind.startswith(_FILE_ACCESS_ERRORS) and said.endswith(_DISK_FULL) for kind, said in found)


def _root_cause(found: list[tuple[str, str]]) -> str:
    """Return the innermost exception's message, or its name if the message is empty."""
    kind, said = found[-1] if found else ("", "")
    return said.strip().rstrip(":")[:_MAX_CHARS] or kind.rpartition(".")[2]
