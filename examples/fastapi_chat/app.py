"""The application: one chat API with chatlock, one without, and the page that talks to both."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, Cookie, Depends, FastAPI, Header, Response
from fastapi.responses import FileResponse, StreamingResponse

from chatlock import AsyncChatlock, AsyncTurn
from chatlock.middleware.events import sse
from chatlock.middleware.fastapi import install, router
from examples.fastapi_chat.agent import Chat, Said, Work
from examples.fastapi_chat.record import view

PAGE = Path(__file__).parent / "page"
POLICY = "default-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

Chats = defaultdict[tuple[str, str], Chat]


def visitor(visitor: Annotated[str | None, Cookie()] = None) -> str | None:
    """Who asks: the cookie that the page gave.  A real application has its sign-in here."""
    return visitor


def with_chatlock(app: FastAPI, chat: AsyncChatlock, chats: Chats, think_s: float) -> None:
    """All that a chat needs: a handler, and the router."""

    @chat.handler()
    async def answer(turn: AsyncTurn) -> AsyncIterator[str]:
        talk = chats[turn.key.tenant, turn.key.thread]
        new = [Said(message.message_id, text_of(message.payload)) for message in turn.messages]
        for said in new:
            talk.hear(said)
        work = Work(talk, new, think_s)
        async for word in work.words():
            yield word
        await turn.finish(asdict(work.reply))  # refused if the claim was lost: then nothing is written
        work.write()

    app.include_router(router(chat, tenant=visitor, prefix="/with"))
    install(app)


def without_chatlock(app: FastAPI, chats: Chats, think_s: float) -> None:
    """What people write without it: each request runs the agent."""

    @app.post("/without/threads/{thread}/messages", include_in_schema=False)
    async def post(
        thread: str,
        payload: Annotated[dict[str, str], Body()],
        idempotency_key: Annotated[str, Header()],
        owner: Annotated[str, Depends(visitor)],
    ) -> Any:
        talk = chats[owner, thread]
        said = Said(idempotency_key, text_of(payload))
        talk.hear(said)

        async def events() -> AsyncIterator[bytes]:
            work = Work(talk, [said], think_s)
            number = 0
            async for word in work.words():
                number += 1
                yield sse(f"{id(work)}-{number}", "chunk", word)
            work.write()
            yield sse("outcome", "outcome", {"outcome": "answered", "reply": asdict(work.reply)})

        return StreamingResponse(events(), media_type="text/event-stream")


def text_of(payload: Any) -> str:
    """What a person wrote: {"text": ".."}."""
    return str(payload.get("text", "")) if isinstance(payload, dict) else str(payload)


def application(url: str, think_s: float) -> FastAPI:
    """The example.  app.state holds the database's url and both records, for whoever judges them."""
    chat = AsyncChatlock(url)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with chat:
            await chat.setup()
            yield

    app = FastAPI(title="chatlock example", lifespan=lifespan)
    app.state.url, app.state.with_, app.state.without = url, Chats(Chat), Chats(Chat)
    with_chatlock(app, chat, app.state.with_, think_s)
    without_chatlock(app, app.state.without, think_s)

    @app.get("/history/{thread}", include_in_schema=False)
    async def history(thread: str, owner: Annotated[str, Depends(visitor)]) -> dict[str, Any]:
        key = (owner, thread)
        return {"with": view(app.state.with_[key]), "without": view(app.state.without[key])}

    @app.get("/", include_in_schema=False)
    async def page(visitor: Annotated[str | None, Cookie()] = None) -> Response:
        answer = FileResponse(PAGE / "index.html", headers={"Content-Security-Policy": POLICY})
        if visitor is None:
            answer.set_cookie("visitor", secrets.token_urlsafe(16), httponly=True, samesite="strict")
        return answer

    @app.get("/page/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        known = {path.name: path for path in PAGE.iterdir()}
        return FileResponse(known[name]) if name in known else Response(status_code=404)

    return app
