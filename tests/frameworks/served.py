"""A FastAPI application on a real uvicorn server, in an OS thread of the test."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Annotated, Any

import httpx
import uvicorn
from fastapi import Depends, FastAPI, Header
from fastapi.responses import StreamingResponse

from chatlock import AsyncChatlock, AsyncTurn
from chatlock.middleware.fastapi import install, router, turn
from tests.support.waiting import until


class Agent:
    """Handlers that a test lets go: each turn waits at the gate."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.open.set()
        self.runs = 0

    async def pass_gate(self) -> None:
        self.runs += 1
        self.entered.set()
        await asyncio.to_thread(self.open.wait, 60)


def who(x_user: Annotated[str, Header()] = "ann") -> str:
    """The tenant, as an application's own authentication would tell it."""
    return x_user


def application(url: str, agent: Agent) -> FastAPI:
    """Everything that the adapter offers."""
    chat = AsyncChatlock(url)

    @chat.handler()
    async def answer(turn: AsyncTurn) -> AsyncIterator[str]:
        yield "one "
        await agent.pass_gate()
        yield "two"

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await chat.close()

    app = FastAPI(lifespan=lifespan)
    app.include_router(router(chat, tenant=who, drain_s=0.5))
    install(app)

    @app.post("/attached/{thread}")
    async def attached(held: AsyncTurn = Depends(turn(chat, tenant=who, agent="attached"))) -> Any:  # noqa: B008
        async def chunks() -> AsyncIterator[str]:
            yield "begun\n"
            await agent.pass_gate()
            await held.finish("attached")
            yield "ended\n"

        return StreamingResponse(chunks())

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
            agent.open.set()
            server.should_exit = True
            with suppress(RuntimeError):
                os_thread.join(30)
