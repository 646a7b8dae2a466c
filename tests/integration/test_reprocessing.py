"""What was done is done again by today's transform, when somebody materializes its partition once more."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import dagster as dg
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

import kafka_liveness_dagster as kl
from kafka_liveness_dagster.cli.main import main
from kafka_liveness_dagster.runs.tags import CAUSE_CRASH_LAG, CAUSE_TAG
from tests.integration.group_with_table import GroupWithTable, written_rows

MENDED = "concat('mended ', cast(value AS string))"
THEN = datetime(2026, 11, 22, 10, tzinfo=timezone.utc)


@pytest.fixture
def world(services, produce, rows, warm_spark):
    """A group on the real components."""
    return GroupWithTable(services, produce, rows, warm_spark)


def mended(world):
    """The offsets whose rows are of the mended transform."""
    return [offset for offset, value in world.values().items() if value.startswith("mended ")]


def dies_at(offset):
    """What ends a run in the batch that has this offset."""

    def die(batch):
        if batch.selectExpr("max(offset)").first()[0] >= offset:
            raise ValueError("power is gone")

    return die


def state(world, key):
    """What the partition says of its last run."""
    asset = dg.AssetKey(f"{world.name}_crash_lag")
    event = world.instance.get_latest_data_version_record(asset, partition_key=key)
    return event.asset_materialization.metadata["state"].value


def test_a_materialized_partition_is_processed_again(world):
    """Exactly its offsets are replaced, and neither commit log changes."""
    world.crash_and_resume_at_120()
    assert world.catch_up((70, 120)) is None
    assert state(world, f"p0:{world.topic}:70-120") == "processed by this run"
    before, world.value = (world.committed(), world.catch_up_log(), world.pending_by_live_log()), MENDED
    assert world.catch_up((70, 120)) is None
    assert state(world, f"p0:{world.topic}:70-120") == "reprocessed by this run"
    assert mended(world) == written_rows(70, 120)
    assert world.offsets() == written_rows(0, 120)
    assert (world.committed(), world.catch_up_log(), world.pending_by_live_log()) == before


def test_the_sensor_wants_nothing_again(world):
    """It asks for what is missing, and somebody's backfill may have been faster."""
    world.crash_and_resume_at_120()
    assert world.catch_up((70, 120)) is None
    world.value = MENDED
    tags = {CAUSE_TAG: CAUSE_CRASH_LAG, "dagster/sensor_name": "groups_sensor"}
    assert world.catch_up((70, 120), tags=tags) is None
    assert mended(world) == []
    assert state(world, f"p0:{world.topic}:70-120") == "processed before this run"


def test_materialize_all_wants_only_what_is_missing_again(world):
    """One partition is done, and another is not."""
    world.crash_and_resume_at_120()
    assert world.catch_up((70, 90)) is None
    world.value = MENDED
    assert world.catch_up((70, 90), (90, 120), tags=world.materialize_all()) is None
    assert mended(world) == written_rows(90, 120)
    assert state(world, f"p0:{world.topic}:70-90") == "processed before this run"
    assert world.catch_up((70, 90), tags=world.materialize_all()) is None
    assert f"Left p0:{world.topic}:70-90 alone" in world.newest_log()
    assert world.catch_up((70, 90)) is None
    assert mended(world) == written_rows(70, 120)


def test_one_that_was_begun_goes_on_where_it_was(world):
    """It was never finished: what is done of it is not touched."""
    world.crash_and_resume_at_120()
    assert world.catch_up((70, 120), between=dies_at(100), max_poll_records=20) is not None
    world.value = MENDED
    assert world.catch_up((70, 120)) is None
    assert mended(world) == written_rows(90, 120)
    assert world.offsets() == written_rows(0, 120)


