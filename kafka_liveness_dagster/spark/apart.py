"""How is gRPC asked where a signal may be raised? In a thread that handles none.

Python handles signals in the main thread, wherever that is, and Dagster's handler raises, for a run that is canceled.
Where that was inside gRPC (1.85) it left a lock of the channel taken. All later calls waited for it: the interrupt of
what Spark was at, so that it worked on for nobody, and the end of the session, so that the run did not end either.
"""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from kafka_liveness_dagster.core.aside import aside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


def apart(ask: Callable[[], T]) -> T:
    """What a call gives or raises; in the main thread a handler's error is raised while it is waited for, no later."""
    if threading.current_thread() is not threading.main_thread():
        return ask()
    answered = threading.Lock()  # an error that is raised while one waits for it leaves it as it is
    answered.acquire()
    with _signals_later():
        answer = aside(ask, "kafka-liveness-ask")
        answer.add_done_callback(lambda _: answered.release())
    answered.acquire()
    return answer.result()


@contextmanager
def _signals_later() -> Iterator[None]:
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
