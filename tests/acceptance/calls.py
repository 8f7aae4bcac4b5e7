"""Calls of an async client, to be cancelled wherever they stand, and what must be true after that."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from chatlock import AlreadyAnswered, Answered, AsyncChatlock, AsyncTurn, Outcome
from tests.acceptance.life import MESSAGES, assert_at_rest, assert_nothing_kept, read, until_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.support.databases import Database

    Play = Callable[[AsyncChatlock, str], Awaitable[Any]]


async def submit(chat: AsyncChatlock, thread: str) -> Outcome:
    return await chat.submit(thread, "hello", message_id="id")


async def begin(chat: AsyncChatlock, thread: str) -> None:
    turn = await chat.begin(thread, "hello", message_id="id")
    assert isinstance(turn, AsyncTurn)
    await turn.release()


async def turn(chat: AsyncChatlock, thread: str) -> None:
    async with chat.turn(thread, "hello", message_id="id") as held:
        await held.fetch()
        await held.mark("noted")
        await held.session("kept", lambda key: key)
        await held.finish("done")


async def stream(chat: AsyncChatlock, thread: str) -> None:
    async with aclosing(chat.stream(thread, "hello", message_id="id")) as events:
        async for _ in events:
            pass


async def submit_and_wait(chat: AsyncChatlock, thread: str) -> Outcome:
    """Its thread is freed by another task once it waits."""
    held = await asyncio.create_task(chat.begin(thread, "before"))  # in a context of its own
    assert isinstance(held, AsyncTurn)

    async def free() -> None:
        await until_async(lambda: [w for w in chat._flows.waiters._by_key.values() if w], "the waiter")
        await held.finish("done")

    freeing = asyncio.ensure_future(free())
    try:
        return await submit(chat, thread)
    finally:
        while not freeing.done():  # through every cancellation: it is no part of what is tested
            await asyncio.wait({freeing})


async def nothing(chat: AsyncChatlock, thread: str) -> None: ...


async def one_before(chat: AsyncChatlock, thread: str) -> None:
    await chat.submit(thread, "before")


async def failed_before(chat: AsyncChatlock, thread: str) -> None:
    held = await asyncio.create_task(chat.begin(thread, "before"))  # in a context of its own
    assert isinstance(held, AsyncTurn)
    await held.fail("the first attempt")


# name -> what happens before, what is cancelled, attempts charged before
PLAYS: dict[str, tuple[Play, Play, int]] = {
    "first_submit": (nothing, submit, 0),
    "later_submit": (one_before, submit, 0),
    "submit_after_a_failure": (failed_before, submit, 1),
    "submit_and_wait": (nothing, submit_and_wait, 0),
    "begin": (one_before, begin, 0),
    "begin_after_a_failure": (failed_before, begin, 1),
    "turn": (one_before, turn, 0),
    "stream": (one_before, stream, 0),
}


async def assert_handed_back(chat: AsyncChatlock, database: Database, thread: str, attempts: int) -> None:
    """Nothing of the cancelled call is left but its message, which the next call brings to its answer."""
    stored = read(database, MESSAGES, thread)
    answered = [m["message_id"] for m in stored if m["disposition"] == "answered"]
    still_charged = 0 if answered and attempts else attempts
    assert_nothing_kept(chat)
    assert_at_rest(database, thread, attempts=still_charged)
    outcome = await submit(chat, thread)
    assert isinstance(outcome, AlreadyAnswered if "id" in answered else Answered), outcome
    assert {m["disposition"] for m in read(database, MESSAGES, thread)} == {"answered"}
