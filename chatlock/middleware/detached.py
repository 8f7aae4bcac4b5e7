"""Detached turns: run in tasks that the application owns, so that a client that goes away does not stop its turn.

And what their clients see of them: the outcome so far, and the events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from chatlock import AsyncChatlock, ChatlockError, Event, NotFound, Outcome, StoreUnavailable
from chatlock.middleware.http import answer_to_error, document, sse

T = TypeVar("T")


class Detached:
    """The running tasks, at most tasks_max; held strongly, since the event loop itself holds them weakly."""

    def __init__(self, tasks_max: int) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tasks_max = tasks_max

    def start(self, flow: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a flow.  Raises StoreUnavailable when too many run."""
        if len(self._tasks) >= self._tasks_max:
            flow.close()
            raise StoreUnavailable("too many turns run in this process; try again later")
        task = asyncio.ensure_future(flow)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def drain(self, drain_s: float) -> None:
        """Lets the tasks end for up to drain_s, then cancels them: their turns are released uncharged."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=drain_s)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=drain_s or 1)


async def stored_outcome(
    chat: AsyncChatlock, task: asyncio.Task[Outcome], thread: str, message_id: str, owner: str
) -> Outcome:
    """The outcome so far of a message whose turn goes on detached; it is told only once the message is stored."""
    while not task.done():
        outcome = await chat.status(thread, message_id, tenant=owner)
        if not isinstance(outcome, NotFound):
            return outcome
        await asyncio.wait({task}, timeout=0.02)
    return task.result()


async def as_sse(events: AsyncIterator[Event], last_id: str | None) -> AsyncIterator[bytes]:
    """Events from the one after last_id on; an error after the stream began is an event of its own."""
    skipping = last_id is not None
    try:
        async with aclosing(events) as source:  # type: ignore[type-var]
            async for event in source:
                data = document(event.data) if isinstance(event.data, Outcome) else event.data
                if not skipping or event.kind != "chunk":
                    yield sse(event.id, event.kind, data)
                skipping = skipping and event.id != last_id
    except ChatlockError as error:
        yield sse("error", "error", answer_to_error(error).body)
