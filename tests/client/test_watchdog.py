"""The fence of one consumer, without a broker: its deadline holds whatever else hangs, fails or sleeps."""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
import threading
from functools import partial

import pytest

from kafka_liveness_dagster.core.fencing import FenceReason, FenceReport, PollTimer, RunState
from kafka_liveness_dagster.kafka import watchdog
from kafka_liveness_dagster.kafka.errors import FencedError
from kafka_liveness_dagster.kafka.live.data_listener import LISTENING_POLL_SECONDS
from kafka_liveness_dagster.kafka.run_context import RunContext, now_ms
from kafka_liveness_dagster.kafka.watchdog import RUN_STATE_SECONDS, Watchdog
from tests.waiting import wait_for

PATIENCE = 60.0  # seconds
HANG = 10 * PATIENCE
ORPHAN = """
import json, os, threading
from kafka_liveness_dagster.core.fencing import PollTimer, RunState
from kafka_liveness_dagster.kafka.run_context import RunContext, now_ms
from kafka_liveness_dagster.kafka.watchdog import Watchdog

asked, enough, parent = [], threading.Event(), os.getppid()

def state():
    if os.getppid() != parent:
        asked.append(now_ms())
    if len(asked) == 4:
        enough.set()
    return RunState.IN_PROGRESS

run_context = RunContext("0badcafe", "dagster/job/0badcafe/step", state)
Watchdog(PollTimer(60_000, now_ms()), run_context, lambda _: None).start()
print("watching", flush=True)
enough.wait(600)
print(json.dumps(asked))
"""


def link(state=lambda: RunState.IN_PROGRESS):
    """A run that goes on, unless told otherwise."""
    return RunContext("0badcafe", "dagster/job/0badcafe/step", state)


@pytest.fixture
def watch():
    """A watchdog of a batch that is late at once; stopped at the end."""
    dogs = []

    def start(leave, state=lambda: RunState.IN_PROGRESS, process_ms=1):
        dogs.append(Watchdog(PollTimer(process_ms, now_ms()), link(state=state), leave))
        dogs[-1].start()
        return dogs[-1]

    yield start
    for dog in dogs:
        dog.stop()


def test_who_slept_past_its_deadline_answers_nothing():
    """A poll would let its client, which has lost its membership, join under the name of a successor."""
    answers = []

    class Late(PollTimer):
        def has_expired(self, now_ms):
            answers.append("looked")
            if len(answers) == 3:
                dog._stopped.set()
            return True

    dog = Watchdog(
        Late(1, now_ms()), link(), lambda _: None, lambda: answers.append("answered") or dog._stopped.set()
    )
    dog._serve_group()  # before the other thread has looked
    assert answers == ["looked"] * 3


def test_the_deadline_holds_while_dagster_cannot_be_asked(watch):
    """Dagster's database may be down; a hung batch leaves the group at its deadline all the same."""

    def unreachable():
        raise ConnectionError

    left = threading.Event()
    watch(lambda _: left.set(), state=unreachable, process_ms=600)
    wait_for(left.is_set, PATIENCE)


def test_the_deadline_holds_while_dagster_does_not_answer(watch):
    """A question to Dagster that hangs for minutes delays no deadline."""
    left, answer = threading.Event(), threading.Event()
    watch(lambda _: left.set(), state=lambda: answer.wait(HANG) and RunState.IN_PROGRESS, process_ms=600)
    in_time = left.wait(PATIENCE)
    answer.set()
    assert in_time


def test_a_cancel_that_hangs_does_not_hold_the_partitions(watch):
    """Spark may not answer its interrupt; the group is left all the same."""
    left, answer = threading.Event(), threading.Event()
    dog = Watchdog(PollTimer(1, now_ms()), link(), lambda _: left.set())
    dog.on_fence(lambda: answer.wait(HANG))
    dog.start()
    in_time = left.wait(PATIENCE)
    answer.set()
    dog.stop()
    assert in_time


def test_a_dagster_that_does_not_answer_does_not_keep_the_member_in_the_group():
    """Its database hangs when it is to be told why the consumer closes.

    It is closed all the same, and says so.
    """
    answer, stopped = threading.Event(), threading.Event()
    tell = lambda _: answer.wait(HANG)  # noqa: E731
    silent = RunContext(
        "0badcafe", "dagster/job/0badcafe/step", lambda: RunState.IN_PROGRESS, report_fence=tell
    )
    dog = Watchdog(PollTimer(60_000, now_ms()), silent, lambda _: None)
    threading.Thread(target=lambda: (dog.stop(), stopped.set()), daemon=True).start()
    in_time = stopped.wait(PATIENCE)
    answer.set()
    assert in_time


