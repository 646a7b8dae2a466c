"""Run a call in a thread of its own: in a daemon thread, or off the main thread, which handles signals.

A process may be unable to start one: a limit of its user or its container (Python says "can't start new
thread").

>>> run_in_daemon_thread(lambda: 6 * 7, "kafka-liveness-doctest").result()
42

Python handles signals in the main thread, wherever that is, and Dagster's handler raises, for a run that is
canceled. Where that was inside gRPC (1.85) it left a lock of the channel taken. All later calls waited for
it: the interrupt of what Spark was at, so that it worked on for nobody, and the end of the session, so that
the run did not end either.
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
    """Do work in a daemon thread of this name.

    Returns:
        Whether it was started; False where the process cannot start a thread: nothing of it is done.
    """
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError:  # Python has no class of its own for it
        return False
    return True


def run_in_daemon_thread(call: Callable[[], T], name: str) -> Future[T]:
    """What a call gives or raises, as soon as it does; ``result(timeout)`` waits for it up to a deadline.

    Whoever gives the call up may give the future a result of its own: that of the call is dropped then.

    Caller of ``call``: a thread of this name; the caller's own where none can be started.
    """
    answer: Future[T] = Future()

    def run() -> None:
        with suppress(InvalidStateError):  # it was given up
            try:
                answer.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised where the answer is asked for
                answer.set_exception(error)

    if not start_daemon_thread(run, name):
        run()
    return answer


def run_off_main_thread(call: Callable[[], T]) -> T:
    """What a call gives or raises.

    In the main thread a handler's error is raised while it is waited for, no later.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    answered = threading.Lock()  # an error that is raised while one waits for it leaves it as it is
    answered.acquire()
    with _deferred_signals():
        answer = run_in_daemon_thread(call, "kafka-liveness-ask")
        answer.add_done_callback(lambda _: answered.release())
    answered.acquire()
    return answer.result()


@contextmanager
def _deferred_signals() -> Iterator[None]:
    """Let the handlers of signals run after the block, which is in the main thread."""
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
