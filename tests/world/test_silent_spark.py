"""Spark's network falls silent, without a reset and without an end: each run ends by itself, by name, and in time."""

from __future__ import annotations

import re
import socket

import pytest

from tests.world.lonely import AFTER, BUDGET, SIZE, START, Lonely, ends, goes_on
from tests.world.silent_proxy import SilentProxy
from tests.world.stories import wait_for

PORT = re.compile(r":(\d+)")


@pytest.fixture
def proxy(services):
    """In front of the Spark Connect server."""
    with SilentProxy(int(PORT.search(services.spark_remote)[1])) as found:
        yield found


@pytest.fixture
def lonely(services, make_topic, produce, table, tmp_path, proxy, warm_spark):  # noqa: PLR0917
    """Four batches of data, and a table without rows."""
    topic = make_topic()
    produce(services.bootstrap_servers, topic, 0, map(str, range(4 * SIZE)))
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    found = Lonely(services, topic, table, tmp_path, PORT.sub(f":{proxy.port}", services.spark_remote, count=1))
    found.make_table(warm_spark)
    return found


@pytest.mark.parametrize("in_flight", [1, 2])
def test_in_the_middle_of_a_batch(lonely, proxy, spark, rows, in_flight):
    """Spark works and is heard no more: fenced at its budget, given up soon after it, nothing of it committed."""
    with lonely.start(batches_in_flight=in_flight) as run:
        wait_for(lambda: lonely.is_busy(spark), START)
        before = lonely.committed()
        proxy.fall_silent()
        told = ends(run, error="SparkSilentError", within=BUDGET + AFTER)
    assert str(proxy.port) in told
    assert re.search(r"said nothing for \d+ s", told), told
    assert lonely.committed() == before
    proxy.talk()
    goes_on(lonely, rows)


def test_in_the_analysis(lonely, proxy, rows):
    """The transform's schema is asked for and never told."""
    with lonely.start(pauses_in="transform") as run:
        run.said("transform")
        proxy.fall_silent()
        run.go_on()
        ends(run, error="SparkSilentError", within=BUDGET + AFTER)
    assert lonely.committed() == 0
    proxy.talk()
    goes_on(lonely, rows)


def test_before_the_first_connection(lonely, proxy, rows):
    """It is connected to, and says nothing."""
    proxy.fall_silent()
    with lonely.start(pauses_in="start") as run:
        run.said("start")
        run.go_on()
        ends(run, error="SparkUnreachableError", within=BUDGET + AFTER)
    proxy.talk()
    goes_on(lonely, rows)


def test_while_the_run_stops(lonely, proxy, rows):
    """All is committed, and the session cannot be ended: the run was good, and so it is told."""
    with lonely.start(slow=False, idle_seconds=3.0) as run:
        wait_for(lambda: lonely.committed() == 4 * SIZE, START)
        proxy.fall_silent()
        said, seconds = run.end()
    assert said == {"success": True}
    assert seconds < AFTER
    proxy.talk()
    goes_on(lonely, rows)


def test_terminate(lonely, proxy, spark, rows):
    """The button in the UI ends a run that hears nothing, however large its budget is."""
    with lonely.start(max_batch_seconds=300) as run:
        wait_for(lambda: lonely.is_busy(spark), START)
        proxy.fall_silent()
        run.terminate(lonely.home)
        _, seconds = run.end()
    assert seconds < AFTER
    proxy.talk()
    goes_on(lonely, rows)


def test_a_catalog_that_accepts_and_never_answers(lonely, rows):
    """Spark itself answers, and what it waits for does not: the same end."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        catalog, port = "spark.sql.catalog.mute", mute.getsockname()[1]
        settings = {
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "rest",
            f"{catalog}.uri": f"http://127.0.0.1:{port}",
        }
        with lonely.start(table="mute.shop.orders", settings=settings, pauses_in="start") as run:
            run.said("start")
            run.go_on()
            ends(run, error="SparkSilentError", within=BUDGET + AFTER)
    goes_on(lonely, rows)
