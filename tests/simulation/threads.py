"""What the product takes for ``threading`` and ``time``.

Its threads' turns are drawn, and the time is the clock's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from tests.simulation.scheduler import Killed, clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SWITCHES = 0.1


class DeadlockError(Exception):
    """Threads wait for each other in a circle."""


class Lock:
    """A lock that its owner may take again, if it is an ``RLock``'s."""

    def __init__(self) -> None:
        self._owner: Any = None
        self._depth = 0
        self._waiting: list[Any] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as in threading
        """Take it; others come first, at times."""
        me: Any = getcurrent()
        if self._owner is me and self._again():
            return True
        if blocking and clock.rng.random() < _SWITCHES:
            clock.point(1.0)
        while self._owner is not None:
            if not blocking:
                return False
            self._wait(me)
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        """Give it back."""
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            if self._waiting:
                clock.wake(self._waiting.pop(0))

    def _again(self) -> bool:
        raise clock_stop(DeadlockError("a thread waits for a lock that it holds"))

    def _wait(self, me: Any) -> None:
        me.waits_for, at = self, self._owner
        while at is not None and at.waits_for is not None:
            at = at.waits_for._owner
            if at is me:
                raise clock_stop(DeadlockError("threads wait for each other's locks"))
        self._waiting.append(me)
        clock.block()
        me.waits_for = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """One that its owner may take again."""

    def _again(self) -> bool:
        self._depth += 1
        return True


def clock_stop(error: Exception) -> BaseException:
    """End the history; gives what its thread raises, which nobody sees."""
    clock.stop_here(error)
    return Killed()


class Event:
    """A flag to wait for."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[Any] = []

    def is_set(self) -> bool:
        """Whether it is up."""
        return self._is_set

    def set(self) -> None:
        """Let all go on that wait."""
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            clock.wake(task)

    def clear(self) -> None:
        """Down again."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it."""
        if not self._is_set:
            me = getcurrent()
            self._waiting.append(me)
            if not clock.block(timeout) and me in self._waiting:
                self._waiting.remove(me)
        return self._is_set


class Condition:
    """What a ``Future`` waits by; its lock is never contended, for nobody has a turn while it is held."""

    def __init__(self, _lock: object = None) -> None:
        self._waiting: list[Any] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified."""
        me = getcurrent()
        self._waiting.append(me)
        woken = clock.block(timeout)
        if not woken and me in self._waiting:
            self._waiting.remove(me)
        return woken

    def notify_all(self) -> None:
        """Let all go on."""
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            clock.wake(task)


class Thread:
    """A thread of the process that starts it."""

    def __init__(
        self,
        target: Callable[..., Any] | None = None,
        name: str = "",
        args: Iterable[Any] = (),
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name, self.daemon = name, daemon
        self._target, self._args = target, tuple(args)
        self._alive = False

    def start(self) -> None:
        """Begin."""
        me: Any = getcurrent()
        if me.process.dead:
            raise Killed
        self._alive = True
        clock.spawn(me.process, self._run, self)

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._alive

    def _run(self) -> None:
        try:
            if self._target is not None:
                self._target(*self._args)
        finally:
            self._alive = False


def _current_thread() -> Any:
    me: Any = getcurrent()
    return me.thread


threading = SimpleNamespace(
    Lock=Lock,
    RLock=RLock,
    Event=Event,
    Condition=Condition,
    Thread=Thread,
    current_thread=_current_thread,
    get_ident=lambda: id(getcurrent()),
)


def _sleep(seconds: float) -> None:
    clock.block(seconds)


time = SimpleNamespace(
    monotonic=lambda: clock.now,
    monotonic_ns=lambda: int(clock.now * 1_000_000_000),
    time=lambda: clock.now,
    sleep=_sleep,
)
