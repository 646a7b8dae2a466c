"""The history checker.

A correct history has no anomaly, and each planted one is found, at its offset and no other.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from zlib import crc32

import dagster as dg
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import assume, given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from tests.history.__main__ import main
from tests.history.checker import KINDS, check
from tests.history.events import HistoryError, HistoryFile, event, parse
from tests.history.observer import Observer
from tests.history.planted_defects import plant
from tests.history.report import report
from tests.history.spans import difference, intersection, runs, union

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "tests" / "history").glob("*.py"))
PRODUCT = {"kafka_liveness_dagster", "definitions"}
TOPIC, GROUP = "orders", "orders-etl"


def history(*events):
    """Number ``(type, fields)`` and let one second pass between them."""
    return [event(line, float(line), "one", name, **fields) for line, (name, fields) in enumerate(events, 1)]


def produced(start, end, partition=0, **more):
    return "produced", {"ranges": [[TOPIC, partition, start, end]], **more}


def committed(offset, partition=0, log="live"):
    return "committed", {"group": GROUP, "log": log, "topic": TOPIC, "partition": partition, "offset": offset}


def reported(name, start, end, partition=0):
    """A type with one range, and every other field it needs."""
    words = {"green": {"run": "run 1"}, "pending": {"group": GROUP}}.get(name, {"reason": "planted"})
    return name, {"ranges": [[TOPIC, partition, start, end]], **({} if name == "certified" else words)}


def read(*rows, **more):
    """A read whose rows are ``(start, end)`` or ``(start, end, count)`` of partition 0."""
    return "read", {
        "snapshot": 1,
        "rows": [[TOPIC, 0, *row, *([1] if len(row) == 2 else [])] for row in rows],
        **more,
    }


CLEAN = (
    produced(0, 70),
    committed(70),
    read((0, 70)),
    produced(70, 120),
    produced(130, 190),  # 120-130 are control records: offsets without a record
    committed(130),  # the live lane skips ahead
    reported("pending", 70, 120),
    reported("green", 130, 190),
    committed(190),
    read((0, 70), (130, 190)),
    reported("green", 70, 120),
    ("pending", {"group": GROUP, "ranges": []}),
    reported("certified", 0, 190),
    read((0, 120), (130, 190)),
)


def with_last(*rows, **more):
    """The clean history with another last read."""
    return (*CLEAN[:-1], read(*rows, **more))


def found(*events):
    """The anomalies as ``(kind, start, end)``."""
    return [(one.kind, one.start, one.end) for one in check(history(*events))]


def test_a_correct_history_has_no_anomaly():
    """Crash lag that waits, a skip ahead, offsets without records, reports after their rows.

    All of it is correct.
    """
    assert found(*CLEAN) == []


PLANTED = {
    "lost": (
        (produced(0, 120), committed(100), read((0, 75), (76, 100))),
        ("lost", 75, 76),
    ),
    "lost before the end of a green range": (
        (produced(0, 120), reported("green", 70, 100), read((1, 100))),
        ("lost", 0, 1),
    ),
    "lost below the catch-up commit log, which is processed": (
        (produced(0, 120), committed(80, log="catch-up"), read((0, 79))),
        ("lost", 79, 80),
    ),
    "doubled": (
        (produced(0, 120), committed(120), read((0, 75), (75, 77, 2), (77, 120))),
        ("doubled", 75, 77),
    ),
    "doubled in an earlier read": (
        (produced(0, 120), read((0, 75), (75, 76, 3), (76, 120)), read((0, 120))),
        ("doubled", 75, 76),
    ),
    "out of range": (
        (produced(0, 70), produced(100, 120), committed(120), read((0, 71), (100, 120))),
        ("out_of_range", 70, 71),
    ),
    "changed": (
        (produced(0, 4, values=["a", "b", "c", "d"]), read((1, 4), values=["b", "C", "d"])),
        ("changed", 2, 3),
    ),
    "seen, then gone": (
        (produced(0, 120), read((0, 120)), read((0, 75), (76, 120))),
        ("seen_then_gone", 75, 76),
    ),
    "green without rows": (
        (produced(0, 120), reported("green", 70, 120), reported("pending", 70, 75), read((0, 70), (75, 120))),
        ("green_without_rows", 70, 75),
    ),
    "green before its rows": (
        (produced(0, 120), reported("green", 0, 120), read((0, 119)), read((0, 120))),
        ("green_without_rows", 119, 120),
    ),
    "certified, but absent": (
        (produced(0, 120), reported("certified", 0, 120), read((0, 75), (76, 120))),
        ("certified_but_absent", 75, 76),
    ),
    "committed backwards": (
        (produced(0, 120), committed(120), committed(70), read((0, 120))),
        ("committed_backwards", 70, 120),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_anomaly_is_found_and_nothing_else(name):
    """One defect gives one anomaly, of its kind, at its offsets."""
    events, anomaly = PLANTED[name]
    assert found(*events) == [anomaly]


def test_every_kind_of_anomaly_is_planted():
    """No kind is without its own case."""
    assert {anomaly[0] for _, anomaly in PLANTED.values()} == set(KINDS)


EXCUSES = {
    "written off": (produced(0, 120), reported("written_off", 75, 76), reported("green", 0, 120)),
    "quarantined": (produced(0, 120), reported("quarantined", 75, 76), committed(120)),
    "crash lag that is pending": (produced(0, 120), committed(120), reported("pending", 75, 76)),
    "above the commit": (produced(0, 120), committed(75)),
    "before the group began": (
        produced(0, 120),
        ("started", {"group": GROUP, "topic": TOPIC, "partition": 0, "offset": 76}),
        committed(120),
    ),
}


@pytest.mark.parametrize("name", EXCUSES)
def test_a_record_may_be_absent_for_a_named_reason(name):
    """A record that is given up or pending by name, or not due, is not lost; without the event it is."""
    assert found(*EXCUSES[name], read((0, 75), (76, 120))) == []
    assert found(produced(0, 120), committed(120), read((0, 75), (76, 120))) == [("lost", 75, 76)]


def test_a_rollback_excuses_rows_that_are_gone_since_then():
    """Rows may go between the two reads around a rollback, and not between two others."""
    rollback = ("rolled_back", {"reason": "planted"})
    assert found(produced(0, 9), read((0, 9)), rollback, read((0, 5))) == []
    assert found(produced(0, 9), rollback, read((0, 9)), read((0, 5))) == [("seen_then_gone", 5, 9)]
    assert found(produced(0, 9), read((0, 9)), read((0, 5)), rollback) == [("seen_then_gone", 5, 9)]


def test_a_rollback_excuses_a_report_that_did_not_know_of_it():
    """A report of a batch that was rolled back a moment before; not one of much later."""
    late = [("read", {"snapshot": 1, "rows": []})] * 70  # each event is a second after the one before
    rollback, report = ("rolled_back", {"reason": "planted"}), reported("green", 0, 9)
    assert found(produced(0, 9), rollback, report, read((0, 5)), read((0, 9))) == []
    assert found(produced(0, 9), report, rollback, read((0, 5)), read((0, 9))) == []
    certificate = (rollback, reported("certified", 0, 9), read((0, 5)), read((0, 9)))
    assert found(produced(0, 9), *certificate) == [("certified_but_absent", 5, 9)], "an audit asks the table"
    assert found(produced(0, 9), rollback, *late, report, read((0, 5)), read((0, 9))) == [
        ("green_without_rows", 5, 9)
    ]


def test_an_external_commit_excuses_one_lower_commit_of_its_log():
    """The group rewrites its log, which says less than the other client's commit.

    After that it may not go back.
    """
    external = ("external_commit", {"group": GROUP, "log": "live"})
    assert found(produced(0, 9), committed(5), external, committed(9), committed(7), read((0, 9))) == []
    again = (committed(5), external, committed(9), committed(7), committed(6))
    assert found(produced(0, 9), *again, read((0, 9))) == [("committed_backwards", 6, 7)]


def test_a_reset_excuses_a_lower_commit_of_its_group():
    """An operator may commit an earlier offset; another group's reset says nothing about this group."""
    for group, anomalies in ((GROUP, []), ("another", [("committed_backwards", 5, 9)])):
        assert (
            found(produced(0, 9), committed(9), ("reset", {"group": group}), committed(5), read((0, 9)))
            == anomalies
        )


