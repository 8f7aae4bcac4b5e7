"""python -m examples.openai_agents

A scripted model stands in for a real one.  Ann double texts; Bob's first run loses its claim while the model thinks.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from agents import Agent, set_tracing_disabled
from agents.extensions.memory import SQLAlchemySession
from agents.testing import ModelStep, ScriptedModel, assistant_message
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from chatlock import AsyncChatlock, AsyncTurn, ClaimLost
from chatlock.middleware.openai_agents import run_turn, stored_session
from examples.agents_ledger import THINK_S, Said, exit_code_of, ledger_of, say_all

MESSAGES = [
    Said("ann", "a1", "A table for two"),
    Said("ann", "a2", "sorry, three"),
    Said("bob", "b1", "Are you open on Monday?"),
    Said("ann", "a3", "at eight"),
]


def questions(history: list[Any]) -> list[str]:
    """What the person has said since the last answer."""
    open_questions: list[str] = []
    for item in history:
        if item.get("role") == "assistant":
            open_questions = []
        elif item.get("role") == "user":
            open_questions.append(item["content"])
    return open_questions


class Restaurant:
    """The application: one client, one agent, and who takes Bob's thread over once."""

    def __init__(self, chat: AsyncChatlock, engine: AsyncEngine) -> None:
        self.chat, self.engine = chat, engine
        model = ScriptedModel([ModelStep.respond(self.think)] * 20)
        self.agent = Agent(name="host", instructions="Take bookings.", model=model)
        self.freed = False

    async def think(self, call: Any) -> Any:
        """The model: it takes its time, and repeats what it was asked."""
        await asyncio.sleep(THINK_S)
        return [assistant_message("Noted: " + " / ".join(questions(call.input)))]

    async def answer(self, turn: AsyncTurn) -> None:
        """The handler."""
        said = [message.payload for message in turn.messages]
        print(f"{turn.key.thread}, turn {turn.token}: the agent reads {said}")
        if turn.key.thread == "bob" and not self.freed:
            self.freed = True
            asyncio.get_running_loop().call_later(THINK_S / 2, lambda: asyncio.ensure_future(self.free(turn)))
        try:
            result = await run_turn(turn, self.agent, stored_session(turn, self.engine))
        except ClaimLost:
            print(f"{turn.key.thread}, turn {turn.token}: lost its claim; nothing of its run is kept")
            raise
        print(f"{turn.key.thread}, turn {turn.token}: {result.final_output!r}")

    async def free(self, turn: AsyncTurn) -> None:
        """An operator takes the turn for dead."""
        await self.chat.free(turn.key.thread, turn=turn.token, force=True, reason="taken for dead")


async def serve(folder: Path) -> bool:
    """Everybody writes; then the histories are judged."""
    path = folder / "chat.db"
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with AsyncChatlock(f"sqlite:///{path}", tenant="acme") as chat:
        await chat.setup()
        await SQLAlchemySession("tables", engine=engine, create_tables=True).get_items()
        restaurant = Restaurant(chat, engine)
        chat.handler()(restaurant.answer)
        await say_all(chat, MESSAGES, every_s=THINK_S / 10)
        histories = {}
        for thread in ("ann", "bob"):
            session = SQLAlchemySession(f"acme/{thread}", engine=engine)
            histories[thread] = [item["content"] for item in await session.get_items() if item.get("role") == "user"]
        clean = await ledger_of(chat, MESSAGES, histories)
    await engine.dispose()
    return clean


def main() -> int:
    """0 if the ledger is clean."""
    set_tracing_disabled(True)
    return exit_code_of(serve)


if __name__ == "__main__":
    sys.exit(main())
