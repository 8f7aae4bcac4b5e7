"""LangGraph: what a run stored that answered nothing is left out once its messages are withdrawn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatlock import AsyncChatlock, AsyncTurn, Chatlock, Limits
from chatlock.middleware.langgraph import FencedSaver, run_turn, run_turn_sync
from tests.frameworks.graphs import Steps, answering, asked, in_memory, logged, on_sqlite, scene, sync_saver

ONCE = Limits(beat_ms=20, attempts_max=1)


def breaking() -> tuple[Steps, list[Any]]:
    """A graph whose node b raises what is in the list."""
    broken: list[Any] = []

    async def in_b() -> None:
        if broken:
            raise broken.pop()

    return Steps(in_b=in_b), broken


async def run_into_an_error(chat: AsyncChatlock, thread: str, graph: Any, broken: list[Any]) -> AsyncTurn:
    """A turn over "Rome", open still, whose run has stored steps."""
    turn = await chat.begin(thread, "Rome")
    broken.append(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await run_turn(turn, graph, asked, logged)
    return turn


async def withdraw(chat: AsyncChatlock, turn: AsyncTurn, how: str) -> None:
    """Ends the turn without an answer and for good, with a message behind it."""
    if how == "cancel":
        await chat.cancel(turn.key.thread, turn=turn.token, queued="cancel")
        await turn.release()
    elif how == "dead":
        await turn.fail("broken")
    policy: Any = "rollback" if how == "rollback" else "enqueue"
    await chat.submit(turn.key.thread, "Oslo", message_id="Oslo", policy=policy, wait_ms=0)


@pytest.mark.parametrize(
    ("kind", "how"), [("memory", "cancel"), ("sqlite", "dead"), ("postgres", "rollback"), ("memory", "rollback")]
)
def test_next_turn_does_not_see_what_was_withdrawn(kind: str, url: str, tenant: str, how: str) -> None:
    async def act() -> None:
        async with scene(kind, url, tenant, ONCE) as (chat, saver):
            steps, broken = breaking()
            graph = steps.graph(saver)
            async with chat.turn("old", "q0") as turn:
                await run_turn(turn, graph, asked, logged)
            for thread in ("new", "old"):
                await withdraw(chat, await run_into_an_error(chat, thread, graph, broken), how)
                died_at_once = await chat.begin(thread, "more")
                await died_at_once.release()
            chat.handler()(answering(graph))
            for thread, before in (("new", []), ("old", ["q0", "a", "b", "c"])):
                answered = await chat.submit(thread, "last")
                assert answered.reply == [*before, "Oslo", "more", "last", "a", "b", "c"]
                kept = await chat.submit(thread, "next")
                assert kept.reply == [*answered.reply, "next", "a", "b", "c"]

    asyncio.run(act())


@in_memory
def test_run_starts_over_without_the_one_of_its_messages_that_was_cancelled(kind: str, url: str, tenant: str) -> None:
    async def act() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            steps, broken = breaking()
            graph = steps.graph(saver)
            await chat.submit("t", "m1", message_id="m1", wait_ms=0)
            await chat.submit("t", "m2", message_id="m2", wait_ms=0)
            turn = await run_into_an_error(chat, "t", graph, broken)
            await turn.release()
            await chat.cancel("t", "m2")
            async with chat.turn("t", "m3") as turn:
                snapshot = await run_turn(turn, graph, asked, logged)
            assert logged(snapshot) == ["m1", "Rome", "m3", "a", "b", "c"]

    asyncio.run(act())


@in_memory
def test_run_of_another_thread_is_not_judged_by_its_token(kind: str, url: str, tenant: str) -> None:
    config = {"configurable": {"thread_id": "shared"}}

    async def act() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            graph = Steps().graph(saver)
            async with chat.turn("one", "q1") as turn:
                await run_turn(turn, graph, asked, logged, config=config)
            failed = await chat.begin("two", "q2")
            await failed.release()
            async with chat.turn("two", "q3") as other:
                assert failed.token == turn.token
                snapshot = await run_turn(other, graph, asked, logged, config=config)
            assert logged(snapshot) == ["q1", "a", "b", "c", "q2", "q3", "a", "b", "c"]

    asyncio.run(act())


@on_sqlite
def test_withdrawn_run_is_left_out_in_sync_code(kind: str, url: str, tenant: str) -> None:
    broken = [ZeroDivisionError()]

    def in_b() -> None:
        if broken:
            raise broken.pop()

    with Chatlock(url, tenant=tenant, poller=False, limits=ONCE) as chat, sync_saver(kind, url) as inner:
        graph = Steps(in_b=in_b).graph(FencedSaver(inner), sync=True)
        turn = chat.begin("t", "Rome")
        with pytest.raises(ZeroDivisionError):
            run_turn_sync(turn, graph, asked, logged)
        turn.fail("broken")
        with chat.turn("t", "Oslo") as turn:
            assert logged(run_turn_sync(turn, graph, asked, logged)) == ["Oslo", "a", "b", "c"]


def raises(snapshot: Any) -> Any:
    """A turn that dies when its run has come to its end."""
    raise ZeroDivisionError


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_run_that_a_later_turn_answered_without_another_step_is_kept(kind: str, url: str, tenant: str) -> None:
    async def act() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            steps = Steps()
            graph = steps.graph(saver)
            turn = await chat.begin("t", "Rome")
            with pytest.raises(ZeroDivisionError):
                await run_turn(turn, graph, asked, raises)
            await turn.release()
            async with chat.turn("t", "Oslo") as turn:
                await run_turn(turn, graph, asked, logged)
            async with chat.turn("t", "Bern") as turn:
                snapshot = await run_turn(turn, graph, asked, logged)
            assert logged(snapshot) == ["Rome", "a", "b", "c", "Oslo", "Bern", "a", "b", "c"]
            assert steps.ran == ["a", "b", "c"] * 2

    asyncio.run(act())


@on_sqlite
def test_run_that_a_later_turn_answered_is_kept_in_sync_code(kind: str, url: str, tenant: str) -> None:
    with Chatlock(url, tenant=tenant, poller=False) as chat, sync_saver(kind, url) as inner:
        graph = Steps().graph(FencedSaver(inner), sync=True)
        turn = chat.begin("t", "Rome")
        with pytest.raises(ZeroDivisionError):
            run_turn_sync(turn, graph, asked, raises)
        turn.release()
        with chat.turn("t", "Oslo") as turn:
            run_turn_sync(turn, graph, asked, logged)
        with chat.turn("t", "Bern") as turn:
            assert logged(run_turn_sync(turn, graph, asked, logged))[:4] == ["Rome", "a", "b", "c"]