def test_pending_crash_lag_is_excused_by_the_last_report_alone():
    """Crash lag that is no longer pending has to be in the table."""
    since = (produced(0, 9), committed(9), reported("pending", 0, 5), reported("pending", 0, 3))
    assert found(*since, read((5, 9))) == [("lost", 3, 5)]


def test_reports_after_the_last_read_prove_nothing_about_it():
    """A read shows the table as it was before it: later commits and reports have no read to contradict."""
    later = (committed(9), reported("green", 0, 9), reported("certified", 0, 9))
    assert found(produced(0, 9), read((0, 4)), *later) == []


def moved(seconds, it, process="one"):
    """The event at another time, or of another process."""
    return event(it.line, seconds, process, it.type, **it.fields)


def test_events_count_by_their_times_and_not_by_their_lines():
    """Processes may append late: the last read is the latest one, wherever its line is."""
    first, commit, whole, part = history(produced(0, 9), committed(9), read((0, 9)), read((0, 4)))
    assert [one.kind for one in check([first, commit, whole, part])] == ["lost", "seen_then_gone"]
    assert check([first, commit, whole, moved(1.5, part)]) == []


def test_commits_of_two_observers_have_no_order():
    """Two observers may append in another order than they observed; one observer does not."""
    first, high, low, rows = history(produced(0, 9), committed(9), committed(5), read((0, 9)))
    assert [one.kind for one in check([first, high, low, rows])] == ["committed_backwards"]
    assert check([first, high, moved(3, low, "another"), rows]) == []


