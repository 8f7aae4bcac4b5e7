"""The OpenAI Agents SDK and its scripted model: histories hold whole turns, in order, and nothing of a stale one."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Runner, RunState, SQLiteSession, function_tool
from agents.testing import ModelStep, ScriptedModel
from pydantic import BaseModel
from sqlalchemy import event as sql_event
from sqlalchemy.exc import SQLAlchemyError

from chatlock import Answered, AsyncTurn, ClaimLost, InvalidInput
from chatlock.middleware.openai_agents import run_turn, stored_session, stream_turn
from tests.frameworks.with_openai_agents.sdk import UNAWARE, calls, held, says, scene, take_over, texts
from tests.support.waiting import Gate, until


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
