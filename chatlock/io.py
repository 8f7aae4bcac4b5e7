"""The two worlds.  Every flow is written once, as a coroutine over Io; a sync shell drives it without ever
suspending.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, TypeVar

from chatlock.errors import Closed, InvalidInput

T = TypeVar("T")

Caller: TypeAlias = "asyncio.Task[Any] | threading.Thread"

_held_back: contextvars.ContextVar[list[asyncio.CancelledError] | None] = contextvars.ContextVar(
    "chatlock_held_back", default=None
)
"""Inside a shielded flow: the cancellations that came meanwhile."""


def lives(caller: Caller) -> bool:
    """Whether the task or OS thread has not ended.  From any OS thread."""
    return caller.is_alive() if isinstance(caller, threading.Thread) else not caller.done()


def drive(flow: Coroutine[Any, Any, T]) -> T:
    """Runs a flow over SyncIo to its end: it never suspends, so one step finishes it."""
    try:
        flow.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        flow.close()
    raise InvalidInput("async_call", "an async callable was given to the sync client")


async def settle(future: asyncio.Future[T]) -> T:
    """Waits until the future is done, whatever cancellations come meanwhile, then lets the first one through.

    Inside a shielded flow it is held back until the flow's end.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    held_back = _held_back.get()
    if cancelled is not None and held_back is None:
        if not future.cancelled():
            future.exception()
        raise cancelled
    if cancelled is not None and held_back is not None:
        held_back.append(cancelled)
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
        came = self._event.wait(None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))
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
            async with asyncio.timeout(timeout_s):  # wait_for loses a cancellation that comes together with the signal
                await self._event.wait()
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

    def caller(self) -> Caller:
        """The task or OS thread that calls this now."""
        ...

    def cancelled(self) -> bool:
        """Whether the calling task itself was cancelled, and not only one that it awaits."""
        ...


def is_main_thread(os_thread: threading.Thread) -> bool:
    """Whether Python raises its signals in this OS thread."""
    return os_thread is threading.main_thread()


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

    def caller(self) -> Caller:
        """The calling OS thread."""
        return threading.current_thread()

    def cancelled(self) -> bool:
        """Nobody can cancel an OS thread."""
        return False


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
        """Awaits it in the current task, which therefore cannot end before it, and cancels afterwards."""
        outer, held_back = _held_back.get(), list[asyncio.CancelledError]()
        token = _held_back.set(held_back)
        try:
            result = await flow
        finally:
            with suppress(ValueError):  # closed by whoever collects it, in a context that never had it
                _held_back.reset(token)
        if held_back and outer is None:
            raise held_back[0]
        if outer is not None:
            outer.extend(held_back)
        return result

    def signal(self) -> Signal:
        """An event of the running loop."""
        return AsyncSignal()

    def caller(self) -> Caller:
        """The calling task; the OS thread where no loop runs."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        return task if task is not None else threading.current_thread()

    def cancelled(self) -> bool:
        """Whether the calling task has a cancellation that is not undone."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
