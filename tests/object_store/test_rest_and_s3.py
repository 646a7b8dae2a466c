"""The sink's tests, told once more.

The catalog speaks REST, the files are in S3, and neither is called ``lake``.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from uuid import uuid4

import pytest
from click.testing import CliRunner

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.core.offsets import TopicPartition
from kafka_liveness_dagster.core.table_layout import TableLayout
from kafka_liveness_dagster.doctor import checkup
from kafka_liveness_dagster.doctor.rules import Outcome
from kafka_liveness_dagster.spark.errors import StorageError, TableUnreadableError
from kafka_liveness_dagster.spark.table import write as table_write
from kafka_liveness_dagster.spark.table.ledger import TableLedger
from kafka_liveness_dagster.spark.table.maintenance import TableMaintenance
from kafka_liveness_dagster.spark.table.table import IcebergTable
from kafka_liveness_dagster.spark.table.write import write_table
from tests.integration import (
    test_audit,
    test_maintenance,
    test_spark_iceberg,
    test_table_layout,
    test_table_ledger,
)
from tests.integration.group_with_table import GroupWithTable, written_rows
from tests.integration.test_spark_iceberg import frame, held, once, orders, put
from tests.object_store.conftest import IMPATIENT

TOLD_ONCE_MORE = (
    test_spark_iceberg.test_exactly_the_records_of_the_range_are_in_the_table,
    test_spark_iceberg.test_no_rows_still_clear_the_range,
    test_spark_iceberg.test_disjoint_ranges_of_one_partition_commit_side_by_side,
    test_spark_iceberg.test_a_range_written_meanwhile_is_replaced,
    test_spark_iceberg.test_two_writers_at_the_same_moment,
    test_spark_iceberg.test_a_range_that_cuts_through_files_is_rewritten_exactly,
    test_spark_iceberg.test_compaction_in_between_changes_nothing,
    test_spark_iceberg.test_columns_come_and_go,
    test_table_layout.test_what_is_read_since_a_snapshot_is_each_row_once,
    test_table_layout.test_each_snapshot_says_what_it_wrote_however_it_is_committed,
    test_table_layout.test_partitions_that_somebody_changed_since,
    test_table_ledger.test_what_was_rolled_away_and_expired_is_not_told_on,
    test_audit.test_a_life_with_a_crash_is_certified,
    test_maintenance.test_the_ledger_outlives_the_snapshots,
    test_maintenance.test_deleted_rows_are_gone_from_the_files,
)
globals().update({test.__name__: test for test in TOLD_ONCE_MORE})
# Fixtures of the other test modules
topic, streamed, audit = test_spark_iceberg.topic, test_table_layout.streamed, test_audit.audit
ledger = test_maintenance.ledger
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def world(services, produce, rows, warm_spark, catalog_name):
    """A group whose table is in the other catalog."""
    return GroupWithTable(services, produce, rows, warm_spark, catalog=catalog_name)


@pytest.fixture
def shaky(to_rest, to_s3):
    """Both ways, in order before and after."""
    yield to_rest, to_s3
    to_rest.repair()
    to_s3.repair()


def is_commit(method, path):
    """Whether a request is a commit to a table that is called ``orders``."""
    return method == "POST" and path.endswith("/tables/orders")


@pytest.mark.parametrize("name", ["by Kafka's partitions", "by nothing"])
def test_a_replay_replaces_what_was_there_wherever_it_lies(warm_spark, table, name):
    """Whole files are replaced, and rows in files that are shared."""
    test_table_layout.test_a_replay_replaces_what_was_there_wherever_it_lies(warm_spark, table, name)


@pytest.mark.parametrize("name", ["by Kafka's partitions", "by bucket, overwritten"])
def test_of_two_writers_of_the_same_offsets_one_lands(services, warm_spark, table, name):
    """Where ranges are appended, and where they are overwritten."""
    told = test_table_layout.test_of_two_writers_of_the_same_offsets_one_lands_and_the_other_replaces_it
    told(services, warm_spark, table, name)


def test_a_stream_reads_each_row_once(services, warm_spark, table, streamed):
    """Of two lanes that write at the same time."""
    test_table_layout.test_a_stream_reads_each_row_once(services, warm_spark, table, streamed, "by day")


def test_a_table_of_somebody_elses_with_more_columns_and_rows(warm_spark, table):
    """Evolved while the lane runs."""
    test_table_layout.test_a_table_of_somebody_elses_with_more_columns_and_rows(
        warm_spark, table, "merge-on-read"
    )


def test_the_files_are_where_they_are_said_to_be(stores, warm_spark, table, catalog):
    """None of all this is about a local folder: metadata and rows are objects of the store."""
    put(warm_spark, table, orders(70, 100))
    found = catalog.load_table(table.partition(".")[2])
    data = [row["file_path"] for row in warm_spark.sql(f"SELECT file_path FROM {table}.files").collect()]
    for place in (found.metadata_location, *data):
        assert place.startswith("s3://")
        assert (stores.objects / place.removeprefix("s3://")).is_file()


def test_what_no_snapshot_has_is_deleted_from_the_store(stores, warm_spark, table):
    """An object that is old; younger ones, and all that the table has, stay."""
    put(warm_spark, table, orders(70, 100))
    place = warm_spark.sql(f"SELECT file_path FROM {table}.files").first()[0].removeprefix("s3://")
    kept = stores.objects / place
    old, young = kept.with_name("died.parquet"), kept.with_name("writing.parquet")
    for orphan in (old, young):
        orphan.write_bytes(kept.read_bytes())
    two_days_ago = time.time() - 2 * 86_400
    for one in (old, kept):
        os.utime(one, (two_days_ago, two_days_ago))
    assert (
        TableMaintenance(warm_spark, IcebergTable(table)).remove_orphans(time.time(), min_age=86_400.0) == 1
    )
    assert (old.exists(), young.exists(), kept.exists()) == (False, True, True)


def test_a_live_run_a_crash_and_its_backfill(services, world):
    """Both lanes, and what the commands say of the group: the table is its witness here too."""
    world.crash_and_resume_at_120()
    asked = ["--bootstrap-servers", services.bootstrap_servers, "--spark", services.spark_remote, "--json"]
    told = CliRunner().invoke(main, ["status", world.group, "--table", world.table, *asked])
    assert json.loads(told.stdout)["pending_offsets"] == 50, told.output
    assert world.catch_up((70, 120)) is None
    world.grow_to(150)
    assert world.live() is None
    assert (world.pending_by_live_log(), world.offsets(), world.materialized_ranges()) == (
        [],
        written_rows(0, 150),
        [(70, 120)],
    )


def test_the_doctor_asks_every_catalog_that_spark_knows(services, shaky):
    """By whatever name, and of whatever kind; one that does not answer is named, with what to look at."""

    def answers():
        found = checkup.check_spark(lambda: services.spark_remote)
        return {one.area: one for one in found if one.area.startswith("catalog ") and one.check == "answers"}

    names = {f"catalog {name}" for name in ("depot", "lake", "lossy", "shaky")}
    assert {area: one.outcome for area, one in answers().items()} == dict.fromkeys(names, Outcome.OK)
    shaky[0].fails = lambda *_: 401
    failed = {area: one.found for area, one in answers().items() if one.outcome is Outcome.FAIL}
    assert "catalog lossy refuses the request (Not authorized" in failed["catalog lossy"]
    assert {"catalog depot", "catalog lake"}.isdisjoint(failed)


@pytest.mark.parametrize(
    ("rest", "s3", "says"),
    [
        (503, None, "catalog shaky does not respond .*settings spark.sql.catalog.shaky"),
        (500, None, "catalog shaky does not respond"),
        (0, None, "catalog shaky does not respond .*failed to respond"),
        (401, None, "catalog shaky refuses the request .*login"),
        (None, 503, r"store does not accept or return files .*Status Code: 503"),
        (None, 403, r"store does not accept or return files .*Status Code: 403.* keys"),
        (None, 0, "store does not accept or return files .*failed to respond"),
    ],
)
def test_what_keeps_the_table_is_away_or_refuses(warm_spark, table, rows, shaky, rest, s3, says):  # noqa: PLR0917
    """It is named, with its own words and a remedy, by whoever writes and by whoever looks.

    Nothing is changed.
    """
    put(warm_spark, table, orders(0, 10))
    same = table.replace("depot.", "shaky.")
    shaky[0].fails, shaky[1].fails = (lambda *_, status=status: status for status in (rest, s3))
    with pytest.raises(StorageError, match=f"p3:orders:0-20 could not be written to {same}: its .*{says}"):
        put(warm_spark, same, orders(0, 20), by="second")
    with pytest.raises(StorageError, match=says):
        put(warm_spark, same.replace("orders", "others"), orders(0, 20), by="second")
    if rest is not None:
        with pytest.raises(TableUnreadableError, match=says):
            TableLedger(IcebergTable(same), lambda: warm_spark).read([TopicPartition("orders", 3)])
    for one in shaky:
        one.repair()
    assert held(rows(table)) == once("first", 0, 10)


def test_a_catalog_that_may_only_be_read(warm_spark, table, rows, shaky):
    """Who writes is refused by name, with rows and without; who looks sees what there is."""
    put(warm_spark, table, orders(0, 10))
    same = table.replace("depot.", "shaky.")
    shaky[0].fails = lambda method, _: 403 if method == "POST" else None
    for end in (10, 20):
        with pytest.raises(
            StorageError, match=f"p3:orders:0-{end} could not be .*catalog shaky refuses the request"
        ):
            put(warm_spark, same, orders(0, end), by="second")
    with pytest.raises(StorageError, match="catalog shaky refuses the request"):
        put(warm_spark, same.replace("orders", "others"), orders(0, 20), by="second")
    assert TableLedger(IcebergTable(same), lambda: warm_spark).read([TopicPartition("orders", 3)])
    assert held(rows(same)) == once("first", 0, 10)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"uri": NOBODY}, f"does not answer .*Connect to {NOBODY} failed: Connection refused"),
        ({"s3.endpoint": NOBODY}, f"store does not take .*Connect to {NOBODY} failed: Connection refused"),
        ({"s3.secret-access-key": "guessed"}, "its store does not take .*signature.*Status Code: 403.*keys"),
        ({"io-impl": "org.example.NoSuchIO"}, "lacks the client of its store.*iceberg-aws-bundle"),
        (
            {"rest.client.max-retries": "-1"},
            "cannot open its catalog wrong_.*must be positive.*mend the settings",
        ),
    ],
)
def test_settings_with_which_nobody_is_reached(stores, warm_spark, table, catalog, settings, says):  # noqa: PLR0917
    """The error names what stands in them, but no secret; and nothing is left of what was to be made."""
    wrong = f"wrong_{uuid4().hex[:8]}"
    for key, value in stores.spark_settings(wrong, **{**IMPATIENT, **settings}).items():
        if wrong in key:
            warm_spark.conf.set(key, value)
    _, namespace, _ = table.split(".", 2)
    with pytest.raises(StorageError, match=says) as told:
        put(warm_spark, table.replace("depot.", f"{wrong}."), orders(0, 10))
    assert "guessed" not in str(told.value)
    assert not catalog.namespace_exists((namespace, "eu"))
    assert not catalog.namespace_exists(namespace)


def test_a_namespace_that_may_not_be_made(warm_spark, table, catalog, shaky):
    """Refused with what helps; one that is there is enough, whatever else the login may not do."""
    same = table.replace("depot.", "shaky.")
    shaky[0].fails = lambda method, path: 403 if method == "POST" and path.endswith("/namespaces") else None
    with pytest.raises(
        StorageError, match=r"catalog shaky refuses the request .*create tables and namespaces"
    ):
        put(warm_spark, same, orders(0, 10))
    outer, inner = table.split(".")[1:3]
    assert not catalog.namespace_exists(outer)
    catalog.create_namespace(outer)
    catalog.create_namespace((outer, inner))
    assert put(warm_spark, same, orders(0, 10)).rows == 10


@pytest.mark.parametrize("status", [0, 500])
def test_a_namespace_that_was_made_though_the_catalog_failed(warm_spark, table, rows, shaky, status):
    """Its answer was lost, or another writer was quicker, which a catalog in a database tells as a 500."""
    shaky[0].loses = lambda method, path: (
        status if method == "POST" and path.endswith("/namespaces") else None
    )
    done = put(warm_spark, table.replace("depot.", "shaky."), orders(0, 10))
    assert (done.rows, done.attempts) == (10, 1)
    assert held(rows(table)) == once("first", 0, 10)


def test_a_catalog_that_shows_the_newest_snapshot_alone(warm_spark, table, rows, shaky):
    """Nessie's REST did: writers are told apart all the same, and the table says that it cannot tell all."""
    same = table.replace("depot.", "shaky.")
    shaky[0].changes = newest_snapshot_alone
    ledger = TableLedger(IcebergTable(same), lambda: warm_spark)
    for start in (0, 10, 20):
        put(warm_spark, same, orders(start, start + 10), ledger=ledger)
    others = [orders(30, 40), orders(40, 50)]

    def make():
        while others:
            put(warm_spark, table, others.pop(), by="other")
        return frame(warm_spark, orders(10, 20), orders(40, 50), by="ours")

    done = write_table(warm_spark, same, [orders(10, 20), orders(40, 50)], make, ledger=ledger)
    assert done.attempts == 2
    expected = once("first", 0, 10) | once("ours", 10, 20) | once("first", 20, 30) | once("other", 30, 40)
    assert held(rows(table)) == expected | once("ours", 40, 50)
    assert len(warm_spark.sql(f"SELECT * FROM {same}.snapshots").collect()) == 1
    asked = TopicPartition("orders", 3)
    assert not TableLedger(IcebergTable(same), lambda: warm_spark).read([asked])[asked].is_complete


