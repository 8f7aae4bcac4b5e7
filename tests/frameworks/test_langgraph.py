"""LangGraph with its real savers: late writes are refused, and a run goes on where an earlier one stopped."""

from __future__ import annotations

import asyncio
import inspect
import runpy
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.errors import GraphDrained
from langgraph.graph import START, StateGraph

from chatlock import Answered, AsyncChatlock, AsyncTurn, Chatlock, ClaimLost, InvalidInput, Limits
from chatlock.middleware import MissingExtra
from chatlock.middleware.langgraph import (
    FencedSaver,
    claimed,
    run_turn,
    run_turn_sync,
    stream_turn,
    turn_of,
)
from examples.langgraph_agent import __main__ as example
from tests.frameworks.graphs import Log, Steps, asked, async_saver, logged, sync_saver
from tests.support import ROOT
from tests.support.databases import Database, Templates
from tests.support.pages import Block, blocks_of
from tests.support.waiting import Gate, until

KINDS = ["memory", "sqlite", "postgres", "postgres-one"]
QUICK = Limits(beat_ms=20, backoff_ms=1, backoff_max_ms=1)
UNAWARE = Limits(beat_ms=60_000, lease_ms=200_000)
"""A stale turn does not learn of its loss from a heartbeat: the fence alone refuses it."""


@pytest.fixture(scope="module")
def postgresql(templates: Templates) -> Iterator[Database]:
    """One for the file: every test has a tenant of its own."""
    made = templates.postgresql()
    yield made
    made.dispose()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest) -> str:
    """Where chatlock's tables are, and the checkpoints beside them."""
    name = "postgresql" if kind.startswith("postgres") else "sqlite_database"
    return str(request.getfixturevalue(name).url)


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    return request.node.name


in_memory = pytest.mark.parametrize("kind", ["memory"])
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"])


@asynccontextmanager
async def scene(
    kind: str, url: str, tenant: str, limits: Limits = QUICK
) -> AsyncIterator[tuple[AsyncChatlock, FencedSaver]]:
    async with AsyncChatlock(url, tenant=tenant, poller=False, limits=limits) as chat, async_saver(kind, url) as saver:
        yield chat, FencedSaver(saver)


def answering(graph: Any) -> Any:
    """A handler that runs the graph."""

    async def answer(turn: AsyncTurn) -> None:
        await run_turn(turn, graph, asked, logged)

    return answer


def take_over(url: str, turn: Any) -> None:
    """An operator frees the thread, as a sweep does with a turn that went silent."""
    with Chatlock(url, tenant=turn.key.tenant, poller=False) as other:
        assert other.free(turn.key.thread, turn=turn.token, force=True).done


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


