"""Handlers: the user's code that runs a turn, in the three shapes it may have, and the chunks it streams."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from chatlock.errors import InvalidInput
from chatlock.inputs import Key, check_chunk, checked_id
from chatlock.intake import Intake
from chatlock.io import AsyncIo, Io, SyncIo
from chatlock.store import Store
from chatlock.turn import AsyncTurn, Turn
from chatlock.turn_core import TurnCore

CHUNKS_MAX = 1000
NO_INTAKE = Intake()


@dataclass(frozen=True)
class Handler:
    """A registered callable: handler(turn) -> reply, and how the messages of its agent are taken in."""

    agent: str
    call: Callable[..., Any]
    kind: Literal["sync", "async", "stream"]
    intake: Intake


def handler_of(call: Callable[..., Any], agent: str, intake: Intake = NO_INTAKE) -> Handler:
    """Classifies a handler: sync, async, or an async generator whose chunks are streamed."""
    agent = checked_id(agent, "agent")
    if not callable(call):
        raise InvalidInput("bad_handler", "a handler must be callable: handler(turn) -> reply")
    body = call if inspect.isroutine(call) or isinstance(call, functools.partial) else type(call).__call__
    if inspect.isgeneratorfunction(body):
        raise InvalidInput("bad_handler", "a handler that streams must be an async generator")
    if inspect.isasyncgenfunction(body):
        return Handler(agent, call, "stream", intake)
    return Handler(agent, call, "async" if inspect.iscoroutinefunction(body) else "sync", intake)


def agent_of_decorator(agent: object, name: str) -> str:
    """The checked agent.  Refuses @chat.handler without parentheses, which would register nothing."""
    if callable(agent):
        raise InvalidInput("bad_agent", f"write @chat.{name}(), with parentheses")
    return checked_id(agent, "agent")


@dataclass(frozen=True)
class Event:
    """One event of a stream."""

    id: str
    """Its id, unique in the stream."""
    kind: Literal["chunk", "reply", "outcome"]
    """chunk: a piece of the answer; reply: all of it, unless each of its chunks was heard; outcome: always last."""
    data: Any
    """The chunk or the reply, a JSON value, or the Outcome."""


class Feed:
    """The chunks of one running turn, the newest CHUNKS_MAX of them, and who listens."""

    def __init__(self, core: TurnCore) -> None:
        self.core = core
        self.chunks: deque[Event] = deque(maxlen=CHUNKS_MAX)
        self.count = 0

    def covers(self, message_id: str) -> bool:
        """Whether the turn has fetched the message."""
        return any(m.message_id == message_id for m in self.core.messages)


class Feeds:
    """The live chunks of this process.  Elsewhere, or later, the stored reply comes as one event."""

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Starts empty."""
        self._lock = threading.Lock()
        self._feeds: dict[Key, Feed] = {}
        self._listeners: dict[Key, list[tuple[str, Callable[[Event], None]]]] = {}

    def open(self, core: TurnCore) -> Feed:
        """A turn begins to stream."""
        feed = Feed(core)
        with self._lock:
            self._feeds[core.claim.key] = feed
        return feed

    def close(self, feed: Feed) -> None:
        """The turn has ended."""
        with self._lock:
            if self._feeds.get(feed.core.claim.key) is feed:
                del self._feeds[feed.core.claim.key]

    def publish(self, feed: Feed, chunk: Any) -> None:
        """Hands a chunk to everyone who listens for a message of this turn."""
        claim = feed.core.claim
        with self._lock:
            feed.count += 1
            event = Event(f"{claim.incarnation}-{claim.token}-{feed.count}", "chunk", chunk)
            feed.chunks.append(event)
            for message_id, put in self._listeners.get(claim.key, ()):
                if feed.covers(message_id):
                    put(event)

    def listen(self, key: Key, message_id: str, put: Callable[[Event], None]) -> Callable[[], None]:
        """Calls `put` for each chunk of a turn that holds the message, from its first kept one.  Returns the way to
        stop.
        """
        entry = (message_id, put)
        with self._lock:
            self._listeners.setdefault(key, []).append(entry)
            feed = self._feeds.get(key)
            for event in feed.chunks if feed is not None and feed.covers(message_id) else ():
                put(event)  # under the lock, so that no newer chunk overtakes it

        def stop() -> None:
            with self._lock:
                self._listeners[key].remove(entry)
                if not self._listeners[key]:
                    del self._listeners[key]

        return stop


def joined(chunks: list[Any]) -> Any:
    """The reply of a handler that streamed: its text in one piece, or the list of its chunks."""
    return "".join(chunks) if all(isinstance(c, str) for c in chunks) else chunks


async def _awaited(handler: Handler, core: TurnCore, store: Store, feeds: Feeds) -> Any:
    """Runs an async handler in the current task."""
    turn = AsyncTurn(core, store)
    if handler.kind == "async":
        with core.calling():
            return await handler.call(turn)
    chunks: list[Any] = []
    generator, feed = handler.call(turn), feeds.open(core)
    try:
        with core.calling():
            async for chunk in generator:
                check_chunk(chunk)
                chunks.append(chunk)
                feeds.publish(feed, chunk)
    finally:
        feeds.close(feed)
        await generator.aclose()
    return joined(chunks)


async def call_handler(handler: Handler, core: TurnCore, store: Store, feeds: Feeds) -> Any:
    """Calls the handler in the world it was written for; the turn's own calls run there too."""
    in_async = isinstance(store.io, AsyncIo)
    if handler.kind == "sync":
        turn = Turn(core, store.over(SyncIo()))

        def call() -> Any:
            with core.calling():
                return handler.call(turn)

        return await in_os_thread(call) if in_async else call()
    if in_async:
        return await _awaited(handler, core, store, feeds)
    io = AsyncIo(1)
    try:
        return _in_own_loop(lambda: _awaited(handler, core, store.over(io), feeds))
    finally:
        io.close()


async def call_either(io: Io, call: Callable[[Any], Any], is_async: bool, argument: Any) -> Any:
    """Calls a sync or async function from either world."""
    in_async = isinstance(io, AsyncIo)
    if not is_async:
        return await in_os_thread(lambda: call(argument)) if in_async else call(argument)
    return await call(argument) if in_async else _in_own_loop(lambda: call(argument))


def _in_own_loop(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Runs async code for the sync client; beside a loop that is blocked by this very call, in an OS thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    return _begun(lambda: asyncio.run(work())).result().result()


async def in_os_thread(call: Callable[[], Any]) -> Any:
    """A sync handler beside the loop, in a daemon OS thread of its own: it may run for minutes, and must not hold
    up exit.

    A cancelled caller does not wait for it: its claim is released, and what it still tries is refused.
    """
    ended = await asyncio.wrap_future(_begun(call))
    return ended.result()


def _begun(call: Callable[[], Any]) -> Future[Future[Any]]:
    """Calls it in an OS thread.  What it came to is a result, also if it raised: no loop carries a StopIteration, and a
    GeneratorExit would close the awaiting flow.
    """
    done: Future[Future[Any]] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        if not done.set_running_or_notify_cancel():
            return
        ended: Future[Any] = Future()
        try:
            ended.set_result(context.run(call))
        except BaseException as error:  # noqa: BLE001  raised again by the awaiting caller
            ended.set_exception(error)
        done.set_result(ended)

    threading.Thread(target=work, name="chatlock-turn", daemon=True).start()
    return done


__all__ = [
    "Event",
    "Feeds",
    "Handler",
    "agent_of_decorator",
    "call_either",
    "call_handler",
    "handler_of",
    "in_os_thread",
]
