"""What is the server's fault: its log says what and where to mend it, its client only that it is not to blame."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from fastapi import Depends, FastAPI

from chatlock import AsyncChatlock, AsyncTurn
from chatlock.middleware.asgi import ChatApp, TurnMiddleware
from chatlock.middleware.fastapi import install, router, turn
from tests.frameworks.driver import Exchange
from tests.support.waiting import SECONDS_MAX

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.databases import Database


def of_router(chat: AsyncChatlock, tenant: Any) -> Any:
    app = FastAPI()
    app.include_router(router(chat, tenant=lambda: tenant))
    return app


def of_chat_app(chat: AsyncChatlock, tenant: Any) -> Any:
    return ChatApp(chat, tenant=lambda scope: tenant)


def of_dependency(chat: AsyncChatlock, tenant: Any) -> Any:
    app = FastAPI()
    install(app)

    @app.post("/threads/{thread}/messages")
    async def post(held: AsyncTurn = Depends(turn(chat, tenant=lambda: tenant))) -> None:  # noqa: B008
        raise AssertionError

    return app


def of_middleware(chat: AsyncChatlock, tenant: Any) -> Any:
    return TurnMiddleware(FastAPI(), chat=chat, key=lambda scope: (tenant, "t"))


FRONTS = pytest.mark.parametrize("front", [of_router, of_chat_app, of_dependency, of_middleware])


def asked(url: str, front: Any, tenant: Any = "ann") -> Exchange:
    """The exchange of one POST."""

    async def play() -> Exchange:
        async with AsyncChatlock(url, poller=False) as chat:
            exchange = Exchange(front(chat, tenant), "/threads/t/messages")
            await exchange.run()
            return exchange

    return asyncio.run(play())


@FRONTS
@pytest.mark.parametrize("broken", ["no tables", "no file"])
def test_broken_setup_is_logged_once_with_its_remedy(
    front: Any, broken: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "chat.db"
    if broken == "no tables":
        file.touch()
    exchange = asked(f"sqlite:///{file}", front)
    status, level, error, text = {
        "no tables": (500, logging.ERROR, "SchemaMismatch", "setup()"),
        "no file": (503, logging.WARNING, "StoreUnavailable", "setup()"),
    }[broken]
    (told,) = caplog.records
    assert (exchange.status, told.levelno, told.message.split(": ")[:2]) == (status, level, ["http.failed", error])
    assert text in told.message
    assert text.encode() not in exchange.body
    assert vars(told).items() >= {("status", status), ("error", error)}


@FRONTS
@pytest.mark.parametrize(("tenant", "named"), [(5, "int"), ("", "an empty one"), (None, None)])
def test_tenant_that_is_no_text_is_the_servers_fault(
    front: Any, tenant: Any, named: str | None, served: Database, caplog: pytest.LogCaptureFixture
) -> None:
    exchange = asked(served.url, front, tenant)
    assert exchange.status == (401 if named is None else 500)
    told = [record.message for record in caplog.records]
    assert [text.endswith(f"returned {named}") for text in told] == ([] if named is None else [True])
    assert b"tenant must" not in exchange.body


def test_socket_of_a_tenant_that_is_no_text_tells_and_logs_it(
    served: Database, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[dict[str, Any]] = [{"type": "websocket.connect"}]
    asked.append({"type": "websocket.receive", "text": '{"do":"follow","message_id":"m"}'})

    async def play() -> list[Any]:
        sent, told = [], asyncio.Event()

        async def receive() -> dict[str, Any]:
            if asked:
                return asked.pop(0)
            await asyncio.wait_for(told.wait(), SECONDS_MAX)
            return {"type": "websocket.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "websocket.send":
                told.set()

        async with AsyncChatlock(served.url, poller=False) as chat:
            scope = {"type": "websocket", "path": "/threads/t/socket", "headers": []}
            await of_chat_app(chat, 5)(scope, receive, send)
        return sent

    _, problem = asyncio.run(play())
    assert '"status":500' in problem["text"]
    assert [record.message[-3:] for record in caplog.records] == ["int"]