def test_one_that_dies_while_it_is_done_again_begins_anew(world):
    """Rows of both transforms meanwhile, each offset's once; then all are of the newer one."""
    world.crash_and_resume_at_120()
    assert world.catch_up((70, 120)) is None
    world.value = MENDED
    assert world.catch_up((70, 120), between=dies_at(100), max_poll_records=20) is not None
    assert (mended(world), world.offsets()) == (written_rows(70, 90), written_rows(0, 120))
    assert world.catch_up((70, 120)) is None
    assert (mended(world), world.offsets()) == (written_rows(70, 120), written_rows(0, 120))


@pytest.mark.parametrize("on_data_loss", ["raise", "write_off"])
def test_what_the_broker_no_longer_has_is_named_and_nothing_is_touched(world, on_data_loss):
    """Its rows are there, and stay: none of it counts as lost."""
    world.crash_and_resume_at_120()
    assert world.catch_up((70, 120)) is None
    world.expire(80)
    before, world.value = (world.snapshots(), world.catch_up_log()), MENDED
    error = world.catch_up((70, 120), offsets=kl.Offsets(on_data_loss=on_data_loss))
    assert isinstance(error, kl.DataExpiredError)
    assert f"p0:{world.topic}:70-80, 10 offsets, cannot be processed again" in str(error)
    assert (world.snapshots(), world.catch_up_log()) == before
    assert world.offsets() == written_rows(0, 120)


@pytest.mark.usefixtures("spark_reads")
def test_what_expires_under_a_batch_of_crash_lag_is_named_or_passed(world):
    """The broker is asked again, and says what it still has.

    What the crash read Spark may have kept: 70-100.
    """
    world.crash_and_resume_at_120()
    error = world.catch_up((70, 120), between=lambda _: world.expire(105))
    assert isinstance(error, kl.DataExpiredError), error
    assert f"p0:{world.topic}:70-105: 35 pending offsets expired" in str(error)
    skip = kl.Offsets(on_data_loss="write_off")
    assert world.catch_up((70, 120), between=lambda _: world.expire(110), offsets=skip) is None
    assert world.offsets() == written_rows(0, 70) + written_rows(110, 120)
    assert world.materialized_ranges() == [(70, 120)]


@pytest.fixture
def timed(world):
    """A group that has processed 100 records, one a second."""
    producer = Producer({"bootstrap.servers": world.servers})
    for second in range(100):
        at = THEN + timedelta(seconds=second)
        producer.produce(
            world.topic, str(second).encode(), partition=0, timestamp=round(at.timestamp() * 1000)
        )
    assert producer.flush(120) == 0
    assert world.live() is None
    return world


def replay(world, home, *arguments):
    """``kafka-liveness replay``: its exit code, what it said, and the partitions that Dagster has then."""
    home.mkdir(exist_ok=True)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for key in world.instance.all_asset_keys():
            for record in world.instance.fetch_materializations(key, limit=10).records:
                instance.report_runless_asset_event(record.asset_materialization)
    typed = ["replay", world.group, "--bootstrap-servers", world.servers, *arguments]
    told = CliRunner().invoke(main, typed, env={"DAGSTER_HOME": str(home)})
    with dg.DagsterInstance.from_config(str(home)) as instance:
        return told.exit_code, told.output, list(instance.get_dynamic_partitions(f"{world.name}_crash_lag"))


