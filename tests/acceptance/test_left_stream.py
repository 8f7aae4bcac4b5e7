"""A stream that its reader leaves, wherever it stands, releases its turn and loses no exception."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import Answered, AsyncChatlock, AsyncTurn, Outcome
from tests.acceptance.calls import submit
from tests.acceptance.cases.support import TENANT
from tests.acceptance.life import (
    AT_ONCE,
    MESSAGES,
    THREAD,
    Stop,
    assert_at_rest,
    assert_nothing_kept,
    quiet_loop,
    read,
    steps,
    until_async,
)

if TYPE_CHECKING:
    from tests.support.databases import Database


def streaming(chat: AsyncChatlock) -> asyncio.Event:
    """A handler that streams one chunk, and the rest once it is let go."""
    go = asyncio.Event()

    @chat.handler()
    async def chunks(held: AsyncTurn) -> Any:
        yield "one"
        await go.wait()
        yield "two"

    return go


def test_stream_that_is_never_started_stores_nothing(database: Database) -> None:
    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat, quiet_loop():
            streaming(chat)
            events = chat.stream("thread", "hello", message_id="id")
            del events
            assert_nothing_kept(chat)
            assert type(await chat.status("thread", "id")).__name__ == "NotFound"

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["closed", "dropped", "cancelled", "cancelled twice"])
def test_stream_that_is_left_early_releases_its_turn(database: Database, how: str) -> None:
    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat, quiet_loop():
            go = streaming(chat)
            if how in ("closed", "dropped"):
                events = chat.stream("thread", "hello", message_id="id")
                assert (await anext(events)).data == "one"
                if how == "closed":
                    await events.aclose()
                else:
                    del events
                    await until_async(lambda: not turn_is_running(database), "the release")
            else:
                first = asyncio.Event()

                async def read() -> None:
                    async for _ in chat.stream("thread", "hello", message_id="id"):
                        first.set()

                task = asyncio.ensure_future(read())
                await first.wait()
                stop = Stop(chat, name="release.commit")
                task.cancel()
                await until_async(stop.gate.entered.is_set, "the release")
                if how == "cancelled twice":
                    task.cancel()
                    await steps()
                    assert not task.done()
                stop.gate.open()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await until_async(lambda: not chat._flows.live.turns, "the end of the turn")
            assert_nothing_kept(chat)
            assert_at_rest(database, "thread")
            assert not chat._flows.feeds._listeners
            go.set()
            outcome = await submit(chat, "thread")
            assert isinstance(outcome, Answered)
            assert outcome.reply == "onetwo"

    asyncio.run(scenario())


def turn_is_running(database: Database) -> bool:
    return read(database, THREAD, "thread")[0]["status"] == "running"


def test_stream_that_is_left_after_its_call_failed_loses_no_exception(database: Database) -> None:
    async def scenario() -> None:
        chat = AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE)
        streaming(chat)
        async with quiet_loop():
            events = chat.stream("thread", "hello", message_id="id")
            assert (await anext(events)).data == "one"
            await chat.close()
            await until_async(lambda: len(asyncio.all_tasks()) == 2, "the call's wait")
            chat._flows.waiters.close()
            chat._flows.handlers.clear()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
                await asyncio.wait({task})
            await events.aclose()

    asyncio.run(scenario())


def test_chunks_for_a_reader_whose_loop_has_closed_do_not_fail_the_turn(database: Database) -> None:
    chat = AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE)
    kept: list[Any] = []

    async def listen() -> None:
        put = chat._flows.feeds.listen
        events = chat.stream("thread", "hello", message_id="id")
        kept.extend([put, events])
        chat._flows.handlers.clear()
        reading = asyncio.ensure_future(anext(events))
        await until_async(lambda: read(database, MESSAGES, "thread"), "the message")
        kept.append(reading)
        reading.cancel()
        await asyncio.wait({reading})

    async def answer() -> Outcome:
        streaming(chat).set()
        outcome = await submit(chat, "thread")
        await chat.close()
        return outcome

    asyncio.run(listen())
    assert isinstance(asyncio.run(answer()), Answered)
