"""The world outside, to which replies are delivered, and passes of the dispatcher that sends them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from chatlock import Delivery
from chatlock.io import drive
from tests.acceptance.cases.support import rows
from tests.conformance.bridge import Bridge
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from tests.support.databases import Database


class Channel:
    """The world outside: what was sent, in order; it refuses what `failing` names, and holds where it was told to."""

    def __init__(self) -> None:
        self.sent: list[Delivery] = []
        self.failing: set[str] = set()
        self.gates: dict[str, Gate] = {}
        self._lock = threading.Lock()

    def __call__(self, delivery: Delivery) -> None:
        (first, *_) = delivery.message_ids
        gate = self.gates.pop(first, None)
        if gate is not None:
            gate.hold()
        if first in self.failing:
            raise ConnectionError(first)
        with self._lock:
            self.sent.append(delivery)

    async def send(self, delivery: Delivery) -> None:
        """As a coroutine function."""
        self(delivery)

    @property
    def ids(self) -> list[str]:
        """The messages whose replies were sent."""
        return [i for delivery in self.sent for i in delivery.message_ids]


def carry_out(chat: Any, seen: Any) -> bool:
    """One attempt at one intent, as a dispatcher makes it."""
    flow = chat._outbox.carry_out(seen)
    return bool(chat.run(flow) if isinstance(chat, Bridge) else drive(flow))


def dispatch(chat: Any) -> list[bool]:
    """One pass of a dispatcher."""
    return [carry_out(chat, seen) for seen in chat._outbox.ready(100)]


def all_intents(database: Database) -> list[dict[str, Any]]:
    return rows(database, "SELECT * FROM chatlock_intents ORDER BY tenant, thread_id, incarnation, token")


def states(database: Database) -> list[str]:
    return [intent["state"] for intent in all_intents(database)]


def lapse(database: Database) -> None:
    """A: every lease of an intent has passed."""
    rows(database, "UPDATE chatlock_intents SET leased_until = 0 WHERE state = 'leased'")


def skip_pause(database: Database) -> None:
    """A: every pause before another attempt has passed."""
    rows(database, "UPDATE chatlock_intents SET not_before = 0")