def test_a_window_of_time_is_processed_again(timed, tmp_path):
    """By the partitions that the command adds; half-open, and in whatever zone it is told."""
    window = ["--from", "2026-11-22T10:00:30Z", "--to", "2026-11-22T11:01:00+01:00"]
    code, said, keys = replay(timed, tmp_path / "home", *window)
    assert code == 0, said
    span, _, again = keys[0].partition("@")
    assert (len(keys), span) == (1, f"p0:{timed.topic}:30-60")
    timed.value = MENDED
    assert timed.catch_up((30, 60)) is None
    assert mended(timed) == [], "a partition added by hand has nothing that is owed"
    assert timed.catch_up((30, 60), again=f"@{again}") is None
    assert (mended(timed), timed.offsets()) == (written_rows(30, 60), written_rows(0, 100))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(
            ["--from", "2026-11-22T12:00Z"], "has processed no offset of that time", id="later than all"
        ),
        pytest.param(
            ["--from", "2026-11-22T11:00Z", "--to", "2026-11-22T10:00Z"], "is not after", id="backwards"
        ),
        pytest.param(
            ["--from", "2026-11-22T09:00Z", "--topic", "none"], "topic 'none' does not exist", id="no topic"
        ),
        pytest.param(
            ["--from", "2026-11-22T10:00Z", "--asset", "x_crash_lag"],
            "no crash lag asset x_crash_lag",
            id="no asset",
        ),
    ],
)
def test_what_cannot_be_replayed_adds_nothing(timed, tmp_path, arguments, says):
    """A sentence, and exit code 1."""
    code, said, keys = replay(timed, tmp_path / "home", *arguments)
    assert (code, keys) == (1, [])
    assert says in " ".join(said.split())


def test_only_a_crash_lag_asset_of_the_group_gets_partitions(timed, tmp_path):
    """No complete hours, and not the asset of another group: the refusal has the names that exist."""
    timed.settings |= {"complete_every": "1h", "completeness": kl.Completeness(start="2026-11-22")}
    asset, defs = timed.definitions()
    job = dg.define_asset_job("by_hand", selection=[asset.windows])
    job = dg.Definitions.merge(defs, dg.Definitions(jobs=[job])).resolve_job_def("by_hand")
    assert job.execute_in_process(instance=timed.instance, partition_key="2026-11-22-10:00").success
    clicks = {"group": "clicks-etl", "processed": "p0:clicks:0-70"}
    timed.instance.report_runless_asset_event(dg.AssetMaterialization("clicks", metadata=clicks))

    home, window = tmp_path / "home", ["--from", "2026-11-22T10:00Z"]
    ours = f"{timed.name}_crash_lag"
    for wrong in (f"{timed.name}_by_hour_crash_lag", f"{timed.name}_by_hour", timed.name, "clicks_crash_lag"):
        code, said, keys = replay(timed, home, *window, "--asset", wrong)
        assert (code, keys) == (1, []), said
        assert f"has no crash lag asset {wrong} of group {timed.group}. It has: {ours}" in " ".join(
            said.split()
        )
        with dg.DagsterInstance.from_config(str(home)) as instance:
            assert instance.get_dynamic_partitions(wrong) == []
    for named in ([], ["--asset", ours]):
        code, said, keys = replay(timed, home, *window, *named)
        assert (code, len(keys) > 0) == (0, True), said
        assert f"Added to {ours}" in said


def test_a_window_that_may_have_begun_before_the_log(timed, tmp_path):
    """Nobody knows when the deleted records were: it is said, and taken if somebody wants what is left."""
    timed.expire(20)
    asset = ["--asset", f"{timed.name}_crash_lag"]
    code, said, keys = replay(timed, tmp_path / "home", "--from", "2026-11-22T10:00:00Z", *asset)
    assert (code, keys) == (1, [])
    assert "has deleted the first 20 offsets" in " ".join(said.split())
    code, _, keys = replay(
        timed, tmp_path / "home", "--from", "2026-11-22T10:00:00Z", "--allow-expired", *asset
    )
    assert (code, [key.partition("@")[0] for key in keys]) == (0, [f"p0:{timed.topic}:20-100"])


def test_what_is_owed_or_not_read_yet_is_left_out(world, tmp_path):
    """It has partitions of its own, or the live lane comes to it."""
    world.crash_and_resume_at_120()
    world.grow_to(130)
    asset = ["--asset", f"{world.name}_crash_lag"]
    code, said, keys = replay(world, tmp_path / "home", "--from", "2020-01-01T00:00Z", *asset)
    assert (code, [key.partition("@")[0] for key in keys]) == (0, [f"p0:{world.topic}:0-70"])
    assert f"because they are pending and have partitions of their own: p0:{world.topic}:70-120" in said
    assert "because the live lane has not read them yet: 10 offsets" in said
