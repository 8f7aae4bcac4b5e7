"""The OpenAI Agents SDK with its scripted model, beside a client on the same database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agents import set_tracing_disabled
from agents.extensions.memory import SQLAlchemySession
from agents.testing import ModelStep, assistant_message, function_call
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from chatlock import AsyncChatlock, Chatlock, Limits
from tests.support.waiting import Gate

set_tracing_disabled(True)

QUICK = Limits(beat_ms=20)
UNAWARE = Limits(beat_ms=60_000, lease_ms=200_000)
"""A stale turn does not learn of its loss from a heartbeat: the database alone refuses it."""


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