def test_what_is_registered_after_the_fence_is_cancelled_at_once(watch):
    """Work begun in the moment of the fence is cancelled too."""
    left, cancelled = threading.Event(), threading.Event()
    dog = watch(lambda _: left.set())
    wait_for(left.is_set, PATIENCE)
    dog.on_fence(cancelled.set)
    wait_for(cancelled.is_set, PATIENCE)


def test_the_fence_is_up_before_anything_slow_happens(watch):
    """Cancelling and leaving take time; commits are refused from the first moment."""
    seen = []
    dog = Watchdog(PollTimer(1, now_ms()), link(), lambda _: None)
    left = threading.Event()
    dog.on_fence(lambda: (seen.append(dog.reason), left.set()))
    dog.start()
    wait_for(left.is_set, PATIENCE)
    dog.stop()
    assert seen == [FenceReason.POLL_TIMEOUT]


def test_a_cancel_that_fails_does_not_keep_the_member_in_the_group():
    """One failing cancel stops neither the next one nor the leave."""
    left, next_one = [], threading.Event()
    dog = Watchdog(PollTimer(0, now_ms()), link(), left.append)
    dog.on_fence(lambda: 1 / 0)
    dog.on_fence(next_one.set)
    with pytest.raises(FencedError):
        dog.check()
    assert left == [FenceReason.POLL_TIMEOUT]
    wait_for(next_one.is_set, PATIENCE)


def test_a_late_commit_is_refused_even_if_the_watchdog_slept():
    """Stopped and continued (SIGSTOP), the process asks the clock itself before it commits."""
    left = []
    dog = Watchdog(PollTimer(1_000, now_ms() - 3_600_000), link(), left.append)
    with pytest.raises(FencedError, match=r"3600\.\d s of 1 s"):
        dog.check()
    assert left == [FenceReason.POLL_TIMEOUT]