def newest_snapshot_alone(body):
    """A table's metadata without the history that led to it."""
    if b'"current-snapshot-id"' not in body:
        return body
    told = json.loads(body)
    metadata = told["metadata"]
    for history in ("snapshots", "snapshot-log"):
        metadata[history] = [
            one for one in metadata.get(history, ()) if one["snapshot-id"] == metadata["current-snapshot-id"]
        ]
    return json.dumps(told).encode()


def test_namespaces_are_made_from_the_outside(warm_spark, table, shaky):
    """Many a catalog makes none in one that is not there."""
    del shaky[0].asked[:]
    put(warm_spark, table.replace("depot.", "shaky."), orders(0, 10))
    assert (
        len([path for method, path in shaky[0].asked if method == "POST" and path.endswith("/namespaces")])
        == 2
    )


def of_commits(status, every):
    """This status for the first commit and each so many after it, None for whatever else is asked."""
    seen = itertools.count()
    return lambda *request: status if is_commit(*request) and next(seen) % every == 0 else None


def commits(proxy):
    return len([request for request in proxy.asked if is_commit(*request)])


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("was_done", [True, False])
@pytest.mark.parametrize("status", [0, 503])
def test_a_commit_of_which_the_catalog_says_nothing(  # noqa: PLR0917
    warm_spark, table, rows, shaky, is_there, was_done, status
):
    """What landed is found in the table and not written again.

    What did not is written again, by the same run.
    """
    same = table.replace("depot.", "shaky.")
    if is_there:
        put(warm_spark, table, orders(0, 10))
    del shaky[0].asked[:]
    setattr(shaky[0], "loses" if was_done else "fails", of_commits(status, every=10))
    done = put(warm_spark, same, orders(0, 20), by="second")
    of_iceberg = was_done and is_there and status == 503  # which asks by itself then
    assert (done.rows, done.attempts, done.unknown_commits) == (
        20,
        1 if was_done else 2,
        0 if of_iceberg else 1,
    )
    assert commits(shaky[0]) == done.attempts
    shaky[0].repair()
    assert held(rows(table)) == once("second", 0, 20)


