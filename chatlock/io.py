"""The two worlds.  Every flow is written once, as a coroutine over Io; a sync shell drives it without ever
suspending.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from chatlock.errors import Closed

T = TypeVar("T")


def drive(flow: Coroutine[Any, Any, T]) -> T:
    """Runs a flow over SyncIo to its end: it never suspends, so one step finishes it."""
    try:
        flow.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        flow.close()
    raise RuntimeError("a sync flow suspended: an async callable was given to the sync client")


async def settle(future: asyncio.Future[T]) -> T:
    """Waits until the future is done, whatever cancellations come meanwhile, then lets the first one through."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        if not future.cancelled():
            future.exception()
        raise cancelled
    return future.result()


class Signal(Protocol):
    """Wakes one waiter, from any OS thread; kept until it is waited for."""

    def set(self) -> None: ...

    async def wait(self, timeout_s: float | None) -> bool: ...


class SyncSignal:
    """A signal for a caller that blocks its OS thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Wakes the waiter."""
        self._event.set()

    async def wait(self, timeout_s: float | None) -> bool:
        """Whether the signal came in time."""
        came = self._event.wait(timeout_s)
        self._event.clear()
        return came


class AsyncSignal:
    """A signal for a caller on an event loop: it holds no OS thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wakes the waiter."""
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # the loop is closed, and with it the waiter
            return

    async def wait(self, timeout_s: float | None) -> bool:
        """Whether the signal came in time."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Io(Protocol):
    """How a flow reaches the world."""

    async def run(self, call: Callable[[], T]) -> T:
        """A short blocking call; it has ended when this returns or raises, also under cancellation."""
        ...

    async def shielded(self, flow: Coroutine[Any, Any, T]) -> T:
        """A cleanup that runs to its end, whatever cancellations come meanwhile."""
        ...

    def signal(self) -> Signal:
        """A new signal."""
        ...

    def caller(self) -> Callable[[], bool]:
        """Whether the task or OS thread that calls this now is still alive, asked later from any OS thread."""
        ...


class SyncIo:
    """Everything in the caller's own OS thread."""

    async def run(self, call: Callable[[], T]) -> T:
        """Calls it."""
        return call()

    async def shielded(self, flow: Coroutine[Any, Any, T]) -> T:
        """Awaits it."""
        return await flow

    def signal(self) -> Signal:
        """An event of this OS thread."""
        return SyncSignal()

    def caller(self) -> Callable[[], bool]:
        """The calling OS thread's liveness."""
        return threading.current_thread().is_alive


class AsyncIo:
    """Blocking calls go to a small pool of OS threads of our own; the loop is never blocked, and no call is
    abandoned.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        """In a forked child: the pool's OS threads stayed in the parent."""
        self._pool, self._lock = None, threading.Lock()

    def close(self) -> None:
        """Lets running calls end."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    async def run(self, call: Callable[[], T]) -> T:
        """Calls it in the pool; a cancellation waits for a call that has begun."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="chatlock-op")
            pool = self._pool
        try:
            begun = pool.submit(contextvars.copy_context().run, call)
        except RuntimeError:  # the interpreter is going down
            raise Closed from None
        return await settle(asyncio.wrap_future(begun))

    async def shielded(self, flow: Coroutine[Any, Any, T]) -> T:
        """Runs it as a task of its own and waits for its end."""
        return await settle(asyncio.ensure_future(flow))

    def signal(self) -> Signal:
        """An event of the running loop."""
        return AsyncSignal()

    def caller(self) -> Callable[[], bool]:
        """The calling task's liveness."""
        task = asyncio.current_task()
        return (lambda: not task.done()) if task is not None else threading.current_thread().is_alive
