"""What is secret, who listens for it, and how a failure is told."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from chatlock import AsyncChatlock, Chatlock
from chatlock.errors import ChatlockError
from tests.acceptance.life import read
from tests.support.databases import Database

TENANT = "t"
PAYLOAD, PASSWORD = "canary-payload", "canary-password"
SQL = re.compile(r"\b(SELECT .* FROM|INSERT INTO|UPDATE \w+ SET|DELETE FROM|PRAGMA)\b", re.IGNORECASE)
NOBODY = 65534
NOWHERE = f"postgresql://u:{PASSWORD}@127.0.0.1:1/db"


class Ears(logging.Handler):
    """Everything that chatlock's loggers say, with fields and tracebacks."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = " ".join(f"{name}={value}" for name, value in vars(record).items())
        self.said.append(f"{self.format(record)} {fields}")


def leaks(text: str) -> bool:
    return PAYLOAD in text or PASSWORD in text or SQL.search(text) is not None


def submit(world: str, url: Any, message_id: str = "m1") -> Any:
    """One message, from a new client of the world; nobody runs it."""
    options: dict[str, Any] = {"message_id": message_id, "wait_ms": 0}

    async def in_loop() -> Any:
        async with AsyncChatlock(url, tenant=TENANT, poller=False) as chat:
            return await chat.submit("thread", {"text": PAYLOAD}, **options)

    if world == "async":
        return asyncio.run(in_loop())
    with Chatlock(url, tenant=TENANT, poller=False) as chat:
        return chat.submit("thread", {"text": PAYLOAD}, **options)


def told(call: Callable[[], object], kind: type[ChatlockError], remedy: str) -> ChatlockError:
    """The one error of exactly this kind, whose text names the remedy; its traceback holds no secret either."""
    with pytest.raises(kind, match=remedy) as caught:
        call()
    assert type(caught.value) is kind
    shown = "".join(traceback.format_exception(caught.value))
    assert not leaks(str(caught.value)), caught.value
    assert PAYLOAD not in shown, shown
    assert PASSWORD not in shown, shown
    return caught.value


def stored(database: Database) -> list[str]:
    """The ids of the messages that are pending."""
    rows = read(database, "SELECT message_id FROM chatlock_messages WHERE disposition = 'pending' ORDER BY seq")
    return [row["message_id"] for row in rows]
