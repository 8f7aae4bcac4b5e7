"""The adapters' applications, on a real uvicorn server in an OS thread of the test."""

from __future__ import annotations

import socket
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Annotated, Any

import httpx
import uvicorn
from fastapi import Depends, FastAPI, Header
from fastapi.responses import StreamingResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route

from chatlock import AsyncChatlock, AsyncTurn, Limits
from chatlock.middleware.asgi import ChatApp, TurnMiddleware
from chatlock.middleware.asked import headers_of
from chatlock.middleware.fastapi import install, router, turn
from tests.support.waiting import Gate, until

FAST = Limits(sweep_ms=100)


class Agent:
    """Handlers that a test holds, each thread at a gate of its own."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self._gates: defaultdict[str, Gate] = defaultdict(Gate)
        self._held: set[str] = set()

    def hold(self, thread: str) -> Gate:
        """From now on turns of the thread wait at the gate that is returned."""
        self._held.add(thread)
        return self._gates[thread]

    def open_all(self) -> None:
        """Nobody waits any more."""
        for gate in list(self._gates.values()):
            gate.open()

    async def pass_gate(self, turn: AsyncTurn) -> None:
        self.runs[turn.key.thread] += 1
        if turn.key.thread in self._held:
            await self._gates[turn.key.thread].hold_async()


def who(x_user: Annotated[str, Header()] = "ann") -> str | None:
    """The tenant, as an application's own authentication would tell it."""
    return x_user or None


def who_of_scope(scope: Any) -> str | None:
    """The same, without FastAPI."""
    return headers_of(scope["headers"]).get("x-user", "ann") or None


def key_of_scope(scope: Any) -> tuple[str, str] | None:
    """Which thread a request to /attached/{thread} is for."""
    *_, what, thread = ["", *scope["path"].split("/")]
    tenant = who_of_scope(scope)
    return (tenant, thread) if what == "attached" and tenant is not None else None


def attached_chunks(held: AsyncTurn, agent: Agent) -> StreamingResponse:
    """A response that ends its turn in the middle of what it streams."""

    async def chunks() -> AsyncIterator[str]:
        yield "begun\n"
        await agent.pass_gate(held)
        await held.finish("attached")
        yield "ended\n"

    return StreamingResponse(chunks())


def starlette(chat: AsyncChatlock, agent: Agent) -> Starlette:
    """A turn around requests, by a middleware."""

    async def attached(request: Request) -> StreamingResponse:
        return attached_chunks(request.state.turn, agent)

    routes = [Route("/attached/{thread}", attached, methods=["POST"])]
    around = Middleware(TurnMiddleware, chat=chat, key=key_of_scope, agent="attached")
    return Starlette(routes=routes, middleware=[around])


def application(url: str, agent: Agent) -> FastAPI:
    """Everything that the adapters offer: FastAPI's at the root, pure ASGI's under /asgi and /starlette."""
    chat = AsyncChatlock(url, limits=FAST)

    @chat.handler()
    async def answer(turn: AsyncTurn) -> AsyncIterator[str]:
        if turn.messages[0].payload == "ask":
            await turn.suspend("sure?")
            return
        yield "one "
        await agent.pass_gate(turn)
        yield "two"

    chat_app = ChatApp(chat, tenant=who_of_scope)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await chat_app.drain(0.5)
        await chat.close()

    app = FastAPI(lifespan=lifespan)
    app.include_router(router(chat, tenant=who, drain_s=0.5))
    install(app)
    app.mount("/asgi", chat_app)
    app.mount("/starlette", starlette(chat, agent))

    @app.post("/attached/{thread}")
    async def attached(held: AsyncTurn = Depends(turn(chat, tenant=who, agent="attached"))) -> Any:  # noqa: B008
        return attached_chunks(held, agent)

    return app


@contextmanager
def serving(url: str, agent: Agent) -> Iterator[httpx.Client]:
    """A client of the served application."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(application(url, agent), log_level="warning", timeout_graceful_shutdown=1)
        )
        os_thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        os_thread.start()
        until(lambda: server.started, what="the server")
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60) as client:
                yield client
        finally:
            agent.open_all()
            server.should_exit = True
            with suppress(RuntimeError):
                os_thread.join(30)