def test_a_later_write_off_does_not_excuse_a_green_report():
    """The report was wrong when it was made.

    The offsets are not lost, because they were given up by name later.
    """
    early = (produced(0, 9), reported("green", 0, 9), read((1, 9)))
    assert found(*early, reported("written_off", 0, 1), read((1, 9))) == [("green_without_rows", 0, 1)]


def test_values_of_doubled_rows_stay_with_their_offsets():
    """Two rows of an offset have two values in the list: the values behind them are not shifted."""
    doubled = read((0, 2, 2), (2, 4), values=["a", "a", "b", "b", "c", "D"])
    assert found(produced(0, 4, values=["a", "b", "c", "d"]), doubled) == [
        ("doubled", 0, 2),
        ("changed", 3, 4),
    ]


@pytest.mark.parametrize("events", [(), (produced(0, 9),), (read((0, 9)),)])
def test_a_history_without_records_or_reads_is_refused(events):
    """A comparison of nothing must not look like a correct history."""
    with pytest.raises(HistoryError, match="nothing can be compared"):
        check(history(*events))


class Pipeline:
    """A pipeline without defects on two partitions; ``events`` are its ``(type, fields)``."""

    def __init__(self):
        self.events, self._records, self._table, self._lags = [], set(), set(), []
        self._ends, self._positions = Counter(), Counter()

    def produce(self, partition, size):
        end = self._ends[partition]
        self._records.update((partition, n) for n in range(end, end + size))
        self._ends[partition] += size
        self.events.append(produced(end, end + size, partition))

    def abort(self, partition, size):
        """Control records and aborted ones: offsets without a record."""
        self._ends[partition] += size

    def live(self, partition, size):
        at = self._positions[partition]
        stop = min(self._ends[partition], at + size)
        if at < stop:
            self._write(partition, at, stop)
            self._positions[partition] = stop
            self.events.append(committed(stop, partition))
            if size % 2:
                self.events.append(reported("green", at, stop, partition))

    def skip_ahead(self, partition, _):
        at, end = self._positions[partition], self._ends[partition]
        if at < end:
            self._positions[partition] = end
            self._lags.append((partition, at, end))
            self._report_pending()
            self.events.append(committed(end, partition))

    def catch_up(self, _, size):
        if self._lags:
            partition, start, end = self._lags.pop(size % len(self._lags))
            self._write(partition, start, end)
            self.events.append(reported("green", start, end, partition))
            self._report_pending()

    def write_off(self, _, size):
        if self._lags:
            partition, start, end = self._lags.pop(size % len(self._lags))
            self.events += [reported(name, start, end, partition) for name in ("written_off", "green")]
            self._report_pending()

    def certify(self, *_):
        self.events += [
            reported("certified", start, end, partition) for _, partition, start, end, _ in self._rows()
        ]

    def read(self, *_):
        self.events.append(("read", {"snapshot": len(self.events), "rows": self._rows()}))

    def _write(self, partition, start, end):
        self._table.update((partition, n) for n in range(start, end) if (partition, n) in self._records)

    def _report_pending(self):
        ranges = [[TOPIC, *lag] for lag in self._lags]
        self.events.append(("pending", {"group": GROUP, "ranges": ranges}))

    def _rows(self):
        return [row for p in (0, 1) for row in rows_of(p, [n for q, n in self._table if q == p])]


