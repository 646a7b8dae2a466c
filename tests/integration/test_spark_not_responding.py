"""Spark's network falls silent, without a reset and without an end.

Each run ends by itself, by name, and in time.
"""

from __future__ import annotations

import functools
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from tests.integration.partitioned_network import (
    AFTER,
    BUDGET,
    SIZE,
    PartitionedNetwork,
    check_recovery,
    ends,
    slowness,
)
from tests.integration.silent_proxy import SilentProxy
from tests.waiting import wait_for

PORT = re.compile(r":(\d+)")


def in_the_middle_of_a_batch(isolated, proxy, spark, rows, *, in_flight):
    """Spark works and is heard no more.

    Fenced at its budget, given up soon after it, nothing of it committed.
    """
    with isolated.start(batching={"in_flight": in_flight}) as run:
        wait_for(lambda: isolated.is_busy(spark), what="Spark has a row of the run", details=run.shown)
        proxy.fall_silent()
        told = ends(run, error="SparkNotRespondingError", within=BUDGET + AFTER)
    assert str(proxy.port) in told
    assert re.search(r"sent nothing for \d+ s", told), told
    assert isolated.committed() in {0, SIZE * (in_flight - 1)}, "the first of two may have landed before"
    assert isolated.committed() <= len(rows(isolated.table))
    proxy.resume()
    check_recovery(isolated, rows)


def in_the_analysis(isolated, proxy, spark, rows):
    """The transform's schema is asked for and never told."""
    with isolated.start(pauses_in="transform") as run:
        run.log_messages("transform")
        proxy.fall_silent()
        run.go_on()
        ends(run, error="SparkNotRespondingError", within=BUDGET + AFTER)
    assert isolated.committed() == 0
    proxy.resume()
    check_recovery(isolated, rows)


def before_the_first_connection(isolated, proxy, spark, rows):
    """It is connected to, and says nothing."""
    proxy.fall_silent()
    with isolated.start(pauses_in="start", is_patient=False) as run:
        run.log_messages("start")
        run.go_on()
        ends(run, error="SparkUnreachableError", within=BUDGET + AFTER)
    proxy.resume()
    check_recovery(isolated, rows)


def while_the_run_stops(isolated, proxy, spark, rows):
    """All is committed, and the session cannot be ended: the run was good, and so it is told."""
    with isolated.start(slow=False, idle_seconds=3.0) as run:
        wait_for(lambda: isolated.committed() == 4 * SIZE, what="all is committed", details=run.shown)
        proxy.fall_silent()
        said, seconds = run.end()
    assert said == {"success": True}
    assert seconds < AFTER * slowness()
    proxy.resume()
    check_recovery(isolated, rows)


def terminate(isolated, proxy, spark, rows):
    """The button in the UI ends a run that hears nothing, however large its budget is."""
    with isolated.start(max_batch_seconds=300) as run:
        wait_for(lambda: isolated.is_busy(spark), what="Spark has a row of the run", details=run.shown)
        proxy.fall_silent()
        run.terminate(isolated.home)
        _, seconds = run.end()
    assert seconds < AFTER * slowness()
    proxy.resume()
    check_recovery(isolated, rows)


def a_catalog_that_accepts_and_never_answers(isolated, proxy, spark, rows):
    """Spark itself answers, and what it waits for does not: the same end."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        catalog, port = "spark.sql.catalog.mute", mute.getsockname()[1]
        settings = {
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "rest",
            f"{catalog}.uri": f"http://127.0.0.1:{port}",
        }
        with isolated.start(table="mute.shop.orders", settings=settings, pauses_in="start") as run:
            run.log_messages("start")
            run.go_on()
            ends(run, error="SparkNotRespondingError", within=BUDGET + AFTER)
    check_recovery(isolated, rows)


CASES = {
    "in the middle of a batch": functools.partial(in_the_middle_of_a_batch, in_flight=1),
    "in the middle of two": functools.partial(in_the_middle_of_a_batch, in_flight=2),
    "in the analysis": in_the_analysis,
    "before the first connection": before_the_first_connection,
    "while the run stops": while_the_run_stops,
    "terminate": terminate,
    "a catalog that never answers": a_catalog_that_accepts_and_never_answers,
}
AT_ONCE = 3  # most of it is waiting
GATE = (
    "in the middle of two",
    "in the analysis",
    "before the first connection",
    "a catalog that never answers",
)
OTHERS = tuple(case for case in CASES if case not in GATE)


@pytest.mark.parametrize(
    "names", [GATE, pytest.param(OTHERS, marks=pytest.mark.certify)], ids=["gate", "others"]
)
def test_each_run_ends_by_itself_and_the_next_goes_on(  # noqa: PLR0917
    services, make_topic, produce, rows, spark, warm_spark, tmp_path, names
):
    """Each with four batches of data, a table without rows, and a connection to Spark of its own."""

    def told(case):
        topic, home = make_topic(), tmp_path / uuid4().hex
        produce(services.bootstrap_servers, topic, 0, map(str, range(4 * SIZE)))
        home.mkdir()
        (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        with SilentProxy(int(PORT.search(services.spark_remote)[1])) as proxy:
            remote = PORT.sub(f":{proxy.port}", services.spark_remote, count=1)
            isolated = PartitionedNetwork(
                services, topic, f"lake.{topic.replace('-', '_')}.orders", home, remote
            )
            isolated.make_table(warm_spark)
            case(isolated, proxy, spark, rows)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = {name: pool.submit(told, CASES[name]) for name in names}
    assert {name: outcome.exception() for name, outcome in outcomes.items() if outcome.exception()} == {}
