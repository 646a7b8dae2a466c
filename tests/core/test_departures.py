"""Why a member is gone, and whether the live lane needs a run: every row says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_liveness_dagster.core.commit_metadata import ExternalCommit, LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.departures import (
    Run,
    RunFate,
    departures,
    will_get_a_partition,
)
from kafka_liveness_dagster.core.events import LeaveReason, MemberLeft
from kafka_liveness_dagster.core.fencing import FenceReason, FenceReport
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.orphaned_runs import restart_delay_seconds, should_start_live_run
from kafka_liveness_dagster.core.partition_snapshot import (
    Expiry,
    PartitionSnapshot,
    expiry,
    ignored_pending_lines,
    replaced_log_lines,
)

RUN = "0badcafe"
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def snapshot(tp=P0, committed=70, mark=OwnerState.RUNNING, run=RUN, log_end=120, outstanding=()):  # noqa: PLR0917
    return PartitionSnapshot(
        tp, committed, mark and LiveCommitMetadata(mark, run), log_end=log_end, outstanding=outstanding
    )


CUT_OFF, ENDED = FenceReport(FenceReason.BROKERS_UNAVAILABLE), FenceReport(FenceReason.INTERRUPTED)
TIMED_OUT, OTHERS = FenceReport(FenceReason.POLL_TIMEOUT), FenceReport(FenceReason.PARTITIONS_LOST)
CLOSED, SPENT = FenceReport(FenceReason.CLOSED), FenceReport(FenceReason.MAX_RUNTIME_REACHED)
BACK = FenceReport(FenceReason.POLL_TIMEOUT, is_back=True)
STATIC, DYNAMIC = True, False
AT_WORK, OVER = RunFate.IN_PROGRESS, RunFate.SUCCEEDED


@pytest.mark.parametrize(
    ("mark", "run", "member", "reason"),
    [
        pytest.param(None, None, None, None, id="a plain consumer's commit"),
        pytest.param(OwnerState.RUNNING, Run(AT_WORK), DYNAMIC, None, id="at work"),
        pytest.param(
            OwnerState.RUNNING,
            Run(AT_WORK, TIMED_OUT),
            None,
            LeaveReason.POLL_TIMEOUT,
            id="its watchdog left",
        ),
        pytest.param(
            OwnerState.RUNNING, Run(AT_WORK, TIMED_OUT), DYNAMIC, None, id="it is back, whatever it said"
        ),
        pytest.param(
            OwnerState.RUNNING,
            Run(AT_WORK, OTHERS),
            None,
            LeaveReason.PARTITIONS_LOST,
            id="others have its partitions",
        ),
        pytest.param(
            OwnerState.RUNNING,
            Run(AT_WORK),
            None,
            LeaveReason.UNRESPONSIVE,
            id="frozen: it could not say anything",
        ),
        pytest.param(
            OwnerState.RUNNING,
            Run(AT_WORK, BACK),
            None,
            LeaveReason.UNRESPONSIVE,
            id="it was back, then it froze",
        ),
        pytest.param(
            OwnerState.RUNNING,
            Run(AT_WORK, CUT_OFF),
            None,
            LeaveReason.BROKERS_UNAVAILABLE,
            id="its brokers were away",
        ),
        pytest.param(
            OwnerState.RUNNING,
            Run(RunFate.FAILED, ENDED),
            None,
            LeaveReason.UNRELEASED,
            id="SIGTERM, no broker",
        ),
        pytest.param(
            OwnerState.RELEASED, Run(RunFate.FAILED, ENDED), None, LeaveReason.INTERRUPTED, id="SIGTERM"
        ),
        pytest.param(
            OwnerState.RELEASED,
            Run(RunFate.CANCELED, ENDED),
            None,
            LeaveReason.CANCELED,
            id="a cancel, by SIGTERM",
        ),
        pytest.param(
            OwnerState.RUNNING,
            Run(AT_WORK, CLOSED),
            None,
            LeaveReason.CRASHED,
            id="an error ended its consumer",
        ),
        pytest.param(
            OwnerState.RUNNING, Run(AT_WORK, SPENT), None, LeaveReason.MAX_RUNTIME_REACHED, id="no time left"
        ),
        pytest.param(
            OwnerState.RUNNING, Run(RunFate.CANCELING), DYNAMIC, None, id="at work, not told of it yet"
        ),
        pytest.param(
            OwnerState.RELEASED, Run(RunFate.CANCELING), None, LeaveReason.CANCELED, id="it will be canceled"
        ),
        pytest.param(OwnerState.RUNNING, Run(RunFate.FAILED), None, LeaveReason.CRASHED, id="killed"),
        pytest.param(
            OwnerState.RUNNING, Run(RunFate.FAILED), DYNAMIC, LeaveReason.CRASHED, id="killed, still listed"
        ),
        pytest.param(
            OwnerState.RUNNING,
            Run(RunFate.CANCELED),
            None,
            LeaveReason.CRASHED,
            id="killed while it was canceled",
        ),
        pytest.param(OwnerState.RUNNING, None, None, LeaveReason.CRASHED, id="its run was deleted"),
        pytest.param(OwnerState.RUNNING, None, DYNAMIC, None, id="a script that is alive"),
        pytest.param(
            OwnerState.RUNNING,
            Run(OVER),
            None,
            LeaveReason.PARTITIONS_LOST,
            id="succeeded, yet never released",
        ),
        pytest.param(OwnerState.RELEASED, Run(OVER), None, LeaveReason.GRACEFUL, id="done"),
        pytest.param(
            OwnerState.RELEASED, Run(AT_WORK), None, LeaveReason.GRACEFUL, id="done, Dagster not yet told"
        ),
        pytest.param(
            OwnerState.RELEASED, Run(AT_WORK), DYNAMIC, None, id="gave this one up, is still a member"
        ),
        pytest.param(OwnerState.RELEASED, Run(OVER), DYNAMIC, None, id="its LeaveGroup is on its way"),
        pytest.param(
            OwnerState.RELEASED, Run(RunFate.FAILED), None, LeaveReason.GRACEFUL, id="released, then failed"
        ),
        pytest.param(OwnerState.RELEASED, Run(RunFate.CANCELED), None, LeaveReason.CANCELED, id="canceled"),
        pytest.param(
            OwnerState.RELEASED, Run(OVER), STATIC, LeaveReason.STATIC, id="static: it sent no LeaveGroup"
        ),
        pytest.param(OwnerState.RELEASED, Run(AT_WORK), STATIC, None, id="static, at work"),
        pytest.param(OwnerState.PAUSED, Run(RunFate.FAILED), None, None, id="paused: held, by whomever"),
    ],
)
def test_why_a_member_is_gone(mark, run, member, reason):
    """The mark says how it left, its run says why, the coordinator speaks for the living."""
    members = {} if member is None else {RUN: member}
    left = departures([snapshot(mark=mark)], members, {RUN: run} if run else {})
    assert left == ([MemberLeft(RUN, reason, (P0,))] if reason else [])


def test_what_others_call_a_fence():
    """A run that ended as it should has left nobody in the lurch."""
    assert [one.reason.leave for one in (CUT_OFF, TIMED_OUT, FenceReport(FenceReason.RUN_ENDED))] == [
        LeaveReason.BROKERS_UNAVAILABLE,
        LeaveReason.POLL_TIMEOUT,
        None,
    ]


def test_one_departure_names_all_its_partitions():
    """A member that held two partitions left once.

    Another run's are its own, and so are those it released before.
    """
    seen = [snapshot(P1), snapshot(P0), snapshot(TopicPartition("orders", 2), run="0000beef")]
    released = snapshot(TopicPartition("orders", 3), mark=OwnerState.RELEASED)
    left = departures([*seen, released], {"0000beef": DYNAMIC}, {RUN: Run(RunFate.FAILED)})
    assert left == [MemberLeft(RUN, LeaveReason.CRASHED, (P0, P1))]


@pytest.mark.parametrize(
    ("committed", "log_end", "lag", "why"),
    [
        (70, 120, 50, "what is not committed"),
        (120, 120, 0, "caught up"),
        (None, 120, 110, "nothing committed: all of the log, which begins at 10"),
        (130, 120, 0, "a recreated topic is no negative lag"),
    ],
)
def test_lag(committed, log_end, lag, why):
    """Lag counts from the live commit log, or from the log start."""
    assert PartitionSnapshot(P0, committed, None, log_end=log_end, log_start=10).lag == lag, why


def test_owed_counts_what_is_outstanding():
    """Owed offsets are those of the outstanding spans."""
    assert snapshot(outstanding=(Span(70, 120), Span(140, 190))).pending_offsets == 100


@pytest.mark.parametrize(
    ("owed", "log_start", "answer"),
    [
        pytest.param((70, 120), 0, Expiry.SAFE, id="nothing was deleted yet"),
        pytest.param((0, 50), 0, Expiry.SAFE, id="the oldest there is, and no retention at work"),
        pytest.param((70, 120), 40, Expiry.SAFE, id="30 of 300 offsets away: a tenth, and not below"),
        pytest.param((70, 120), 41, Expiry.NEARLY, id="29 of 299: in the oldest tenth"),
        pytest.param((70, 120), 70, Expiry.NEARLY, id="the next to go"),
        pytest.param((70, 120), 71, Expiry.PARTLY, id="its first offset is gone"),
        pytest.param((70, 120), 119, Expiry.PARTLY, id="its last is not"),
        pytest.param((70, 120), 120, Expiry.EXPIRED, id="all of it is gone"),
    ],
)
def test_how_near_the_brokers_retention_is(owed, log_start, answer):
    """Owed data is told to be at risk while something can still be done, and gone when nothing can."""
    assert expiry(Span(*owed), log_start, log_end=340) is answer


CRASH = [MemberLeft(RUN, LeaveReason.CRASHED, (P0,))]
TIMEOUT = [MemberLeft(RUN, LeaveReason.POLL_TIMEOUT, (P0,))]


@pytest.mark.parametrize(
    ("log_end", "left", "in_progress", "most", "wanted"),
    [
        pytest.param(120, [], 0, 1, True, id="lag"),
        pytest.param(70, [], 0, 1, False, id="nothing to do"),
        pytest.param(120, [], 1, 1, False, id="a run is at it"),
        pytest.param(120, [], 1, 2, True, id="room for another one"),
        pytest.param(120, [], 2, 3, False, id="room, but no partition for it"),
        pytest.param(70, CRASH, 0, 1, True, id="a crash without lag: its marks must not stay"),
        pytest.param(70, TIMEOUT, 0, 1, False, id="a member that timed out rejoins by itself"),
    ],
)
def test_when_a_live_run_is_wanted(log_end, left, in_progress, most, wanted):
    """Lag or a crash, and room for a run among two partitions."""
    seen = [snapshot(log_end=log_end), snapshot(P1, committed=log_end, log_end=log_end)]
    assert should_start_live_run(seen, left, in_progress=in_progress, max_live_runs=most) is wanted


def test_a_paused_partition_asks_for_no_run():
    """Lag that nobody may process is no reason to start a run; another partition's is."""
    paused = snapshot(P0, mark=OwnerState.PAUSED)
    assert paused.paused
    room = {"in_progress": 0, "max_live_runs": 1}
    assert not should_start_live_run([paused], [], **room)
    assert should_start_live_run([paused, snapshot(P1, mark=OwnerState.RELEASED)], [], **room)
    assert not snapshot(mark=None).paused