def rows_of(partition, offsets):
    """The offsets as rows of a read."""
    return [[TOPIC, partition, *run] for run in runs(sorted(offsets))]


ACTS = st.sampled_from(["produce", "abort", "live", "skip_ahead", "catch_up", "write_off", "certify", "read"])


@st.composite
def worlds(draw):
    """The events of a random correct pipeline; the last one is a read."""
    pipeline = Pipeline()
    pipeline.produce(0, 1)
    for act in draw(st.lists(ACTS, max_size=30)):
        getattr(pipeline, act)(draw(st.integers(0, 1)), draw(st.integers(1, 9)))
    pipeline.live(draw(st.integers(0, 1)), draw(st.integers(1, 9)))
    pipeline.read()
    return pipeline.events


def naive(events):
    """The same laws by sets of single offsets, without one shared line: ``(kind, partition, offset)``."""

    def offsets(fields, name="ranges"):
        return [
            (p, n)
            for _, p, start, end, *times in fields[name]
            for n in range(start, end)
            for _ in range((times or [1])[0])
        ]

    records = {one for name, fields in events if name == "produced" for one in offsets(fields)}
    reads = {
        place: Counter(offsets(fields, "rows"))
        for place, (name, fields) in enumerate(events)
        if name == "read"
    }
    last, anomalies, pending, off, due = max(reads), set(), set(), set(), Counter()
    for place, (name, fields) in enumerate(events):
        following = next((rows for at, rows in reads.items() if at > place), None)
        if name == "committed":
            due[fields["partition"]] = max(due[fields["partition"]], fields["offset"])
        elif name == "green":
            ((_, p, _, end),) = fields["ranges"]
            due[p] = max(due[p], end)
            gone = {one for one in offsets(fields) if one in records and one not in following}
            anomalies |= {("green_without_rows", *one) for one in gone - off}
        elif name == "certified":
            gone = {one for one in offsets(fields) if one in records and one not in following}
            anomalies |= {("certified_but_absent", *one) for one in gone}
        elif name == "pending":
            pending = set(offsets(fields))
        elif name == "written_off":
            off |= set(offsets(fields))
        elif name == "read":
            anomalies |= {("doubled", *one) for one, times in reads[place].items() if times > 1}
            anomalies |= {("out_of_range", *one) for one in reads[place] if one not in records}
            if following is not None:
                anomalies |= {("seen_then_gone", *one) for one in reads[place] if one not in following}
    absent = {(p, n) for p, n in records if n < due[p] and (p, n) not in reads[last]}
    return anomalies | {("lost", *one) for one in absent - pending - off}


def single(events):
    """The checker's anomalies as ``(kind, partition, offset)``; each at most once."""
    all_of = [
        (one.kind, one.partition, n) for one in check(history(*events)) for n in range(one.start, one.end)
    ]
    assert len(all_of) == len(set(all_of))
    return set(all_of)


