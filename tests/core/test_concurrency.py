"""A call in a thread of its own hands its outcome, whatever it is, to the thread that waits for it."""

from __future__ import annotations

import threading

import pytest

from kafka_liveness_dagster.concurrency import run_in_daemon_thread, start_daemon_thread


def test_a_call_runs_in_a_daemon_thread_of_its_name():
    """A process that ends does not wait for the call."""
    thread = run_in_daemon_thread(threading.current_thread, "kafka-liveness-test").result(timeout=60)
    assert (thread.name, thread.daemon) == ("kafka-liveness-test", True)
    assert thread is not threading.current_thread()


def test_a_process_that_can_start_no_thread_asks_in_its_own(no_threads):
    """A limit of its user or its container is reached: the answer comes all the same."""
    refused = []
    with no_threads(refused):
        assert not start_daemon_thread(pytest.fail, "kafka-liveness-test")
        assert (
            run_in_daemon_thread(threading.current_thread, "kafka-liveness-test").result(timeout=0)
            is threading.current_thread()
        )
    assert refused == ["kafka-liveness-test"] * 2


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_error_is_raised_where_the_outcome_is_read(error):
    """Errors that end a process do not end the thread silently: the reader would wait without end."""

    def fail():
        raise error

    future = run_in_daemon_thread(fail, "kafka-liveness-test")
    assert future.exception(timeout=60) is error
