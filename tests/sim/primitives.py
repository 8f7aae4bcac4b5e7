"""The locks, waits and OS threads of a simulated process: what its Scheduler gives the product for `threading`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.fibers import Fiber, Scheduler


class Lock:
    """As threading.Lock: anyone may release it."""

    point = "door"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: Fiber | None = None
        self._waiting: list[Fiber] = []

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def acquire(self, blocking: bool = True) -> bool:
        self._scheduler.maybe_pause("lock")
        if not blocking and self._owner is not None:
            return False
        self._take()
        return True

    def _take(self) -> None:
        me = self._scheduler.current
        while self._owner is not None:
            self._waiting.append(me)
            try:
                self._scheduler.wait(self.point)
            finally:
                self._waiting.remove(me)
        self._owner = me

    def release(self) -> None:
        if self._owner is None and not self._scheduler.current.home.dead:
            raise RuntimeError("a lock is released that nobody holds")
        self._owner = None
        for fiber in self._waiting:
            self._scheduler.wake(fiber)


class RLock(Lock):
    """As threading.RLock: its holder may take it again.  An interrupt does not meet who waits for it."""

    point = "lock"

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._depth = 0

    def acquire(self) -> bool:
        if not self.mine:
            super().acquire()
        self._depth += 1
        return True

    def release(self) -> None:
        if not self.mine:
            if self._scheduler.current.home.dead:
                return
            raise RuntimeError("a lock is released by a fiber that does not hold it")
        self._depth -= 1
        if self._depth == 0:
            super().release()

    @property
    def mine(self) -> bool:
        return self._owner is self._scheduler.current

    def let_go(self) -> int:
        """Releases it, however often it was taken; returns how often."""
        depth, self._depth = self._depth, 0
        super().release()
        return depth

    def take_again(self, depth: int) -> None:
        """The other half of let_go."""
        self._take()
        self._depth = depth


class Condition:
    """As threading.Condition."""

    def __init__(self, scheduler: Scheduler, lock: RLock | None = None) -> None:
        self._scheduler, self._lock = scheduler, lock or RLock(scheduler)
        self._waiting: list[Fiber] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._lock.mine:
            raise RuntimeError("a condition is waited for without its lock")
        me = self._scheduler.current
        deadline = None if timeout is None else self._scheduler.now + timeout
        self._waiting.append(me)
        depth = self._lock.let_go()
        try:
            return self._scheduler.wait("condition", deadline)
        finally:
            self._waiting.remove(me)
            self._lock.take_again(depth)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        deadline = None if timeout is None else self._scheduler.now + timeout
        while not (held := predicate()):
            left = None if deadline is None else deadline - self._scheduler.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return held

    def notify_all(self) -> None:
        self.notify(len(self._waiting))

    def notify(self, n: int = 1) -> None:
        if not self._lock.mine:
            raise RuntimeError("a condition is notified without its lock")
        for fiber in self._waiting[:n]:
            self._scheduler.wake(fiber)


class Event:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiting: list[Fiber] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for fiber in self._waiting:
            self._scheduler.wake(fiber)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        me = self._scheduler.current
        self._waiting.append(me)
        try:
            woken = self._scheduler.wait("event", None if timeout is None else self._scheduler.now + timeout)
        finally:
            self._waiting.remove(me)
        return woken or self._set


class OsThread:
    """An OS thread of the process whose fiber made it."""

    scheduler: Scheduler
    """Set by the subclass that stands in for threading.Thread."""

    def __init__(
        self, target: Callable[..., object], name: str = "thread", args: tuple[Any, ...] = (), daemon: bool = False
    ) -> None:
        self._work, self._name, self._daemon = (lambda: target(*args)), name, daemon
        self._fiber: Fiber | None = None

    @classmethod
    def of(cls, fiber: Fiber) -> OsThread:
        """The OS thread that a fiber of the simulation's own stands for."""
        if fiber.os_thread is None:
            fiber.os_thread = cls(fiber.run, fiber.name)
            fiber.os_thread._fiber = fiber
        return fiber.os_thread

    def start(self) -> None:
        self._fiber = self.scheduler.spawn(self.scheduler.current.home, self._name, self._work)
        self._fiber.os_thread = self

    def is_alive(self) -> bool:
        return self._fiber is not None and self._fiber.is_alive()

    def join(self, timeout: float | None = None) -> None:
        fiber = self._fiber
        if fiber is None:
            raise RuntimeError("an OS thread is joined before its start")
        deadline = None if timeout is None else self.scheduler.now + timeout
        fiber.joined.append(self.scheduler.current)
        while not fiber.ended and (deadline is None or self.scheduler.now < deadline):
            self.scheduler.wait("join", deadline)
