"""SIGKILL of a run at every step of either lane: nothing lost, nothing doubled, nothing owed for ever.

The run of a child process is killed, alone or beside another run of its lane; ten records come to each
partition; then the living do what the sensor asks for. How they run varies from step to step, so that any two
conditions meet.
"""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import dagster as dg
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import PySparkException

from kafka_liveness_dagster.core.offsets import Span, difference
from kafka_liveness_dagster.failpoints import Failpoint
from tests.history.checker import check
from tests.history.observer import Observer
from tests.integration.abandoned_spark_session import await_end
from tests.integration.dagster_runs import ALONE_YAML
from tests.integration.killed_runs import HEARTBEAT, PARTITIONS, SESSION, Catalog, KilledLocation, OtherMember

READING, COMMITTING = "Spark reads", "Spark commits"
LIVE, IN_ORDER, CATCH_UP = "live", "live in order", "catch-up"


class Conditions(NamedTuple):
    """How the runs of a group work; ``lane`` and ``in_flight`` (batches) are the doomed one's too."""

    lane: str
    protocol: str
    members: int
    in_flight: int
    snapshots: str = "overwrite"


@pytest.fixture(scope="module")
def instance(tmp_path_factory):
    """Dagster's records in a folder that the worker processes share."""
    home = tmp_path_factory.mktemp("dagster")
    (home / "dagster.yaml").write_text(ALONE_YAML)
    with dg.DagsterInstance.from_config(str(home)) as found:
        yield found


@pytest.fixture
def location(services, instance, make_topic, make_group, produce, table, catalog, warm_spark, tmp_path):  # noqa: PLR0917
    """Make a group that is about to lose a run: ``location(conditions)``."""
    with ExitStack() as others:

        def make(conditions):
            topics = [make_topic(len(PARTITIONS)), make_topic(len(PARTITIONS))]
            lane, group = conditions.lane, make_group(SESSION, HEARTBEAT)
            settings = {**conditions._asdict(), "parallel": lane != IN_ORDER}
            del settings["lane"]
            found = KilledLocation(instance, services, topics, table, group, **settings)
            found.history = Observer(
                tmp_path / "history.jsonl",
                bootstrap_servers=services.bootstrap_servers,
                topics=topics,
                group=group,
                load_table=lambda: catalog.load_table(table.partition(".")[2]),
            )

            def more(*counts):
                for topic, count in zip(topics, counts, strict=True):
                    for partition in PARTITIONS:
                        produce(services.bootstrap_servers, topic, partition, map(str, range(count)))

            more(100, 0)
            found.crash(warm_spark)
            more(20, 100)
            if lane == CATCH_UP:
                found.run("live")
                found.tick()
                assert found.missing() == [f"p{partition}:{topics[0]}:70-120" for partition in PARTITIONS]
            found.more, found.other = more, None
            if conditions.members > 1:
                found.other = others.enter_context(closing(OtherMember(found, lane)))
                more(100, 0)  # whichever partitions it gives away, there is something to do
            return found

        yield make


@pytest.fixture
def catalog(services):
    """The catalog of this file: it is locked for seconds, and the other one is everybody's."""
    folder = Path(services.warehouse).parent
    return SqlCatalog("locked", uri=f"sqlite:///{folder}/locked.db?timeout=60", warehouse=f"{folder}/locked")


@pytest.fixture
def table():
    """The name of a table that does not exist yet."""
    return f"locked.shop_{uuid4().hex[:8]}.orders"


@pytest.fixture
def held_up(catalog):
    """The catalog, released when the test ends."""
    with closing(Catalog(catalog.engine.url.database)) as found:
        yield found


def offsets(rows, tp):
    """The offsets that the table has of a partition, as often as it has them."""
    return [row["offset"] for row in rows if (row["topic"], row["partition"]) == tp]


def check_invariants(location, rows, meanwhile=lambda: None):
    """Every offset below the live commit log is in the table or owed; no offset is there twice.

    The table is read last: what a dead run left with Spark may land at any time, and is owed no more from
    then on.
    """
    facts = location.facts()
    location.history.committed()
    meanwhile()
    began = time.time()
    found = rows(location.table)
    location.history.read_rows(
        ((row["topic"], row["partition"], row["offset"]) for row in found), began=began
    )
    for tp, one in facts.items():
        there = offsets(found, tp)
        done = difference((Span(0, one.committed or 0),), one.outstanding)
        assert {n for span in done for n in range(*span)} <= set(there)
        assert len(there) == len(set(there))
    return facts, found


