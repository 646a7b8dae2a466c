"""How a group is judged: every row says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_liveness_dagster.core.bad_records import PendingDeadLetters
from kafka_liveness_dagster.core.commit_metadata import ExternalCommit, LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.departures import GroupSnapshot, GroupState, MemberSnapshot, Run, RunFate
from kafka_liveness_dagster.core.fencing import FenceReason, FenceReport
from kafka_liveness_dagster.core.health import (
    Severity,
    crash_lag_age,
    dead_letters_waiting,
    group_alive,
    lag_below,
    no_missing_rows,
    retention,
)
from kafka_liveness_dagster.core.offsets import OffsetRange, Span, TopicPartition
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot
from kafka_liveness_dagster.core.process_status import ProcessStatus

RUN, OLDER = "0badcafe", "01dbeef0"
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
FINE, WARNING, ERROR = Severity.FINE, Severity.WARNING, Severity.ERROR
AT_WORK, DONE, FAILED = Run(RunFate.IN_PROGRESS, started=True), Run(RunFate.SUCCEEDED), Run(RunFate.FAILED)
LATER_STEPS = Run(RunFate.IN_PROGRESS, started=True, has_ended=True)
STOPPED = Run(RunFate.FAILED, FenceReport(FenceReason.INTERRUPTED))
TIMED_OUT = Run(RunFate.IN_PROGRESS, FenceReport(FenceReason.POLL_TIMEOUT), started=True)
DEAD = Run(RunFate.IN_PROGRESS, started=True, process=ProcessStatus.GONE)
FROZEN = AT_WORK
MEMBER, STATIC = MemberSnapshot("m-1", RUN, (P0,)), MemberSnapshot("m-1", OLDER, (P0,), is_static=True)
FOREIGN = MemberSnapshot("m-2", "rdkafka at 10.0.0.7", (P0,), is_foreign=True)


def partition(committed=70, mark=OwnerState.RELEASED, log_end=70, tp=P0, run=RUN, **more):
    return PartitionSnapshot(tp, committed, mark and LiveCommitMetadata(mark, run), log_end=log_end, **more)


BAD = (OffsetRange("orders", 0, 7, 8), OffsetRange("orders", 0, 9, 10))
IDLE, BEHIND = partition(), partition(log_end=120)
OPEN, OPEN_BEHIND = partition(mark=OwnerState.RUNNING), partition(mark=OwnerState.RUNNING, log_end=120)
HELD = partition(mark=OwnerState.PAUSED, log_end=120)
NEW = partition(committed=None, mark=None, log_end=50)


@pytest.mark.parametrize(
    ("members", "runs", "at", "gravity", "says"),
    [
        pytest.param(
            [MEMBER], {RUN: AT_WORK}, OPEN_BEHIND, FINE, "1 member at work, lag 50", id="it is read"
        ),
        pytest.param([MEMBER], {RUN: AT_WORK, OLDER: FAILED}, OPEN, FINE, "1 member", id="a failure is over"),
        pytest.param(
            [STATIC], {RUN: AT_WORK}, OPEN, FINE, "1 member", id="static: named after the run that joined"
        ),
        pytest.param([], {}, IDLE, FINE, "nothing to read", id="nobody is needed"),
        pytest.param([], {RUN: DONE}, IDLE, FINE, "nothing to read", id="the last run was fine"),
        pytest.param([], {RUN: DONE}, HELD, FINE, "nothing to read", id="paused: nobody is to read it"),
        pytest.param(
            [], {RUN: FAILED}, IDLE, WARNING, "read; the last live run failed", id="it failed, nothing waits"
        ),
        pytest.param([], {RUN: DONE}, BEHIND, ERROR, "lag 50 and no member.", id="records wait for nobody"),
        pytest.param([], {}, NEW, ERROR, "lag 50 and no member.", id="never read"),
        pytest.param(
            [], {RUN: FAILED}, OPEN_BEHIND, ERROR, "member; the last live run failed", id="crashed, no other"
        ),
        pytest.param(
            [], {RUN: AT_WORK}, BEHIND, FINE, "a live run is starting", id="at its last lines, released"
        ),
        pytest.param([], {OLDER: AT_WORK}, NEW, FINE, "a live run is starting", id="about to join"),
        pytest.param([], {OLDER: LATER_STEPS}, NEW, ERROR, "and no member", id="only its other steps go on"),
        pytest.param(
            [], {RUN: TIMED_OUT}, OPEN_BEHIND, WARNING, f"run {RUN} left by poll timeout", id="its batch hung"
        ),
        pytest.param([MEMBER], {RUN: TIMED_OUT}, OPEN_BEHIND, FINE, "1 member", id="and it is back"),
        pytest.param(
            [], {RUN: FROZEN}, OPEN_BEHIND, ERROR, f"run {RUN} in progress, but no member", id="frozen"
        ),
        pytest.param([], {RUN: FROZEN}, OPEN, WARNING, "lag 0. Queued or hung: ", id="frozen, nothing waits"),
        pytest.param(
            [], {RUN: DEAD}, OPEN_BEHIND, ERROR, "member; the last live run failed", id="its process is gone"
        ),
        pytest.param(
            [], {RUN: STOPPED}, BEHIND, ERROR, "run was ended by a signal", id="SIGTERM, and no sensor"
        ),
        pytest.param(
            [MEMBER], {RUN: AT_WORK, OLDER: DEAD}, OPEN, FINE, "1 member", id="and another took its place"
        ),
        pytest.param([FOREIGN], {}, BEHIND, ERROR, "rdkafka at 10.0.0.7. The records", id="only a stranger"),
        pytest.param(
            [FOREIGN, MEMBER], {RUN: AT_WORK}, OPEN, FINE, "1 member at work", id="a stranger beside it"
        ),
    ],
)
def test_group_alive(members, runs, at, gravity, says):
    """A member, or nothing to read and a last run that was fine."""
    found = group_alive(
        GroupSnapshot(GroupState.STABLE, tuple(members), (at,), runs=runs), dict.fromkeys(runs, 5.0), 120.0
    )
    assert (found.severity, says in found.message) == (gravity, True), found.message
    assert found.numbers["external_members"] + found.numbers["members"] == len(members)


def test_a_run_that_is_listed_twice_is_one_at_work():
    """It lost its broker and joined again.

    The coordinator lists its former membership until its session is over.
    """
    twice = (MEMBER, replace(MEMBER, member_id="m-2", partitions=()), FOREIGN)
    found = group_alive(
        GroupSnapshot(GroupState.STABLE, twice, (OPEN,), runs={RUN: AT_WORK}), {RUN: 5.0}, 120.0
    )
    assert found.message.startswith("1 member at work")
    assert (found.numbers["members"], found.numbers["external_members"]) == (1, 1)


@pytest.mark.parametrize(
    ("members", "age", "gravity", "says"),
    [
        pytest.param([], 119.0, FINE, "is starting", id="still starting"),
        pytest.param([], 120.0, ERROR, f"run {OLDER} in progress, but", id="it never joined"),
        pytest.param(
            [MEMBER], 120.0, WARNING, f"run {OLDER} in progress, but", id="it never joined, another reads"
        ),
    ],
)
def test_a_run_that_never_joins_is_a_ghost_after_a_while(members, age, gravity, says):
    """It left no mark: only its age tells a start from a ghost."""
    seen = GroupSnapshot(GroupState.STABLE, tuple(members), (BEHIND,), runs={OLDER: AT_WORK})
    found = group_alive(seen, {OLDER: age}, 120.0)
    assert (found.severity, says in found.message) == (gravity, True), found.message
    assert found.numbers["ghosts"] == (age >= 120)


def test_a_run_that_is_being_requested_counts():
    """The sensor looks and requests in one tick: new records are no alarm."""
    seen = GroupSnapshot(GroupState.EMPTY, (), (BEHIND,), runs={RUN: DONE})
    assert group_alive(seen, {}, 120.0).severity is ERROR
    assert group_alive(seen, {}, 120.0, requested=True).severity is FINE


@pytest.mark.parametrize(
    ("bound", "partitions", "gravity", "says"),
    [
        pytest.param(None, [BEHIND], FINE, "lag 50; no bound", id="only told"),
        pytest.param(50, [BEHIND], FINE, "at most max_lag=50", id="the bound is allowed"),
        pytest.param(49, [BEHIND], WARNING, "lag 50 is above max_lag=49", id="above"),
        pytest.param(60, [BEHIND, NEW], WARNING, "lag 100 is above", id="all partitions together"),
        pytest.param(0, [HELD, IDLE], FINE, "lag 0", id="paused by will"),
        pytest.param(0, [], FINE, "lag 0", id="no partition"),
    ],
)
def test_lag_below(bound, partitions, gravity, says):
    """What is to be read is at most the bound."""
    found = lag_below(partitions, bound)
    assert (found.severity, says in found.message) == (gravity, True), found.message
    assert ("max_lag" in found.numbers) == (bound is not None)


KCAT = ExternalCommit("second", 200, "")
REPLACED = "orders:0: an external commit replaced the catch-up commit log (offset 200, metadata '')"
OWING = partition(committed=200, log_end=200, outstanding=(Span(70, 120), Span(140, 150)))


@pytest.mark.parametrize(
    ("partitions", "oldest", "unlisted", "bound", "gravity", "says"),
    [
        pytest.param([IDLE], 0.0, [], 60.0, FINE, "nothing is pending", id="nothing"),
        pytest.param([OWING], 900.0, [], None, FINE, "60 offsets in 2 ranges are pending, the oldest for 900",
                     id="told"),
        pytest.param([OWING], 60.0, [], 60.0, FINE, "at most 60 s", id="the bound is allowed"),
        pytest.param([replace(OWING, external=KCAT)], 0.0, [], 60.0, FINE, "at most 60 s",
                     id="rebuilt from the table"),
        pytest.param(
            [replace(OWING, external=KCAT, is_upper_bound=True)],
            *(0.0, [], 60.0, WARNING, f"unknown: {REPLACED}. Some of the 60 pending offsets may be done"),
            id="nothing to rebuild it from",
        ),
        pytest.param([OWING], 61.0, [], 60.0, WARNING, "for 61 s, longer than 60 s. Fix: materialize",
                     id="too old"),
        pytest.param([OWING], 0.0, ["p0:orders:70-120"], 60.0, WARNING, "p0:orders:70-120 of 60 pending",
                     id="no partition"),
        pytest.param([OWING], 0.0, ["p0:orders:70-120"], None, FINE, "no bound", id="no partition, no bound"),
    ],
)  # fmt: skip
def test_crash_lag_age(partitions, oldest, unlisted, bound, gravity, says):  # noqa: PLR0917
    """What is owed is not owed for longer than the bound."""
    found = crash_lag_age(partitions, oldest, unlisted, bound)
    assert (found.severity, says in found.message) == (gravity, True), found.message


def log(log_start, committed=200, log_end=200, mark=OwnerState.RELEASED, owed=()):
    return partition(committed, mark, log_end, log_start=log_start, outstanding=owed)


@pytest.mark.parametrize(
    ("at", "gravity", "says"),
    [
        pytest.param(log(0, owed=(Span(0, 50),)), FINE, "no waiting record", id="retention has not begun"),
        pytest.param(
            log(10, owed=(Span(70, 120),)), FINE, "no waiting record", id="owed, far from the log start"
        ),
        pytest.param(
            log(69, owed=(Span(70, 120),)),
            WARNING,
            "p0:orders:70-120, 50 offsets, are about to expire",
            id="owed, near",
        ),
        pytest.param(
            log(80, owed=(Span(70, 120),)), ERROR, "p0:orders:70-80, 10 offsets", id="owed, partly gone"
        ),
        pytest.param(log(130, owed=(Span(70, 120),)), ERROR, "p0:orders:70-120, 50 offsets", id="owed, gone"),
        pytest.param(
            log(80, owed=(Span(70, 80), Span(81, 90))),
            ERROR,
            "About to expire: p0:orders:81-90; ",
            id="gone and near",
        ),
        pytest.param(log(200), FINE, "no waiting record", id="all is read, all is deleted"),
        pytest.param(log(100, 101, 120), FINE, "no waiting record", id="the next batch takes it"),
        pytest.param(
            log(100, 101, 140), WARNING, "p0:orders:101-140, 39 offsets, are", id="more than a batch behind"
        ),
        pytest.param(
            log(100, 101, 120, OwnerState.PAUSED),
            WARNING,
            "p0:orders:101-120",
            id="paused: no batch takes it",
        ),
        pytest.param(
            log(100, 90, 140), ERROR, "p0:orders:90-100, 10 offsets", id="the live lane was too late"
        ),
        pytest.param(log(100, None, 140), FINE, "no waiting record", id="nothing was promised"),
    ],
)
def test_retention(at, gravity, says):
    """Nothing that waits in either lane is deleted, or about to be; a batch is 20 offsets."""
    found = retention([at], 20)
    assert (found.severity, says in found.message) == (gravity, True), found.message
    assert (found.numbers["expired_offsets"] > 0) == (gravity is ERROR)


@pytest.mark.parametrize(
    ("seen", "remembered", "cannot_tell", "gravity", "says"),
    [
        pytest.param(
            partition(), (), "", FINE, "every committed offset is in the table", id="it is all there"
        ),
        pytest.param(
            partition(outstanding=(Span(10, 30),)), (), "", FINE, "20 are pending", id="owed is accounted for"
        ),
        pytest.param(replace(partition(), external=KCAT), (), "", WARNING, REPLACED, id="an external commit"),
        pytest.param(
            partition(), (), "Spark is away", WARNING, "not checked: Spark is away", id="nobody to ask"
        ),
        pytest.param(
            partition(missing_rows=(Span(50, 70),)),
            (),
            "",
            ERROR,
            "the table lacks p0:orders:50-70, 20 offsets",
            id="lost",
        ),
        pytest.param(
            partition(forgotten_pending=(Span(50, 70),)),
            (),
            "",
            ERROR,
            "p0:orders:50-70: not in the table",
            id="forgotten",
        ),
        pytest.param(
            partition(),
            ("p0:orders:50-70",),
            "",
            ERROR,
            "p0:orders:50-70: not in the table",
            id="owed, not done",
        ),
    ],
)
def test_exact(seen, remembered, cannot_tell, gravity, says):
    """What was committed is there, or somebody says where it is."""
    verdict = no_missing_rows(GroupSnapshot(GroupState.STABLE, (), (seen,)), remembered, cannot_tell)
    assert verdict.severity is gravity
    assert says in verdict.message


@pytest.mark.parametrize(
    ("owed", "cannot_tell", "gravity", "says"),
    [
        pytest.param(PendingDeadLetters(), "", FINE, "no dead letter is pending", id="none"),
        pytest.param(
            PendingDeadLetters(1, BAD[:1], "X: no"),
            "",
            WARNING,
            "1 dead letter is pending: p0:orders:7-8; the",
            id="1",
        ),
        pytest.param(
            PendingDeadLetters(2, BAD, "X: no"),
            "",
            WARNING,
            "p0:orders:9-10; the first failed with X",
            id="2",
        ),
        pytest.param(
            PendingDeadLetters(9, BAD, "X: no"),
            "",
            WARNING,
            "p0:orders:9-10 and 7 more; the first",
            id="many",
        ),
        pytest.param(
            PendingDeadLetters(), "Spark is away", WARNING, "not checked: Spark is away", id="nobody knows"
        ),
    ],
)
def test_dead_letters(owed, cannot_tell, gravity, says):
    """Somebody has to mend something, or to give them up."""
    verdict = dead_letters_waiting(owed, cannot_tell)
    assert verdict.severity is gravity
    assert says in verdict.message


def test_rows_that_are_only_not_recorded_do_not_expire():
    """They are in the table; the broker may delete their records."""
    at = partition(committed=200, log_end=200, log_start=130, outstanding=(Span(70, 120),))
    assert retention([replace(at, unrecorded=(Span(70, 120),))], 20).severity is FINE
    assert retention([replace(at, unrecorded=(Span(70, 100),))], 20).numbers["expired_offsets"] == 20


def test_many_are_told_by_their_first():
    """A description is read by people: five names, and how many more."""
    owed = tuple(Span(n * 10, n * 10 + 1) for n in range(8))
    told = retention([partition(committed=1_000, log_end=1_000, log_start=500, outstanding=owed)], 20).message
    assert "p0:orders:40-41 and 3 more, 8 offsets" in told
