"""How is work done while the thread that wants it goes on? In a daemon thread, for which no process waits at its end.

A process may be unable to start one: a limit of its user or its container (Python says "can't start new thread").

>>> aside(lambda: 6 * 7, "kafka-liveness-doctest").result()
42
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def start(work: Callable[[], object], name: str) -> bool:
    """Do work in a daemon thread of this name.

    Returns:
        Whether it was started; False where the process cannot start a thread: nothing of it is done.
    """
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError:  # Python has no class of its own for it
        return False
    return True


def aside(ask: Callable[[], T], name: str) -> Future[T]:
    """What a call gives or raises, as soon as it does.

    Caller of ``ask``: a thread of this name; the caller's own where none can be started.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised where the answer is asked for
            answer.set_exception(error)

    if not start(run, name):
        run()
    return answer
