"""What a client tells of itself to whoever subscribes: metrics and traces stand on this.

A notice is told after what it tells of, in the task or OS thread in which it happened, outside any transaction; only
SubmitBegan comes before.  Nobody subscribed: nothing is made and nothing called, at the price of one test.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

from chatlock.errors import place_of
from chatlock.inputs import Key
from chatlock.ops.base import Claim, Message
from chatlock.ops.submit import Submission
from chatlock.protocol import Outcome

T = TypeVar("T")

log = logging.getLogger("chatlock")

TRACE_CHARS_MAX = 512

By: TypeAlias = Literal["submit", "wait", "hand_off", "poller", "rq", "http"]
"""Who claimed: the call that stored the message, a call that waited, a finish, a poller, a worker."""


@dataclass(frozen=True, slots=True)
class SubmitBegan:
    """A call of submit, begin, turn or stream will now store its message; SubmitEnded follows in the same context."""

    key: Key
    message_id: str
    agent: str


@dataclass(frozen=True, slots=True)
class SubmitEnded:
    """A call of submit, begin, turn or stream has its answer.

    outcome: the outcome's name ("already_answered"), "granted" where the caller got a turn, "raised" for an exception,
    whose type is error_type.  seconds: how long the call took, a turn that it ran included.
    """

    key: Key
    message_id: str
    agent: str
    outcome: str
    seconds: float
    error_type: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimGranted:
    """A claim became a turn of this process.  waited_s: since the call began; None where no call waited for it."""

    claim: Claim
    by: By
    waited_s: float | None


@dataclass(frozen=True, slots=True)
class MessagesFetched:
    """A turn of this process took messages: its first ones, or more in mid-turn."""

    claim: Claim
    messages: tuple[Message, ...]


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
    (the database could not be told).  messages: how many it held.  error_type: of the exception that failed it.
    """

    claim: Claim
    how: str
    seconds: float
    messages: int
    error_type: str | None = None


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


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A worker's job is over, and its process may end next, without atexit: send now what you held back."""


Notice: TypeAlias = (
    SubmitBegan
    | SubmitEnded
    | ClaimGranted
    | MessagesFetched
    | TurnEntered
    | TurnLeft
    | TurnEnded
    | TurnReclaimed
    | DeliveryEnded
    | JobEnded
)
Subscriber: TypeAlias = Callable[[Notice], object]
Trace: TypeAlias = Callable[[], str | None]


class Hooks:
    """The subscribers of one client.  Ask `subscribers` before a notice is made."""

    def __init__(self) -> None:
        self.subscribers: tuple[Subscriber, ...] = ()
        self._trace: Trace | None = None

    def subscribe(self, subscriber: Subscriber, trace: Trace | None = None) -> None:
        """Tells the subscriber every notice from now on; once, however often it is subscribed."""
        if subscriber not in self.subscribers:
            self.subscribers = (*self.subscribers, subscriber)
        self._trace = trace or self._trace

    def trace(self) -> str | None:
        """What a message that is stored now carries to its turn: a short text, or nothing."""
        if self._trace is None:
            return None
        try:
            text = self._trace()
        except Exception as error:  # noqa: BLE001  the subscriber's own; the message is stored without
            log.error("hook.failed: %s", place_of(error), extra={"notice": "trace"})
            return None
        fits = isinstance(text, str) and len(text) <= TRACE_CHARS_MAX and text.isascii() and text.isprintable()
        return text if fits else None

    def tell(self, notice: Notice) -> None:
        """Calls every subscriber.  What one raises is logged and stops nothing."""
        for subscriber in self.subscribers:
            try:
                subscriber(notice)
            except Exception as error:  # noqa: BLE001  the subscriber's own; the others are still told
                log.error("hook.failed: %s", place_of(error), extra={"notice": type(notice).__name__})

    async def answered(self, what: Submission, call: Callable[[Submission], Awaitable[T]]) -> T:
        """Makes a call with what is to be stored, and tells that it began and how it ended."""
        if not self.subscribers:
            return await call(what)
        facts, began, outcome, error_type = (what.key, what.message_id, what.agent), time.monotonic(), "raised", None
        self.tell(SubmitBegan(*facts))
        try:
            got = await call(replace(what, trace=self.trace()))
            outcome = _name(got)
            return got
        except BaseException as error:
            error_type = type(error).__name__
            raise
        finally:
            self.tell(SubmitEnded(*facts, outcome, time.monotonic() - began, error_type))


def _name(got: object) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(got).__name__).lower() if isinstance(got, Outcome) else "granted"
