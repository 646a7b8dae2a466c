"""Which of those that keep a table failed, its catalog or its store, and what helps? Asks neither of them.

Iceberg wraps what they say several times, and Spark shows the outermost: "Failed to close current writer". What helps
is in the innermost.

>>> from pyspark.errors import PySparkException
>>> told = "(org.apache.iceberg.exceptions.ServiceUnavailableException) Service unavailable: maintenance until 4 pm"
>>> print(unreadable(PySparkException(told), "lake.shop.orders"))
lake.shop.orders could not be read: its catalog lake does not answer (Service unavailable: maintenance until 4 pm): ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka_liveness_dagster.spark.errors import StorageError, TableUnreadableError
from kafka_liveness_dagster.spark.failed import in_short, is_unanswered, raised

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_AWAY = ("RESTException", "ServiceFailureException", "ServiceUnavailableException", "UncheckedSQLException")
_REFUSES = ("ForbiddenException", "NotAuthorizedException")
_NO_NAMESPACE = "NoSuchNamespaceException"
_OF_THE_STORE = "software.amazon.awssdk."
_OF_FILES = ("java.io.", "java.nio.file.", "org.apache.hadoop.fs.")
_FILE_ERRORS = ("org.apache.iceberg.exceptions.RuntimeIOException", "org.apache.iceberg.exceptions.NotFoundException")
_ICEBERG_AT_WORK = "\tat org.apache.iceberg."
_FULL = ("No space left on device", "Disk quota exceeded", "There is not enough space on the disk")
_FREE_SPACE = "free space on the disk of spark.local.dir of the Spark server, or lower `max_poll_records`"
_OPENED_BY = "at org.apache.spark.sql.connector.catalog.Catalogs$.load("
_NO_CLIENT = "Cannot find constructor for interface org.apache.iceberg.io.FileIO"
_LONGEST = 300


@dataclass(frozen=True)
class _Trouble:
    """What one of them did, in its own words, and what to do about it."""

    what: str
    remedy: str


def unwritten(error: PySparkException, table: str, ranges: str) -> StorageError | None:
    """The error for a batch that one of them is to blame for; None when neither is."""
    if (found := _trouble(error, table)) is None:
        return None
    return StorageError(
        f"{ranges} could not be written to {table}: {found.what}: the table has all of the batch or nothing, no offset "
        f"of it was committed, and it comes again; {found.remedy}"
    )


def uncomputed(error: PySparkException, ranges: str) -> StorageError | None:
    """The error for rows that could not be computed because a disk is full; None for other errors."""
    found = list(raised(error))
    if not _is_full(found):
        return None
    return StorageError(
        f"{ranges} could not be processed: a disk that Spark works on is full ({_innermost(found)}): nothing of it was "
        f"written or committed, and it comes again; {_FREE_SPACE}"
    )


def unreadable(error: PySparkException, table: str) -> TableUnreadableError | None:
    """The error for a look at the table that one of them is to blame for; None when neither is."""
    if (found := _trouble(error, table)) is None:
        return None
    return TableUnreadableError(
        f"{table} could not be read: {found.what}: nothing is known of it, and nothing was changed; {found.remedy}"
    )


def _trouble(error: PySparkException, table: str) -> _Trouble | None:
    """What a catalog, or a store that speaks S3, is to blame for: the first of these that is so."""
    found = list(raised(error))
    is_at_files = any(kind.startswith(_OF_FILES) or kind in _FILE_ERRORS for kind, _ in found)
    is_of_table = is_at_files and _ICEBERG_AT_WORK in str(error)
    names = {kind.rpartition(".")[2] for kind, _ in found}
    catalog = table.partition(".")[0]
    settings = f"the settings spark.sql.catalog.{catalog}.* of the Spark server"
    cases = (
        (
            is_unanswered(error),
            f"its catalog {catalog} did not say whether it took the commit",
            f"what landed is replaced then; look whether the catalog is well, and at its address in {settings}",
        ),
        (
            _is_full(found),
            "its store is full" if is_of_table else "a disk that Spark works on is full",
            "free space in it" if is_of_table else _FREE_SPACE,
        ),
        (
            any(kind.startswith(_OF_THE_STORE) for kind, _ in found) or is_of_table,
            "its store does not take or give files",
            f"look whether it answers, at its rights and space, and at address, keys and region in {settings}",
        ),
        (
            any(said == _NO_CLIENT for _, said in found),
            "the Spark server lacks the client of its store",
            f"put it on the class path that has Iceberg (for S3: iceberg-aws-bundle), or mend io-impl in {settings}",
        ),
        (
            not names.isdisjoint(_REFUSES),
            f"its catalog {catalog} refuses this",
            f"look at the login in {settings}, and at what it may do: read, write, create tables and namespaces",
        ),
        (
            _NO_NAMESPACE in names,
            f"its catalog {catalog} lacks its namespace, or the one around it",
            "create it by hand",
        ),
        (
            not names.isdisjoint(_AWAY),
            f"its catalog {catalog} does not answer",
            f"look whether it runs and is well, and at its address in {settings}",
        ),
        (
            _OPENED_BY in str(error),
            f"the Spark server cannot open its catalog {catalog}",
            f"mend {settings}",
        ),
    )
    said = f" ({_innermost(found) or in_short(error)})"
    return next((_Trouble(what + said, remedy) for is_so, what, remedy in cases if is_so), None)


def _is_full(found: list[tuple[str, str]]) -> bool:
    return any(kind.startswith(_OF_FILES) and said.endswith(_FULL) for kind, said in found)


def _innermost(found: list[tuple[str, str]]) -> str:
    """The innermost exception's words, or its name where it has none."""
    kind, said = found[-1] if found else ("", "")
    return said.strip().rstrip(":")[:_LONGEST] or kind.rpartition(".")[2]