# -- resume or restart -------------------------------------------------------------------------------------------------
def test_graph_alone_starts_again_on_top_of_a_run_that_was_cancelled() -> None:
    async def again() -> list[str]:
        gate = Gate()
        steps = Steps(in_b=gate.hold_async)
        graph = steps.graph(InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        run = asyncio.ensure_future(graph.ainvoke({"log": ["q1"]}, config))
        await asyncio.to_thread(gate.wait_entered)
        run.cancel()
        await asyncio.wait({run})
        gate.open()
        return logged_values(await graph.ainvoke({"log": ["q1"]}, config))

    def logged_values(values: Any) -> list[str]:
        return list(values["log"])

    assert asyncio.run(again()) == ["q1", "a", "q1", "a", "b", "c"]


@pytest.mark.parametrize("kind", ["memory", "postgres"])
def test_run_that_was_cancelled_is_resumed(kind: str, url: str, tenant: str) -> None:
    async def resume() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            gate = Gate()
            steps = Steps(in_b=gate.hold_async)
            graph = steps.graph(saver)
            chat.handler()(answering(graph))
            caller = asyncio.ensure_future(chat.submit("t", "q1", message_id="m1"))
            await asyncio.to_thread(gate.wait_entered)
            caller.cancel()
            await asyncio.wait({caller})
            gate.open()
            outcome = await chat.submit("t", "q2", message_id="m2")
            first = await chat.status("t", "m1")
            assert getattr(first, "reply", None) == ["q1", "a", "b", "c"]
            if not isinstance(outcome, Answered):
                await chat.sweep_once()
            second = await chat.status("t", "m2")
            assert getattr(second, "reply", None) == ["q1", "a", "b", "c", "q2", "a", "b", "c"]
            assert steps.ran == ["a", "b", "b", "c", "a", "b", "c"]

    asyncio.run(resume())


@pytest.mark.parametrize(
    ("kind", "history"), [("memory", False), ("memory", True), ("postgres", False), ("sqlite", True)]
)
def test_retry_with_fewer_messages_starts_from_before_the_failed_run(
    kind: str, url: str, tenant: str, history: bool
) -> None:
    async def restart() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            broken = [True]

            async def in_b() -> None:
                if broken[0]:
                    raise RuntimeError

            steps = Steps(in_b=in_b)
            graph = steps.graph(saver)
            chat.handler()(answering(graph))
            old = ["q0", "a", "b", "c"] if history else []
            if history:
                broken[0] = False
                await chat.submit("t", "q0")
                broken[0] = True
            turn = await chat.begin("t", "q1", message_id="m1")
            await chat.submit("t", "q2", message_id="m2", wait_ms=0)
            await turn.fetch()
            with pytest.raises(RuntimeError):
                await run_turn(turn, graph, asked, logged)
            await turn.fail("broken")
            broken[0] = False
            while (await chat.sweep_once()).turns:
                pass
            assert (await chat.status("t", "m1")).reply == [*old, "q1", "a", "b", "c"]
            assert (await chat.status("t", "m2")).reply == [*old, "q1", "a", "b", "c", "q2", "a", "b", "c"]

    asyncio.run(restart())


@pytest.mark.parametrize("write", ["aput", "aput_writes"])
@in_memory
def test_run_goes_on_from_whichever_write_it_died_at(
    kind: str, url: str, tenant: str, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die_and_go_on(chat: AsyncChatlock, nth: int) -> bool:
        inner, steps = InMemorySaver(), Steps()
        graph, thread, left = steps.graph(FencedSaver(inner)), f"t{nth}", [nth]
        put = getattr(inner, write)

        async def die(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise ZeroDivisionError
            return await put(*args, **options)

        turn = await chat.begin(thread, "q1")
        monkeypatch.setattr(inner, write, die)
        try:
            await run_turn(turn, graph, asked, logged)
            return False
        except ZeroDivisionError:
            await turn.release()
        monkeypatch.setattr(inner, write, put)
        async with chat.turn(thread, "q2") as retry:
            snapshot = await run_turn(retry, graph, asked, logged)
        inputs = [["q1"]]
        if (write, nth) == ("aput", 1):  # before 1.2.15 LangGraph makes its second write although the first failed
            inputs.append(["q1", "q2"])
        assert logged(snapshot) in [[*put_in, "a", "b", "c"] for put_in in inputs]
        assert steps.ran == ["a", "b", "c"]
        return True

    async def walk() -> None:
        async with scene(kind, url, tenant) as (chat, _):
            died = [await die_and_go_on(chat, nth) for nth in range(1, 7)]
            assert died == [True] * (5 if write == "aput" else 4) + [False] * (1 if write == "aput" else 2)

    asyncio.run(walk())


@in_memory
def test_run_that_was_complete_but_not_finished_is_not_run_again(kind: str, url: str, tenant: str) -> None:
    async def finish() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            steps = Steps()
            graph = steps.graph(saver)
            turn = await chat.begin("t", "q")
            with pytest.raises(ZeroDivisionError):
                await run_turn(turn, graph, asked, lambda snapshot: 1 / 0)
            await turn.release()
            async with chat.turn("t", "more") as retry:
                await run_turn(retry, graph, asked, logged)
            assert steps.ran == ["a", "b", "c"]

    asyncio.run(finish())


@in_memory
def test_run_from_an_earlier_checkpoint_is_answered_and_resumed_at_its_own_end(
    kind: str, url: str, tenant: str
) -> None:
    async def fork() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            broken: list[Any] = []

            async def in_b() -> None:
                if broken:
                    raise broken.pop()

            steps = Steps(in_b=in_b)
            graph = steps.graph(saver)
            async with chat.turn("t", "q1") as turn:
                early = (await run_turn(turn, graph, asked, logged)).config["configurable"]["checkpoint_id"]
            async with chat.turn("t", "q2") as turn:
                await run_turn(turn, graph, asked, logged)
            steps.ran.clear()
            broken.append(RuntimeError())
            config = {"configurable": {"checkpoint_id": early}}
            turn = await chat.begin("t", "q3")
            with pytest.raises(RuntimeError):
                await run_turn(turn, graph, asked, logged, config=config)
            await turn.release()
            async with chat.turn("t", "q4") as turn:
                snapshot = await run_turn(turn, graph, asked, logged, config=config)
            assert logged(snapshot) == ["q1", "a", "b", "c", "q3", "a", "b", "c"]
            assert steps.ran == ["a", "b", "b", "c"]

    asyncio.run(fork())


@in_memory
def test_edit_before_a_run_is_no_run_to_resume(kind: str, url: str, tenant: str) -> None:
    async def edit() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            graph = Steps().graph(saver)
            async with chat.turn("t", "q1") as turn:
                await run_turn(turn, graph, asked, logged)
            turn = await chat.begin("t", "q2")
            await graph.aupdate_state(claimed(turn)["config"], {"log": ["remembered"]})
            await turn.release()
            async with chat.turn("t", "q3") as turn:
                snapshot = await run_turn(turn, graph, asked, logged)
            assert logged(snapshot) == ["q1", "a", "b", "c", "remembered", "q2", "q3", "a", "b", "c"]

    asyncio.run(edit())


@in_memory
def test_stream_that_is_left_stops_the_run_and_the_next_turn_resumes(kind: str, url: str, tenant: str) -> None:
    async def leave() -> None:
        async with scene(kind, url, tenant) as (chat, saver):
            steps = Steps()
            graph = steps.graph(saver)
            turn = await chat.begin("t", "q")
            async with aclosing(stream_turn(turn, graph, asked, logged, stream_mode="updates")) as chunks:
                async for chunk in chunks:
                    assert chunk == {"a": {"log": ["a"]}}
                    break
            ran = list(steps.ran)
            assert "c" not in ran
            await turn.release()
            async with chat.turn("t", "q2") as retry:
                rest = [chunk async for chunk in stream_turn(retry, graph, asked, logged, stream_mode="updates")]
            assert rest[-1] == {"c": {"log": ["c"]}}
            assert steps.ran.count("a") == 1

    asyncio.run(leave())


@on_sqlite
def test_tenants_do_not_share_checkpoints(kind: str, url: str) -> None:
    async def two() -> None:
        async with scene(kind, url, "a") as (chat, saver):
            graph = Steps().graph(saver)
            for tenant, thread in (("a", "b/c"), ("a/b", "c"), ("a%2Fb", "c")):
                async with chat.turn(thread, "q", tenant=tenant) as turn:
                    snapshot = await run_turn(turn, graph, asked, logged)
                assert logged(snapshot) == ["q", "a", "b", "c"]

    asyncio.run(two())


def test_missing_framework_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langgraph.runtime", None)
    with pytest.raises(MissingExtra, match="its extra 'langgraph'"):
        runpy.run_path(str(ROOT / "chatlock" / "middleware" / "langgraph.py"))


# -- what a reader can run ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", blocks_of(ROOT / "docs" / "langgraph.md"), ids=lambda block: str(block.number))
def test_code_of_the_page_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Chatlock("sqlite:///chat.db").setup()
    block.run()


def test_example_ends_with_a_clean_ledger(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "THINK_S", 0.05)
    assert example.main() == 0
    printed = capsys.readouterr().out
    assert "bob, turn 1: lost its claim; what it wrote late was refused" in printed
    assert printed.count("bob, turn 1: looked the calendar up") == printed.count("bob, turn 3: looked") + 1 == 1
    assert printed.splitlines()[-1].startswith("ledger: 4 messages, 4 answered in ")