def test_the_delay_grows_and_is_bounded():
    """No delay for crashes now and then; 10 s, doubled, for a run that always fails; never above 5 min."""
    assert [restart_delay_seconds(n) for n in (0, 1, 2, 3, 4, 7, 8, 10_000)] == [
        0,
        0,
        0,
        10,
        20,
        160,
        300,
        300,
    ]


@pytest.mark.parametrize(
    ("partitions", "others", "is_due"),
    [
        pytest.param(4, [4], True, id="another one has all"),
        pytest.param(2, [1, 1], False, id="each has one"),
        pytest.param(2, [1, 1, 0], False, id="a third has none either"),
        pytest.param(3, [2, 1, 0], True, id="more partitions than members that have some"),
        pytest.param(1, [], True, id="alone"),
        pytest.param(0, [], False, id="no partition at all"),
    ],
)
def test_who_waits_for_a_partition(partitions, others, is_due):
    """A member without a partition gets one in the next rebalance only if partitions outnumber the others.

    The others are those that have partitions.
    """
    assert will_get_a_partition(partitions, others) is is_due


# --- text of other clients ----------------------------------------------------------------------------------


def test_partitions_with_text_of_other_clients_are_named():
    """Each with what is wrong, and what repairs it; the others are not."""
    kcat = ExternalCommit("second", 120, "")
    rebuilt = PartitionSnapshot(P0, 70, None, log_end=120, external=kcat)
    unsure = PartitionSnapshot(
        P1, 70, None, log_end=120, outstanding=(Span(30, 70),), external=kcat, is_upper_bound=True
    )
    odd = PartitionSnapshot(
        P0, 70, LiveCommitMetadata(OwnerState.RELEASED, RUN, (Span(30, 40), Span(60, 2**63 - 1))), log_end=120
    )
    table, sink = replaced_log_lines([rebuilt, unsure, odd, snapshot()])
    assert table == (
        "orders:0: an external commit replaced the catch-up commit log (offset 120, metadata ''). The next "
        "run of either lane rewrites it from the table's ledger"
    )
    newer = ExternalCommit("second", 120, "kl3 done")
    [upgrade] = replaced_log_lines([replace(rebuilt, external=newer, is_upper_bound=True)])
    assert upgrade.startswith("orders:0: a newer version wrote the catch-up commit log")
    assert "Some of the 40 pending offsets may be done" in sink
    assert ignored_pending_lines([unsure, odd]) == [
        "orders:0: pending offsets at or above the committed offset are ignored: 70-9223372036854775807"
    ]
