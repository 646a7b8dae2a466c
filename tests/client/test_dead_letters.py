"""Dead letters: when they are written, how many are allowed, and which errors are no fault of a record."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from kafka_liveness_dagster.core.bad_records import BadRecordError
from kafka_liveness_dagster.core.batch_planning import Batch
from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
from kafka_liveness_dagster.lanes.dead_letters import DeadLetterHandler, remove_processed
from kafka_liveness_dagster.spark.errors import SparkFailedError, StorageError, TableSchemaError
from kafka_liveness_dagster.spark.table.dead_letters import DeadLetterTable
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import TableWrite
from kafka_liveness_dagster.spark.transform import TransformedBatch
from tests.client.fake_connect_server import RECORDS, Failure, option

RUN = "0badcafe-1111-4222-8333-444444444444"
BATCH = Batch((OffsetRange("orders", 0, 7, 15),), 60.0)
KAFKA = {"kafka.bootstrap.servers": "kafka:9092"}
ORDERS, LETTERS = "`lake`.`shop`.`orders`", "`lake`.`shop`.`orders_dead_letters`"
FAILED = SparkFailedError("Spark could not write p0:orders:7-15")
_LETTER = StructType(
    [*RECORDS, *(StructField(name, StringType()) for name in ("headers", "timestamp", "error", "run_id"))]
)


@pytest.fixture
def bad():
    """The offsets that the transform cannot process."""
    return {9}


@pytest.fixture
def rejects(server, bad):
    """A server with both tables, on which plans that read a bad offset fail."""

    def noop(plan):
        start, end = (
            json.loads(option(plan, name))["orders"]["0"] for name in ("startingOffsets", "endingOffsets")
        )
        is_empty = 'expression: "false"' in plan
        failing = [] if is_empty else sorted(bad & set(range(start, end)))
        return Failure(f"Job aborted: no price in {failing[0]}", kind="x.PriceException") if failing else []

    server.gives("noop", noop)
    server.gives("aggregate", [{"count": 0}])
    server.has_table(ORDERS, RECORDS)
    server.has_table(LETTERS, _LETTER)
    server.has("includeHeaders", _LETTER)
    return server


class Lane:
    """A lane that records when it is asked whether its commit has room."""

    def __init__(self, order):
        self.order = order

    def check_batch(self, _batch):
        """The batch is this process's."""

    def require_room(self, batch):
        self.order.append(("room", batch.skipped))


@pytest.fixture
def handle(session, rejects):
    """Let the dead letters deal with a batch that failed; return the outcome and the order of steps."""
    order = []

    def noting(step):
        def result(_plan):
            order.append((step,))
            return []

        return result

    rejects.gives(f'table_name: "{ORDERS}"', noting("rows"))
    rejects.gives(f'table_name: "{LETTERS}"', noting("letters"))

    def run(failed=FAILED, *, most=3, transform=lambda batch: batch):
        frame = TransformedBatch(transform, session, BATCH.ranges, options=KAFKA)
        write = TableWrite(
            session,
            IcebergTable("lake.shop.orders"),
            BATCH.ranges,
            make_frame=frame,
            may_go_on=lambda: None,
            may_replace=lambda: None,
        )
        in_flight = SimpleNamespace(batch=BATCH, write=write, job=nullcontext())
        landed = DeadLetterHandler(most, RUN).write_without_bad_records(in_flight, Lane(order), failed)
        return landed, order

    run.order = order
    return run


NINTH = OffsetRange("orders", 0, 9, 10)


def test_letters_are_written_before_the_rows_and_the_room_is_checked_before_both(handle):
    """A crash between two steps leaves nothing that a commit covers without a letter."""
    landed, order = handle()
    assert order == [("room", (NINTH,)), ("letters",), ("rows",)]
    assert landed.batch.skipped == (NINTH,)
    assert "no price in 9" in landed.reasons[NINTH]


def test_the_rows_of_the_other_offsets_are_written(handle, rejects):
    """Each range around the bad records."""
    handle()
    [plan] = rejects.executed_with(f'table_name: "{ORDERS}"')
    replaced = plan.partition("overwrite_condition")[2]
    assert "`offset` >= 7 AND `offset` < 9 OR " in replaced, "the bad record was written, too"
    assert "`offset` >= 10 AND `offset` < 15)" in replaced


