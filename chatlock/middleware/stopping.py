"""Ends what a turn awaits once it is asked to stop or its claim is lost, and only then releases the turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from chatlock import AsyncTurn, ClaimLost

STOPPED = "this turn was asked to stop, or its claim is lost: its run has ended"
END = object()


async def _nothing_beside() -> None:
    """What is cancelled has ended by the time that its task goes on."""


@asynccontextmanager
async def stoppable(turn: AsyncTurn, end: Callable[[], Awaitable[object]] = _nothing_beside) -> AsyncIterator[None]:
    """Cancels what the current task awaits inside, where it stands.  Raises ClaimLost then.

    What ends by itself all the same is not stopped.

    Args:
        turn: Released when all has ended.
        end: Awaited before that: ends what runs beside the task.
    """
    task = asyncio.current_task()
    assert task is not None
    before, fired, stopped = task.cancelling(), False, False

    def fire(asked: asyncio.Future[None]) -> None:
        nonlocal fired
        if not asked.cancelled():
            fired = True
            task.cancel()

    if turn.cancelled:
        await give_up(turn, end)
    asked = asyncio.ensure_future(turn.until_cancelled())
    asked.add_done_callback(fire)
    try:
        yield
    except asyncio.CancelledError:
        stopped = fired and task.cancelling() == before + 1  # else its caller is stopped
        if not stopped:
            raise
    finally:
        asked.remove_done_callback(fire)
        asked.cancel()
        if fired:
            task.uncancel()
    if stopped:
        await give_up(turn, end)


async def stoppable_items(
    turn: AsyncTurn, items: AsyncGenerator[Any], end: Callable[[], Awaitable[object]]
) -> AsyncGenerator[Any]:
    """Yields the items; see stoppable.  end: is awaited in any case."""
    try:
        while True:
            async with stoppable(turn, end):
                item = await anext(items, END)
            if item is END:
                return
            yield item
    finally:
        await end()


async def give_up(turn: AsyncTurn, end: Callable[[], Awaitable[object]] = _nothing_beside) -> NoReturn:
    """Releases the turn, whose run has ended.  Raises ClaimLost."""
    await end()
    if not turn.lost:
        await turn.release()
    raise ClaimLost(STOPPED)