def test_an_append_whose_answer_is_lost_is_one_append(warm_spark, table, rows, shaky):
    """Who reads the table as a stream stops at an overwrite; and the order that was asked for is kept."""
    layout = TableLayout(snapshots="append", sort_by=("offset",))
    same = table.replace("depot.", "shaky.")
    shaky[0].loses = of_commits(0, every=2)  # the table's creation, and each append after it
    for start in (0, 10, 20):
        done = put(warm_spark, same, orders(start, start + 10), layout=layout)
        assert (done.rows, done.attempts) == (10, 1)
    shaky[0].repair()
    told = warm_spark.sql(f"SELECT operation FROM {table}.snapshots").collect()
    assert [row[0] for row in told] == ["append"] * 3
    assert held(rows(table)) == once("first", 0, 30)
    [order] = warm_spark.sql(f"SHOW TBLPROPERTIES {table} ('sort-order')").collect()
    assert order["value"].startswith("offset ASC")


def test_a_commit_that_arrives_after_the_attempt_that_followed_it(warm_spark, table, rows, shaky):
    """It was on its way for longer than anybody waited, and is refused."""
    put(warm_spark, table, orders(0, 10))
    first = of_commits(0, every=10)
    shaky[0].holds = lambda *request: first(*request) is not None
    assert put(warm_spark, table.replace("depot.", "shaky."), orders(0, 20), by="second").attempts == 2
    assert shaky[0].release() == [409]
    assert held(rows(table)) == once("second", 0, 20)