def recover(location, lane, rows, meanwhile=lambda: None):
    """The other run goes on, or the killed lane's next one; what the sensor asks for.

    Then look at everything.
    """
    check_invariants(location, rows, meanwhile)
    location.more(10, 10)
    if location.other is not None:
        location.other.serve()
        check_invariants(location, rows)
    elif lane == CATCH_UP:
        location.backfill()
    if location.tick():
        location.run("live")
        location.tick()
    location.backfill()
    check_all_done(location, rows)


def check_all_done(location, rows):
    """Nothing is owed or missing, nothing is behind, and the table has each offset once."""
    facts, found = check_invariants(location, rows)
    for tp, one in facts.items():
        assert one.outstanding == ()
        assert one.committed == one.log_end
        assert offsets(found, tp) == list(range(one.log_end))
    assert location.missing() == []
    assert not location.tick(), "nothing is left to do"
    assert location.missing() == [], "what is done is not owed again"
    check_history(location)


def check_history(location):
    """Compare the records, both commit logs, the reports and all reads, as an external observer has them."""
    history = location.history
    history.produced()
    history.committed()
    history.dagster(location.instance, location.asset.name, location.asset.crash_lag.key.path[-1])
    history.written()
    history.read()
    events = history.file.events()
    assert {"produced", "committed", "green", "read"} <= {event.type for event in events}
    assert check(events) == []


@pytest.fixture
def check_streamed(warm_spark, tmp_path):
    """A stream reads each row once.

    Where a batch came again it stops and says so, and nobody reads a row twice.
    """

    def check(location, rows):
        sql = f"SELECT operation FROM {location.table}.snapshots ORDER BY committed_at"
        operations = [row[0] for row in warm_spark.sql(sql).collect()]
        source = warm_spark.readStream.format("iceberg").load(location.table)
        into, checkpoint = f"{location.table}_copy", str(tmp_path / "checkpoint")
        to = (
            source.writeStream.format("iceberg")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
        )
        query = to.toTable(into)
        if "overwrite" in operations:
            with pytest.raises(PySparkException, match="Cannot process overwrite snapshot"):
                query.awaitTermination(60)
        else:
            assert query.awaitTermination(60)
            keys = [
                [(r["topic"], r["partition"], r["offset"]) for r in rows(name)]
                for name in (into, location.table)
            ]
            assert keys[0] == keys[1]

    return check


STEPS = {
    Failpoint.AFTER_JOIN: 1,
    Failpoint.AFTER_TOKEN_COMMIT: 1,
    Failpoint.AFTER_PLAN: 2,
    Failpoint.AFTER_TABLE_COMMIT: 2,
    Failpoint.AFTER_OFFSET_COMMIT: 2,
    Failpoint.BEFORE_MATERIALIZATION: 1,
}
GATE_KILLS = [
    (Failpoint.AFTER_JOIN, Conditions(LIVE, "classic", 2, 2, "append")),
    (Failpoint.AFTER_TOKEN_COMMIT, Conditions(LIVE, "consumer", 2, 2)),
    (Failpoint.AFTER_PLAN, Conditions(CATCH_UP, "classic", 2, 1)),
    (Failpoint.AFTER_TABLE_COMMIT, Conditions(CATCH_UP, "consumer", 1, 2, "append")),
    (Failpoint.AFTER_TABLE_COMMIT, Conditions(IN_ORDER, "consumer", 2, 2)),
    (Failpoint.AFTER_OFFSET_COMMIT, Conditions(LIVE, "consumer", 2, 1, "append")),
    (Failpoint.BEFORE_MATERIALIZATION, Conditions(LIVE, "classic", 1, 1)),
]
KILLS = [
    *GATE_KILLS,
    (Failpoint.AFTER_JOIN, Conditions(CATCH_UP, "consumer", 1, 1)),
    # The catch-up lane commits no token
    (Failpoint.AFTER_TOKEN_COMMIT, Conditions(IN_ORDER, "classic", 1, 1, "append")),
    (Failpoint.AFTER_PLAN, Conditions(LIVE, "consumer", 1, 2, "append")),
    (Failpoint.AFTER_TABLE_COMMIT, Conditions(LIVE, "classic", 2, 1)),
    (Failpoint.AFTER_OFFSET_COMMIT, Conditions(CATCH_UP, "classic", 1, 2)),
    (Failpoint.BEFORE_MATERIALIZATION, Conditions(CATCH_UP, "consumer", 2, 2, "append")),
]


