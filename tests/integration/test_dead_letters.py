"""Records that cannot be processed are found, kept beside the table, and owed; all others go on."""

from __future__ import annotations

import json
import re
import shlex

import dagster as dg
import pytest
from click.testing import CliRunner

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.core import commit_metadata
from kafka_liveness_dagster.core.bad_records import BadRecordError
from kafka_liveness_dagster.failpoints import Failpoint
from kafka_liveness_dagster.spark.errors import SparkFailedError, SparkUnreachableError, TransformError
from tests.integration.dead_letter_group import BROKEN, DEAD_LETTERS, MENDED, WHEN_MS, DeadLetterGroup
from tests.test_visible_names import DEAD_LETTERS as COLUMNS

FIRST_AND_LAST = "x 1 2 3 y 5 6 z"
BAD = [0, 4, 7]
GOOD = [1, 2, 3, 5, 6]
TOGETHER = "if(count(*) OVER (PARTITION BY partition) > 3, raise_error('many'), 1)"


@pytest.fixture
def make(services, produce, rows, warm_spark):
    """Make a group: ``make(**settings)``."""
    return lambda **settings: DeadLetterGroup(services, produce, rows, warm_spark, **settings)


def in_python(batch):
    """A transform that is not lazy, and raises by itself."""
    found = [(r.topic, r.partition, r.offset, int(r.value)) for r in batch.collect()]
    return batch.sparkSession.createDataFrame(found, "topic string, partition int, offset long, value long")


