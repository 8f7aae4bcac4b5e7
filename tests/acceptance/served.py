"""The application that the service and its workers serve in tests: chat objects in one module, set by the environment.

A handler enters its turn in the journal, holds while its thread's hold file exists, and answers with the ids it holds.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from chatlock import AsyncChatlock, Chatlock, Limits
from chatlock.middleware.otel import instrument
from chatlock.urls import checked_url
from chatlock.wake.redis import RedisWake
from tests.acceptance.cases.support import TENANT, Journal

if TYPE_CHECKING:
    from chatlock import AsyncTurn, Delivery, Turn

DIRECTORY = Path(os.environ.get("SERVED_DIRECTORY", "/nonexistent"))
POLL_S, HELD_S = 0.005, 20
OPTIONS: dict[str, Any] = {
    "tenant": TENANT,
    "limits": Limits(
        beat_ms=int(os.environ.get("SERVED_BEAT_MS", "500")),
        lease_ms=int(os.environ.get("SERVED_LEASE_MS", "10000")),
        backoff_ms=100,
    ),
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
    if (DIRECTORY / "write").exists():
        write_fenced(turn)
    return {"answers": [m.message_id for m in turn.messages]}


def write_fenced(turn: Turn) -> None:
    """A write of the product's own: it commits only if the claim still holds."""
    engine = sqlalchemy.create_engine(checked_url(URL))
    with engine.begin() as conn:
        turn.fence(conn)
        note = sqlalchemy.text("INSERT INTO notes VALUES (:thread, :token)")
        conn.execute(note, {"thread": turn.key.thread, "token": turn.token})
    engine.dispose()


@chat.deliver()
def deliver(delivery: Delivery) -> None:
    with (DIRECTORY / "delivered").open("a") as file:
        file.write(f"{delivery.key.thread} {','.join(delivery.message_ids)}\n")
    with (DIRECTORY / "sent.jsonl").open("a") as file:
        file.write(json.dumps([delivery.key.thread, delivery.token, delivery.attempt, delivery.message_ids]) + "\n")


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


def trace_to(path: str) -> None:
    """The chat's spans go to a file, in batches that nothing sends before the end of a job."""
    exporter = ConsoleSpanExporter(out=Path(path).open("a"), formatter=lambda span: span.to_json(indent=None) + "\n")  # noqa: SIM115
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=600_000))
    instrument(chat, tracer_provider=provider)


if "SERVED_SPANS" in os.environ:
    trace_to(os.environ["SERVED_SPANS"])
if os.environ.get("SERVED_USED_BEFORE_FORK"):  # connections and OS threads that a work-horse must not take over
    chat.status("thread", "no such message")
    asyncio.run(async_chat.status("thread", "no such message"))
