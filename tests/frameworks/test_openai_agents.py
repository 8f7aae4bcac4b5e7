"""The OpenAI Agents SDK and its scripted model: histories hold whole turns, in order, and nothing of a stale one."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from agents import (
    Agent,
    OpenAIConversationsSession,
    Runner,
    RunState,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.extensions.memory import SQLAlchemySession
from agents.memory import OpenAIResponsesCompactionSession
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from openai import AsyncOpenAI
from pydantic import BaseModel
from sqlalchemy import event as sql_event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from chatlock import Answered, AsyncChatlock, AsyncTurn, Chatlock, ClaimLost, InvalidInput, Limits
from chatlock.middleware import MissingExtra
from chatlock.middleware.openai_agents import (
    TurnSession,
    conversation_session,
    run_turn,
    stored_session,
    stream_turn,
)
from examples.openai_agents import __main__ as example
from tests.support import ROOT
from tests.support.databases import Database, Templates
from tests.support.pages import Block, blocks_of
from tests.support.waiting import Gate, until

set_tracing_disabled(True)

QUICK = Limits(beat_ms=20)
UNAWARE = Limits(beat_ms=60_000, lease_ms=200_000)
"""A stale turn does not learn of its loss from a heartbeat: the database alone refuses it."""


@pytest.fixture(scope="module")
def postgresql(templates: Templates) -> Iterator[Database]:
    """One for the file: every test has a tenant of its own."""
    made = templates.postgresql()
    yield made
    made.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgresql" if request.param == "postgresql" else "sqlite_database").url)


@pytest.fixture
def sqlite_url(sqlite_database: Database) -> str:
    return sqlite_database.url


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@asynccontextmanager
async def scene(url: str, tenant: str, limits: Limits = QUICK) -> AsyncIterator[tuple[AsyncChatlock, AsyncEngine]]:
    """A client, and the application's engine on the same database with the SDK's tables."""
    driver = "sqlite+aiosqlite" if url.startswith("sqlite") else "postgresql+asyncpg"
    engine = create_async_engine(f"{driver}://{url.split('://')[1]}")
    await SQLAlchemySession("tables", engine=engine, create_tables=True).get_items()
    try:
        async with AsyncChatlock(url, tenant=tenant, poller=False, limits=limits) as chat:
            yield chat, engine
    finally:
        await engine.dispose()


def take_over(url: str, turn: Any) -> None:
    """An operator frees the thread, as a sweep does with a turn that went silent."""
    with Chatlock(url, tenant=turn.key.tenant, poller=False) as other:
        assert other.free(turn.key.thread, turn=turn.token, force=True).done


def says(text: str) -> list[Any]:
    return [assistant_message(text)]


def calls(tool: str, arguments: dict[str, Any]) -> Any:
    return function_call(tool, arguments, call_id=f"call-{tool}")


def held(gate: Gate, text: str) -> ModelStep:
    """A model that answers once the gate is open."""

    async def answer(call: Any) -> Any:
        await gate.hold_async()
        return says(text)

    return ModelStep.respond(answer)


def texts(items: list[Any]) -> list[str]:
    """What was said, in order."""

    def one(item: Any) -> str:
        content = item.get("content", item.get("type"))
        return content if isinstance(content, str) else content[0]["text"]

    return [f"{item.get('role', item.get('type'))}:{one(item)}" for item in items]


# -- without chatlock --------------------------------------------------------------------------------------------------
def test_runs_alone_mix_their_histories_and_an_error_leaves_its_question(tmp_path: Path) -> None:
    async def alone() -> list[str]:
        session, both = SQLiteSession("t", tmp_path / "history.db"), asyncio.Barrier(2)

        async def answer(call: Any) -> Any:
            await both.wait()
            return says("answer")

        model = ScriptedModel([ModelStep.respond(answer), ModelStep.respond(answer), RuntimeError("model down")])
        agent = Agent(name="a", model=model)
        await asyncio.gather(*(Runner.run(agent, q, session=session) for q in ("q1", "q2")))
        with pytest.raises(RuntimeError):
            await Runner.run(agent, "q3", session=session)
        found = texts(await session.get_items())
        session.close()
        return found

    found = asyncio.run(alone())
    assert sorted(found[:2]) == ["user:q1", "user:q2"]
    assert found[2:] == ["assistant:answer", "assistant:answer", "user:q3"]


def test_stream_alone_writes_after_it_was_left(tmp_path: Path) -> None:
    async def alone() -> tuple[int, int]:
        session, gate = SQLiteSession("t", tmp_path / "history.db"), Gate()
        agent = Agent(name="a", model=ScriptedModel([held(gate, "answer")]))
        result = Runner.run_streamed(agent, "q", session=session)
        async for _ in result.stream_events():
            break
        before = len(await session.get_items())
        gate.open()
        assert result.run_loop_task is not None
        await result.run_loop_task
        after = len(await session.get_items())
        session.close()
        return before, after

    before, after = asyncio.run(alone())
    assert after > before


# -- a turn's history --------------------------------------------------------------------------------------------------
def test_concurrent_messages_make_whole_turns_in_order(url: str, tenant: str) -> None:
    @function_tool
    def look(place: str) -> str:
        return f"seen {place}"

    async def talk() -> None:
        async with scene(url, tenant) as (chat, engine):
            gate = Gate()
            model = ScriptedModel(
                [
                    held(gate, "one"),
                    [calls("look", {"place": "here"})],
                    says("two"),
                    says("three"),
                ]
            )
            agent = Agent(name="a", model=model, tools=[look])

            @chat.handler()
            async def answer(turn: AsyncTurn) -> None:
                await run_turn(turn, agent, stored_session(turn, engine))

            first = asyncio.ensure_future(chat.submit("t", "q1"))
            await asyncio.to_thread(gate.wait_entered)
            second = asyncio.ensure_future(chat.submit("t", "q2"))
            gate.open()
            assert isinstance(await first, Answered)
            await second
            await chat.submit("t", "q3")
            turn = await chat.begin("t", "look")
            history = texts(await stored_session(turn, engine).get_items())
            await turn.release()
            assert history == [
                *("user:q1", "assistant:one"),
                *("user:q2", "function_call:function_call", "function_call_output:function_call_output"),
                *("assistant:two", "user:q3", "assistant:three"),
            ]
            assert texts(model.calls[3].input) == history[:-1]

    asyncio.run(talk())


def test_items_of_a_stale_turn_never_land(url: str, tenant: str) -> None:
    async def stale() -> None:
        async with scene(url, tenant, UNAWARE) as (chat, engine):

            async def lose(call: Any) -> Any:
                await asyncio.to_thread(take_over, url, turn)
                return says("late")

            turn = await chat.begin("t", "q1")
            model = ScriptedModel([ModelStep.respond(lose)])
            with pytest.raises(ClaimLost):
                await run_turn(turn, Agent(name="a", model=model), stored_session(turn, engine))
            async with chat.turn("t", "q2") as successor:
                session = stored_session(successor, engine)
                assert await session.get_items() == []
                await run_turn(successor, Agent(name="a", model=ScriptedModel([says("now")])), session)
            assert texts(await stored_session(turn, engine).get_items()) == ["user:q1", "user:q2", "assistant:now"]

    asyncio.run(stale())


def test_items_of_a_stale_turn_never_land_in_another_store(sqlite_url: str, tenant: str, tmp_path: Path) -> None:
    async def stale() -> None:
        async with scene(sqlite_url, tenant, UNAWARE) as (chat, _):
            store = SQLiteSession("t", tmp_path / "history.db")
            turn = await chat.begin("t", "q1")

            async def lose(call: Any) -> Any:
                await asyncio.to_thread(take_over, sqlite_url, turn)
                return says("late")

            with pytest.raises(ClaimLost):
                await run_turn(turn, Agent(name="a", model=ScriptedModel([ModelStep.respond(lose)])), store)
            assert await store.get_items() == []
            async with chat.turn("t", "q2") as successor:
                await run_turn(successor, Agent(name="a", model=ScriptedModel([says("now")])), store)
            assert texts(await store.get_items()) == ["user:q1", "user:q2", "assistant:now"]
            store.close()

    asyncio.run(stale())


def test_lost_claim_stops_a_run_that_hangs_in_its_model(sqlite_url: str, tenant: str) -> None:
    async def hang() -> None:
        async with scene(sqlite_url, tenant) as (chat, engine):
            gate = Gate()
            for how in ("run", "stream"):
                turn = await chat.begin(how, "q")
                agent = Agent(name="a", model=ScriptedModel([held(gate, "never")]))
                task = asyncio.ensure_future(drain(how, turn, agent, stored_session(turn, engine)))
                await asyncio.to_thread(gate.wait_entered)
                await asyncio.to_thread(take_over, sqlite_url, turn)
                with pytest.raises(ClaimLost):
                    await task

    async def drain(how: str, turn: AsyncTurn, agent: Any, session: Any) -> None:
        if how == "run":
            await run_turn(turn, agent, session)
        else:
            async for _ in stream_turn(turn, agent, session):
                pass

    asyncio.run(hang())


def test_lost_claim_stops_a_run_before_its_next_model_call(sqlite_url: str, tenant: str) -> None:
    async def stop() -> None:
        async with scene(sqlite_url, tenant) as (chat, engine):
            turn = await chat.begin("t", "q")

            @function_tool
            def lose() -> str:
                take_over(sqlite_url, turn)
                until(lambda: turn.lost)
                return "late"

            model = ScriptedModel([[calls("lose", {})], says("never")])
            with pytest.raises(ClaimLost):
                await run_turn(turn, Agent(name="a", model=model, tools=[lose]), stored_session(turn, engine))
            assert len(model.calls) == 1

    asyncio.run(stop())


def test_history_and_finish_are_one_transaction(url: str, tenant: str) -> None:
    async def fail() -> None:
        async with scene(url, tenant) as (chat, engine):
            agent = Agent(name="a", model=ScriptedModel([says("one"), says("two")]))

            def refuse(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
                if "INSERT INTO agent_messages" in statement:
                    raise SQLAlchemyError

            turn = await chat.begin("t", "q", message_id="m")
            sql_event.listen(engine.sync_engine, "before_cursor_execute", refuse)
            with pytest.raises(SQLAlchemyError):
                await run_turn(turn, agent, stored_session(turn, engine))
            sql_event.remove(engine.sync_engine, "before_cursor_execute", refuse)
            turn.check()
            assert not isinstance(await chat.status("t", "m"), Answered)
            await run_turn(turn, agent, stored_session(turn, engine))
            assert texts(await stored_session(turn, engine).get_items()) == ["user:q", "assistant:two"]
            assert (await chat.status("t", "m")).reply == "two"

    asyncio.run(fail())


def test_failed_run_leaves_nothing_for_its_retry(sqlite_url: str, tenant: str, tmp_path: Path) -> None:
    async def retry() -> None:
        async with scene(sqlite_url, tenant) as (chat, _):
            store = SQLiteSession("t", tmp_path / "history.db")
            model = ScriptedModel([RuntimeError("model down"), says("answer")])
            agent = Agent(name="a", model=model)
            turn = await chat.begin("t", "q")
            with pytest.raises(RuntimeError):
                await run_turn(turn, agent, store)
            await turn.release()
            async with chat.turn("t", "more") as again:
                await run_turn(again, agent, store)
            assert texts(model.calls[1].input) == ["user:q", "user:more"]
            assert texts(await store.get_items()) == ["user:q", "user:more", "assistant:answer"]
            store.close()

    asyncio.run(retry())


def test_stream_ends_with_the_finish_and_one_that_is_left_keeps_nothing(sqlite_url: str, tenant: str) -> None:
    async def stream() -> None:
        async with scene(sqlite_url, tenant) as (chat, engine):
            turn = await chat.begin("t", "q1")
            async with aclosing(events(turn, Agent(name="a", model=ScriptedModel([says("left")])), engine)) as left:
                async for _ in left:
                    break
            never = ScriptedModel([says("never")])
            await events(turn, Agent(name="a", model=never), engine).aclose()  # nobody iterates: the SDK's would run
            await turn.release()
            agent = Agent(name="a", model=ScriptedModel([says("whole")]))
            async with chat.turn("t", "q2") as whole:
                seen = [event async for event in events(whole, agent, engine)]
            assert {event.type for event in seen} >= {"raw_response_event", "run_item_stream_event"}
            history = texts(await stored_session(whole, engine).get_items())
            assert history == ["user:q1", "user:q2", "assistant:whole"]
            assert not never.calls

    def events(turn: AsyncTurn, agent: Any, engine: Any) -> Any:
        return stream_turn(turn, agent, stored_session(turn, engine))

    asyncio.run(stream())


def test_what_a_run_takes_off_the_history_comes_off_with_the_finish(sqlite_url: str, tenant: str) -> None:
    def item(text: str) -> Any:
        return {"role": "user", "content": text}

    async def edit() -> None:
        async with scene(sqlite_url, tenant) as (chat, engine):
            async with chat.turn("t", "q1") as turn:
                session = stored_session(turn, engine)
                await session.add_items([item("1"), item("2"), item("3")])
                await session.finish("ok", turn.messages[-1].seq)
            async with chat.turn("t", "q2") as turn:
                session, stored = stored_session(turn, engine), stored_session(turn, engine)
                await session.add_items([item("4")])
                assert [(await session.pop_item())["content"] for _ in range(2)] == ["4", "3"]
                await session.add_items([item("5")])
                assert texts(await session.get_items()) == ["user:1", "user:2", "user:5"]
                assert texts(await session.get_items(2)) == ["user:2", "user:5"]
                assert texts(await session.get_items(0)) == []
                assert texts(await stored.get_items()) == ["user:1", "user:2", "user:3"]
                await session.finish("ok", turn.messages[-1].seq)
                assert texts(await stored.get_items()) == ["user:1", "user:2", "user:5"]
            async with chat.turn("t", "q3") as turn:
                session = stored_session(turn, engine)
                await session.clear_session()
                assert await session.pop_item() is None
                await session.add_items([item("6")])
                await session.finish("ok", turn.messages[-1].seq)
                assert texts(await stored.get_items()) == ["user:6"]

    asyncio.run(edit())


def test_reply_is_the_final_output_as_json(sqlite_url: str, tenant: str) -> None:
    class Weather(BaseModel):
        degrees: int

    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    async def replies() -> None:
        async with scene(sqlite_url, tenant) as (chat, _):
            agent = Agent(name="a", model=ScriptedModel([says('{"degrees": 20}')]), output_type=Weather)
            async with chat.turn("t", "q", message_id="m") as turn:
                await run_turn(turn, agent)
            assert (await chat.status("t", "m")).reply == {"degrees": 20}
            asks = Agent(name="b", model=ScriptedModel([[calls("pay", {})]]), tools=[pay])
            turn = await chat.begin("u", "q")
            with pytest.raises(InvalidInput, match="approval"):
                await run_turn(turn, asks)
            await turn.release()

    asyncio.run(replies())


def test_run_that_asked_goes_on_with_the_approval(sqlite_url: str, tenant: str) -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    async def ask() -> None:
        async with scene(sqlite_url, tenant) as (chat, engine):
            model = ScriptedModel([[calls("pay", {})], says("Paid.")])
            agent = Agent(name="a", model=model, tools=[pay])
            async with chat.turn("t", "pay", message_id="m") as turn:
                session = stored_session(turn, engine)
                await run_turn(turn, agent, session, to_reply=lambda result: result.to_state().to_string())
            state = await RunState.from_string(agent, (await chat.status("t", "m")).reply)
            state.approve(state.get_interruptions()[0])
            async with chat.turn("t", "yes", message_id="n") as turn:
                await run_turn(turn, agent, stored_session(turn, engine), to_input=lambda messages: state)
            assert (await chat.status("t", "n")).reply == "Paid."
            history = texts(await stored_session(turn, engine).get_items())
            assert [entry.split(":")[0] for entry in history] == [
                *("user", "function_call", "function_call_output", "assistant")
            ]

    asyncio.run(ask())


# -- conversations that the provider keeps -----------------------------------------------------------------------------
class Provider:
    """The conversations API of OpenAI, behind the real client."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.items: list[Any] = []
        self.client = AsyncOpenAI(
            api_key="none", max_retries=0, http_client=httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/conversations"):
            self.created.append(request.headers["idempotency-key"])
            made = {"id": f"conv_{len(self.created)}", "created_at": 0, "metadata": {}, "object": "conversation"}
            return httpx.Response(200, json=made)
        if request.method == "POST":
            self.items += json.loads(request.content)["items"]
        return httpx.Response(
            200, json={"object": "list", "data": [], "has_more": False, "first_id": "", "last_id": ""}
        )


def test_one_conversation_is_made_for_a_thread_however_many_workers_serve_it(sqlite_url: str, tenant: str) -> None:
    async def two_workers() -> None:
        provider = Provider()
        found = []
        for text in ("q1", "q2"):
            async with scene(sqlite_url, tenant) as (chat, _), chat.turn("t", text) as turn:
                session = await conversation_session(turn, provider.client)
                found.append(session.session_id)
                await turn.finish()
        assert found == ["conv_1", "conv_1"]
        assert len(provider.created) == 1
        await provider.client.close()

    asyncio.run(two_workers())


def test_sessions_that_the_sdk_treats_apart_are_used_as_they_are(sqlite_url: str, tenant: str, tmp_path: Path) -> None:
    async def apart() -> None:
        provider = Provider()
        async with scene(sqlite_url, tenant) as (chat, _), chat.turn("t", "q") as turn:
            session = await conversation_session(turn, provider.client)
            assert isinstance(session, OpenAIConversationsSession)
            inner = SQLiteSession("t", tmp_path / "history.db")
            compacting = OpenAIResponsesCompactionSession("t", underlying_session=inner, client=provider.client)
            for kept in (session, compacting):
                with pytest.raises(InvalidInput, match="as it is"):
                    TurnSession(turn, kept)
            await run_turn(turn, Agent(name="a", model=ScriptedModel([says("answer")])), session)
            inner.close()
        assert [item.get("role") for item in provider.items] == ["user", "assistant"]
        assert all("id" not in item for item in provider.items)
        await provider.client.close()

    asyncio.run(apart())


def test_missing_framework_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agents", None)
    with pytest.raises(MissingExtra, match="its extra 'openai-agents'"):
        runpy.run_path(str(ROOT / "chatlock" / "middleware" / "openai_agents.py"))


# -- what a reader can run ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", blocks_of(ROOT / "docs" / "openai-agents.md"), ids=lambda block: str(block.number))
def test_code_of_the_page_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Chatlock("sqlite:///chat.db").setup()
    block.run()


def test_example_ends_with_a_clean_ledger(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "THINK_S", 0.05)
    assert example.main() == 0
    printed = capsys.readouterr().out
    assert "bob, turn 1: lost its claim; nothing of its run is kept" in printed
    assert printed.splitlines()[-1].startswith("ledger: 4 messages, 4 answered in ")