def by_a_udf(batch):
    """A function of the user's raises in Spark's Python."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return batch.select("topic", "partition", "offset", F.udf(int, "long")("value").alias("value"))


def test_they_are_kept_and_owed_and_the_others_go_on(make):
    """First and last of a range, of two partitions; until they are replayed, with nothing else touched."""
    world = make()
    world.produce(FIRST_AND_LAST, "0 a 2")
    assert world.live() is None
    assert (world.offsets_in_table(), world.offsets_in_table(1)) == (GOOD, [0, 2])
    assert (world.letters(), world.letters(1)) == (BAD, [1])
    assert (world.pending(), world.pending(1)) == ([(n, n + 1) for n in BAD], [(1, 2)])
    assert (world.committed_offset(), world.committed_offset(1)) == (8, 3)
    letter = world.letter_rows()[0]
    assert dict(world.spark.table(f"{world.table}_dead_letters").dtypes) == COLUMNS
    assert (letter["key"], letter["value"], letter["timestamp"].timestamp()) == (
        b"a key",
        b"x",
        WHEN_MS / 1000,
    )
    assert letter["headers"] == [{"key": "trace", "value": b"of x"}]
    assert "'x'" in letter["error"]
    assert letter["run_id"] == world.instance.get_runs()[0].run_id
    told = world.reported(4)
    assert "'y'" in told.description
    assert f"{world.table}_dead_letters" in told.description
    assert told.metadata["cause"].value == "bad-record"

    found = world.check()
    assert not found.passed
    assert f"4 dead letters are pending: p0:{world.topic}:0-1" in found.description
    world.tick()
    assert len(world.keys()) == 4

    error = world.catch_up((0, 1))
    assert isinstance(error, BadRecordError)
    assert f"offset 0 of {world.topic}:0" in str(error)
    assert "The partitions stay failed until these offsets are done" in str(error)
    assert (world.materialized_ranges(), world.letters(), world.pending()[0]) == ([], BAD, (0, 1))

    world.value = MENDED
    assert world.catch_up((0, 1), (4, 5)) is None
    assert (world.offsets_in_table(), world.letters(), world.letters(1)) == (
        [0, *GOOD[:3], 4, *GOOD[3:]],
        [7],
        [1],
    )
    assert world.pending() == [(7, 8)]
    assert "2 dead letters are pending" in world.check().description
    assert [row["value"] for row in world._rows(world.table)][:2] == [-1, 1]


@pytest.mark.parametrize(
    ("transform", "settings"),
    [
        pytest.param(in_python, {}, id="raises in this process"),
        pytest.param(
            by_a_udf, {"include_headers": True, "batching": {"on_bad_record": "dead_letter"}}, id="a UDF"
        ),
        pytest.param(
            "if(value = binary('y'), raise_error('no'), 1)",
            {"iceberg": kl.Iceberg(snapshots="append"), "max_poll_records": 3},
            id="raise_error, appended, and small batches",
        ),
        pytest.param(
            f"if(value > '', {BROKEN}, 0)",
            {"batching": {"on_bad_record": "dead_letter", "in_flight": 2}, "max_poll_records": 3},
            id="two in flight",
            marks=pytest.mark.certify,
        ),
    ],
)
def test_whatever_raises(make, transform, settings):
    """In this process, in Spark, in its Python; the table is there already, or is made of what is left."""
    world = make(**settings)
    world.value = transform
    world.produce("0 1 2 3 y 5 6 7", "0 1")
    assert world.live() is None
    assert (world.offsets_in_table(), world.letters(), world.pending()) == (
        [0, 1, 2, 3, 5, 6, 7],
        [4],
        [(4, 5)],
    )
    assert (world.offsets_in_table(1), world.committed_offset(), world.committed_offset(1)) == ([0, 1], 8, 2)


def test_nothing_else_was_there(make):
    """A batch of bad records alone: there is no table yet, and the live lane goes on."""
    world = make()
    world.produce("x y")
    assert world.live() is None
    assert (world.offsets_in_table(), world.letters(), world.pending(), world.committed_offset()) == (
        [],
        [0, 1],
        [(0, 2)],
        2,
    )
    world.produce("2")
    assert world.live() is None
    assert (world.offsets_in_table(), world.committed_offset()) == ([2], 3)


def test_more_than_a_few_are_the_transforms_fault(make):
    """Above the bound the run fails with the first of them, and nothing is passed, written or committed."""
    world = make(batching={**DEAD_LETTERS, "max_dead_letters": 2})
    world.produce(FIRST_AND_LAST)
    error = world.live()
    assert isinstance(error, BadRecordError)
    assert f"offset 0 of {world.topic}:0" in str(error)
    assert "max_dead_letters=2" in str(error)
    assert "'x'" in str(error)
    assert isinstance(error.__cause__, SparkFailedError)
    assert (world.offsets_in_table(), world.letters(), world.pending()) == ([], [], [])
    assert not world.committed_offset()


@pytest.mark.parametrize(
    ("transform", "kind"),
    [
        pytest.param(TOGETHER, SparkFailedError, id="only together"),
        pytest.param("price", TransformError, id="a column that is not there"),
        pytest.param(lambda _: None, TransformError, id="None"),
    ],
)
def test_what_is_no_records_fault_ends_the_run(make, transform, kind):
    """It fails only as a whole, or without any record too: the error is the one without dead letters."""
    world = make()
    world.value = transform
    world.produce("0 1 2 3")
    error = world.live()
    assert type(error) is kind, error
    assert (world.offsets_in_table(), world.letters(), world.committed_offset()) == (
        [],
        [],
        world.committed_offset(1),
    )


def test_what_the_commit_has_no_room_for_is_named_before_anything_is_passed(make, monkeypatch):
    """As many debts as a commit holds, and one more."""
    world = make()
    world.produce(FIRST_AND_LAST)
    monkeypatch.setattr(commit_metadata, "MAX_METADATA_BYTES", 50)
    error = world.live()
    assert isinstance(error, BadRecordError)
    assert "has too many pending ranges" in str(error)
    assert (world.offsets_in_table(), world.letters(), world.pending(), bool(world.committed_offset())) == (
        [],
        [],
        [],
        False,
    )


@pytest.mark.parametrize("nth", [1, 2], ids=["between letters and table", "between table and commit"])
def test_a_run_may_die_at_any_step(make, tmp_path, nth):
    """Whatever it had written, the next one ends with each offset once, in one place."""
    world = make()
    world.produce(FIRST_AND_LAST)
    world.kill(Failpoint.AFTER_TABLE_COMMIT, nth, tmp_path)
    assert (world.letters(), world.pending(), bool(world.committed_offset())) == (BAD, [], False)
    assert world.live() is None
    assert (world.offsets_in_table(), world.letters(), world.committed_offset()) == (GOOD, BAD, 8)
    assert world.pending() == [(n, n + 1) for n in BAD]
    assert {row["run_id"] for row in world.letter_rows()} == {world.instance.get_runs()[0].run_id}


def test_the_catch_up_lane_does_what_it_can(make):
    """Of one large partition all but the bad ones is done, and it stays failed until they are."""
    world = make(enable_parallel_rebalance=True, batching={**DEAD_LETTERS, "max_dead_letters": 2})
    world.value = MENDED
    world.produce("0 1")
    assert world.live() is None
    world.produce("2 x 4 y 6")
    world.crash()
    world.value = BROKEN
    assert world.live() is None
    assert (world.committed_offset(), world.pending(), world.letters()) == (7, [(2, 7)], [])
    for _ in range(2):  # those that are known do not count as new ones
        error = world.catch_up((2, 7))
        assert isinstance(error, BadRecordError)
        assert [str(one) for one in error.offsets] == [f"p0:{world.topic}:{n}-{n + 1}" for n in (3, 5)]
        assert (world.offsets_in_table(), world.letters(), world.pending()) == (
            [0, 1, 2, 4, 6],
            [3, 5],
            [(3, 4), (5, 6)],
        )
    assert "2 dead letters are pending" in world.check().description
    world.value = MENDED
    assert world.catch_up((2, 7)) is None
    assert (world.offsets_in_table(), world.letters(), world.pending(), world.materialized_ranges()) == (
        [*range(7)],
        [],
        [],
        [(2, 7)],
    )
    assert world.check().passed


def test_one_that_is_forgiven_stays_as_the_record_of_it(make, monkeypatch):
    """Nobody owes it any more, and what it was can still be read."""
    world = make()
    world.produce("0 x 2")
    assert world.live() is None
    told = [one for one in world.tick().asset_events if isinstance(one, dg.AssetObservation)]
    assert [one.asset_key.path[0] for one in told] == ["kafka"], "of its partition the run has told, and why"
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    typed = ["write-off", world.group, f"p0:{world.topic}:1-2", "--reason", "no number", "--yes"]
    told = CliRunner().invoke(main, [*typed, "--bootstrap-servers", world.servers])
    assert told.exit_code == 0, told.output
    assert (world.letters(), world.pending(), world.check().passed) == ([1], [], True)
    world.value = MENDED
    assert world.catch_up((1, 2)) is None
    assert (world.offsets_in_table(), world.letters()) == ([0, 2], [1])
    key = dg.AssetKey(f"{world.name}_crash_lag")
    [closed] = world.instance.fetch_materializations(key, limit=1).records
    assert closed.asset_materialization.metadata["state"].value == "written off, not processed"


def test_the_remedy_of_what_fails_to_be_processed_again(make, tmp_path, monkeypatch):
    """Of a replay and of a green partition.

    The former rows stay, and the printed command closes the partition.
    """
    world = make()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    asset = dg.AssetKey(f"{world.name}_crash_lag")
    partitions = dg.DynamicPartitionsDefinition(name=asset.to_python_identifier())

    def values():
        return {row["offset"]: row["value"] for row in world._rows(world.table)}

    def command(*words):
        return CliRunner().invoke(main, [*words, "--bootstrap-servers", world.servers])

    def follow_the_remedy(error, key, says):
        """The command between backticks, as a person copies it.

        The partition is closed, and nothing else changes.
        """
        assert isinstance(error, BadRecordError)
        assert says in str(error)
        assert "Failed and missing" in str(error)
        before = values(), world.committed_offset(), world.catch_up_log(), world.letters()
        assert world.instance.get_status_by_partition(asset, [key], partitions)[key].value == "FAILED"
        [typed] = re.findall(r"`kafka-liveness (write-off [^`]+)`", str(error))
        told = command(*shlex.split(typed), "--yes")
        assert told.exit_code == 0, told.output
        assert f"closed {key}" in told.output
        assert world.instance.get_status_by_partition(asset, [key], partitions)[key].value == "MATERIALIZED"
        assert (values(), world.committed_offset(), world.catch_up_log(), world.letters()) == before
        assert command(*shlex.split(typed), "--yes").exit_code == 1, "there is nothing left to close"

    with dg.DagsterInstance.from_config(str(tmp_path)) as world.instance:
        world.produce("0 1 x 3")
        assert world.live() is None
        world.value = MENDED
        assert world.catch_up((2, 3)) is None
        assert values() == {0: 0, 1: 1, 2: -1, 3: 3}
        world.value = f"if(value = binary('1'), raise_error('no'), 100 + {BROKEN})"
        key = f"p0:{world.topic}:2-3"
        follow_the_remedy(world.catch_up((2, 3)), key, f"The former rows of {key} are still in the table")

        told = command("replay", world.group, "--from", "2020-01-01")
        key = told.output.split()[-1]
        error = world.catch_up((0, 4), again="@" + key.partition("@")[2])
        assert values() == {0: 100, 1: 1, 2: -1, 3: 103}
        follow_the_remedy(error, key, f"The former rows of p0:{world.topic}:1-3 are still in the table")
        assert (world.pending(), world.check().passed) == ([], True)


def test_status_names_why_each_range_is_pending(make, tmp_path, monkeypatch):
    """A dead letter with its error, a crash, and what failed again; each with its next step."""
    world = make(enable_parallel_rebalance=True)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    project = tmp_path / "shop"
    (project / "src" / "shop_of_a_test").mkdir(parents=True)
    (project / "pyproject.toml").write_text('[tool.dagster]\nmodule_name = "shop_of_a_test.definitions"\n')
    monkeypatch.chdir(project)

    def status(*words):
        typed = ["status", world.group, "--bootstrap-servers", world.servers, *words]
        return CliRunner().invoke(main, typed).stdout

    def why():
        partition = json.loads(status("--json"))["partitions"][0]
        return [one["why"] for one in partition["pending"]]

    with dg.DagsterInstance.from_config(str(tmp_path)) as world.instance:
        world.produce("0 x 2")
        assert world.live() is None
        world.produce("3 4")
        world.crash()
        assert world.live() is None
        for event in world.tick().asset_events:
            world.instance.report_runless_asset_event(event)
        letter, skipped = why()
        assert letter.startswith("dead letter: ")
        assert "cannot be cast" in letter or "CAST_INVALID_INPUT" in letter, letter
        assert skipped == "skipped by the live lane", "no sensor started the run, so no cause is recorded"
        told = status()
        assert "next: correct the transform for 1 dead letter, or write off: kafka-liveness write-off" in told
        module = "PYTHONPATH=src dagster asset materialize -m shop_of_a_test.definitions"
        assert f"of {world.name}_crash_lag: {module} --select {world.name}_crash_lag --partition" in told
        assert isinstance(world.catch_up((1, 2)), BadRecordError)
        world.value = lambda _: 1 / 0
        assert isinstance(world.catch_up((3, 5)), TransformError)
        letter, skipped = why()
        assert letter.endswith("; failed 1 time")
        assert skipped.startswith("failed 1 time: "), skipped
        assert "ZeroDivisionError" in skipped
        assert "next: remove the cause of the error of 1 partition that failed" in status()


def test_a_table_of_somebody_elses_is_not_taken_for_one_of_dead_letters(make):
    """Its name is taken: nothing is written to it, and nothing is passed."""
    world = make()
    world.produce("0 x 2")
    namespace = ".".join(world.table.split(".")[:2])
    world.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    world.spark.sql(f"CREATE TABLE {world.table}_dead_letters (topic string, partition int, offset bigint)")
    error = world.live()
    assert isinstance(error, kl.TableSchemaError)
    assert "no table of dead letters" in str(error)
    assert (world.offsets_in_table(), world.letters(), bool(world.committed_offset())) == ([], [], False)


def test_a_spark_that_was_started_anew_is_no_fault_of_a_record(make):
    """While a transform worked in Python: no record is looked for, and the next run does it all."""
    world = make()
    world.produce("0 1 2")
    calls = []

    def interrupted(batch):
        calls.append(batch)
        if len(calls) == 1:
            batch.sparkSession.client._server_session_id = "of the server before"
        return batch.selectExpr("topic", "partition", "offset", f"{BROKEN} AS value")

    world.value = interrupted
    error = world.live()
    assert isinstance(error, SparkUnreachableError)
    assert "was lost in the middle of a batch: the server restarted, or it ended this session" in str(error)
    assert world.pending() == []
    assert world.live() is None
    assert world.offsets_in_table() == [0, 1, 2]


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.usefixtures("spark_reads")
def test_records_that_are_deleted_under_a_batch_are_planned_again(make, in_flight):
    """By retention, after a batch was planned: the broker is asked again, and no bad record is looked for."""
    world = make(batching={**DEAD_LETTERS, "in_flight": in_flight}, max_poll_records=4)
    world.produce("0 1 2 3 4 5 6 7")
    expires_to, calls = [2], []

    def late(batch):
        calls.append(batch)
        if expires_to:
            world.expire(expires_to.pop())
        return batch.selectExpr("topic", "partition", "offset", f"{BROKEN} AS value")

    world.value = late
    error = world.live()
    assert isinstance(error, kl.DataExpiredError), error
    assert f"{world.topic}:0 is committed at 0 but its log starts at 2" in str(error)
    assert (world.committed_offset(), len(calls) <= in_flight) == (0, True)

    skip = {"offsets": kl.Offsets(on_data_loss="write_off")}
    assert world.live(**skip) is None
    world.produce("8 9 10 11 12 13")
    expires_to.append(10)
    assert world.live(**skip) is None
    assert (world.offsets_in_table(), world.letters(), world.pending(), world.committed_offset()) == (
        [*range(2, 8), *range(10, 14)],
        [],
        [],
        14,
    )
    assert "Planning it again" in world.newest_log()
    assert "lost" in world.newest_log()


@pytest.mark.usefixtures("spark_reads")
def test_a_topic_that_goes_under_a_batch_is_named(make):
    """Deleted, and made anew: its records are of another life."""
    world = make()
    world.produce("0 1 2 3")

    def anew(batch):
        if world.log_end == 0:
            world.recreate_topic(2)
        return batch.selectExpr("topic", "partition", "offset", f"{BROKEN} AS value")

    world.value = anew
    error = world.live()
    assert isinstance(error, kl.TopicRecreatedError), error
    assert (world.offsets_in_table(), world.letters()) == ([], [])


def test_no_value_leaves_a_run_where_the_environment_says_so(make, monkeypatch, capfd):
    """Not by an error of Spark or of Python (transform, function); not in an event, log line or letter."""
    monkeypatch.setenv("KAFKA_LIVENESS_HIDE_VALUES", "true")
    world = make(batching={"in_flight": 1})
    world.produce("tr0ub4dor")
    for value in (BROKEN, in_python, by_a_udf):
        world.value = value
        error = world.live()
        assert isinstance(error, (SparkFailedError, TransformError)), error
        assert error.__cause__ is None, "Dagster shows the causes, too"
    kept = make()
    kept.produce("tr0ub4dor 1")
    assert kept.live() is None
    [letter] = kept.letter_rows()
    assert "[CAST_INVALID_INPUT]" in letter["error"]
    told = [letter["error"], repr(kept.reported(0)), *capfd.readouterr()]
    told += [str(entry) for one in (world, kept) for run in one.instance.get_runs()
             for entry in one.instance.all_logs(run.run_id)]  # fmt: skip
    assert any("[CAST_INVALID_INPUT]" in text for text in told[4:])
    lines = [line for text in told for line in text.splitlines() if "tr0ub4dor" in line]
    assert lines == []