def altered(events, place, change):
    """The events with the rows of one read changed: ``change`` gets the offsets' counts."""
    _, fields = events[place]
    counts = Counter({(p, n): times for _, p, start, end, times in fields["rows"] for n in range(start, end)})
    change(counts)
    rows = [row for p in (0, 1) for row in rows_of(p, [n for q, n in counts.elements() if q == p])]
    return [*events[:place], ("read", {**fields, "rows": rows}), *events[place + 1 :]]


def any_row(events, data):
    """A partition and an offset that the last read has."""
    rows = [(p, n) for _, p, start, end, _ in events[-1][1]["rows"] for n in range(start, end)]
    assume(rows)
    return data.draw(st.sampled_from(rows))


@given(worlds())
def test_a_random_correct_history_has_no_anomaly(events):
    """A pipeline without defects, in whatever order it works, gives no anomaly."""
    assert single(events) == set()


@given(worlds(), st.data())
def test_a_row_taken_from_the_last_read_is_lost_and_no_other(events, data):
    """One absent row gives anomalies of its offset alone, and `lost` is one of them."""
    row = any_row(events, data)
    found = single(altered(events, len(events) - 1, lambda counts: counts.pop(row)))
    assert {(p, n) for _, p, n in found} == {row}
    assert ("lost", *row) in found


@given(worlds(), st.data())
def test_a_row_added_to_the_last_read_is_doubled_and_nothing_else(events, data):
    """One more row of an offset is one anomaly."""
    row = any_row(events, data)
    found = single(altered(events, len(events) - 1, lambda counts: counts.update([row])))
    assert found == {("doubled", *row)}


@given(worlds(), st.data())
def test_the_checker_agrees_with_sets_of_single_offsets(events, data):
    """Whatever is altered in the reads: runs of offsets give the same anomalies as a count of each offset."""
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(
            st.sampled_from([place for place, (name, _) in enumerate(events) if name == "read"])
        )
        row, times = data.draw(st.tuples(st.integers(0, 1), st.integers(0, 40))), data.draw(st.integers(0, 2))
        events = altered(
            events, place, lambda counts, row=row, times=times: counts.update({row: times - counts[row]})
        )
    assert single(events) == naive(events)


def test_a_row_that_goes_twice_is_one_anomaly():
    """It was there again in between."""
    rows, produced = [["orders", 0, 0, 1, 1]], ("produced", {"ranges": [["orders", 0, 0, 1]]})
    reads = [("read", {"snapshot": n, "rows": rows if n % 2 == 0 else []}) for n in range(4)]
    assert [one.kind for one in check(history(produced, *reads))] == ["seen_then_gone"]


SPANS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda one: (one[0], one[0] + one[1]))
).map(union)


@given(SPANS, SPANS)
def test_spans_are_sets_of_offsets(some, others):
    """Difference and intersection give the same offsets as sets do, sorted."""
    one, other = ({n for span in spans for n in range(*span)} for spans in (some, others))
    for spans, offsets in (
        (difference(some, others), one - other),
        (intersection(some, others), one & other),
    ):
        assert [n for span in spans for n in range(*span)] == sorted(offsets)


def test_half_a_million_records_are_checked_in_seconds():
    """4 partitions, 500,000 records with values, 40 reads: less than ten seconds of the processor."""
    ends, reads = [12_500 * (n + 1) for n in range(10)], 4
    events = []
    for end in ends:
        for p in range(4):
            ids = list(range(end - 12_500, end))
            events += [
                produced(end - 12_500, end, p, values=ids),
                committed(end, p),
                reported("green", end - 7, end, p),
            ]
        for _ in range(reads):
            rows = [[TOPIC, p, 0, end, 1] for p in range(4)]
            events.append(("read", {"snapshot": 1, "rows": rows, "values": [*range(end)] * 4}))
    events[-1][1]["rows"] = [[TOPIC, p, 0, 125_000 - p, 1] for p in range(4)]
    events[-1][1]["values"] = [n for p in range(4) for n in range(125_000 - p)]
    lines = history(*events)
    began = time.process_time()
    anomalies = check(lines)
    assert time.process_time() - began < 10
    assert {(one.partition, one.start, one.end) for one in anomalies} == {
        (p, 125_000 - p, 125_000) for p in (1, 2, 3)
    }