def test_as_many_bad_records_as_allowed_become_letters(handle, bad):
    """The limit itself is allowed."""
    bad |= {11, 13}
    landed, _ = handle(most=3)
    assert [one.start for one in landed.batch.skipped] == [9, 11, 13]


def test_more_bad_records_than_allowed_end_the_run(handle, bad):
    """The transform is to blame: nothing of the batch is written."""
    bad |= {11, 13}
    with pytest.raises(BadRecordError, match="More than max_dead_letters=2"):
        handle(most=2)
    assert handle.order == []


def test_letters_of_an_earlier_attempt_do_not_count_again(handle, bad, rejects):
    """A batch that is retried finds its own letters in the table: they are replaced."""
    bad |= {11, 13}
    rejects.gives("aggregate", [{"count": 2}])
    landed, _ = handle(most=1)
    assert len(landed.batch.skipped) == 3


def test_a_storage_error_blames_no_record(handle):
    """Each record would seem to fail while the storage is away."""
    failed = StorageError("its store does not take files")
    with pytest.raises(StorageError) as raised:
        handle(failed)
    assert raised.value is failed
    assert handle.order == []


def test_a_transform_that_fails_without_records_blames_no_record(handle):
    """Its own error ends the run."""

    def orders(_batch):
        raise ZeroDivisionError

    with pytest.raises(SparkFailedError) as raised:
        handle(transform=orders)
    assert raised.value is FAILED


def test_only_partitions_that_this_process_still_owns_are_reported_as_left_out(handle):
    """The new owner of a partition processes all of the batch's offsets again."""
    landed, _ = handle()
    [(part, message, _)] = landed.skipped(set())
    assert part == NINTH
    assert "the record is in lake.shop.orders_dead_letters" in message
    of_others = list(landed.skipped({TopicPartition("orders", 0)}))
    assert of_others == [], "offsets of another member were reported"


def test_a_table_of_another_kind_is_not_taken_for_dead_letters(handle, rejects):
    """Its rows would be replaced."""
    rejects.has_table(LETTERS, RECORDS)
    with pytest.raises(
        TableSchemaError, match="is no table of dead letters: it lacks headers, timestamp, error, run"
    ):
        handle()
    assert handle.order == []


def test_letters_are_not_kept_in_a_table_of_another_kind(session, rejects, bad):
    """They would be added to it as new columns and rows."""
    bad.clear()
    rejects.has_table(LETTERS, RECORDS)
    letters = DeadLetterTable.of_table(session, "lake.shop.orders")
    may = {"may_go_on": lambda: None, "may_replace": lambda: None}
    with pytest.raises(TableSchemaError, match="is no table of dead letters"):
        letters.replace(BATCH.ranges, {NINTH: "no price"}, RUN, KAFKA, **may)
    assert rejects.executed == []


# --- the table of dead letters ------------------------------------------------------------------------------


def test_a_letter_is_pending_while_its_offset_is_in_a_pending_range(session, rejects):
    """Ranges are half-open: the letter at the end of one is not in it."""
    DeadLetterTable.of_table(session, "lake.shop.orders").pending([OffsetRange("orders", 0, 7, 9)])
    [plan] = rejects.executed_with("JOIN_TYPE_LEFT_SEMI")
    compared = plan.partition("join_condition")[2]
    assert compared.count('function_name: ">="') == 1
    assert compared.count('function_name: "<"') == 1, "the end of a range is part of it"
    assert compared.count('function_name: "=="') == 2


def test_letters_of_processed_offsets_are_removed(session, rejects):
    """And no others: the range is replaced by no rows."""
    rejects.gives("aggregate", [{"count": 1}])
    remove_processed(SimpleNamespace(session=lambda: session), "lake.shop.orders", [NINTH], 60.0)
    plans = rejects.executed_with(f'table_name: "{LETTERS}"')
    assert len(plans) == 1, "the letters stay"
    [plan] = plans
    assert "`offset` >= 9 AND `offset` < 10)" in plan.partition("overwrite_condition")[2]
    assert 'expression: "false"' in plan
    assert rejects.executed_with(f'table_name: "{ORDERS}"') == []
