"""How is something asked while the thread that asks goes on? In a daemon thread, for which no process waits at its end.

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


def aside(ask: Callable[[], T], name: str) -> Future[T]:
    """What a call gives or raises, as soon as it does.

    Caller of ``ask``: a thread of this name.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised where the answer is asked for
            answer.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer
