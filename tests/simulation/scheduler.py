"""Schedule the threads of simulated processes as greenlets, in an order and at times that a seed decides.

Nothing happens at once and nothing is left to the operating system: a thread goes on until it waits, for a
lock, an answer or the time. Then one of those that are ready is drawn; when nobody is, the clock goes to the
next timer.
"""

from __future__ import annotations

import gc
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

from tests.simulation.process import Killed, Process, RunsOnError, StandsStillError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

MAX_TURNS = 60_000


class Task(greenlet):
    """A thread; when it has ended another one is made of it, for a new stack costs as much as ten turns.

    Attributes:
        turn: changes when it is woken, so that what would wake it for an older wait does nothing.
        waits_for: the lock it waits for.
        thread: as the product sees it.
    """

    process: Process
    work: Callable[[], Any]
    turn = 0
    woken = waiting = False
    waits_for: Any = None
    thread: Any = None
    back: Any = None
    begun = False
    over = True

    def run(self) -> None:
        """One work after the other."""
        while True:
            self.begun = True
            try:
                self.work()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 - told as what ended the history
                clock.fail(error)
            self.over = True
            self.turn += 1
            self.waits_for = self.thread = None
            if self in self.process.tasks:
                self.process.tasks.remove(self)
            back, self.back = self.back, None
            if back is None:
                back = clock.next()
            clock.idle.append(self)
            back.switch()


class Scheduler:
    """All threads there are, and the clock.

    Attributes:
        now: in seconds.
        look: called whenever another thread has its turn after something changed; raises to end the history.
        changed: something changed since.
    """

    def __init__(self) -> None:
        self.idle: list[Task] = []
        self.main: Any = getcurrent()
        self.reset(None)  # type: ignore[arg-type]

    def reset(self, rng: Random) -> None:
        """A new history."""
        self.now, self.turns = 1_000.0, 0
        self.rng = rng
        self.ready: list[Task] = []
        self.processes: dict[Process, None] = {}
        self.timers: list[tuple[float, int, Any, Any]] = []
        self.failure: BaseException | None = None
        self.look: Callable[[], None] = lambda: None
        self.changed = self.done = False
        self.slow = 0.0
        self._count = count()

    def run(self, process: Process, work: Callable[[], Any]) -> None:
        """Everything, until this work is done.

        Raises:
            BaseException: what a look or a thread raised.
        """
        self.main = getcurrent()

        def all_of_it() -> None:
            work()
            self.done = True

        self.spawn(process, all_of_it)
        # The garbage collector runs finalizers in whichever thread has its turn: one could wait there for a
        # lock of the simulation, while what it interrupts holds a real one
        collects = gc.isenabled()
        gc.disable()
        try:
            while not self.done and self.failure is None:
                if (task := self.next()) is not self.main:
                    task.switch()
        finally:
            failure, self.done = self.failure, True
            for one in list(self.processes):
                self.kill(one)
            if collects:
                gc.enable()
        if failure is not None:
            raise failure

    def fail(self, error: BaseException) -> None:
        """The history ends here."""
        self.failure = self.failure or error

    def stop_here(self, error: BaseException) -> None:
        """The same, and the thread that found it goes on no more."""
        me: Any = getcurrent()
        if me.process.dead:
            raise Killed
        self.fail(error)
        self.main.switch()
        raise Killed

    def spawn(self, process: Process, work: Callable[[], Any], thread: Any = None) -> Task:
        """Begin a thread."""
        task = self.idle.pop() if self.idle else Task(parent=self.main)
        task.process, task.work, task.thread = process, work, thread
        task.over = task.begun = False
        process.tasks.append(task)
        self.processes[process] = None
        self.ready.append(task)
        return task

    def next(self) -> Any:
        """Who is next; the caller switches to it."""
        while True:
            if self.changed and self.failure is None:
                self.changed = False
                try:
                    self.look()
                except BaseException as error:  # noqa: BLE001 - ends the history
                    self.fail(error)
            if self.done or self.failure is not None:
                return self.main
            if not self.ready and not self._advance():
                self.fail(StandsStillError())
                return self.main
            if not (ready := self.ready):
                continue
            at = int(self.rng.random() * len(ready)) if len(ready) > 1 else 0
            ready[at], ready[-1] = ready[-1], ready[at]
            task = ready.pop()
            if task.process.stopped:
                task.process.parked.append(task)
                continue
            self.turns += 1
            if self.turns > MAX_TURNS:
                self.fail(RunsOnError(f"{self.turns} turns, {self.now - 1_000:.0f} s"))
                return self.main
            return task

    def _advance(self) -> bool:
        """Let time pass to the next timer; False when there is none."""
        timers = self.timers
        while timers:
            at, _, what, turn = heappop(timers)
            if turn is None:
                self.now = at
                what()
                return True
            if what.turn == turn:
                self.now = at
                what.turn += 1
                what.waiting = False
                self.ready.append(what)
                return True
        return False

    def call(self, seconds: float, what: Callable[[], Any]) -> None:
        """Call something then; on nobody's turn."""
        heappush(self.timers, (self.now + seconds, next(self._count), what, None))

    def block(self, seconds: float | None = None) -> bool:
        """Wait to be woken, or for so long; gives whether it was woken."""
        me: Any = getcurrent()
        if me.process.dead:
            raise Killed
        me.woken, me.waiting = False, True
        if seconds is not None:
            heappush(self.timers, (self.now + max(seconds, 0.0), next(self._count), me, me.turn))
        task = self.next()
        if task is not me:
            task.switch()
        woken: bool = me.woken
        return woken

    def wake(self, task: Task) -> None:
        """Its wait is over, if it waits."""
        if task.waiting:
            task.waiting = False
            task.turn += 1
            task.woken = True
            self.ready.append(task)

    def point(self, chance: float = 0.3) -> None:
        """Here others may come first, or the process dies."""
        me: Any = getcurrent()
        process = me.process
        if process.dead:
            raise Killed
        if process.fuse:
            process.fuse -= 1
            if not process.fuse:
                process.blow()
                if process.dead:
                    raise Killed
                self.block(0.0)
        if self.rng.random() < chance:
            self.block(self.latency())

    def latency(self) -> float:
        """How long an answer takes."""
        r = self.rng.random()
        return 0.5 * self.rng.random() if r < self.slow else 0.04 * r

    def kill(self, process: Process) -> None:
        """SIGKILL; whoever calls it is not one of its threads, or raises ``Killed`` next."""
        if process.dead:
            return
        process.dead = True
        me: Any = getcurrent()
        for task in list(process.tasks):
            if task is not me:
                task.turn += 1
                task.waiting = False
                if task in self.ready:
                    self.ready.remove(task)
                if task.begun:
                    task.back = me
                    task.throw(Killed)
                else:
                    task.over = True
                    self.idle.append(task)
        process.tasks = [task for task in process.tasks if task is me]
        process.parked.clear()
        process.died()

    def go_on(self, process: Process) -> None:
        """SIGCONT."""
        process.stopped = False
        self.ready += process.parked
        process.parked.clear()


clock = Scheduler()
