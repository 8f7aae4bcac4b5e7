"""A web process: chatlock's router and an attached turn in a FastAPI application under uvicorn."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse

from chatlock import AsyncChatlock, AsyncTurn
from chatlock.middleware import fastapi as adapter
from soak.agent import Agent
from soak.bridge import AsyncAgent
from soak.life import TENANT, Birth, Life

GRACEFUL_S = 2
DRAIN_S = 1.0


def tenant() -> str:
    """Who asks: in a soak always the same."""
    return TENANT


def application(life: Life, handle: AsyncAgent) -> FastAPI:
    """The routes of one process; when it ends, so does its client."""
    chat = life.chat

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        chat._ready()
        yield
        await chat.close(drain_ms=life.random.choice([0, 300, 1_000]))

    app = FastAPI(lifespan=lifespan)
    adapter.install(app)
    app.include_router(adapter.router(chat, tenant=tenant, drain_s=DRAIN_S))
    held: Any = Depends(adapter.turn(chat, tenant=tenant))

    @app.post("/attached/{thread}")
    async def attached(turn: AsyncTurn = held) -> StreamingResponse:
        async def told() -> AsyncIterator[str]:
            yield "begun\n"
            reply = await handle(turn)
            if reply is not None:
                await turn.finish(reply)
                life.history.finished(turn)
            yield json.dumps(reply)

        return StreamingResponse(told())

    return app


def run_web(birth: Birth) -> None:
    """One life of a web process, until SIGTERM."""
    life = Life(birth, polls=True, make=AsyncChatlock)
    handle = AsyncAgent(Agent(life))
    life.chat.handler()(handle)
    life.watch_log()
    app, port = application(life, handle), life.ground.web_port
    config = uvicorn.Config(app, port=port, log_config=None, log_level="critical", timeout_graceful_shutdown=GRACEFUL_S)
    uvicorn.Server(config).run()
