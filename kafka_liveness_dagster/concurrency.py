"""Run a call in its own thread: in a daemon thread, or off the main thread, which handles signals.

A process may be unable to start a thread, because of a limit of its user or its container. Python then raises
"can't start new thread".

>>> run_in_daemon_thread(lambda: 6 * 7, "kafka-liveness-doctest").result()
42

Python handles signals in the main thread, between any two of its instructions. Dagster's handler raises to
cancel a run. An exception inside gRPC (1.85) left a lock of the channel taken, and all later calls waited for
that lock. The interrupt of the Spark operation waited, so Spark continued to work for a canceled run. The end
of the session waited, so the run did not end either.
"""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")


def start_daemon_thread(work: Callable[[], object], name: str) -> bool:
    """Start work in a daemon thread of this name.

    Returns:
        Whether the thread was started. If not, the process cannot start a thread, and no work is done.
    """
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError:  # Python has no specific class for this error
        return False
    return True


def run_in_daemon_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Run a call in a daemon thread; return a future with its result or its exception.

    ``result(timeout)`` waits for it up to a deadline. A caller that gives the call up may set its own result
    in the future; the result of the call is then dropped.

    Caller of ``call``: a thread of this name; the current thread if no thread can be started.
    """
    answer: Future[T] = Future()

    def run() -> None:
        with suppress(InvalidStateError):  # the call was given up
            try:
                answer.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised where the result is read
                answer.set_exception(error)

    if not start_daemon_thread(run, name):
        run()
    return answer


def run_off_main_thread(call: Callable[[], T]) -> T:
    """Run a call off the main thread; return its result or raise its exception.

    In the main thread, the exception of a signal handler ends the wait at once.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    answered = threading.Lock()  # an exception during the wait for a lock leaves the lock intact
    answered.acquire()
    with _deferred_signals():
        answer = run_in_daemon_thread(call, "kafka-liveness-ask")
        answer.add_done_callback(lambda _: answered.release())
    answered.acquire()
    return answer.result()


@contextmanager
def _deferred_signals() -> Iterator[None]:
    """Defer the handlers of signals until after the block. The block must be in the main thread."""
    came: list[Callable[[], Any]] = []

    def later(theirs: Callable[..., Any]) -> Callable[..., None]:
        return lambda *told: came.append(lambda: theirs(*told))

    try:
        with ExitStack() as restored:
            for number in (signal.SIGINT, signal.SIGTERM):
                if callable(theirs := signal.getsignal(number)):
                    signal.signal(number, later(theirs))
                    restored.callback(signal.signal, number, theirs)
            yield
    finally:
        for handle in came:
            handle()
