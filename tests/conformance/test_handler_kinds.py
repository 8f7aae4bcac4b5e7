"""Handlers in their three kinds, in both clients: what they may do in their turn, and what becomes of their errors."""

from __future__ import annotations

import asyncio
import contextvars
import enum
import functools
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from chatlock import AsyncChatlock, Chatlock, Dead, InvalidInput, Limits, Queued
from chatlock.inputs import digest, key_hash
from tests.conformance import rows
from tests.conformance.conftest import BOTH, NewChat
from tests.support.databases import Database
from tests.support.waiting import Gate

pytestmark = BOTH

Body = Callable[[Any], Any]
SPOKEN: contextvars.ContextVar[str] = contextvars.ContextVar("spoken", default="nothing")


async def awaited(value: Any) -> Any:
    """The value, whether the call that gave it was sync or async."""
    return await value if asyncio.iscoroutine(value) else value


def as_kind(kind: str, *steps: Body) -> Any:
    """A handler that calls the steps on its turn, one after another, and answers with what they returned."""

    def plain(turn: Any) -> list[Any]:
        return [step(turn) for step in steps]

    async def coroutine(turn: Any) -> list[Any]:
        return [await awaited(step(turn)) for step in steps]

    async def generator(turn: Any) -> AsyncIterator[Any]:
        for step in steps:
            yield await awaited(step(turn))

    return {"sync": plain, "async": coroutine, "stream": generator}[kind]


