"""The two passes: the same arrivals into the same agent, without and with chatlock between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from chatlock import AsyncChatlock, AsyncTurn, Verified
from examples.demo.agent import Agent, SentLog
from examples.demo.arrivals import Arrival

STORING_MAX = 256

Answered = Callable[[int], object]
Play = Callable[[list[Arrival], Agent, SentLog, Answered], Coroutine[Any, Any, Verified | None]]


async def replay(
    arrivals: list[Arrival],
    agent: Agent,
    on_message: Callable[[Arrival], Coroutine[Any, Any, None]],
) -> None:
    """Call `on_message` for each arrival at its time, whether or not earlier calls are done."""
    agent.start_clock()
    async with asyncio.TaskGroup() as group:
        for arrival in arrivals:
            await agent.sleep_until(arrival.at_s)
            group.create_task(on_message(arrival))


async def without_chatlock(arrivals: list[Arrival], agent: Agent, log: SentLog, answered: Answered) -> None:
    """Every message starts a turn of its own as soon as it arrives."""

    async def on_message(arrival: Arrival) -> None:
        log.sent(await agent.turn((arrival.log, arrival.person), [arrival.message_id]))
        answered(1)

    await replay(arrivals, agent, on_message)


def with_chatlock(url: str) -> Play:
    """Every message is submitted as soon as it arrives, on a slow machine as soon as it can be stored: turns that end
    must not queue up behind thousands that come.  The pass returns what verify saw.
    """

    async def play(arrivals: list[Arrival], agent: Agent, log: SentLog, answered: Answered) -> Verified:
        async with AsyncChatlock(url) as chat:
            await chat.setup()
            room = asyncio.Semaphore(STORING_MAX)

            @chat.handler()
            async def answer(turn: AsyncTurn) -> None:
                thread = (turn.key.tenant, turn.key.thread)
                reply = await agent.turn(thread, [message.message_id for message in turn.messages])
                await turn.finish({"answers": list(reply.entry.answers)})
                log.sent(reply)  # only now: finish refuses a turn that lost its claim, and then nothing is sent
                answered(len(reply.entry.answers))

            async def on_message(arrival: Arrival) -> None:
                await room.acquire()
                await chat.submit(
                    arrival.person,
                    {"chars": arrival.chars},
                    tenant=arrival.log,
                    message_id=arrival.message_id,
                    wait_ms=None,
                    on_stored=lambda _: room.release(),
                )

            await replay(arrivals, agent, on_message)
            return await chat.verify()

    return play
