"""Carries out intents: leases one, calls the function registered for its agent, and ends it by its lease.

At least once: an attempt whose result is unknown is made again, flagged `maybe_duplicate`, under the same key.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from chatlock.errors import ChatlockError, InvalidInput, place_of
from chatlock.handlers import call_either
from chatlock.hooks import DeliveryEnded, Hooks
from chatlock.inputs import Key, checked_id, checked_ms
from chatlock.ops import intents
from chatlock.ops.intents import BACKOFF_MAX_MS, IntentId, Leased
from chatlock.store import Store, jitter

log = logging.getLogger("chatlock")

ATTEMPTS_MAX = 8
BACKOFF_MS = 1_000


@dataclass(frozen=True)
class Delivery:
    """A reply to send, once its turn has committed."""

    key: Key
    """The tenant and thread that it belongs to."""
    token: int
    """The token of its turn."""
    message_ids: tuple[str, ...]
    """The ids of the messages that it answers, in order of seq."""
    reply: Any
    """What finish was given: a JSON value."""
    step_key: str
    """The same over all attempts, for the receiver to dedupe."""
    attempt: int
    """1, 2, .. up to 8."""
    question: str | None = None
    """The id of the question that it asks, for answer(); None: it asks none."""

    @property
    def maybe_duplicate(self) -> bool:
        """Whether an earlier attempt may have sent it."""
        return self.attempt > 1


@dataclass(frozen=True)
class Deliverer:
    """The function registered with @chat.deliver for one agent."""

    agent: str
    call: Callable[[Delivery], Any]
    is_async: bool
    expire_ms: int | None


def deliverer_of(call: Callable[[Delivery], Any], agent: str, expire_ms: int | None) -> Deliverer:
    """Checks what @chat.deliver was given."""
    if not callable(call) or inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise InvalidInput("bad_deliver", "a deliver function is called with a Delivery: deliver(delivery)")
    expire = None if expire_ms is None else checked_ms(expire_ms, "expire_ms", least=1)
    return Deliverer(checked_id(agent, "agent"), call, inspect.iscoroutinefunction(call), expire)


class Outbox:
    """The intents that this process can carry out."""

    def __init__(self, store: Store, hooks: Hooks) -> None:
        self._store, self._hooks = store, hooks
        self.deliverers: dict[str, Deliverer] = {}

    def ready(self, limit: int) -> list[IntentId]:
        """Intents that may be leased now, one of each thread."""
        agents = list(self.deliverers)
        if not agents or limit <= 0:
            return []
        return self._store.executor.read("intents.ready", lambda c: intents.ready_intents(c, agents, limit))

    async def carry_out(self, seen: IntentId) -> bool:
        """Leases the intent and makes its effect.  Whether it was this call that ended it."""
        leased = await self._store.transaction("intents.lease", lambda c: intents.lease(c, seen))
        deliverer = self.deliverers.get(leased.agent) if leased is not None else None
        if leased is None or deliverer is None:
            return False
        try:
            await call_either(self._store.io, deliverer.call, deliverer.is_async, delivery_of(leased))
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  stored with it, and tried again
            fields = {"agent": leased.agent, "attempt": leased.attempt, "error": type(error).__name__}
            log.warning("intent.failed: %s", place_of(error, deliverer.call), extra=fields)
            return await self._failed(leased, type(error).__name__)
        return await self._end(leased, "sent", None)

    async def _end(self, leased: Leased, state: Literal["sent", "failed"], error: str | None) -> bool:
        ended = await self._store.transaction(
            "intents.end", lambda c: intents.end_intent(c, leased.intent, state, error)
        )
        if not ended:
            log.warning("intent.lost_lease", extra={"agent": leased.agent, "attempt": leased.attempt})
        self._tell(leased, state if ended else "lost")
        return ended

    async def _failed(self, leased: Leased, error: str) -> bool:
        if leased.attempt >= ATTEMPTS_MAX:
            return await self._end(leased, "failed", error)
        delay = int(min(BACKOFF_MAX_MS, BACKOFF_MS << (leased.attempt - 1)) * jitter())
        again = await self._store.transaction(
            "intents.retry", lambda c: intents.retry_intent(c, leased.intent, delay, error)
        )
        self._tell(leased, "retried" if again else "lost")
        return False

    def _tell(self, leased: Leased, how: Literal["sent", "retried", "failed", "lost"]) -> None:
        if self._hooks.subscribers:
            where = leased.intent
            self._hooks.tell(DeliveryEnded(where.key, where.token, leased.agent, leased.attempt, how))

    async def flush(self, key: Key) -> None:
        """Carries out what is ready of one thread: a worker sends its own turn's reply before it goes."""
        for seen in await self._store.io.run(lambda: self.ready(100)):
            if seen.key == key:
                try:
                    await self.carry_out(seen)
                except ChatlockError as error:  # whoever looks next carries it out
                    log.warning("intent.flush_failed", extra={"error": type(error).__name__})


def delivery_of(leased: Leased) -> Delivery:
    """What the registered function is called with."""
    where = leased.intent
    about = (leased.message_ids, leased.payload, leased.step_key, leased.attempt, leased.question)
    return Delivery(where.key, where.token, *about)
