"""The async client's process: the same users and operators, calls that are cancelled, streams that nobody reads on."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from chatlock import AsyncChatlock, Outcome, TurnNotFinished, TurnNotGranted
from chatlock.inputs import Key
from soak.agent import Agent
from soak.bridge import AsyncAgent, Bridged, loop_beside, run_on
from soak.life import TENANT, Birth, Life, Poisoned
from soak.roles import CALLERS, Caller

OK = {"kind": "ok"}


class AsyncCaller(Caller):
    """What a caller does, through the async client."""

    def __init__(self, life: Life, agent: Agent, client: AsyncChatlock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(life, agent)
        self._client, self._loop, self._handle = client, loop, AsyncAgent(agent)
        self._acts |= {self._give_up: 15, self._look_away: 15}

    def _block(self, thread: str) -> None:
        """The caller runs the turn itself, in its own task."""
        key, message_id = Key(TENANT, thread), self.new_id()
        call = self.history.asked(key, "submit", message_id, OK)
        try:
            run_on(self._loop, self._run_turn(thread, message_id))
        except TurnNotGranted as refused:
            self.told(key, call, refused.outcome)
        except (Poisoned, TurnNotFinished):
            pass

    async def _run_turn(self, thread: str, message_id: str) -> None:
        async with self._client.turn(thread, OK, message_id=message_id, wait_ms=self._wait()) as turn:
            reply = await self._handle(turn)
            if reply is not None:
                await turn.finish(reply)
                self.history.finished(turn)

    def _give_up(self, thread: str) -> None:
        """A task that is cancelled while it submits, waits or runs its turn; then somebody asks again."""
        self._leave(thread, self._client.submit, self.random.choice([0.0, 0.01, 0.1, 0.5]))

    def _look_away(self, thread: str) -> None:
        """A stream that is left, perhaps before its first event; then somebody asks again."""
        self._leave(thread, self._last_event, self.random.choice([0.0, 0.05, 0.5, 5.0]))

    async def _last_event(self, thread: str, payload: Any, **options: Any) -> Outcome:
        async with aclosing(self._client.stream(thread, payload, **options)) as events:
            async for event in events:
                last = event
        return last.data

    def _leave(self, thread: str, submit: Any, after_s: float) -> None:
        key, message_id, wait_ms = Key(TENANT, thread), self.new_id(), self._wait()
        call = self.history.asked(key, "submit", message_id, OK)

        async def submitted() -> Outcome:
            work = submit(thread, OK, message_id=message_id, wait_ms=wait_ms, recreate=True)
            return await asyncio.wait_for(work, after_s)

        try:
            self.told(key, call, run_on(self._loop, submitted()))
        except TimeoutError:
            self.life.slot.add("left_early")
        self.deliver(thread, message_id, OK, wait_ms=wait_ms, recreate=True)


def run_async(birth: Birth) -> None:
    """One life of a process with an async client."""
    loop = loop_beside()
    life = Life(birth, polls=True, make=lambda url, **options: Bridged(AsyncChatlock(url, **options), loop))
    agent, client = Agent(life), life.chat._inner
    client.handler()(AsyncAgent(agent))
    loop.call_soon_threadsafe(client._ready)
    life.run(*[AsyncCaller(life, agent, client, loop).act] * CALLERS)
