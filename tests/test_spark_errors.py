"""What an error of Spark's means.

Its condition and its parameters say it, not what else stands in its text.
"""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import (
    AnalysisException,
    SparkConnectException,
    SparkConnectGrpcException,
    SparkRuntimeException,
    UnknownException,
)
from pyspark.sql.connect.client.retries import DefaultPolicy

from kafka_liveness_dagster.spark.connect.connection import SparkConnection
from kafka_liveness_dagster.spark.connect.session import _create_session
from kafka_liveness_dagster.spark.error_classification import (
    RetryReason,
    is_cancelled,
    is_server_error,
    is_session_gone,
    is_unavailable,
    retry_reason,
)
from kafka_liveness_dagster.spark.errors import RowsOutsideBatchError
from kafka_liveness_dagster.spark.row_guard import OUTSIDE_BATCH, row_outside_ranges

PLAN = (
    "+- Filter CASE WHEN … ELSE cast(raise_error(USER_RAISED_EXCEPTION, map(errorMessage, "
    f"concat({OUTSIDE_BATCH}, …"
)
ICEBERG = "org.apache.iceberg.exceptions"
CAUSE = "x.SparkException\n\tat f(g:1)\nCaused by: "
POSTED = f"{CAUSE}{ICEBERG}.RESTException: Error occurred while processing POST request\n"
CONFLICT = f"({ICEBERG}.ValidationException) Found conflicting files that can contain records matching …: […]"


def unknown(message, stack=""):
    """An exception that Spark Connect has no class of its own for."""
    return UnknownException(message, server_stacktrace=stack or None, display_server_stacktrace=bool(stack))


def raised(text, condition="USER_RAISED_EXCEPTION"):
    """What ``raise_error`` gives."""
    parameters = {"errorMessage": text}
    return SparkRuntimeException(f"[{condition}] {text} SQLSTATE: P0001", condition, parameters)


def lacks(column):
    """What Spark says of rows that lack a column of the table's."""
    return (
        "[INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_FIND_DATA] Cannot write incompatible data for the table "
        f"`lake`.`shop`.`orders`: Cannot find data for the output column {column}. SQLSTATE: KD000"
    )


@pytest.mark.parametrize("condition", ["TABLE_OR_VIEW_NOT_FOUND", "UNRESOLVED_COLUMN.WITH_SUGGESTION"])
def test_the_plan_that_an_error_shows_is_no_row(condition):
    """Spark prints the plan behind what is missing, and the condition on rows is part of it."""
    error = AnalysisException(
        f"[{condition}] …;\n{PLAN}", condition, {"relationName": "`lake`.`shop`.`customers`"}
    )
    assert row_outside_ranges(error) == ""
    assert retry_reason(error, "lake.shop.orders", "`lake`.`shop`.`orders`") is None


