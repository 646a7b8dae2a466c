"""What the benchmarks rest on.

A wrong table is never timed, and the same numbers give the same words and pictures.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import struct
from math import nan

import click
import dagster as dg
import pytest

import benchmarks
import kafka_liveness_dagster as kl
from benchmarks import jvm, pictures
from benchmarks.lake import Lake, fill, is_exact, new_topic, to_rows
from benchmarks.soak_told import Course, in_runs, of
from benchmarks.turns import Seconds
from benchmarks.ways import Runs


def commands():
    """Return the command of each benchmark that has one, by module."""
    modules = [
        importlib.import_module(f"benchmarks.{one.name}") for one in pkgutil.iter_modules(benchmarks.__path__)
    ]
    found = {module.__name__: getattr(module, "main", None) for module in modules}
    return {name: one for name, one in found.items() if isinstance(one, click.Command)}


def test_a_benchmark_takes_the_options_that_it_declares():
    """A renamed option is found before somebody waits for services; click passes options by name."""
    found = commands()
    declared = {name: {one.name for one in command.params} for name, command in found.items()}
    taken = {name: set(inspect.signature(command.callback).parameters) for name, command in found.items()}
    assert declared["benchmarks.live_throughput"] >= {"records", "svg_file"}
    assert declared == taken


def test_only_a_table_with_each_offset_once_is_timed(services, warm_spark, tmp_path):
    """A hole that a row too many makes up for in the count ends the benchmark, instead of being timed."""
    lake = Lake(services.bootstrap_servers, warm_spark, tmp_path, None)
    table = lake.new_table()
    rows = "VALUES (0L), (1L), (1L), (3L) AS t(offset)"
    warm_spark.sql(f"INSERT INTO {table.quoted} SELECT 'orders', 0, offset, 'order' FROM {rows}")
    with pytest.raises(RuntimeError, match="has 4 rows of 3 offsets in ranges of 4"):
        lake.drop_exact(table, 4)


def test_both_lanes_are_timed_as_they_are(services, warm_spark, tmp_path):
    """By resources that stand for the package's: what a run asks them for, they have.

    Their tables are exact.
    """
    topic = new_topic(services.bootstrap_servers, 1)
    fill(services.bootstrap_servers, topic, 1, 50)
    with dg.DagsterInstance.ephemeral() as instance:
        lake = Lake(services.bootstrap_servers, warm_spark, tmp_path, instance)
        table = lake.new_table()
        asset = kl.kafka_asset(
            topics=[topic],
            group_id=topic,
            name=topic,
            table=table.name,
            max_poll_records=20,
            idle_seconds=0.1,
        )(to_rows)
        committed = []
        assert Runs(lake).live(asset, committed.append).seconds > 0
        assert [batch.max_records for batch in committed] == [20, 20, 10]
        lake.drop_exact(table, 50)


@pytest.mark.parametrize(
    ("rows", "different", "span", "expected", "exact"),
    [
        pytest.param(4, 4, 4, 4, True, id="each once"),
        pytest.param(4, 4, 4, None, True, id="however many"),
        pytest.param(4, 4, 4, 5, False, id="too few"),
        pytest.param(5, 4, 4, 4, False, id="one twice"),
        pytest.param(3, 3, 4, 3, False, id="a hole"),
        pytest.param(4, 3, 4, 4, False, id="one twice and a hole"),
        pytest.param(None, None, None, None, False, id="nothing at all"),
    ],
)
def test_what_an_exact_table_is(rows, different, span, expected, exact):
    """Rows, different offsets and the length of their ranges are one number, and that is the expected one."""
    assert is_exact(rows, different, span, expected) is exact


def test_ratios_are_those_of_each_repetition():
    """A slow minute that hits both sides of one repetition leaves the ratio alone."""
    found = Seconds({"bound": [1.0, 10.0, 1.0], "ours": [2.0, 20.0, 2.0]})
    assert found.ratios("bound", "ours") == "0.50 (0.50-0.50)"
    assert found.spread("ours") == "2.00 s (2.00-20.00)"


def test_the_same_numbers_give_the_same_picture(tmp_path):
    """Drawn again, nothing of the file changes: a commit shows only what was measured anew."""
    for name in ("once", "again"):
        pictures.bars(
            tmp_path / f"{name}-bars.svg",
            "speed",
            [("ours", 4.0, "4/s", "red"), ("bound", 5.0, "5/s", "blue")],
        )
        pictures.lines(
            tmp_path / f"{name}-lines.svg", "time", [1, 2], {"ours: 1 s": ([1.0, 1.0], "red")}, "million"
        )
        two = {"ours": ([1.0, nan], "red"), "theirs": ([2.0, 2.0], "blue")}
        pictures.multiples(
            tmp_path / f"{name}-multiples.svg", [1, 2], {"memory": two, "files": {}}, "minutes"
        )
    for kind in ("bars", "lines", "multiples"):
        once, again = ((tmp_path / f"{name}-{kind}.svg").read_text() for name in ("once", "again"))
        assert once == again
        assert "ours" in " ".join(re.findall(r">([^<>]+)</text>", once)), "what is said is text"


def test_what_grows_in_a_soak_is_seen():
    """Its first tenth, in which caches fill, is shown and counts for nothing.

    What is missing at times is no matter.
    """
    samples = [
        {"at": 6.0 * n, "even": 5.0, "grows": 10.0 + n, "worker age": 6.0 * (n % 50)} for n in range(100)
    ]
    samples[0]["even"] = 1_000.0
    del samples[40]["even"]
    assert of(samples, "even") == Course(5.0, 5.0, 5.0, 1.0, 0.0)
    assert of(samples, "grows")._replace(ratio=0) == Course(14.5, 24.5, 104.5, 0, 600.0)
    assert in_runs(samples, "grows") == [600.0, 600.0], "two lives"


def test_the_counters_of_a_jvm_are_read():
    """Texts among them, and whatever is no such file, are passed over."""
    name, text = b"sun.used\0", b"java.version\0"
    used = struct.pack("<iii4Bi", 37, 20, 0, ord("J"), 0, 2, 3, 29) + name + struct.pack("<q", 4_711)
    told = struct.pack("<iii4Bi", 35, 20, 2, ord("B"), 0, 5, 1, 33) + text + b"17"
    header = b"\xca\xfe\xc0\xc0" + bytes([1, 2, 0, 1]) + struct.pack("<iiqii", 32 + 72, 0, 0, 32, 2)
    assert jvm.parsed(header + used + told) == {"sun.used": 4_711}
    assert jvm.parsed(b"nothing of the kind") == {}
