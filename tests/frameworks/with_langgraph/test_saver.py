"""LangGraph with its real savers: late writes are refused, and a fenced saver is a saver in everything."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.errors import GraphDrained
from langgraph.graph import START, StateGraph

from chatlock import AsyncChatlock, AsyncTurn, Chatlock, ClaimLost, InvalidInput
from chatlock.middleware.langgraph import FencedSaver, claimed, run_turn, run_turn_sync, turn_of
from tests.frameworks.graphs import (
    QUICK,
    UNAWARE,
    Log,
    Steps,
    asked,
    async_saver,
    in_memory,
    logged,
    on_sqlite,
    scene,
    sync_saver,
    take_over,
)
from tests.support.databases import Database
from tests.support.waiting import Gate, until


# -- without chatlock --------------------------------------------------------------------------------------------------
def test_graph_alone_loses_messages_and_with_turns_it_loses_none(sqlite_database: Database) -> None:
    questions = [f"q{n}" for n in range(4)]

    async def alone() -> list[str]:
        graph = Steps(in_b=asyncio.Barrier(4).wait).graph(InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        await asyncio.gather(*(graph.ainvoke({"log": [q]}, config) for q in questions))
        return logged(await graph.aget_state(config))

    async def with_turns() -> list[str]:
        async with scene("memory", sqlite_database.url, "acme") as (chat, saver):
            graph = Steps().graph(saver)

            @chat.handler()
            async def answer(turn: AsyncTurn) -> None:
                await run_turn(turn, graph, asked, logged)

            outcomes = await asyncio.gather(*(chat.submit("t", q) for q in questions))
            return max((outcome.reply for outcome in outcomes if hasattr(outcome, "reply")), key=len)

    assert len([entry for entry in asyncio.run(alone()) if entry.startswith("q")]) == 1
    assert sorted(entry for entry in asyncio.run(with_turns()) if entry.startswith("q")) == questions


def test_late_write_becomes_the_head_of_a_saver_that_is_not_fenced(sqlite_database: Database) -> None:
    async def late() -> list[str]:
        async with scene("memory", sqlite_database.url, "acme") as (chat, _):
            saver, gate = InMemorySaver(), Gate()
            turn = await chat.begin("t", "late")
            held = asyncio.ensure_future(
                Steps(in_b=gate.hold_async).graph(saver).ainvoke({"log": ["late"]}, claimed(turn)["config"])
            )
            await asyncio.to_thread(gate.wait_entered)
            await asyncio.to_thread(take_over, sqlite_database.url, turn)
            config: Any = {"configurable": {"thread_id": "acme/t"}}
            graph = Steps().graph(saver)
            await graph.ainvoke({"log": ["next"]}, config)
            gate.open()
            await held
            return logged(await graph.aget_state(config))

    assert "next" not in asyncio.run(late())


# -- late writes -------------------------------------------------------------------------------------------------------
def test_late_write_is_refused(kind: str, url: str, tenant: str) -> None:
    async def late() -> None:
        async with scene(kind, url, tenant, UNAWARE) as (chat, saver):
            gate = Gate()
            stale = Steps(in_b=gate.hold_async)
            turn = await chat.begin("t", "q1")
            run = asyncio.ensure_future(run_turn(turn, stale.graph(saver), asked, logged))
            await asyncio.to_thread(gate.wait_entered)
            await asyncio.to_thread(take_over, url, turn)
            graph = Steps().graph(saver)
            async with chat.turn("t", "q2") as successor:
                snapshot = await run_turn(successor, graph, asked, logged)
            assert logged(snapshot)[:2] == ["q1", "a"]
            before = [stored async for stored in saver.alist(snapshot.config)]
            gate.open()
            with pytest.raises(ClaimLost):
                await run
            assert stale.ran == ["a", "b"]
            assert [stored async for stored in saver.alist(snapshot.config)] == before

    asyncio.run(late())


def test_late_write_is_refused_in_sync_code(kind: str, url: str, tenant: str) -> None:
    gate, errors = Gate(), []
    stale = Steps(in_b=gate.hold)
    with Chatlock(url, tenant=tenant, poller=False, limits=UNAWARE) as chat, sync_saver(kind, url) as inner:
        saver = FencedSaver(inner)
        turn = chat.begin("t", "q1")

        def late() -> None:
            try:
                run_turn_sync(turn, stale.graph(saver, sync=True), asked, logged)
            except ClaimLost as error:
                errors.append(error)

        os_thread = threading.Thread(target=late)
        os_thread.start()
        gate.wait_entered()
        take_over(url, turn)
        with chat.turn("t", "q2") as successor:
            snapshot = run_turn_sync(successor, Steps().graph(saver, sync=True), asked, logged)
        before = list(saver.list(snapshot.config))
        gate.open()
        os_thread.join()
        assert len(errors) == 1
        assert stale.ran == ["a", "b"]
        assert list(saver.list(snapshot.config)) == before


@in_memory
def test_lost_claim_drains_a_run_whose_saver_is_not_fenced(kind: str, url: str, tenant: str) -> None:
    async def drain() -> None:
        async with scene(kind, url, tenant) as (chat, _):
            turn = await chat.begin("t", "q")

            async def lose() -> None:
                await asyncio.to_thread(take_over, url, turn)
                await asyncio.to_thread(until, lambda: turn.lost)

            steps = Steps(in_b=lose)
            graph = steps.graph(InMemorySaver())
            with pytest.raises(GraphDrained):
                await graph.ainvoke({"log": ["q"]}, **claimed(turn))
            config: Any = {"configurable": {"thread_id": claimed(turn)["config"]["configurable"]["thread_id"]}}
            state = await graph.aget_state(config)
            assert (logged(state), state.next) == (["q", "a", "b"], ("c",))
            assert logged_of(await graph.ainvoke(None, config)) == ["q", "a", "b", "c"]

    def logged_of(values: Any) -> list[str]:
        return list(values["log"])

    asyncio.run(drain())


@in_memory
def test_write_without_a_turn_is_refused_unless_a_tool_may(kind: str, url: str, tenant: str) -> None:
    config: Any = {"configurable": {"thread_id": "t"}}

    async def update(saver: FencedSaver) -> None:
        await Steps().graph(saver).aupdate_state(config, {"log": ["edited"]})

    with pytest.raises(InvalidInput, match="claimed"):
        asyncio.run(update(FencedSaver(InMemorySaver())))
    asyncio.run(update(FencedSaver(InMemorySaver(), allow_unclaimed=True)))


# -- what the interface demands ----------------------------------------------------------------------------------------
class Claimed(FencedSaver):
    """Every write of the conformance suite is made under one turn's claim."""

    turn: Any = None

    def _turn(self, config: Any) -> Any:
        return self.turn


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_public_conformance_suite_passes_with_a_fence_in_every_write(kind: str, url: str, tenant: str) -> None:
    async def judge() -> None:
        async with AsyncChatlock(url, tenant=tenant, poller=False) as chat, chat.turn("t", "q") as turn:

            @checkpointer_test(name=kind)
            async def fresh() -> AsyncIterator[FencedSaver]:
                async with async_saver(kind, url) as saver:
                    fenced = Claimed(saver)
                    fenced.turn = turn
                    yield fenced

            report = await validate(fresh)
            failures = {name: result.failures for name, result in report.results.items() if result.failures}
            assert not failures
            assert report.passed_all_base()
            assert report.passed_all()
            await turn.finish()

    asyncio.run(judge())


