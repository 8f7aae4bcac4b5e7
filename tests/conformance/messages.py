"""Messages in few words: what a turn was given, what is stored, who waits."""

from __future__ import annotations

from typing import Any

from tests.support.waiting import until


def payloads(turn: Any) -> list[Any]:
    return [message.payload for message in turn.messages]


def stored(chat: Any, *names: str, thread: str = "c1", **options: Any) -> list[Any]:
    """Messages whose payload is their id, stored without waiting."""
    return [chat.submit(thread, name, message_id=name, wait_ms=0, **options) for name in names]


def await_waiter(chat: Any) -> None:
    """Returns once somebody waits for a message."""
    by_key = chat._flows.waiters._by_key
    until(lambda: any(waiter.waited for waiters in list(by_key.values()) for waiter in list(waiters)))