@pytest.mark.parametrize("was_done", [True, False])
def test_a_catalog_that_says_nothing_for_good(warm_spark, table, rows, shaky, monkeypatch, was_done):  # noqa: PLR0917
    """The error comes after as many attempts as a batch has.

    It comes at once if the catalog does not say what it has either.
    """
    monkeypatch.setattr(table_write, "RETRY_PAUSE_SECONDS", 0.0)
    same = table.replace("depot.", "shaky.")
    put(warm_spark, table, orders(0, 10))
    del shaky[0].asked[:]
    if was_done:
        shaky[0].loses = lambda *request: away(shaky[0]) if is_commit(*request) else None
    else:
        shaky[0].fails = of_commits(500, every=1)
    with pytest.raises(
        StorageError, match=r"did not respond whether it took the commit .*are replaced by the retry"
    ):
        put(warm_spark, same, orders(0, 20), by="second")
    assert commits(shaky[0]) == (1 if was_done else 5)
    shaky[0].repair()
    assert held(rows(table)) == (once("second", 0, 20) if was_done else once("first", 0, 10))
    put(warm_spark, same, orders(0, 20), by="again")
    assert held(rows(table)) == once("again", 0, 20)


def away(proxy):
    """Gone, from now on."""
    proxy.fails = lambda *_: 503
    return 0


