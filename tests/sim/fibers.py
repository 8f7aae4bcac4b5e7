"""One OS thread, many fibers: a seeded scheduler decides who goes on, and moves the only clock.

`Scheduler.threading` and `Scheduler.time` stand in for the modules of that name: the product's OS threads, locks and
waits become fibers, so that its own heartbeat, look and poller run here as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, Protocol

from greenlet import getcurrent, greenlet

from tests.sim.primitives import Condition, Event, Lock, OsThread, RLock

STEPS_MAX = 50_000
SWITCHES_SHOWN = 60


class Killed(BaseException):
    """Thrown into everything that runs in a process that dies: nothing of it reaches the database any more."""


class Stuck(AssertionError):
    """Nobody can go on, or there is no end to it."""


class Home(Protocol):
    """Where a fiber lives: a process that can die or stand still."""

    name: str
    dead: bool
    paused_until: float


class Fiber(greenlet):
    """Something that runs by itself: an OS thread of a process, or an actor of the simulation."""

    def __init__(self, scheduler: Scheduler, home: Home, name: str, work: Callable[[], object]) -> None:
        super().__init__(parent=scheduler.hub)
        self._work = work
        self.home, self.name, self.number = home, f"{home.name}.{name}", len(scheduler.started)
        self.waiting = self.woken = False
        self.deadline: float | None = None
        self.condition: Callable[[], bool] | None = None
        self.ended = False
        self.at = "start"
        self.op = ""
        self.clock_ms = 0
        self.interruptible = False
        self.error: BaseException | None = None
        self.value: Any = None
        self.joined: list[Fiber] = []
        self.os_thread: OsThread | None = None

    def run(self) -> None:
        try:
            self.value = self._work()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.ended = True

    def is_alive(self) -> bool:
        return not (self.ended or self.home.dead)


class Scheduler:
    """slow: how often the clock moves although someone could go on; preempt: how often a lock is taken later than asked
    for; sticky: how often the last one goes on.
    """

    def __init__(self, random: Random, *, slow: float, preempt: float, sticky: float) -> None:
        self.random, self.slow, self.preempt, self.sticky = random, slow, preempt, sticky
        self.hub = getcurrent()
        self.now = 0.0
        self.steps = 0
        self.started: list[Fiber] = []
        self.living: list[Fiber] = []
        self.trace: list[str] = []
        self.between: Callable[[], None] = lambda: None
        self._last: Fiber | None = None
        self._later: list[Callable[[], None]] = []
        self.time = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        self.threading = SimpleNamespace(
            TIMEOUT_MAX=threading.TIMEOUT_MAX,
            Thread=type("Thread", (OsThread,), {"scheduler": self}),
            Lock=lambda: Lock(self),
            RLock=lambda: RLock(self),
            Condition=lambda lock=None: Condition(self, lock),
            Event=lambda: Event(self),
            current_thread=lambda: self.threading.Thread.of(self.current),
            main_thread=lambda: self.threading.current_thread(),  # where an interrupt comes from outside
            get_ident=lambda: self.current.number,
        )

    @property
    def current(self) -> Fiber:
        fiber = getcurrent()
        if not isinstance(fiber, Fiber):
            raise AssertionError("only a fiber may wait: the hub decides who goes on")
        return fiber

    def spawn(self, home: Home, name: str, work: Callable[[], object]) -> Fiber:
        fiber = Fiber(self, home, name, work)
        self.started.append(fiber)
        self.living.append(fiber)
        return fiber

    # -- the fibers' side --------------------------------------------------------------------------------------------
    def pause(self, point: str) -> None:
        """Others may go on before this fiber does."""
        self._leave(point, waiting=False, deadline=None)

    def sleep(self, seconds: float) -> None:
        self.wait("sleep", self.now + seconds)

    def wait(self, point: str, deadline: float | None = None) -> bool:
        """Whether it was woken before the deadline."""
        return self._leave(point, waiting=True, deadline=deadline)

    def wait_for(self, condition: Callable[[], bool], point: str, deadline: float | None = None) -> None:
        """For actors of the simulation: `condition` is cheap, and looked at before every step."""
        if not condition():
            self.current.condition = condition
            self.wait(point, deadline)

    def _leave(self, point: str, *, waiting: bool, deadline: float | None) -> bool:
        fiber = self.current
        if fiber.home.dead:
            raise Killed
        self.trace.append(f"{fiber.name} {point}")
        fiber.at, fiber.waiting, fiber.woken, fiber.deadline = point, waiting, False, deadline
        try:
            self.hub.switch()
        finally:
            fiber.waiting, fiber.deadline, fiber.condition = False, None, None
        return fiber.woken

    def wake(self, fiber: Fiber) -> None:
        if fiber.waiting:
            fiber.woken = True

    def maybe_pause(self, point: str) -> None:
        if self.preempt and self.random.random() < self.preempt:
            self.pause(point)

    # -- the hub's side ----------------------------------------------------------------------------------------------
    def run(self, done: Callable[[], bool]) -> None:
        """Lets fibers go on until `done`."""
        while not done():
            self.steps += 1
            if self.steps > STEPS_MAX:
                raise Stuck(f"no end after {STEPS_MAX} steps")
            while self._later:
                self._later.pop()()
            self.between()
            fiber = self._next()
            self.switch(fiber)

    def _next(self) -> Fiber:
        while True:
            ready = [fiber for fiber in self.living if self._ready(fiber)]
            if ready and (len(ready) == len(self.living) or self.random.random() >= self.slow):
                if self._last in ready and self.random.random() < self.sticky:
                    return self._last
                return self.random.choice(ready)
            if not self._move_clock() and not ready:
                raise Stuck(f"nobody can go on: {[fiber.name for fiber in self.living]}")

    def _ready(self, fiber: Fiber) -> bool:
        if fiber.home.paused_until > self.now:
            return False
        if not fiber.waiting or fiber.woken or (fiber.deadline is not None and fiber.deadline <= self.now):
            return True
        return fiber.condition is not None and fiber.condition()

    def _move_clock(self) -> bool:
        """To the next moment at which someone can go on who cannot now."""
        moments = [fiber.deadline for fiber in self.living if fiber.waiting and fiber.deadline is not None]
        moments += [fiber.home.paused_until for fiber in self.living]
        later = [moment for moment in moments if moment > self.now]
        if later:
            self.now = min(later)
        return bool(later)

    def switch(self, fiber: Fiber, error: BaseException | None = None) -> None:
        """Lets one fiber go on, into `error` if there is one, until it leaves."""
        self._last = fiber
        if error is None:
            fiber.switch()
        elif fiber:
            fiber.throw(error)
        else:
            fiber.switch()  # it had not started: in a dead process it comes to nothing
        if fiber.ended:
            self.living.remove(fiber)
            for other in fiber.joined:
                self.wake(other)

    def later(self, act: Callable[[], None]) -> None:
        """Something that only the hub can do, before the next step."""
        self._later.append(act)

    def kill(self, home: Home) -> None:
        """Ends a process at once: its fibers are unwound, but can neither wait nor reach the database."""
        home.dead = True
        for fiber in [fiber for fiber in self.living if fiber.home is home]:
            self.switch(fiber, Killed())