@pytest.fixture(params=["sync", "async", "stream"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_handler_answers_with_what_it_returns(chat: Any, kind: str) -> None:
    chat.handler()(as_kind(kind, lambda turn: turn.messages[0].payload))
    assert chat.submit("c1", 7).reply == [7]


def test_handler_may_use_its_turn(chat: Any, kind: str, database: Database) -> None:
    def more(turn: Any) -> int:
        rows.execute(database, "SELECT 1")
        return len(turn.messages)

    steps = (
        lambda turn: turn.check(),
        lambda turn: turn.mark({"step": 1}),
        lambda turn: turn.session("provider", lambda key: "s1"),
        lambda turn: turn.fetch(),
        more,
    )
    chat.handler()(as_kind(kind, *steps))
    assert chat.submit("c1", "hello").reply == [None, None, "s1", [], 1]
    assert [row["mark"] for row in rows.turns(database)] == ['{"step":1}']


def test_handler_may_finish_its_turn_itself(chat: Any, kind: str) -> None:
    chat.handler()(as_kind(kind, lambda turn: turn.finish("finished")))
    assert chat.submit("c1", "hello").reply == "finished"


def test_error_of_a_handler_is_charged_and_stored(new_chat: NewChat, kind: str, database: Database) -> None:
    chat = new_chat(limits=Limits(attempts_max=1))
    chat.handler()(as_kind(kind, lambda turn: 1 / 0))
    assert chat.submit("c1", "hello", message_id="m1") == Dead(message_id="m1", seq=1, reason="ZeroDivisionError")
    assert [row["state"] for row in rows.turns(database)] == ["gave_up"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_exit_of_a_handler_in_an_os_thread_of_its_own_is_charged(
    database: Database, error: type[BaseException]
) -> None:
    """No signal raises it there, so it is no word to the caller, who is in the main thread."""

    def exits(turn: Any) -> None:
        raise error

    async def exits_async(turn: Any) -> None:
        raise error

    async def main() -> list[Any]:
        options: dict[str, Any] = {"tenant": "t", "poller": False, "limits": Limits(attempts_max=1)}
        async with AsyncChatlock(database.url, **options) as chat:
            chat.handler()(exits)
            outcomes = [await chat.submit("c1", "hello", message_id="m1")]
        with Chatlock(database.url, **options) as beside_the_loop:
            beside_the_loop.handler()(exits_async)
            return [*outcomes, beside_the_loop.submit("c2", "hello", message_id="m1")]

    assert asyncio.run(main()) == [Dead(message_id="m1", seq=1, reason=error.__name__)] * 2


def test_reply_that_is_not_json_is_charged(new_chat: NewChat, kind: str) -> None:
    chat = new_chat(limits=Limits(attempts_max=1))
    chat.handler()(as_kind(kind, lambda turn: object()))
    assert chat.submit("c1", "hello", message_id="m1") == Dead(message_id="m1", seq=1, reason="InvalidInput")


def test_handler_that_ends_its_turn_otherwise_gives_no_reply(new_chat: NewChat, kind: str, database: Database) -> None:
    chat = new_chat(limits=Limits(attempts_max=1))
    chat.handler()(as_kind(kind, lambda turn: turn.fail("not today")))
    assert chat.submit("c1", "hello", message_id="m1") == Dead(message_id="m1", seq=1, reason="not today")


def test_handler_that_releases_leaves_its_message_pending(chat: Any, kind: str, database: Database) -> None:
    chat.handler()(as_kind(kind, lambda turn: turn.release()))
    assert isinstance(chat.submit("c1", "hello", wait_ms=0), Queued)
    assert [row["state"] for row in rows.turns(database)] == ["released"]


def test_handler_sees_the_context_of_its_caller(database: Database, world: str, kind: str) -> None:
    handler = as_kind(kind, lambda turn: SPOKEN.get())

    def sync() -> Any:
        SPOKEN.set("by the caller")
        with Chatlock(database.url, tenant="t", poller=False) as chat:
            chat.handler()(handler)
            return chat.submit("c1", "hello")

    async def coroutine() -> Any:
        SPOKEN.set("by the caller")
        async with AsyncChatlock(database.url, tenant="t", poller=False) as chat:
            chat.handler()(handler)
            return await chat.submit("c1", "hello")

    ran = contextvars.copy_context().run(sync) if world == "sync" else asyncio.run(coroutine())
    assert ran.reply in (["by the caller"], "by the caller")


@pytest.mark.parametrize("kind", ["async", "stream"])
def test_sync_client_runs_async_handlers_inside_a_running_loop(database: Database, kind: str) -> None:
    async def main() -> Any:
        with Chatlock(database.url, tenant="t", poller=False) as chat:
            chat.handler()(as_kind(kind, lambda turn: turn.fetch()))
            return chat.submit("c1", "hello")

    assert asyncio.run(main()).reply == [[]]


def test_sync_handler_does_not_block_the_loop(database: Database) -> None:
    async def main() -> None:
        gate = Gate()
        async with AsyncChatlock(database.url, tenant="t", poller=False) as chat:
            chat.handler()(lambda turn: gate.hold() or "ok")
            call = asyncio.create_task(chat.submit("c1", "hello", message_id="m1"))
            await asyncio.to_thread(gate.wait_entered)
            assert isinstance(await chat.status("c1", "m1"), Queued)
            gate.open()
            assert (await call).reply == "ok"

    asyncio.run(main())


def test_sync_handler_of_the_async_client_runs_in_an_os_thread_of_its_own(database: Database) -> None:
    async def main() -> Any:
        async with AsyncChatlock(database.url, tenant="t", poller=False) as chat:
            chat.handler()(lambda turn: threading.current_thread().name)
            return await chat.submit("c1", "hello")

    assert asyncio.run(main()).reply == "chatlock-turn"


class Name(str, enum.Enum):  # noqa: UP042  a StrEnum has the same str()
    """Texts whose str() is another one."""

    TENANT, THREAD, MESSAGE, AGENT, STEP, POLICY = "t", "c1", "m1", "sales", "pay", "latest"


def test_names_that_are_enum_members_are_their_characters(new_chat: NewChat, database: Database) -> None:
    """A retry reads them from the database: by another text it would make an effect again, under another key."""
    chat, keys = new_chat(tenant=Name.TENANT, limits=Limits(backoff_ms=0, backoff_max_ms=0)), []

    def pays(turn: Any) -> Any:
        keys.append((turn.step_key(Name.STEP), key_hash(turn.key)))
        turn.session(Name.STEP, lambda key: Name.STEP)
        return "ok" if len(keys) == 2 else turn.fail(Name.STEP)

    chat.handler(Name.AGENT)(pays)
    ids = {"message_id": Name.MESSAGE, "agent": Name.AGENT}
    assert type(chat.submit(Name.THREAD, "hello", policy=Name.POLICY, wait_ms=0, **ids)) is Queued
    chat.sweep_once()
    assert keys[0] == keys[1] == (digest("t", "c1", 1, 1, "pay"), digest("t", "c1"))
    assert chat.status("c1", "m1").reply == "ok"
    (message,) = rows.table(database, "chatlock_messages")
    (session,) = rows.table(database, "chatlock_sessions")
    assert (message["policy"], session["name"], session["value"]) == ("latest", "pay", "pay")


class Agent:
    """Handlers as they come in frameworks: methods and callable objects."""

    def plain(self, turn: Any) -> str:
        return "method"

    async def coroutine(self, turn: Any) -> str:
        return "async method"

    async def chunks(self, turn: Any) -> AsyncIterator[str]:
        yield "stream "
        yield "method"


class AsyncCallable:
    async def __call__(self, turn: Any) -> str:
        return "async callable"


def test_methods_partials_and_callable_objects_are_handlers(chat: Any) -> None:
    agent = Agent()
    for name, call in {
        "method": agent.plain,
        "async method": agent.coroutine,
        "stream method": agent.chunks,
        "async callable": AsyncCallable(),
        "partial": functools.partial(lambda text, turn: text, "partial"),
        "async partial": functools.partial(awaited_later, "async partial"),
    }.items():
        chat.handler(name)(call)
        assert chat.submit(name, "hello", agent=name).reply == name


async def awaited_later(text: str, turn: Any) -> str:
    return await asyncio.sleep(0, text)


def test_second_handler_of_an_agent_is_refused(chat: Any) -> None:
    chat.handler()(lambda turn: "first")
    with pytest.raises(InvalidInput) as refused:
        chat.handler()(lambda turn: "second")
    assert refused.value.reason == "handler_exists"
    assert chat.submit("c1", "hello").reply == "first"


def yields(turn: Any) -> Any:
    yield "chunk"


@pytest.mark.parametrize("call", [None, "handler", yields])
def test_what_cannot_be_a_handler_is_refused(chat: Any, call: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        chat.handler()(call)
    assert refused.value.reason == "bad_handler"


@pytest.mark.parametrize("agent", ["", "a\nb", "x" * 201, None])
def test_handler_of_a_bad_agent_name_is_refused(chat: Any, agent: Any) -> None:
    with pytest.raises(InvalidInput, match="agent"):
        chat.handler(agent)(lambda turn: "ok")
