"""The poll timer and the reasons to fence: the clock is a number, so a test jumps it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_liveness_dagster.core.fencing import (
    FenceReason,
    FenceReport,
    PollTimer,
    ProcessObservation,
    RunState,
    reason_to_fence,
)

PROCESS_MS = 60_000
LATE = PROCESS_MS
IN_TIME = PROCESS_MS - 1


def test_the_timer_runs_from_poll_to_poll():
    """KIP-62: the process timeout is the time between two polls, not the time since the start."""
    timer = PollTimer(PROCESS_MS, polled_at_ms=1_000)
    assert not timer.has_expired(60_999)
    assert timer.has_expired(61_000)
    timer.poll(61_000)
    assert timer.elapsed_ms(61_000) == 0
    assert not timer.has_expired(120_999)
    assert timer.elapsed_ms(120_999) == 59_999
    assert timer.has_expired(121_000)


def test_a_long_silence_stays_expired():
    """A process that was stopped for an hour (SIGSTOP) finds its timer expired however late it looks."""
    timer = PollTimer(PROCESS_MS, polled_at_ms=0)
    assert timer.has_expired(3_600_000)


def test_polling_does_not_extend_the_run():
    """Only the poll interval begins anew with a poll; the end of the run stays where it is."""
    timer = PollTimer(PROCESS_MS, polled_at_ms=0, run_ends_at_ms=10_000)
    timer.poll(9_999)
    assert not timer.has_run_expired(9_999)
    assert timer.has_run_expired(10_000)


@pytest.mark.parametrize(
    ("process_ms", "run_ends_at_ms", "now_ms", "is_attentive"),
    [
        (60_000, None, 999, True),
        (60_000, None, 1_000, False),
        (60_000, 2_000, 998, True),
        (60_000, 2_000, 999, True),
        (60_000, 2_000, 1_000, False),
        (60_000, 1_500, 600, False),
        (1_500, None, 499, True),
        (1_500, None, 500, False),
        (1_000, None, 0, False),
    ],
)
def test_who_polls_often_and_has_time_has_no_long_work(process_ms, run_ends_at_ms, now_ms, is_attentive):
    """Its checks may be rare: no deadline passes before the next one."""
    assert PollTimer(process_ms, 0, run_ends_at_ms).is_attentive(now_ms) is is_attentive


def test_a_run_without_an_end_never_expires():
    """No dagster/max_runtime, no end."""
    assert not PollTimer(PROCESS_MS, polled_at_ms=0).has_run_expired(10**12)


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.lists(st.integers(0, 10**9)))
def test_expired_means_the_process_timeout_has_passed(process_ms, start, steps):
    """expired(now) == (now - last poll >= process_ms), after any history of polls."""
    timer, now = PollTimer(process_ms, start), start
    for step in steps:
        now += step
        assert timer.has_expired(now) == (timer.elapsed_ms(now) >= process_ms)
        timer.poll(now)
        assert timer.elapsed_ms(now) == 0


@pytest.mark.parametrize(
    ("parent_is_alive", "run", "run_ends_at_ms", "now_ms", "reason"),
    [
        pytest.param(True, RunState.IN_PROGRESS, None, IN_TIME, None, id="all is well"),
        pytest.param(
            True, RunState.IN_PROGRESS, 10**9, IN_TIME, None, id="all is well, and the run has time left"
        ),
        pytest.param(
            False,
            RunState.IN_PROGRESS,
            None,
            IN_TIME,
            None,
            id="a dead code server is no reason while the run goes on",
        ),
        pytest.param(
            True,
            RunState.IN_PROGRESS,
            None,
            LATE,
            FenceReason.POLL_TIMEOUT,
            id="KIP-62: no poll for the whole timeout",
        ),
        pytest.param(
            False,
            RunState.IN_PROGRESS,
            None,
            LATE,
            FenceReason.POLL_TIMEOUT,
            id="the parent's death changes nothing",
        ),
        pytest.param(
            True,
            RunState.IN_PROGRESS,
            50_000,
            50_000,
            FenceReason.MAX_RUNTIME_REACHED,
            id="the run ends before the batch",
        ),
        pytest.param(
            True,
            RunState.IN_PROGRESS,
            50_000,
            LATE,
            FenceReason.MAX_RUNTIME_REACHED,
            id="no rejoining at the run's end",
        ),
        pytest.param(
            True, RunState.ENDED, None, 0, FenceReason.RUN_ENDED, id="a run that ended owns nothing"
        ),
        pytest.param(False, RunState.ENDED, None, 0, FenceReason.ORPHANED, id="its run worker was killed"),
        pytest.param(True, RunState.ENDED, 0, LATE, FenceReason.RUN_ENDED, id="an end outweighs both timers"),
        pytest.param(
            True, RunState.CANCELED, None, 0, FenceReason.RUN_CANCELED, id="someone pressed terminate"
        ),
        pytest.param(
            False,
            RunState.CANCELED,
            None,
            0,
            FenceReason.RUN_CANCELED,
            id="terminate kills the parent too: no orphan",
        ),
        pytest.param(
            True,
            RunState.CANCELED,
            0,
            LATE,
            FenceReason.RUN_CANCELED,
            id="in good order, even past every deadline",
        ),
    ],
)
def test_the_gravest_reason_wins(parent_is_alive, run, run_ends_at_ms, now_ms, reason):
    """What was seen and the time decide; the graver reason hides the lesser."""
    timer = PollTimer(PROCESS_MS, polled_at_ms=0, run_ends_at_ms=run_ends_at_ms)
    assert reason_to_fence(timer, ProcessObservation(parent_is_alive, run), now_ms) is reason


def test_every_reason_is_a_sentence_of_its_own():
    """Users read the reason: no two read alike."""
    assert len({reason.value for reason in FenceReason}) == len(FenceReason)


@pytest.mark.parametrize(
    "reason", [FenceReason.POLL_TIMEOUT, FenceReason.PARTITIONS_LOST, FenceReason.REPLACED]
)
def test_a_reason_that_settings_cause_names_the_setting(reason):
    """What comes again until a setting is changed says which one."""
    assert "_" in reason.remedy


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        pytest.param(
            RunState.IN_PROGRESS, FenceReason.ORPHANED, id="nobody may be left to say that the run ended"
        ),
        pytest.param(RunState.ENDED, FenceReason.ORPHANED, id="and somebody said it"),
        pytest.param(RunState.CANCELED, FenceReason.RUN_CANCELED, id="terminate ends both"),
    ],
)
def test_a_step_ends_with_its_run_worker(run, reason):
    """A step in a process of its own works for its parent.

    A run worker outlives the code server that is its parent.
    """
    timer = PollTimer(PROCESS_MS, polled_at_ms=0)
    assert (
        reason_to_fence(timer, ProcessObservation(parent_is_alive=False, run=run, is_step=True), IN_TIME)
        is reason
    )
    assert reason_to_fence(timer, ProcessObservation(parent_is_alive=True, is_step=True), IN_TIME) is None


@pytest.mark.parametrize(
    ("run_ends_at_ms", "now_ms", "left_ms"),
    [
        pytest.param(None, 7, 60_000, id="a run without an end caps nothing"),
        pytest.param(100_000, 7, 60_000, id="time enough for a whole batch"),
        pytest.param(70_000, 25_000, 45_000, id="the run's end caps it"),
        pytest.param(70_000, 70_001, 0, id="and is never below nothing"),
    ],
)
def test_a_batch_has_the_process_timeout_or_what_is_left_of_the_run(run_ends_at_ms, now_ms, left_ms):
    """Asked at every poll: the run's remaining budget always caps a batch's."""
    assert PollTimer(60_000, 0, run_ends_at_ms).remaining_ms(now_ms) == left_ms


@pytest.mark.parametrize("is_back", [False, True])
@pytest.mark.parametrize("reason", FenceReason)
def test_a_tag_is_read_as_it_was_written(reason, is_back):
    """A code, which no message depends on."""
    away = FenceReport(reason, is_back)
    assert away.encode() == reason.code + " back" * is_back
    assert FenceReport.decode(away.encode()) == away


@pytest.mark.parametrize("text", ["", "abducted", "poll-timeout for ever", "poll-timeout  back", "back"])
def test_a_tag_of_a_later_version_says_nothing(text):
    """It is as if the run had not said why."""
    assert FenceReport.decode(text) is None