WRITER = """
import sys
from pathlib import Path
from tests.history.events import HistoryFile
file = HistoryFile(Path(sys.argv[1]))
for n in range(100):
    file.append("produced", ranges=[["orders", 0, n, n + 1]], values=["x" * 20_000])
"""


def test_several_processes_append_to_one_file(tmp_path):
    """Lines of three writers never mix, and none is missing."""
    path = tmp_path / "history.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path], cwd=ROOT) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    events = HistoryFile(path).events()
    assert Counter(one.process for one in events) == {f"pid {writer.pid}": 100 for writer in writers}
    assert [one.line for one in events] == list(range(1, 301))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 1: Expecting property name"),
        ('{"time": 1, "process": "one", "type": "vanished"}', "line 1: unknown type 'vanished'"),
        ('{"time": 1, "process": "one", "type": "reset"}', "line 1: reset lacks group"),
        ('{"process": "one", "type": "reset", "group": "g"}', "line 1: .*missing .* 'time'"),
        (
            '{"time": 1, "process": "one", "type": "certified", "ranges": [["orders", 0, 7, 7]]}',
            "line 1: certified has the range 7-7",
        ),
    ],
)
def test_a_line_that_is_no_event_is_refused(line, why):
    """A damaged history is no history: its line is named."""
    with pytest.raises(HistoryError, match=why):
        list(parse([line]))


