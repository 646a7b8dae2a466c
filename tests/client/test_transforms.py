"""What becomes of a batch whose transform raises, or returns something other than rows."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.core.offsets import OffsetRange
from kafka_liveness_dagster.spark.connect.session import close, connect
from kafka_liveness_dagster.spark.errors import SparkFailedError, TransformError, UnreadableRecordError
from kafka_liveness_dagster.spark.transform import TransformedBatch
from tests.client.fake_connect_server import Failure, option

BATCH = (OffsetRange("orders", 0, 7, 12),)
KAFKA = {"kafka.bootstrap.servers": "kafka:9092"}
STACK = "\n\nJVM stacktrace:\njava.lang.ArithmeticException\n\tat x.KafkaRecordToRowConverter.f(K.scala:1)\n"
OVERFLOW = (
    "Job aborted: Lost task 0.0 in stage 1.0 (TID 1) (host driver): java.lang.ArithmeticException: long "
    "overflow"
)


class StopError(Exception):
    """An order to the run."""


@pytest.fixture
def of(session):
    """Make the rows of a batch by a transform."""

    def make(transform, **settings):
        return TransformedBatch(transform, session, BATCH, options=KAFKA, **settings)

    return make


def raising(error):
    """A transform that raises."""

    def orders(_batch):
        raise error

    return orders


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        pytest.param(None, "returned None instead of a DataFrame .* add the missing `return`", id="None"),
        pytest.param([1], "returned a list instead of a DataFrame", id="a list"),
    ],
)
def test_something_other_than_rows_is_refused(of, returned, message):
    """The error says what was returned and for which offsets."""
    with pytest.raises(TransformError, match=message):
        of(lambda _batch: returned)()


def test_rows_of_another_session_are_refused(of, server):
    """A cancel of the batch would not reach them."""
    other = connect(server.remote)
    with pytest.raises(TransformError, match="returned a DataFrame of another Spark session"):
        of(lambda _batch: other.range(1))()
    close(other)


@pytest.mark.parametrize(
    "error", [StopError("stop"), KafkaLivenessError("fenced")], ids=["the caller's", "ours"]
)
def test_an_order_to_the_run_passes_as_it_is(of, error):
    """A dagster.Failure or RetryRequested of the user is no defect of the transform."""
    with pytest.raises(type(error)) as raised:
        of(raising(error), passthrough_errors=(StopError,))()
    assert raised.value is error


def test_another_error_names_the_transform_and_the_batch(of):
    """It keeps the original error as its cause."""
    with pytest.raises(
        TransformError, match=r"raised ZeroDivisionError: no price for p0:orders:7-12"
    ) as raised:
        of(raising(ZeroDivisionError("no price")))()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_plan_that_spark_refuses_is_the_transform_s_error_at_once(of, server):
    """An unknown column is found before anything is written."""
    failure = Failure("no column `price`", "UNRESOLVED_COLUMN", kind="org.apache.spark.sql.AnalysisException")
    server.has("price", failure)
    with pytest.raises(TransformError, match="raised AnalysisException: no column `price`"):
        of(lambda batch: batch.select("price"))()


def test_a_server_without_the_kafka_source_is_not_the_transform_s_error(of, server):
    """The schema of the batch itself fails, too."""
    server.has("kafka", Failure("Failed to find data source: kafka", "DATA_SOURCE_NOT_FOUND"))
    with pytest.raises(SparkFailedError, match="cannot read from Kafka"):
        of(lambda batch: batch)()


# --- some of its records ------------------------------------------------------------------------------------


def fails_from(first, last, failure):
    """Fail where the plan reads one of these offsets."""

    def result(plan):
        start, stop = (
            int(option(plan, name).partition('"0": ')[2].rstrip("}"))
            for name in ("startingOffsets", "endingOffsets")
        )
        return failure if start <= last and first < stop else [{"count": 1}]

    return result


def test_records_that_can_be_processed_have_no_failure(of, server):
    """The search for bad records goes by this."""
    server.gives("noop", fails_from(9, 9, Failure("Job aborted: no price", kind="x.PriceException")))
    assert of(lambda batch: batch).failure_of([OffsetRange("orders", 0, 7, 9)]) == ""
    assert "no price" in of(lambda batch: batch).failure_of([OffsetRange("orders", 0, 9, 10)])


def test_a_record_that_spark_cannot_read_is_not_the_transform_s_failure(of, server):
    """No dead letter would help: Spark fails at the record whatever the transform does.

    The error names it.
    """
    server.gives("kafka", fails_from(9, 9, Failure(OVERFLOW + STACK, kind="org.apache.spark.SparkException")))
    with pytest.raises(UnreadableRecordError, match="the record at offset 9 of orders:0 has a timestamp"):
        of(lambda batch: batch).failure_of(BATCH)


def test_a_canceled_search_does_not_blame_a_record(of, server):
    """Spark fails because of the cancel."""
    canceled = Failure("canceled", "OPERATION_CANCELED", kind="org.apache.spark.SparkSQLException")
    server.gives("noop", canceled)
    with pytest.raises(Exception, match="canceled") as raised:
        of(lambda batch: batch).failure_of(BATCH)
    assert raised.value.getCondition() == "OPERATION_CANCELED"