def named(*told):
    """A case's name: ``live, classic, 2 members, 1 in flight: after_join``."""
    *moment, c = told
    moment = [getattr(one, "value", one) for one in moment]
    words = ["reads" if one == READING else "commits" if one == COMMITTING else one for one in moment]
    return (
        f"{c.lane}, {c.protocol}, {c.members} runs, {c.in_flight} in flight, {c.snapshots}: "
        f"{', '.join(words)}"
    )


def test_any_two_conditions_meet():
    """Each step in each lane that has it, and every value of a condition with every value of every other."""
    tried = [{"step": step.value, **c._asdict()} for step, c in KILLS]
    lanes = {(case["lane"], case["step"]) for case in tried}
    assert lanes >= set(itertools.product((LIVE, CATCH_UP), (s.value for s in STEPS))) - {
        (CATCH_UP, Failpoint.AFTER_TOKEN_COMMIT.value)
    }
    for one, other in itertools.combinations(tried[0], 2):
        values = [{case[name] for case in tried} for name in (one, other)]
        if {one, other} != {"step", "lane"}:
            assert {(case[one], case[other]) for case in tried} == set(itertools.product(*values)), (
                one,
                other,
            )


def cases(every, gate):
    """Each case under its name; those that are not in the gate are left to ``make certify``."""
    assert set(gate) <= set(every)
    return [
        pytest.param(*case, id=named(*case), marks=() if case in gate else pytest.mark.certify)
        for case in every
    ]


@pytest.mark.parametrize(("step", "conditions"), cases(KILLS, GATE_KILLS))
def test_a_run_may_die_between_any_two_steps(location, rows, check_streamed, step, conditions):
    """Whatever the dead run had written or committed, the others leave each offset once and none pending."""
    found = location(conditions)
    found.kill(found.worker(conditions.lane, uuid4()), step, STEPS[step])
    recover(found, conditions.lane, rows)
    if conditions.snapshots == "append":
        check_streamed(found, rows)


FIRST, LOOKED_AT, BETWEEN, LAST = "lands first", "lands while they look", "lands in between", "lands last"
GATE_IN_FLIGHT = [
    (READING, LAST, Conditions(LIVE, "classic", 1, 2)),
    (READING, BETWEEN, Conditions(CATCH_UP, "classic", 1, 2)),
    (COMMITTING, FIRST, Conditions(LIVE, "consumer", 2, 1, "append")),
    (COMMITTING, LOOKED_AT, Conditions(CATCH_UP, "consumer", 1, 1, "append")),
]
IN_FLIGHT = [
    *GATE_IN_FLIGHT,
    (READING, BETWEEN, Conditions(LIVE, "consumer", 1, 1)),
    (READING, FIRST, Conditions(IN_ORDER, "consumer", 1, 2)),
    (COMMITTING, BETWEEN, Conditions(IN_ORDER, "classic", 2, 1, "append")),
    (READING, LAST, Conditions(CATCH_UP, "consumer", 1, 1)),
    (COMMITTING, FIRST, Conditions(CATCH_UP, "classic", 2, 1)),
]


@pytest.mark.parametrize(("moment", "lands", "conditions"), cases(IN_FLIGHT, GATE_IN_FLIGHT))
def test_what_spark_has_in_flight_may_land_at_any_time(  # noqa: PLR0917
    location, held_up, rows, check_streamed, moment, lands, conditions
):
    """The dead run's writes land before its successor's, between its check and its commit, or after it."""
    found, session = location(conditions), uuid4()
    if moment == COMMITTING:
        held_up.hold()
    held = rows(found.table)  # what it writes may land as soon as it is dead
    operations = found.kill(found.worker(conditions.lane, session, killed_while=moment))
    assert len(operations) == conditions.in_flight

    def land():
        held_up.release()
        await_end(f"{found.services.spark_remote};user_id=worker;session_id={session}", *operations)
        assert lands == LAST or len(rows(found.table)) > len(held), "the dead run's write landed"

    if lands == FIRST:
        land()
    elif lands == BETWEEN:
        found.before_write.append(land)
    recover(found, conditions.lane, rows, land if lands == LOOKED_AT else lambda: None)
    if lands == LAST:
        land()
        check_all_done(found, rows)
    assert not found.before_write, "the successor's write came to meet it"
    if conditions.snapshots == "append":
        check_streamed(found, rows)