def test_saver_shows_what_langgraph_inspects(monkeypatch: pytest.MonkeyPatch) -> None:
    fenced = FencedSaver(InMemorySaver())
    assert "task_path" in inspect.signature(fenced.put_writes).parameters
    assert str(fenced.get_next_version(None, None)).startswith("0000")
    monkeypatch.setenv("LANGGRAPH_STRICT_MSGPACK", "true")
    derived = fenced.with_allowlist([("tests.frameworks.graphs", "Log")])
    assert isinstance(derived, FencedSaver)
    assert derived._fence is fenced._fence
    assert isinstance(Steps().graph(fenced).checkpointer, FencedSaver)


@pytest.mark.parametrize("kind", ["postgres"])
def test_extended_methods_are_those_of_the_saver(kind: str, url: str, tenant: str) -> None:
    async def prune() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            async with chat.turn("t", "q") as turn:
                snapshot = await run_turn(turn, Steps().graph(saver), asked, logged)
            await saver.aprune([snapshot.config["configurable"]["thread_id"]])
            assert len([stored async for stored in saver.alist(snapshot.config)]) == 1

    asyncio.run(prune())
    with pytest.raises(NotImplementedError):
        FencedSaver(InMemorySaver()).prune(["t"])


@in_memory
def test_subgraph_writes_under_the_same_claim_and_metadata_names_the_token(kind: str, url: str, tenant: str) -> None:
    seen = []

    async def run() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            inner = StateGraph(Log)

            async def note(state: Log, config: RunnableConfig) -> Log:
                seen.append(turn_of(config))
                return {"log": ["inner"]}

            inner.add_node("note", note)
            inner.add_edge(START, "note")
            outer = StateGraph(Log)
            outer.add_node("sub", inner.compile(checkpointer=True))
            outer.add_edge(START, "sub")
            async with chat.turn("t", "q") as turn:
                snapshot = await run_turn(turn, outer.compile(checkpointer=saver), asked, logged)
            assert seen == [turn]
            everything = [stored async for stored in saver.alist(None)]
            assert {stored.config["configurable"]["checkpoint_ns"] for stored in everything} > {""}
            assert {stored.metadata["chatlock_token"] for stored in everything} == {turn.token}
            assert snapshot.config["configurable"]["thread_id"].endswith("/t")

    asyncio.run(run())


