"""Detached turns: run in tasks that the application owns, so that a client that goes away does not stop its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from chatlock import StoreUnavailable

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
