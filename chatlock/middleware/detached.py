"""Detached turns: run in tasks that the application owns, so that a client that goes away does not stop its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from chatlock import Outcome, StoreUnavailable

T = TypeVar("T")


class Detached:
    """The running tasks, at most tasks_max; held strongly, since the event loop itself holds them weakly."""

    def __init__(self, tasks_max: int) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tasks_max = tasks_max
        self._draining = False

    def start(self, flow: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a flow.  Raises StoreUnavailable when too many run, or the process is going down."""
        if self._draining or len(self._tasks) >= self._tasks_max:
            flow.close()
            raise StoreUnavailable("this process takes no more turns; try again later")
        task = asyncio.ensure_future(flow)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def drain(self, drain_s: float) -> None:
        """Takes no more tasks, lets those that run end for up to drain_s, then cancels them: their turns are released
        uncharged.
        """
        self._draining = True
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=drain_s)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=max(drain_s, 1))


class Submitting:
    """A submit that goes on detached, and the moment in which its message is stored."""

    def __init__(
        self, detached: Detached, submit: Callable[[Callable[[Outcome], object]], Coroutine[Any, Any, Outcome]]
    ) -> None:
        self.stored: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.task = detached.start(submit(self._keep))

    def _keep(self, outcome: Outcome) -> None:
        if not self.stored.done():
            self.stored.set_result(outcome)

    async def refused(self) -> Outcome | None:
        """None once the message is stored; the outcome of one that is not.  Raises what submit raised."""
        await asyncio.wait({self.task, self.stored}, return_when=asyncio.FIRST_COMPLETED)
        if self.stored.done():
            return None
        if self.task.cancelled():  # by drain: its cancellation is not that of whoever waits here
            raise StoreUnavailable("this process goes down", commit_unknown=True)
        return self.task.result()

    async def outcome(self, wait_s: float) -> Outcome | None:
        """The outcome; None if it is not known within wait_s."""
        await asyncio.wait({self.task}, timeout=wait_s)
        return self.task.result() if self.task.done() and not self.task.cancelled() else None
