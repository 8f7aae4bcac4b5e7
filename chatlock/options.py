"""What callers may say beside a thread and a payload: the options of a client, and those of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from chatlock.intake import Choice, Named
from chatlock.policies import Interrupt, Overflow, PriorityName
from chatlock.protocol import Limits
from chatlock.wake.channel import Channel

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

WAIT_MS = 30_000
GRACE_MS = Interrupt().grace_ms

Source: TypeAlias = "str | URL | Engine | AsyncEngine"


class SubmitOptions(TypedDict, total=False):
    """What submit, begin, turn and stream take beside the thread and the payload, as keyword arguments.

    Another name, or a value that breaks what is said of it, raises InvalidInput; nothing is written then.
    """

    message_id: str | None
    """The caller's own id of the message, 1 to 200 bytes: one that the thread has already is not stored again.
    Default: None = a new one, which the outcome names.
    """
    tenant: str | None
    """The owner of the thread, 1 to 200 bytes, from trusted code.  Default: the client's."""
    agent: str
    """Whose handler is to run, 1 to 200 bytes.  Default: "default"."""
    policy: Named | None
    """What the message does while a turn runs or messages are pending: a name, a Debounce or an Interrupt.
    Default: the handler's, else the client's, else "enqueue".
    """
    pending_max: int | None
    """How many messages may wait for a turn, this one included; at least 1.
    Default: the handler's, else the client's, else any number.
    """
    overflow: Overflow | None
    """What becomes of one more: "reject" = Refused("full"), "drop_oldest" = the oldest that no turn has are
    superseded, "drop_newest" = it is stored as superseded.  Default: the handler's, else the client's, else "reject".
    """
    expire_ms: int | None
    """After how many ms of waiting no turn fetches it any more: it is Expired.  At least 1.  Default: None = never."""
    priority: PriorityName
    """The class in which pollers take a thread with such a message: "user" goes first, then "resume", and
    "background" after all others.  Default: "user".
    """
    if_idle: bool
    """Stored only if the thread is idle, that is neither parked nor in a turn; else Refused("not_idle").
    Default: False.
    """
    if_turn: int | None
    """Stored only if the turn with this token runs; else Refused("not_running") or Refused("other_turn").  Excludes
    if_idle and recreate.  Default: None.
    """
    if_awaiting: str | None
    """Stored only if the question with this id is open; else Refused("not_awaiting") or Refused("other_question").
    Excludes recreate.  Default: None.
    """
    wait_ms: int | None
    """How long to wait for the thread, in ms; it never cuts off a handler that runs.  0 = not at all, None = until
    there is an outcome.  Default: 30_000.
    """
    recreate: bool
    """Start the next incarnation of a deleted thread, which else is Gone.  Default: False."""


class ClientOptions(TypedDict, total=False):
    """How a client is made: keyword arguments of Chatlock and AsyncChatlock.

    Another name, or a value that breaks what is said of it, raises InvalidInput.
    """

    tenant: str | None
    """The owner of threads where a call names none.  Default: None = every call must name one, or MissingTenant."""
    policy: Choice
    """The policy of messages whose call and handler name none: a name, a Debounce, an Interrupt, or a function that
    chooses one of these from the payload.  Default: "enqueue".
    """
    pending_max: int | None
    """How many messages may wait for a turn of one thread; at least 1.  Default: None = any number."""
    overflow: Overflow
    """What becomes of one more; see SubmitOptions.  Default: "reject"."""
    poller: bool
    """Sweep in this process: reclaim what is stale, run due turns of its handlers, send replies.  Default: True."""
    turns_max: int
    """How many turns and replies its poller runs at once; at least 1.  Default: 16."""
    tenant_turns_max: int | None
    """Its poller starts no turn of a tenant of which so many run; at least 1.  Default: None = any number."""
    pool_size: int
    """Database connections, besides one of the heartbeat; at least 1.  None is held while a turn runs or a caller
    waits.  Default: 5.
    """
    pooler: Literal["transaction"] | None
    """Say "transaction" behind a transaction pooler of PostgreSQL: nothing then needs a session.  Default: None."""
    heartbeat: bool
    """Whether live turns beat.  False: none does, and the lease of a turn is its window.  Default: True."""
    limits: Limits
    """Times and bounds of the protocol; give all processes of a database the same.  Default: Limits()."""
    wake: Channel | None
    """chatlock.wake.redis.RedisWake or chatlock.wake.postgres.PostgresWake: waiters and pollers elsewhere start
    at once.
    Default: None = they look every second.
    """
