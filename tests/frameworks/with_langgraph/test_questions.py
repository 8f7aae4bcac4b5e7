"""LangGraph's interrupts: a person's decision answers the question that was asked, and no other."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from chatlock import AlreadyAnswered, AsyncChatlock, AsyncTurn, Queued
from chatlock.middleware.langgraph import claimed, input_of
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


class Desk:
    """A handler whose turns die where a test says so, after the graph has stopped and before the turn ends."""

    def __init__(self, chat: AsyncChatlock, saver: Any, *, guarded: bool = True) -> None:
        self.graph, self.dies, self.guarded = asking_twice(saver), False, guarded
        chat.handler()(self.answer)

    async def answer(self, turn: AsyncTurn) -> None:
        run, said = claimed(turn), asked(turn.messages)
        decision = next((message.payload for message in turn.messages if message.answers), None)
        given = input_of(turn, await self.graph.aget_state(run["config"]), said)
        await self.graph.ainvoke(given if self.guarded or not decision else Command(resume=decision), **run)
        snapshot = await self.graph.aget_state(run["config"])
        if self.dies:
            self.dies = False
            raise RuntimeError
        if snapshot.interrupts:
            await turn.suspend(snapshot.interrupts[0].value)
        else:
            await turn.finish(logged(snapshot))


@pytest.mark.parametrize("guarded", [True, False])
@in_memory
def test_decision_is_not_given_to_a_question_that_nobody_was_asked(
    kind: str, url: str, tenant: str, guarded: bool
) -> None:
    async def decide() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            desk = Desk(chat, saver, guarded=guarded)
            first = await chat.submit("t", "trip")
            desk.dies = True
            second = await chat.answer("t", first.question, "yes")
            if not guarded:
                assert second.reply == ["trip", "book: yes", "pay: yes"]
                return
            assert (first.reply, second.reply) == ("book", "pay")
            last = await chat.answer("t", second.question, "no")
            assert last.reply == ["trip", "book: yes", "pay: no"]

    asyncio.run(decide())


@in_memory
def test_older_decision_beside_the_one_that_was_asked_for_is_not_taken(kind: str, url: str, tenant: str) -> None:
    """A retry with the oldest message alone asks anew; the first decision stays beside the second."""

    async def decide() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            desk = Desk(chat, saver)
            first = await chat.submit("t", "trip")
            await chat.submit("t", "by train", message_id="m2", wait_ms=0)
            desk.dies = True
            await chat.answer("t", first.question, "yes", wait_ms=0)
            while not isinstance(again := await chat.status("t", "m2"), AlreadyAnswered):
                await chat.sweep_once()
            assert again.reply == "book"
            assert isinstance(await chat.status("t", first.question), Queued)
            last = await chat.answer("t", again.question, "no")
            assert last.reply == "pay"
            values = (await desk.graph.aget_state({"configurable": {"thread_id": f"{quote(tenant)}/t"}})).values
            assert values["log"][-1] == "book: no"

    asyncio.run(decide())
