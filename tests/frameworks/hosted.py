"""The application that real server processes serve: turns wait while their thread's hold file exists."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse

from chatlock import AsyncChatlock, AsyncTurn
from chatlock.middleware.fastapi import install, router, turn

FOLDER = Path(os.environ["HOSTED_FOLDER"])
chat = AsyncChatlock(os.environ["HOSTED_URL"], poller=False)


def tenant() -> str:
    return "ann"


async def held(thread: str) -> None:
    """Until the hold file is gone: what an agent that works is, for a server."""
    (FOLDER / f"entered-{thread}").touch()
    while (FOLDER / f"hold-{thread}").exists():  # noqa: ASYNC110  another process removes it
        await asyncio.sleep(0.02)  # bounded poll


@chat.handler()
async def answer(turn: AsyncTurn) -> AsyncIterator[str]:
    yield "one "
    await held(turn.key.thread)
    yield "two"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    await chat.close()
    (FOLDER / "closed").touch()


app = FastAPI(lifespan=lifespan)
app.include_router(router(chat, tenant=tenant, drain_s=0.2))
install(app)


@app.post("/plain/{thread}")
async def plain(thread: str, held_turn: AsyncTurn = Depends(turn(chat, tenant=tenant, agent="attached"))) -> Any:  # noqa: B008
    await held(thread)
    await held_turn.finish("plain")
    return "plain"


@app.post("/attached/{thread}")
async def attached(thread: str, held_turn: AsyncTurn = Depends(turn(chat, tenant=tenant, agent="attached"))) -> Any:  # noqa: B008
    async def chunks() -> AsyncIterator[str]:
        yield "begun\n"
        await held(thread)
        await held_turn.finish("attached")
        yield "ended\n"

    return StreamingResponse(chunks())
