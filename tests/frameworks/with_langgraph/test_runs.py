"""LangGraph with its real savers: a run goes on where an earlier one stopped, and is never mixed with another."""

from __future__ import annotations

import asyncio
import runpy
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from chatlock import Answered, AsyncChatlock, Chatlock
from chatlock.middleware import MissingExtra
from chatlock.middleware.langgraph import FencedSaver, claimed, run_turn, stream_turn
from examples.langgraph_agent import __main__ as example
from tests.frameworks.graphs import Steps, answering, asked, in_memory, logged, on_sqlite, scene
from tests.support import ROOT
from tests.support.pages import Block, blocks_of
from tests.support.waiting import Gate


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
