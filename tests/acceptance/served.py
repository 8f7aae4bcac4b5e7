"""The application that the service and its workers serve in tests: chat objects in one module, set by the environment.

A handler enters its turn in the journal, holds while its thread's hold file exists, and answers with the ids it holds.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chatlock import AsyncChatlock, Chatlock, Limits
from chatlock.wake.redis import RedisWake
from tests.acceptance.cases.support import TENANT, Journal

if TYPE_CHECKING:
    from chatlock import AsyncTurn, Delivery, Turn

DIRECTORY = Path(os.environ.get("SERVED_DIRECTORY", "/nonexistent"))
POLL_S, HELD_S = 0.005, 20
OPTIONS: dict[str, Any] = {
    "tenant": TENANT,
    "limits": Limits(beat_ms=500, backoff_ms=100),
    "wake": RedisWake(os.environ["CHATLOCK_REDIS_URL"]) if "CHATLOCK_REDIS_URL" in os.environ else None,
}


URL = os.environ.get("CHATLOCK_URL", "sqlite:////nonexistent/chat.db")
chat = Chatlock(URL, **OPTIONS)
async_chat = AsyncChatlock(URL, **OPTIONS)
no_chat = "something else"


def journal() -> Journal:
    """What handlers did, in every process."""
    return Journal(DIRECTORY / "journal")


def held(thread: str) -> bool:
    """Whether the thread's hold file exists."""
    return (DIRECTORY / f"hold-{thread}").exists()


@chat.handler()
def answer(turn: Turn) -> Any:
    journal().write("enter", turn)
    end = time.monotonic() + HELD_S
    while held(turn.key.thread) and time.monotonic() < end:
        time.sleep(POLL_S)  # bounded poll
    journal().write("leave", turn)
    return {"answers": [m.message_id for m in turn.messages]}


@chat.deliver()
def deliver(delivery: Delivery) -> None:
    with (DIRECTORY / "delivered").open("a") as file:
        file.write(f"{delivery.key.thread} {','.join(delivery.message_ids)}\n")


@async_chat.handler()
async def answer_async(turn: AsyncTurn) -> Any:
    journal().write("enter", turn)  # type: ignore[arg-type]  # what a journal reads, both faces have
    end = time.monotonic() + HELD_S
    while held(turn.key.thread) and time.monotonic() < end:  # noqa: ASYNC110  another process opens it
        await asyncio.sleep(POLL_S)  # bounded poll
    journal().write("leave", turn)  # type: ignore[arg-type]
    return {"answers": [m.message_id for m in turn.messages]}


def delivered() -> list[str]:
    """What was sent: "thread ids" by the line."""
    path = DIRECTORY / "delivered"
    return path.read_text().splitlines() if path.exists() else []


if os.environ.get("SERVED_USED_BEFORE_FORK"):  # connections and OS threads that a work-horse must not take over
    chat.status("thread", "no such message")
    asyncio.run(async_chat.status("thread", "no such message"))
