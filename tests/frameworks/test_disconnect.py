"""A client goes away at every moment of an attached turn: the claim comes back at once, uncharged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from inspect import signature
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.routing import Route

from chatlock import AsyncChatlock, AsyncTurn, TurnNotGranted
from chatlock.middleware.asgi import ChatApp, TurnMiddleware
from chatlock.middleware.endpoints import Endpoints
from chatlock.middleware.fastapi import install, router, turn
from tests.frameworks.conftest import row_of
from tests.frameworks.driver import Exchange
from tests.support.databases import Database
from tests.support.waiting import SECONDS_MAX

MOMENTS = ["before the headers", "before the first chunk", "between chunks", "after the last chunk"]
Make = Callable[[AsyncChatlock, "Script", str], Any]


class Script:
    """A handler that waits at one moment, and the turn of the request."""

    def __init__(self, moment: str) -> None:
        self._moment = moment
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    async def reach(self, moment: str) -> None:
        """Waits at its moment until the test opens it, and at a later one for ever."""
        if self.reached.is_set():
            await asyncio.Event().wait()
        if moment == self._moment:
            self.reached.set()
            await self.opened.wait()

    async def respond(self, held: AsyncTurn) -> StreamingResponse:
        await self.reach("before the headers")
        return StreamingResponse(self._chunks(held))

    async def _chunks(self, held: AsyncTurn) -> AsyncIterator[str]:
        await self.reach("before the first chunk")
        yield "one"
        await self.reach("between chunks")
        yield "two"
        await held.finish([message.payload for message in held.messages])
        yield "three"
        await self.reach("after the last chunk")


async def pass_on(request: Request, call_next: Callable[[Request], Awaitable[Any]]) -> Any:
    return await call_next(request)


def by_dependency(chat: AsyncChatlock, script: Script, base: str) -> Any:
    app = FastAPI()
    if base == "inside":
        app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
    install(app)
    if base == "outside":
        app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)

    @app.post("/{thread}")
    async def post(held: AsyncTurn = Depends(turn(chat, tenant=lambda: "ann"))) -> Any:  # noqa: B008
        return await script.respond(held)

    return app


def by_middleware(chat: AsyncChatlock, script: Script, base: str) -> Any:
    async def post(request: Request) -> StreamingResponse:
        return await script.respond(request.state.turn)

    app = Starlette(routes=[Route("/{thread}", post, methods=["POST"])])
    if base == "inside":
        app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
    app.add_middleware(TurnMiddleware, chat=chat, key=lambda scope: ("ann", scope["path"][1:]))
    if base == "outside":
        app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
    return app


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def chat(served: Database, loop: asyncio.Runner) -> Iterator[AsyncChatlock]:
    chat = AsyncChatlock(served.url, poller=False)
    yield chat
    loop.run(chat.close())


@pytest.mark.parametrize("base", ["", "inside", "outside"], ids=["plain", "base inside", "base outside"])
@pytest.mark.parametrize("spec", ["2.3", "2.4"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("make", [by_dependency, by_middleware])
def test_claim_comes_back_and_the_message_is_answered_once(
    chat: AsyncChatlock,
    loop: asyncio.Runner,
    served: Database,
    thread: str,
    make: Make,
    moment: str,
    spec: str,
    base: str,
) -> None:
    async def play() -> None:
        script = Script(moment)
        exchange = Exchange(make(chat, script, base), f"/{thread}", b'"first"', spec)
        exchange.start()
        await asyncio.wait_for(script.reached.wait(), SECONDS_MAX)
        if moment == "between chunks":
            await exchange.until_sent(b"one")
        exchange.disconnect()
        if spec == "2.4" or moment in (MOMENTS[0], MOMENTS[3]):  # where only the next send or the response notices
            script.opened.set()
        with suppress(Exception):  # what the framework makes of it is its own
            await asyncio.wait_for(exchange.task, SECONDS_MAX)
        status, attempts, stalls, finished = row_of(served, thread, "status, attempts, stalls, done_seq")
        assert (status, attempts, stalls) == ("idle", 0, 0)
        if not (spec == "2.4" and base and moment == "between chunks"):  # there a chunk is still taken, and it finishes
            assert finished == (moment == "after the last chunk")

        again = Exchange(make(chat, Script("never"), base), f"/{thread}", b'"second"')
        assert await again.run() == 200
        assert again.body == b"onetwothree"
        replies = [
            row[0]
            for row in served.connect().execute(
                f"SELECT reply FROM chatlock_turns WHERE thread_id = '{thread}' AND state = 'done' ORDER BY token"
            )
        ]
        assert replies == (['["first"]', '["second"]'] if finished else ['["first","second"]'])

    loop.run(play())


@pytest.mark.parametrize("make", [by_dependency, by_middleware])
def test_handler_that_forgets_to_finish_is_charged(
    chat: AsyncChatlock, loop: asyncio.Runner, served: Database, thread: str, make: Make
) -> None:
    class Listening(StreamingResponse):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)
            assert (await receive())["type"] == "http.disconnect"

    class Forgetful(Script):
        async def respond(self, held: AsyncTurn) -> StreamingResponse:
            return Listening(iter(["done"]))

    async def play() -> None:
        exchange = Exchange(make(chat, Forgetful("never"), ""), f"/{thread}")
        exchange.start()
        await exchange.until_complete()
        exchange.disconnect()  # as servers say once the answer is complete
        with suppress(Exception):
            await asyncio.wait_for(exchange.task, SECONDS_MAX)

    loop.run(play())
    assert row_of(served, thread, "status, attempts") == ("idle", 1)


@pytest.mark.parametrize("make", [by_dependency, by_middleware])
def test_client_that_goes_away_before_its_message_stores_nothing(
    chat: AsyncChatlock, loop: asyncio.Runner, served: Database, thread: str, make: Make
) -> None:
    async def play() -> None:
        exchange = Exchange(make(chat, Script("never"), ""), f"/{thread}")
        exchange._parts[0]["more_body"] = True
        exchange.disconnect()
        await exchange.run()

    loop.run(play())
    assert row_of(served, thread, "last_seq") == ()


@pytest.mark.parametrize("make", [by_dependency, by_middleware])
def test_request_that_is_cancelled_again_and_again_releases(
    chat: AsyncChatlock, loop: asyncio.Runner, served: Database, thread: str, make: Make
) -> None:
    """As a server that goes down does it."""

    async def play() -> None:
        script = Script("between chunks")
        exchange = Exchange(make(chat, script, ""), f"/{thread}")
        exchange.start()
        await asyncio.wait_for(script.reached.wait(), SECONDS_MAX)
        while not exchange.task.done():
            exchange.task.cancel()
            await asyncio.sleep(0)
        with suppress(asyncio.CancelledError):
            exchange.task.result()

    loop.run(play())
    assert row_of(served, thread, "status, attempts, stalls") == ("idle", 0, 0)


@pytest.mark.parametrize("make", [by_dependency, by_middleware])
def test_turn_that_was_lost_is_to_be_asked_for_again(
    chat: AsyncChatlock, loop: asyncio.Runner, thread: str, make: Make
) -> None:
    class Late(Script):
        async def respond(self, held: AsyncTurn) -> StreamingResponse:
            await chat.free(thread, turn=held.token, force=True, tenant="ann")
            await held.finish("late")
            raise AssertionError

    exchange = Exchange(make(chat, Late("never"), ""), f"/{thread}")
    assert loop.run(exchange.run()) == 503
    assert b"urn:chatlock:problem:turn-lost" in exchange.body


@pytest.mark.parametrize("reads", ["a model", "the request"])
def test_handler_may_read_the_message_too(
    chat: AsyncChatlock, loop: asyncio.Runner, served: Database, thread: str, reads: str
) -> None:
    app = FastAPI()
    install(app)
    held_turn = Depends(turn(chat, tenant=lambda: "ann"))

    async def model(body: dict[str, Any], held: AsyncTurn = held_turn) -> Any:
        return await held.finish(body)

    async def request(request: Request, held: AsyncTurn = held_turn) -> Any:
        return await held.finish(await request.json())

    app.post("/{thread}")(model if reads == "a model" else request)
    assert loop.run(Exchange(app, f"/{thread}", b'{"x":1}').run()) == 200
    query = f"SELECT reply FROM chatlock_turns WHERE thread_id = '{thread}'"
    assert served.connect().execute(query).fetchall() == [('{"x":1}',)]


def test_answer_that_has_begun_is_not_begun_again(chat: AsyncChatlock, loop: asyncio.Runner, thread: str) -> None:
    class Asks(Script):
        async def _chunks(self, held: AsyncTurn) -> AsyncIterator[str]:
            yield "one"
            await held.finish("one")
            async with chat.turn(f"{thread}-other", "x", tenant="ann", if_turn=9):
                raise AssertionError

    exchange = Exchange(by_middleware(chat, Asks("never"), ""), f"/{thread}")
    with pytest.raises(TurnNotGranted):
        loop.run(exchange.run())
    assert exchange.body == b"one"


@pytest.mark.parametrize("spec", ["2.3", "2.4"])
@pytest.mark.parametrize("kind", ["router", "ChatApp"])
def test_nobody_follows_for_a_client_that_has_gone(
    chat: AsyncChatlock, loop: asyncio.Runner, thread: str, kind: str, spec: str
) -> None:
    gate, app = asyncio.Event(), FastAPI()
    app.include_router(router(chat, tenant=lambda: "ann", agent=thread))
    served = app if kind == "router" else ChatApp(chat, tenant=lambda scope: "ann", agent=thread)

    @chat.handler(thread)
    async def answer(turn: AsyncTurn) -> AsyncIterator[str]:
        yield "one"
        await gate.wait()
        yield "two"

    async def play() -> None:
        exchange = Exchange(served, f"/threads/{thread}/messages", spec=spec)
        exchange.scope["headers"] += [(b"accept", b"text/event-stream"), (b"idempotency-key", b"k")]
        exchange.start()
        await exchange.until_sent(b"one")
        exchange.disconnect()
        if spec == "2.4":
            gate.set()  # only the next event notices
        with suppress(Exception):
            await asyncio.wait_for(exchange.task, SECONDS_MAX)
        assert chat._flows.feeds._listeners == {}
        gate.set()
        again = Exchange(served, f"/threads/{thread}/messages/k/events", method="GET")
        assert await again.run() == 200
        assert b'"reply":"onetwo"' in again.body

    loop.run(play())


def test_fault_in_a_stream_is_told_to_the_server(
    chat: AsyncChatlock, loop: asyncio.Runner, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> AsyncIterator[Any]:
        raise ZeroDivisionError
        yield

    monkeypatch.setattr(Endpoints, "follow", broken)
    exchange = Exchange(ChatApp(chat, tenant=lambda scope: "ann"), f"/threads/{thread}/messages")
    exchange.scope["headers"] += [(b"accept", b"text/event-stream"), (b"prefer", b"respond-async")]
    with pytest.raises(ZeroDivisionError):
        loop.run(exchange.run())


def test_turn_that_ends_ahead_of_its_stream_is_an_error_and_charged(
    chat: AsyncChatlock, loop: asyncio.Runner, served: Database, thread: str
) -> None:
    """What scope="function" does: nobody is shown an answer that is not stored."""
    app = FastAPI()
    install(app)
    if "scope" not in signature(Depends).parameters:  # FastAPI before 0.121 has no such trap
        with pytest.raises(TypeError, match="scope"):
            Depends(turn(chat, tenant=lambda: "ann"), scope="function")
        return
    held_too_short = Depends(turn(chat, tenant=lambda: "ann"), scope="function")

    @app.post("/{thread}")
    async def post(held: AsyncTurn = held_too_short) -> Any:
        return await Script("never").respond(held)

    exchange = Exchange(app, f"/{thread}")
    assert loop.run(exchange.run()) == 500
    assert b"one" not in exchange.body
    assert row_of(served, thread, "status, attempts, done_seq") == ("idle", 1, 0)


def test_dependency_without_install_says_so(chat: AsyncChatlock, loop: asyncio.Runner) -> None:
    app = FastAPI()

    @app.post("/{thread}")
    async def post(held: AsyncTurn = Depends(turn(chat, tenant=lambda: "ann"))) -> None:  # noqa: B008
        raise AssertionError

    with pytest.raises(Exception, match="needs install"):
        loop.run(Exchange(app, "/t").run())
