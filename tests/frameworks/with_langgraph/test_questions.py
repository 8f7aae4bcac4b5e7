"""LangGraph's interrupts: a person's decision answers the question that was asked, and no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from chatlock import AsyncTurn
from chatlock.middleware.langgraph import begun, claimed
from tests.frameworks.graphs import Log, asked, in_memory, logged, scene


def asking_twice(saver: Any) -> Any:
    """A graph that asks whether to book, and then whether to pay."""

    def ask(name: str) -> Any:
        return lambda state: {"log": [f"{name}: {interrupt(name)}"]}

    builder = StateGraph(Log)
    for before, name in ((START, "book"), ("book", "pay")):
        builder.add_node(name, ask(name))
        builder.add_edge(before, name)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("guarded", [True, False])
@in_memory
def test_decision_is_not_given_to_a_question_that_nobody_was_asked(
    kind: str, url: str, tenant: str, guarded: bool
) -> None:
    """Each turn dies once, after the graph has stopped and before the turn ends."""

    async def decide() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            graph, died = asking_twice(saver), set[int]()

            @chat.handler()
            async def answer(turn: AsyncTurn) -> None:
                run, message = claimed(turn), turn.messages[0]
                said = Command(resume=message.payload) if message.answers else asked(turn.messages)
                resumed = guarded and begun(turn, await graph.aget_state(run["config"]))
                await graph.ainvoke(None if resumed else said, **run)
                snapshot = await graph.aget_state(run["config"])
                if message.seq not in died:
                    died.add(message.seq)
                    raise RuntimeError
                if snapshot.interrupts:
                    await turn.suspend(snapshot.interrupts[0].value)
                else:
                    await turn.finish(logged(snapshot))

            first = await chat.submit("t", "trip")
            second = await chat.answer("t", first.question, "yes")
            assert first.reply == "book"
            if not guarded:
                assert second.reply[-2:] == ["book: yes", "pay: yes"]
                return
            assert second.reply == "pay"
            last = await chat.answer("t", second.question, "no")
            assert last.reply == ["trip", "book: yes", "pay: no"]

    asyncio.run(decide())