def test_a_row_outside_of_its_batch_is_named():
    """By the message that we gave Spark, and nobody else's."""
    assert row_outside_ranges(raised(f"{OUTSIDE_BATCH}orders:3:100")) == "orders:3:100"
    assert row_outside_ranges(raised("no price")) == ""
    assert row_outside_ranges(raised(f"{OUTSIDE_BATCH}orders:3:100", "OTHER")) == ""
    with pytest.raises(RowsOutsideBatchError, match="orders:3:100, which is not in the batch"):
        retry_reason(raised(f"{OUTSIDE_BATCH}orders:3:100"), "lake.shop.orders", "`lake`.`shop`.`orders`")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        pytest.param(unknown(CONFLICT), RetryReason.OTHER_WRITER, id="as Spark Connect passes Iceberg's on"),
        pytest.param(
            unknown("Writing job aborted", CAUSE + CONFLICT[1:].replace(")", ":", 1)),
            RetryReason.OTHER_WRITER,
            id="as a cause",
        ),
        pytest.param(
            unknown(
                f"({ICEBERG}.ValidationException) Deleted manifest f-m4.avro could not be found in the "
                "latest …"
            ),
            RetryReason.OTHER_WRITER,
            id="a commit merged the manifests that were to be rewritten",
        ),
        pytest.param(
            unknown(f"({ICEBERG}.AlreadyExistsException) Table already exists: a.b"),
            RetryReason.OTHER_WRITER,
            id="made",
        ),
        pytest.param(
            unknown(f"({ICEBERG}.CommitFailedException) Cannot commit"),
            RetryReason.OTHER_WRITER,
            id="lost every race",
        ),
        pytest.param(
            unknown(
                f"({ICEBERG}.ValidationException) Cannot delete file where some, but not all, rows match "
                "filter …"
            ),
            RetryReason.PARTIAL_FILE_CONFLICT,
            id="cuts a file",
        ),
        pytest.param(
            unknown("(org.apache.iceberg.jdbc.UncheckedSQLException) Failed to get table"),
            RetryReason.CATALOG,
            id="catalog",
        ),
        pytest.param(
            unknown(f"({ICEBERG}.CommitStateUnknownException) Connection reset"),
            RetryReason.COMMIT_STATE_UNKNOWN,
            id="a commit without reply",
        ),
        pytest.param(
            unknown("Writing job aborted", f"{POSTED}Caused by: java.net.SocketException: Connection reset"),
            RetryReason.COMMIT_STATE_UNKNOWN,
            id="a catalog lost the connection after it was sent a commit",
        ),
        pytest.param(
            unknown(
                "Writing job aborted", f"{POSTED}Caused by: java.net.ConnectException: Connection refused"
            ),
            None,
            id="a catalog refused the connection: no commit was sent",
        ),
        pytest.param(
            AnalysisException(lacks("`n`")),
            RetryReason.OTHER_WRITER,
            id="Spark 4.0: a column was added meanwhile",
        ),
        pytest.param(
            AnalysisException(lacks("`a``b`")), RetryReason.OTHER_WRITER, id="Spark 4.0: one with an odd name"
        ),
        pytest.param(AnalysisException(lacks("`s`.`n`")), None, id="a field of a column that the rows have"),
        pytest.param(raised("Found conflicting prices"), None, id="the transform's own words"),
        pytest.param(raised(CONFLICT), None, id="the transform's own words, which look like Iceberg's"),
        pytest.param(
            unknown(f"({ICEBERG}.ValidationException) Invalid partition spec"), None, id="another refusal"
        ),
        pytest.param(
            unknown("(x.MyException) CommitFailedException happened"), None, id="somebody else's exception"
        ),
    ],
)
def test_what_iceberg_refuses_can_be_tried_again(error, why):
    """Its exceptions have no conditions.

    Their classes and the beginnings of their messages are what there is.
    """
    found = retry_reason(error, "lake.shop.orders", "`lake`.`shop`.`orders`")
    assert (found and found.reason) == why


def test_a_cancelled_operation_is_known_by_its_condition():
    """Its name in the text of another error is nothing."""
    cancelled = unknown(
        "(org.apache.spark.SparkSQLException) [OPERATION_CANCELED] Operation has been canceled."
    )
    cancelled._errorClass = "OPERATION_CANCELED"
    assert is_cancelled(cancelled)
    assert is_server_error(cancelled)
    mine = raised("order 7 is OPERATION_CANCELED")
    assert not is_cancelled(mine)
    assert not is_server_error(mine)
    assert is_server_error(SparkConnectGrpcException("gone"))


def test_a_server_that_is_away_is_known_by_what_pyspark_makes_of_it():
    """A real client, and nobody there.

    4.0 keeps the status in the text alone, and has a class for tries in vain.
    """
    session = _create_session(SparkConnection("sc://127.0.0.1:1"))
    for policies in ([], [DefaultPolicy(max_retries=1, initial_backoff=1)]):
        session.client.set_retry_policies(policies)
        with pytest.raises(PySparkException) as lost:
            session.range(1).collect()
        assert is_unavailable(lost.value)
        assert is_server_error(lost.value)
    assert not is_unavailable(AnalysisException("status = StatusCode.UNAVAILABLE"))
    assert not is_unavailable(None)


@pytest.mark.parametrize(
    "condition", ["NO_ACTIVE_SESSION", "INVALID_HANDLE.SESSION_CHANGED", "INVALID_HANDLE.SESSION_CLOSED"]
)
def test_a_server_that_was_started_anew_did_not_fail_at_the_work(condition):
    """Nobody looks for a bad record then, and no transform is to be mended."""
    error = SparkConnectException(f"[{condition}] …", condition, {})
    assert is_session_gone(error)
    assert is_server_error(error)
    assert not is_unavailable(error)
    assert not is_session_gone(raised("no price"))
    assert not is_session_gone(None)
