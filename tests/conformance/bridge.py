"""An AsyncChatlock that sync tests can call: every OS thread of the test is one task on the loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from chatlock import AsyncChatlock, AsyncTurn
from tests.support.waiting import SECONDS_MAX

Work = tuple[Awaitable[Any], "Future[Any]"]


class Bridge:
    """The methods of AsyncChatlock, called without await.  A block of `turn` enters, works and ends in one task."""

    def __init__(self, url: str, **options: Any) -> None:
        self.chat = AsyncChatlock(url, **options)
        self._own = threading.local()
        self._tasks: list[Future[None]] = []
        self._inboxes: list[asyncio.Queue[Work | None]] = []
        self.loop = asyncio.new_event_loop()
        self._os_thread = threading.Thread(target=self.loop.run_forever, name="bridge")
        self._os_thread.start()

    def __getattr__(self, name: str) -> Any:
        return self._called(getattr(self.chat, name))

    def _called(self, attribute: Any) -> Any:
        if not inspect.iscoroutinefunction(attribute):
            return attribute
        return lambda *args, **kwargs: self.run(attribute(*args, **kwargs))

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Awaits it in the calling OS thread's task."""
        if not hasattr(self._own, "inbox"):
            self._own.inbox = asyncio.Queue()
            self._inboxes.append(self._own.inbox)
            self._tasks.append(asyncio.run_coroutine_threadsafe(_serve(self._own.inbox), self.loop))
        done: Future[Any] = Future()
        self.loop.call_soon_threadsafe(self._own.inbox.put_nowait, (awaitable, done))
        return done.result(3 * SECONDS_MAX)

    def begin(self, *args: Any, **options: Any) -> Any:
        got = self.run(self.chat.begin(*args, **options))
        return BridgedTurn(self, got) if isinstance(got, AsyncTurn) else got

    @contextmanager
    def turn(self, *args: Any, **options: Any) -> Iterator[BridgedTurn]:
        block = self.chat.turn(*args, **options)
        turn = self.run(block.__aenter__())
        try:
            yield BridgedTurn(self, turn)
        except BaseException as error:
            self.run(block.__aexit__(type(error), error, error.__traceback__))
            raise
        else:
            self.run(block.__aexit__(None, None, None))

    def stream(self, *args: Any, **options: Any) -> Iterator[Any]:
        yield from self._events(self.chat.stream, *args, **options)

    def follow(self, *args: Any, **options: Any) -> Iterator[Any]:
        yield from self._events(self.chat.follow, *args, **options)

    def _events(self, of: Callable[..., Any], *args: Any, **options: Any) -> Iterator[Any]:
        async def called() -> Any:
            return of(*args, **options)

        events = self.run(called())
        try:
            while (event := self.run(anext(events, None))) is not None:
                yield event
        finally:
            self.run(events.aclose())

    def end_tasks(self) -> None:
        """The task of every OS thread that called until now ends, as its OS thread may have."""
        for inbox in self._inboxes:
            self.loop.call_soon_threadsafe(inbox.put_nowait, None)
        for task in self._tasks:
            task.result(SECONDS_MAX)
        self._own, self._inboxes, self._tasks = threading.local(), [], []

    def close(self, drain_ms: int = 0) -> None:
        """Closes the client, once, and the loop."""
        if self.loop.is_closed():
            return
        self.run(self.chat.close(drain_ms))
        self.end_tasks()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._os_thread.join(SECONDS_MAX)
        self.loop.close()


class BridgedTurn:
    """The methods of AsyncTurn, called without await."""

    def __init__(self, bridge: Bridge, turn: AsyncTurn) -> None:
        self._bridge, self.turn = bridge, turn

    def __getattr__(self, name: str) -> Any:
        return self._bridge._called(getattr(self.turn, name))


async def _serve(inbox: asyncio.Queue[Work | None]) -> None:
    while (work := await inbox.get()) is not None:
        awaitable, done = work
        try:
            done.set_result(await awaitable)
        except BaseException as error:
            done.set_exception(error)
