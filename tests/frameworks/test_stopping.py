"""A turn that is asked to stop: what it awaits ends, then it is released, in each agent framework."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from agents import Agent, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel
from langgraph.checkpoint.memory import InMemorySaver

from chatlock import AsyncChatlock, AsyncTurn, Cancelled, Chatlock, ClaimLost
from chatlock.middleware import langgraph, openai_agents
from chatlock.middleware.stopping import stoppable
from tests.frameworks.graphs import Steps, asked, logged
from tests.support.databases import Database

set_tracing_disabled(True)
Run = Callable[[AsyncTurn, Callable[[], Awaitable[None]]], Awaitable[object]]


def agent_of(inside: Callable[[], Awaitable[None]]) -> Any:
    async def answer(call: Any) -> Any:
        await inside()

    return Agent(name="a", model=ScriptedModel([ModelStep.respond(answer)]))


def graph_of(inside: Callable[[], Awaitable[None]] | None, saver: Any = None) -> Any:
    return Steps(in_b=inside).graph(langgraph.FencedSaver(saver or InMemorySaver()))


async def drained(items: AsyncIterator[Any]) -> None:
    async for _ in items:
        pass


async def awaited(turn: AsyncTurn, inside: Callable[[], Awaitable[None]]) -> None:
    async with stoppable(turn):
        await inside()


RUNS: dict[str, Run] = {
    "agents-run": lambda turn, inside: openai_agents.run_turn(turn, agent_of(inside)),
    "agents-stream": lambda turn, inside: drained(openai_agents.stream_turn(turn, agent_of(inside))),
    "langgraph-run": lambda turn, inside: langgraph.run_turn(turn, graph_of(inside), asked, logged),
    "langgraph-stream": lambda turn, inside: drained(langgraph.stream_turn(turn, graph_of(inside), asked, logged)),
}


@asynccontextmanager
async def hanging(database: Database, run: Run, log: list[str]) -> AsyncIterator[tuple[AsyncChatlock, Any, Any]]:
    """A client, a turn, and the task of its run, which hangs and takes its time to close."""
    began = asyncio.Event()

    async def inside() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(int)
            log.append("closed")

    async with AsyncChatlock(database.url, tenant="acme", poller=False) as chat:
        turn = await chat.begin("t", "q", message_id="m")
        task = asyncio.ensure_future(run(turn, inside))
        await began.wait()
        yield chat, turn, task


@pytest.mark.parametrize("how", RUNS)
def test_stop_ends_the_run_and_then_releases_the_turn(
    sqlite_database: Database, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    release = AsyncTurn.release

    async def released(turn: AsyncTurn) -> bool:
        log.append("released")
        return await release(turn)

    async def stop() -> None:
        async with hanging(sqlite_database, RUNS[how], log) as (chat, turn, task):
            await chat.cancel("t", turn=turn.token, queued="cancel")
            with pytest.raises(ClaimLost, match="asked to stop"):
                await task
            assert log == ["closed", "released"]
            assert isinstance(await chat.status("t", "m"), Cancelled)

    monkeypatch.setattr(AsyncTurn, "release", released)
    asyncio.run(stop())


def test_turn_of_a_handler_that_is_stopped_is_no_failed_one(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def stop() -> None:
        async with AsyncChatlock(sqlite_database.url, tenant="acme", poller=False) as chat:

            @chat.handler()
            async def answer(turn: AsyncTurn) -> None:
                async with stoppable(turn):
                    await chat.cancel("t", turn=turn.token, queued="cancel")
                    await asyncio.Event().wait()

            assert isinstance(await chat.submit("t", "q"), Cancelled)

    asyncio.run(stop())
    assert not [record for record in caplog.records if record.message.startswith("turn.failed")]


@pytest.mark.parametrize("stopped_too", [False, True])
def test_caller_who_is_cancelled_is_not_told_of_a_stop(sqlite_database: Database, stopped_too: bool) -> None:
    async def cancel() -> None:
        async with hanging(sqlite_database, awaited, []) as (chat, turn, task):
            if stopped_too:
                await chat.cancel("t", turn=turn.token)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            turn.check()
            await turn.release()

    asyncio.run(cancel())


def test_work_that_ends_all_the_same_is_not_stopped(sqlite_database: Database) -> None:
    async def end() -> None:
        async with AsyncChatlock(sqlite_database.url, tenant="acme", poller=False) as chat, chat.turn("t", "q") as turn:
            task = asyncio.current_task()
            assert task is not None
            async with stoppable(turn):
                await chat.cancel("t", turn=turn.token)
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.Event().wait()
            assert task.cancelling() == 0
            await turn.finish("answered")

    asyncio.run(end())


@pytest.mark.parametrize("streams", [False, True])
def test_graph_starts_over_with_all_that_is_pending_after_an_interrupt(
    sqlite_database: Database, streams: bool
) -> None:
    saver = InMemorySaver()

    async def run(turn: AsyncTurn, inside: Callable[[], Awaitable[None]]) -> None:
        if streams:
            await drained(langgraph.stream_turn(turn, graph_of(inside, saver), asked, logged))
        else:
            await langgraph.run_turn(turn, graph_of(inside, saver), asked, logged)

    async def interrupt() -> None:
        async with hanging(sqlite_database, run, []) as (chat, _, task):
            await chat.submit("t", "q2", policy="interrupt", wait_ms=0)
            with pytest.raises(ClaimLost):
                await task
            async with chat.turn("t", "q3") as turn:
                snapshot = await langgraph.run_turn(turn, graph_of(None, saver), asked, logged)
            assert logged(snapshot) == ["q", "q2", "q3", "a", "b", "c"]

    asyncio.run(interrupt())


def test_stop_ends_a_sync_run_at_the_end_of_its_step(sqlite_database: Database) -> None:
    with Chatlock(sqlite_database.url, tenant="acme", poller=False) as chat:
        turn = chat.begin("t", "q")
        steps = Steps(in_b=lambda: chat.cancel("t", turn=turn.token))
        graph = steps.graph(langgraph.FencedSaver(InMemorySaver()), sync=True)
        with pytest.raises(ClaimLost, match="asked to stop"):
            langgraph.run_turn_sync(turn, graph, asked, logged)
        assert steps.ran == ["a", "b"]
        steps.in_b = None
        with chat.turn("t", "q2") as again:
            assert logged(langgraph.run_turn_sync(again, graph, asked, logged)) == ["q", "q2", "a", "b", "c"]