@pytest.mark.parametrize("trouble", ["none", "lost after the commit", "lost before it"])
def test_a_lane_whose_catalog_loses_every_fifth_answer(services, produce, rows, warm_spark, shaky, trouble):  # noqa: PLR0917
    """One run: nothing is lost, nothing is there twice, nothing is owed.

    ``LOST_ANSWERS_BATCHES`` says of how many.
    """
    batches = int(os.environ.get("LOST_ANSWERS_BATCHES", "12"))
    world = GroupWithTable(
        services, produce, rows, warm_spark, catalog="lossy", batching=kl.Batching(in_flight=2)
    )
    world.grow_to(batches * 10)
    del shaky[0].asked[:]
    if trouble != "none":
        setattr(shaky[0], "loses" if "after" in trouble else "fails", of_commits(0, every=5))
    began_at = time.monotonic()
    assert world.live(max_poll_records=10) is None
    seconds, sent = time.monotonic() - began_at, commits(shaky[0])
    shaky[0].repair()
    found = world.offsets()
    lost, twice = len(set(written_rows(0, batches * 10)) - set(found)), len(found) - len(set(found))
    told = (
        f"answers {trouble}: {batches:,} batches, {sent:,} commits sent, {seconds:.1f} s; lost {lost}, "
        f"twice {twice}"
    )
    print(told)  # noqa: T201 - with -s, for whoever asks what it costs
    assert sent >= batches * (1.2 if trouble == "lost before it" else 1)
    assert (world.committed(), world.pending_by_live_log(), lost, twice) == (batches * 10, [], 0, 0)
    assert found == written_rows(0, batches * 10)


def test_a_lane_whose_catalog_and_store_come_and_go(services, produce, rows, warm_spark, shaky):
    """Every run that fails is named and has committed nothing.

    What landed all the same is there once at the end.
    """
    rest, s3 = shaky
    world = GroupWithTable(
        services, produce, rows, warm_spark, catalog="shaky", enable_parallel_rebalance=False
    )
    world.grow_to(40)
    assert world.live() is None
    world.grow_to(80)

    def answers_stop(_batch):
        rest.loses = lambda *request: away(rest) if is_commit(*request) else None

    def store_goes_away(_batch):
        s3.fails = lambda method, _path: 0 if method == "PUT" else None

    for trouble, landed in ((store_goes_away, 40), (answers_stop, 80)):
        assert isinstance(world.live(trouble), StorageError)
        rest.repair()
        s3.repair()
        assert (world.committed(), world.offsets()) == (40, written_rows(0, landed))
    rest.fails = lambda *_: 503
    assert isinstance(world.live(), TableUnreadableError)
    rest.repair()
    assert world.committed() == 40
    assert world.live() is None
    assert (world.committed(), world.offsets()) == (80, written_rows(0, 80))