def test_saver_that_cannot_be_fenced_says_so(sqlite_database: Database) -> None:
    class Elsewhere(InMemorySaver.__mro__[1]):  # type: ignore[misc]
        """A saver of some other store."""

    with pytest.raises(InvalidInput, match="not NoneType"):
        FencedSaver(None)
    with pytest.raises(InvalidInput, match="same_database=False"):
        FencedSaver(Elsewhere())
    FencedSaver(Elsewhere(), same_database=False)
    with Chatlock(sqlite_database.url, tenant="acme", poller=False) as chat, chat.turn("t", "q") as turn:
        with pytest.raises(InvalidInput, match="FencedSaver"):
            run_turn_sync(turn, Steps().graph(InMemorySaver(), sync=True))
        turn.finish()


def test_checkpoints_elsewhere_are_checked(sqlite_database: Database, tmp_path: Path) -> None:
    with (
        Chatlock(sqlite_database.url, tenant="acme", poller=False, limits=QUICK) as chat,
        SqliteSaver.from_conn_string(str(tmp_path / "elsewhere.db")) as inner,
    ):
        turn = chat.begin("t", "q")

        def lose() -> None:
            take_over(sqlite_database.url, turn)
            until(lambda: turn.lost)

        steps = Steps(in_b=lose)
        with pytest.raises(ClaimLost):
            run_turn_sync(turn, steps.graph(FencedSaver(inner, same_database=False), sync=True), asked, logged)
        assert steps.ran == ["a", "b"]


@on_sqlite
def test_async_saver_serves_a_sync_run_in_another_os_thread(kind: str, url: str, tenant: str) -> None:
    async def run() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            graph = Steps().graph(saver, sync=True)
            async with chat.turn("t", "q") as turn:
                values = await asyncio.to_thread(lambda: graph.invoke({"log": ["q"]}, **claimed(turn)))
                await turn.finish(values["log"])
            assert values["log"] == ["q", "a", "b", "c"]

    asyncio.run(run())


@on_sqlite
def test_turn_and_run_of_different_worlds_are_refused(kind: str, url: str, tenant: str) -> None:
    async def mixed() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            with Chatlock(url, tenant=tenant, poller=False) as sync_chat, sync_saver(kind, url) as sync_inner:
                async with chat.turn("t", "q") as turn:
                    with pytest.raises(InvalidInput, match="ainvoke"):
                        run_turn_sync(turn, Steps().graph(FencedSaver(sync_inner), sync=True), asked)  # type: ignore[arg-type]
                    await turn.finish()
                with sync_chat.turn("u", "q") as sync_turn:
                    with pytest.raises(InvalidInput, match="invoke or stream"):
                        await Steps().graph(saver).ainvoke({"log": ["q"]}, **claimed(sync_turn))
                    sync_turn.finish()

    asyncio.run(mixed())