def test_who_lost_its_parent_asks_dagster_at_once_and_then_as_often_as_others():
    """A run worker may outlive its code server for hours.

    That is no reason to ask Dagster's database all the time.
    """
    starter = ["sh", "-c", '"$0" -c "$1" & wait', sys.executable, ORPHAN]
    with subprocess.Popen(starter, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "watching\n"
        parent.kill()
        asked = json.loads(parent.stdout.readline())
    gaps = [later - sooner for sooner, later in itertools.pairwise(asked)]
    assert min(gaps) >= RUN_STATE_SECONDS * 1000


def test_dagster_is_seldom_asked_about_a_run_without_long_work(monkeypatch):
    """An idle run would take half of its processor time for that; a long batch is canceled soon."""
    monkeypatch.setattr(watchdog, "ATTENTIVE_RUN_STATE_SECONDS", HANG)
    monkeypatch.setattr(watchdog, "RUN_STATE_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "CHECK_SECONDS", 0.01)
    asked = {"idle": 0, "busy": 0}

    def state(who):
        asked[who] += 1
        return RunState.IN_PROGRESS

    class Attentive(PollTimer):
        def is_attentive(self, now_ms):
            return True

    dogs = [
        Watchdog(timer(60_000, now_ms() - 1_000), link(partial(state, who)), lambda _: None)
        for who, timer in (("idle", Attentive), ("busy", PollTimer))
    ]
    for dog in dogs:
        dog.start()
    wait_for(lambda: asked["busy"] > 10, PATIENCE)
    for dog in dogs:
        dog.stop()
    assert asked["idle"] == 0


def test_a_cancel_ends_an_idle_run_within_five_seconds():
    """Its longest waits are one after the other: the question, the check, the poll that has the client."""
    assert (
        watchdog.ATTENTIVE_RUN_STATE_SECONDS + watchdog.ATTENTIVE_CHECK_SECONDS + LISTENING_POLL_SECONDS < 4.5
    )


def test_who_is_idle_hears_of_its_cancel(watch):
    """Also while its checks are rare."""
    left = threading.Event()
    watch(lambda _: left.set(), state=lambda: RunState.CANCELED, process_ms=HANG * 1000)
    wait_for(left.is_set, PATIENCE)


def test_a_log_that_does_not_answer_does_not_keep_the_member_in_its_group(caplog):
    """Dagster stores its lines where ``python_logs`` says so, and its database may hang."""
    answer, left = threading.Event(), []

    class Stored(logging.Handler):
        def emit(self, record):
            answer.wait(HANG)

    handler, log = Stored(), logging.getLogger("kafka_liveness_dagster")
    log.addHandler(handler)
    try:
        dog = Watchdog(PollTimer(60_000, now_ms()), link(), left.append)
        fenced = threading.Thread(target=dog.fence, args=(FenceReason.RUN_ENDED, left.append), daemon=True)
        fenced.start()
        wait_for(lambda: left, PATIENCE)
    finally:
        answer.set()
        log.removeHandler(handler)


@pytest.mark.parametrize("fails", [False, True])
def test_without_a_thread_dagster_is_told_after_the_leave(no_threads, fails):
    """In the thread that fences; nothing of it is left out when one part fails."""
    done = []
    tells = RunContext(
        "0badcafe", "dagster/job/0badcafe/step", lambda: RunState.IN_PROGRESS, report_fence=done.append
    )
    dog = Watchdog(PollTimer(0, now_ms()), tells, lambda _: done.append("left") or (1 / 0 if fails else None))
    dog.on_fence(lambda: done.append("cancelled"))
    with no_threads():
        with pytest.raises(FencedError):
            dog.check()
        dog.on_fence(lambda: done.append("cancelled later"))
    why = FenceReport(FenceReason.POLL_TIMEOUT, is_back=False)
    assert done == ["left", "cancelled", why, "cancelled later"]


def test_without_a_thread_dagster_is_told_why_a_consumer_closes(no_threads):
    """In the thread that closes it."""
    told = []
    tells = RunContext(
        "0badcafe", "dagster/job/0badcafe/step", lambda: RunState.IN_PROGRESS, report_fence=told.append
    )
    with no_threads():
        Watchdog(PollTimer(60_000, now_ms()), tells, lambda _: None).stop()
    assert told == [FenceReport(FenceReason.CLOSED, is_back=False)]


def test_what_is_closed_after_its_deadline_does_not_rejoin():
    """A deadline that passed lets the next poll rejoin; a close after it does not: its clients are closed."""
    dog = Watchdog(PollTimer(0, now_ms()), link(), lambda _: None)
    with pytest.raises(FencedError, match="longer than its process timeout"):
        dog.check()
    dog.stop()
    with pytest.raises(FencedError, match="was closed") as caught:
        dog.check()
    assert not caught.value.reason.may_rejoin


def test_nothing_is_held_while_a_member_leaves():
    """To leave it waits for the client, whose user may be asking whether it is fenced.

    No waiting in a circle.
    """
    answered = threading.Event()

    def leave(_reason):
        asks = threading.Thread(
            target=lambda: (dog.fence(FenceReason.REPLACED, leave), answered.set()), daemon=True
        )
        asks.start()
        asks.join(PATIENCE)

    dog = Watchdog(PollTimer(60_000, now_ms()), link(), leave)
    dog.fence(FenceReason.PARTITIONS_LOST, leave)
    assert answered.is_set()


def test_a_fence_is_of_one_membership():
    """What was seen of a member that has ended meanwhile does nothing to the next one."""
    left = []
    dog = Watchdog(PollTimer(60_000, now_ms()), link(), left.append)
    before = left.append
    dog.reset(left.remove)
    dog.fence(FenceReason.PARTITIONS_LOST, before)
    dog.check()
    assert left == []


def test_progress_in_the_moment_of_the_deadline_keeps_the_fence_down():
    """The owner polled between the check of the timer and the fence."""
    left, answers = [], iter([True, False])

    class PolledMeanwhile(PollTimer):
        def has_expired(self, now_ms):
            return next(answers)

    dog = Watchdog(PolledMeanwhile(60_000, now_ms()), link(), left.append)
    dog.check()
    assert (dog.reason, left) == (None, []), "a deadline that was met raises no fence"


def test_a_member_that_cannot_leave_is_fenced_all_the_same():
    """The session timeout ends the membership; the caller gets the fence's error."""
    dog = Watchdog(PollTimer(0, now_ms()), link(), lambda _: 1 / 0)
    with pytest.raises(FencedError, match="longer than its process timeout"):
        dog.check()
