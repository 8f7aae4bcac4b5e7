"""python -m examples.langgraph_agent

A graph of two steps, on checkpoints in chatlock's own SQLite file.  Ann double texts; Bob's first run loses its claim
between its steps, and the next turn goes on from the step that was stored.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from chatlock import AsyncChatlock, AsyncTurn, ClaimLost
from chatlock.middleware.langgraph import FencedSaver, run_turn, turn_of
from examples.agents_ledger import THINK_S, Said, exit_code_of, ledger_of, say_all

MESSAGES = [
    Said("ann", "a1", "A table for two"),
    Said("ann", "a2", "sorry, three"),
    Said("bob", "b1", "Are you open on Monday?"),
    Said("ann", "a3", "at eight"),
]


class Restaurant:
    """The application: one client, one graph, and who takes Bob's thread over once."""

    def __init__(self, chat: AsyncChatlock, saver: AsyncSqliteSaver) -> None:
        self.chat = chat
        self.freed = False
        self.model = GenericFakeChatModel(messages=iter(AIMessage(f"Noted, {n}.") for n in range(1, 100)))
        builder = StateGraph(MessagesState)
        builder.add_node("look_up", self.look_up)
        builder.add_node("write", self.write)
        for before, after in ((START, "look_up"), ("look_up", "write"), ("write", END)):
            builder.add_edge(before, after)
        self.graph = builder.compile(checkpointer=FencedSaver(saver))

    async def look_up(self, state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        """The first step: slow, so that a retry had better not repeat it."""
        await asyncio.sleep(THINK_S)
        turn = turn_of(config)
        assert turn is not None
        print(f"{turn.key.thread}, turn {turn.token}: looked the calendar up")
        return {}

    async def write(self, state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        """The second step."""
        turn = turn_of(config)
        assert turn is not None
        if turn.key.thread == "bob" and not self.freed:
            self.freed = True
            await self.chat.free("bob", turn=turn.token, force=True, reason="taken for dead")
        return {"messages": [await self.model.ainvoke(state["messages"])]}

    async def answer(self, turn: AsyncTurn) -> None:
        """The handler."""
        said = [message.payload for message in turn.messages]
        print(f"{turn.key.thread}, turn {turn.token}: the agent has {said}")
        try:
            snapshot = await run_turn(turn, self.graph)
        except ClaimLost:
            print(f"{turn.key.thread}, turn {turn.token}: lost its claim; what it wrote late was refused")
            raise
        print(f"{turn.key.thread}, turn {turn.token}: {snapshot.values['messages'][-1].content!r}")


async def serve(folder: Path) -> bool:
    """Everybody writes; then the histories are judged."""
    path = folder / "chat.db"
    async with (
        AsyncChatlock(f"sqlite:///{path}", tenant="acme") as chat,
        AsyncSqliteSaver.from_conn_string(str(path)) as saver,
    ):
        await chat.setup()
        restaurant = Restaurant(chat, saver)
        chat.handler()(restaurant.answer)
        await say_all(chat, MESSAGES, every_s=THINK_S / 10)
        histories = {}
        for thread in ("ann", "bob"):
            state = await restaurant.graph.aget_state({"configurable": {"thread_id": f"acme/{thread}"}})
            histories[thread] = [m.content for m in state.values["messages"] if isinstance(m, HumanMessage)]
        return await ledger_of(chat, MESSAGES, histories)


def main() -> int:
    """0 if the ledger is clean."""
    return exit_code_of(serve)


if __name__ == "__main__":
    sys.exit(main())