def test_the_command_prints_the_report_and_ends_with_1_for_anomalies(tmp_path, capsys):
    """Counts of events, the first three ranges of each kind with their lines, a last line with the totals."""
    path = tmp_path / "history.jsonl"
    for name, fields in (produced(0, 9), committed(9), read((0, 1), (2, 3), (4, 5), (6, 7, 2), (8, 9))):
        HistoryFile(path, "one").append(name, **fields)
    assert main([str(path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "events: committed 1, produced 1, read 1",
        "lost: 4 offsets in 4 ranges",
        "  p0:orders:1-2  produced, committed 9, absent from the last read (lines 1, 2, 3)",
        "  p0:orders:3-4  produced, committed 9, absent from the last read (lines 1, 2, 3)",
        "  p0:orders:5-6  produced, committed 9, absent from the last read (lines 1, 2, 3)",
        "  and 1 more ranges",
        "doubled: 1 offsets in 1 ranges",
        "  p0:orders:6-7  more than once in one read (lines 1, 3)",
        "history: 3 events, 5 anomalies",
    ]


def test_the_command_ends_with_0_without_anomalies_and_with_2_without_a_history(tmp_path, capsys):
    """No anomaly and no history are two different results."""
    path = tmp_path / "history.jsonl"
    assert main([str(path)]) == 2
    for name, fields in CLEAN:
        HistoryFile(path, "one").append(name, **fields)
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.endswith(f"history: {len(CLEAN)} events, 0 anomalies\n")


def test_the_report_counts_ranges_that_it_does_not_show():
    """Every range counts, also a range without printed evidence."""
    anomalies = check(
        events := history(produced(0, 20), committed(20), read(*((n, n + 1) for n in range(0, 20, 2))))
    )
    assert list(report(events, anomalies))[-1] == "history: 3 events, 10 anomalies"


IMPORTER = """
import importlib, sys

class Refused:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {names!r}:
            raise ImportError(f"the checker imports {{name}}")

sys.meta_path.insert(0, Refused())
for name in {modules!r}:
    importlib.import_module(name)
print(len(sys.modules))
"""


def test_the_checker_imports_nothing_of_the_product():
    """Each module can be imported without the product, and so can every library that it imports."""
    names = [f"tests.history.{path.stem}" for path in MODULES if path.stem != "__init__"]
    assert "tests.history.checker" in names
    done = subprocess.run(
        [sys.executable, "-c", IMPORTER.format(names=PRODUCT, modules=names)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_no_function_of_the_checker_imports_the_product(path):
    """An import inside a function counts too; of the tests it may import its own folder alone."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
    assert [name for name in names if name.split(".")[0] in {*PRODUCT, ""}] == []
    assert [name for name in names if name.startswith("tests") and not name.startswith("tests.history")] == []


COLUMNS = ("topic", "partition", "offset", "order_json")


@pytest.fixture
def lake(tmp_path):
    """A table of four rows, the last of them in a partition of its own; the function loads it."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("shop")
    rows = [[TOPIC] * 4, [0, 0, 0, 1], [70, 71, 72, 70], ["tea", "mate", "cocoa", "tea"]]
    table = catalog.create_table("shop.orders", pa.table(rows, names=COLUMNS).schema)
    with table.update_spec() as spec:
        spec.add_identity("topic")
        spec.add_identity("partition")
    table.append(pa.table(rows, names=COLUMNS))
    return lambda name="orders": catalog.load_table(f"shop.{name}")


def observer(tmp_path, load_table, servers="localhost:1", value_column="order_json"):
    path = tmp_path / "history.jsonl"
    settings = {"topics": [TOPIC], "group": GROUP, "value_column": value_column}
    return Observer(path, bootstrap_servers=servers, load_table=load_table, **settings)


def seen(one):
    """The events of an observer as ``(type, fields)``."""
    return [(event.type, event.fields) for event in one.file.events()]


def test_a_read_has_every_row_with_its_value(tmp_path, lake):
    """Runs of offsets, the snapshot, and a checksum of each value.

    A table that does not exist has no rows.
    """
    observer(tmp_path, lake).read()
    observer(tmp_path, lambda: lake("missing")).read()
    values = [crc32(value) for value in (b"tea", b"mate", b"cocoa", b"tea")]
    rows = [[TOPIC, 0, 70, 73, 1], [TOPIC, 1, 70, 71, 1]]
    assert seen(observer(tmp_path, lake)) == [
        ("read", {"snapshot": lake().current_snapshot().snapshot_id, "rows": rows, "values": values}),
        ("read", {"snapshot": None, "rows": [], "values": []}),
    ]


def test_a_snapshot_names_the_ranges_that_it_added(tmp_path, lake):
    """Each snapshot once, with the lowest and the highest offset of its files; evidence for a doubled row."""
    one = observer(tmp_path, lake)
    one.written()
    lake().append(lake().scan("offset = 72").to_arrow())
    one.written()
    observer(tmp_path, lambda: lake("missing")).written()
    assert [(name, fields["ranges"], fields["snapshot"]) for name, fields in seen(one)] == [
        ("written", ranges, snapshot.snapshot_id)
        for ranges, snapshot in zip(
            ([[TOPIC, 0, 70, 73], [TOPIC, 1, 70, 71]], [[TOPIC, 0, 72, 73]]), lake().snapshots(), strict=True
        )
    ]


def test_an_anomaly_names_the_lines_of_its_history():
    """The line that produced the offset, those that wrote it, and the read that shows it."""
    writes = [("written", {"run": "", "ranges": [[TOPIC, 0, n, 9]], "snapshot": n}) for n in (0, 8, 4)]
    (anomaly,) = check(history(produced(0, 9), *writes, read((0, 4), (4, 5, 2), (5, 9))))
    assert anomaly.lines == (1, 2, 4, 5)


@pytest.mark.parametrize(("which", "times"), [("loss", 0), ("duplicate", 2)])
def test_a_plant_alters_one_row(lake, which, times):
    """The named row is gone or there twice; all others stay as they are."""
    before = Counter(tuple(row.values()) for row in lake().scan().to_arrow().to_pylist())
    planted = plant(which, lake)
    after = Counter(tuple(row.values()) for row in lake().scan().to_arrow().to_pylist())
    altered = {row: after[row] for row in before if after[row] != before[row]}
    assert {row[:3]: count for row, count in altered.items()} == {planted: times}
    assert after.keys() <= before.keys()


def test_reports_of_dagster_are_green_or_pending(tmp_path, lake):
    """A live materialization names its ranges, a crash lag partition is one; without one it is pending."""
    one = observer(tmp_path, lake)
    table = [dg.TableRecord({"partition": "orders:0", "range": "100-120", "offsets": 20})]
    rest = [dg.TableRecord({"partition": "7 more", "range": "", "offsets": 3})]
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("orders_crash_lag", ["p0:orders:0-70", "p0:orders:70-100@2"])
        instance.report_runless_asset_event(
            dg.AssetMaterialization("orders", metadata={"processed": dg.MetadataValue.table([*table, *rest])})
        )
        one.dagster(instance, "orders", "orders_crash_lag")
        instance.report_runless_asset_event(
            dg.AssetMaterialization("orders_crash_lag", partition="p0:orders:70-100@2")
        )
        one.dagster(instance, "orders", "orders_crash_lag")
    shown = [(name, fields["ranges"]) for name, fields in seen(one)]
    assert shown == [
        ("pending", [[TOPIC, 0, 0, 70], [TOPIC, 0, 70, 100]]),
        ("green", [[TOPIC, 0, 100, 120]]),
        ("pending", [[TOPIC, 0, 0, 70]]),
        ("green", [[TOPIC, 0, 70, 100]]),
    ]


def test_a_report_in_another_form_is_refused(tmp_path, lake):
    """A renamed key must not look like a run without reports."""
    with dg.DagsterInstance.ephemeral() as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization("orders", metadata={"done": 7}))
        with pytest.raises(HistoryError, match="lacks the metadata 'processed'"):
            observer(tmp_path, lake).dagster(instance, "orders", "orders_crash_lag")


@pytest.mark.parametrize(("certified", "types"), [(True, ["pending", "certified"]), (False, ["pending"])])
def test_an_audit_certifies_or_does_not(tmp_path, lake, certified, types):
    """Its ranges are certified only if it certifies; crash lag and losses are named in any case."""
    found = {
        "topic": TOPIC,
        "partition": 0,
        "in_table": [[0, 70]],
        "pending": [[70, 100]],
        "written_off": [[100, 120]],
    }
    one = observer(tmp_path, lake)
    one.audit({"certified": certified, "partitions": [found]})
    assert [name for name, _ in seen(one)] == ["written_off", *types]
    assert [fields["ranges"][0][2:] for _, fields in seen(one)] == [[100, 120], [70, 100], [0, 70]][
        : 1 + len(types)
    ]


def test_records_and_commits_are_read_from_the_broker(tmp_path, lake):
    """Each record once, over three observations; a commit log that exists. On librdkafka's mock cluster."""
    producer = Producer({"test.mock.num.brokers": 1, "linger.ms": 0})
    [broker] = producer.list_topics(timeout=10).brokers.values()
    servers = f"{broker.host}:{broker.port}"
    one = observer(tmp_path, lake, servers)

    def produce(*values):
        for value in values:
            producer.produce(TOPIC, value, partition=1)
        assert producer.flush(10) == 0

    produce(b"tea", b"mate")
    one.produced()
    one.produced()
    produce(b"cocoa")
    one.produced()
    with closing(Consumer({"bootstrap.servers": servers, "group.id": f"{GROUP}.catch-up"})) as consumer:
        consumer.commit(offsets=[TopicPartition(TOPIC, 1, 2)], asynchronous=False)
    one.committed()
    assert seen(one) == [
        ("produced", {"ranges": [[TOPIC, 1, 0, 2]], "values": [crc32(b"tea"), crc32(b"mate")]}),
        ("produced", {"ranges": [[TOPIC, 1, 2, 3]], "values": [crc32(b"cocoa")]}),
        ("committed", {"group": GROUP, "log": "catch-up", "topic": TOPIC, "partition": 1, "offset": 2}),
    ]
