"""LangGraph's interrupts suspend the turn; a decision answers the question that was asked, and no message is unread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from chatlock import AlreadyAnswered, AsyncTurn, Chatlock, Queued, Turn
from chatlock.middleware import langgraph_turns
from chatlock.middleware.langgraph import FencedSaver, claimed, run_turn_sync, stream_turn
from chatlock.testing import Case, Drill
from tests.frameworks.graphs import QUICK, Log, answering, asked, in_memory, logged, on_sqlite, scene, sync_saver


def decide(state: Log, *names: str) -> Log:
    """Asks for each name, if what was said last is a trip."""
    said = [entry for entry in state["log"] if ":" not in entry]
    return {"log": [f"{name}: {interrupt(name)}" for name in names if said[-1] == "trip"]}


def graph_of(saver: Any, *nodes: tuple[str, ...]) -> Any:
    """A graph whose nodes ask, one after the other."""
    builder, before = StateGraph(Log), START
    for names in nodes:
        builder.add_node("-".join(names), lambda state, names=names: decide(state, *names))
        builder.add_edge(before, "-".join(names))
        before = "-".join(names)
    return builder.compile(checkpointer=saver)


APART, TOGETHER = (("book",), ("pay",)), (("book", "pay"),)
shapes = pytest.mark.parametrize("nodes", [APART, TOGETHER], ids=["apart", "together"])


def dying(monkeypatch: pytest.MonkeyPatch, owner: Any = AsyncTurn, name: str = "suspend") -> Callable[[], None]:
    """Arms the next call to die: after the graph has stopped, and before the turn ends."""
    call, armed = getattr(owner, name), []

    def die(*args: Any, **options: Any) -> Any:
        if armed:
            raise armed.pop()
        return call(*args, **options)

    monkeypatch.setattr(owner, name, die)
    return lambda: armed.append(ZeroDivisionError())


@pytest.mark.parametrize(
    ("kind", "nodes", "at"),
    [
        ("memory", APART, (langgraph_turns, "noted")),
        ("memory", TOGETHER, (langgraph_turns, "noted")),
        ("memory", APART, (AsyncTurn, "suspend")),
        ("postgres", TOGETHER, (AsyncTurn, "suspend")),
    ],
    ids=["apart-noted", "together-noted", "apart-asked", "together-asked"],
)
def test_decision_is_not_given_to_a_question_that_nobody_was_asked(
    kind: str, url: str, tenant: str, nodes: Any, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            die = dying(monkeypatch, *at)
            chat.handler()(answering(graph_of(saver, *nodes)))
            first = await chat.submit("t", "trip")
            die()
            second = await chat.answer("t", first.question, "yes")
            assert (first.reply, second.reply) == ("book", "pay")
            last = await chat.answer("t", second.question, "no")
            assert last.reply == ["trip", "book: yes", "pay: no"]

    asyncio.run(act())


@shapes
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_message_that_comes_while_a_question_is_open_is_read_after_the_decisions(
    kind: str, url: str, tenant: str, nodes: Any
) -> None:
    async def act() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            chat.handler()(answering(graph_of(saver, *nodes)))
            first = await chat.submit("t", "trip")
            await chat.submit("t", "window seat", message_id="w", wait_ms=0)
            second = await chat.answer("t", first.question, "yes")
            assert second.reply == (await chat.status("t", "w")).reply == "pay"
            last = await chat.answer("t", second.question, "no")
            assert last.reply == ["trip", "book: yes", "pay: no", "window seat"]

    asyncio.run(act())


@in_memory
def test_message_that_a_question_answered_unread_is_read_though_nobody_decides(
    kind: str, url: str, tenant: str
) -> None:
    async def act() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            chat.handler()(answering(graph_of(saver, *APART)))
            first = await chat.submit("t", "trip")
            await chat.submit("t", "window seat", wait_ms=0)
            second = await chat.answer("t", first.question, "yes")
            await chat.cancel("t", second.question)
            last = await chat.submit("t", "never mind")
            assert last.reply == ["trip", "book: yes", "window seat", "never mind"]

    asyncio.run(act())


@in_memory
def test_older_decision_beside_the_one_that_was_asked_for_is_not_taken(
    kind: str, url: str, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry with the oldest message alone asks anew; the first decision stays beside the second."""

    async def act() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            die = dying(monkeypatch)
            chat.handler()(answering(graph_of(saver, *APART)))
            first = await chat.submit("t", "trip")
            await chat.submit("t", "trip", message_id="m2", wait_ms=0)
            die()
            await chat.answer("t", first.question, "yes", wait_ms=0)
            while not isinstance(again := await chat.status("t", "m2"), AlreadyAnswered):
                await chat.sweep_once()
            assert again.reply == "book"
            assert isinstance(await chat.status("t", first.question), Queued)
            last = await chat.answer("t", again.question, "no")
            assert last.reply == "pay"
            done = await chat.answer("t", last.question, "no")
            assert done.reply == ["trip", "trip", "book: no", "pay: no"]

    asyncio.run(act())


@on_sqlite
def test_sync_code_and_streams_suspend_too(kind: str, url: str, tenant: str) -> None:
    with Chatlock(url, tenant=tenant, poller=False, limits=QUICK) as chat, sync_saver(kind, url) as inner:
        graph = graph_of(FencedSaver(inner), *APART)
        chat.handler()(lambda turn: run_turn_sync(turn, graph, asked, logged) and None)
        first = chat.submit("t", "trip")
        chat.submit("t", "window seat", wait_ms=0)
        second = chat.answer("t", first.question, "yes")
        assert (first.reply, second.reply) == ("book", "pay")
        assert chat.answer("t", second.question, "no").reply == ["trip", "book: yes", "pay: no", "window seat"]

    async def stream() -> None:
        async with scene("memory", url, tenant) as (chat, saver):
            async with chat.turn("s", "trip", message_id="m") as turn:
                chunks = [chunk async for chunk in stream_turn(turn, graph_of(saver, *APART), asked, logged)]
            assert "__interrupt__" in chunks[-1]
            assert (await chat.status("s", "m")).question == turn.step_key("question:1")

    asyncio.run(stream())


class Read:
    """What the graph has read at the end, and what is kept for it."""

    def __init__(self) -> None:
        self.read: list[str] = []


def test_every_message_is_read_once_or_kept_whatever_dies(chatlock_drill: Drill, chatlock_url: str) -> None:
    def answer(world: Read, turn: Turn) -> None:
        with sync_saver("sqlite", chatlock_url) as inner:
            graph = graph_of(FencedSaver(inner), *APART)
            run_turn_sync(turn, graph, asked, logged)
            snapshot = graph.get_state(claimed(turn)["config"])
            kept = json.loads(snapshot.metadata["chatlock_unread"] or "[]")
            world.read = [*logged(snapshot), *(message["payload"] for message in kept)]

    def once(case: Case) -> None:
        assert case.world.read == list(case.messages.values())

    chatlock_drill.run(answer, world=Read, messages=["trip"], check=once)
