"""What a client tells of itself to whoever subscribes: metrics and traces stand on this.

A notice is told after what it tells of, in the task or OS thread in which it happened, outside any transaction. Nobody
subscribed: nothing is made and nothing called, at the price of one test.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from chatlock.errors import place_of
from chatlock.inputs import Key
from chatlock.ops.base import Claim, Message
from chatlock.ops.submit import Submission
from chatlock.protocol import Outcome

T = TypeVar("T")

log = logging.getLogger("chatlock")

By: TypeAlias = Literal["submit", "wait", "hand_off", "poller", "rq", "http"]
"""Who claimed: the call that stored the message, a call that waited, a finish, a poller, a worker."""


@dataclass(frozen=True, slots=True)
class SubmitEnded:
    """A call of submit, begin, turn or stream has its answer.

    outcome: the outcome's name ("already_answered"), "granted" where the caller got a turn, "raised" for an exception.
    seconds: how long the call took, a turn that it ran included.
    """

    key: Key
    message_id: str
    agent: str
    outcome: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ClaimGranted:
    """A claim became a turn of this process.  waited_s: since the call began; None where no call waited for it."""

    claim: Claim
    by: By
    waited_s: float | None


@dataclass(frozen=True, slots=True)
class TurnEntered:
    """From now on the current context runs inside the turn: its handler or block comes next.  A turn that is handed
    out by begin() is never entered.
    """

    claim: Claim
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class TurnLeft:
    """The handler or block was left, in the context that entered it.  Its turn may have ended long before."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn is over for this process.  how: done, failed, released, lost (someone else has the thread), or left
    (the database could not be told).  messages: how many it held.
    """

    claim: Claim
    how: str
    seconds: float
    messages: int


@dataclass(frozen=True, slots=True)
class TurnReclaimed:
    """A sweep of this process freed a stale turn."""

    key: Key
    token: int
    reason: Literal["lease", "window"]


@dataclass(frozen=True, slots=True)
class DeliveryEnded:
    """An attempt to send a reply ended.  how: sent, retried, failed (for good), or lost (its lease had passed)."""

    key: Key
    token: int
    agent: str
    attempt: int
    how: Literal["sent", "retried", "failed", "lost"]


Notice: TypeAlias = SubmitEnded | ClaimGranted | TurnEntered | TurnLeft | TurnEnded | TurnReclaimed | DeliveryEnded
Subscriber: TypeAlias = Callable[[Notice], object]


class Hooks:
    """The subscribers of one client.  Ask `subscribers` before a notice is made."""

    def __init__(self) -> None:
        self.subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Tells the subscriber every notice from now on; once, however often it is subscribed."""
        if subscriber not in self.subscribers:
            self.subscribers = (*self.subscribers, subscriber)

    def tell(self, notice: Notice) -> None:
        """Calls every subscriber.  What one raises is logged and stops nothing."""
        for subscriber in self.subscribers:
            try:
                subscriber(notice)
            except Exception as error:  # noqa: BLE001  the subscriber's own; the others are still told
                log.error("hook.failed: %s", place_of(error), extra={"notice": type(notice).__name__})

    async def answered(self, what: Submission, call: Awaitable[T]) -> T:
        """Awaits a call and tells how it ended."""
        if not self.subscribers:
            return await call
        began, outcome = time.monotonic(), "raised"
        try:
            got = await call
            outcome = _name(got)
            return got
        finally:
            self.tell(SubmitEnded(what.key, what.message_id, what.agent, outcome, time.monotonic() - began))


def _name(got: object) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(got).__name__).lower() if isinstance(got, Outcome) else "granted"
