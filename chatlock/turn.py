"""A turn: one run of the agent over the messages it fetched, under one claim."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from chatlock.errors import InvalidInput
from chatlock.inputs import Key
from chatlock.io import drive
from chatlock.ops.base import Incomplete, Message
from chatlock.policies import AwaitingRule
from chatlock.store import Store
from chatlock.turn_core import TurnCore


class _Face:
    """What both faces of a turn share: everything that needs no I/O."""

    def __init__(self, core: TurnCore, store: Store) -> None:
        self._core, self._store = core, store

    @property
    def key(self) -> Key:
        """The tenant and thread that it runs on."""
        return self._core.claim.key

    @property
    def token(self) -> int:
        """The fencing token: increases at every claim, reclaim and deletion of the thread."""
        return self._core.claim.token

    @property
    def claim_id(self) -> str:
        """The id of the claim, as logs name it; another one for each turn."""
        return self._core.claim.claim_id

    @property
    def agent(self) -> str:
        """The agent whose handler is to run."""
        return self._core.claim.agent

    @property
    def messages(self) -> list[Message]:
        """The messages fetched so far, in order of seq."""
        return list(self._core.messages)

    @property
    def lost(self) -> bool:
        """Whether the claim is known to be lost; every write that the turn still tries is refused."""
        return self._core.lost

    @property
    def waiting(self) -> bool:
        """Whether fetch() would bring a message that was sent to this turn (policy steer).

        Known at once where it was sent from this process, else within one heartbeat (3 s); False once the turn has
        fetched as often as it may.
        """
        return self._core.waiting(self._store)

    @property
    def cancelled(self) -> bool:
        """Whether the turn was asked to stop, or its claim is lost.  Known as `waiting` is.

        End it soon, by release() or by an exception: neither is charged then, and its messages are pending again.  A
        turn that finishes all the same is answered; one that does neither is released by force after its grace.
        """
        return self._core.cancelled

    @property
    def previous_incomplete(self) -> Incomplete | None:
        """The turn before this one over the same oldest message, which did not answer it; None if there was none."""
        return self._core.claim.previous_incomplete

    def check(self) -> None:
        """Raises ClaimLost once the claim is lost or its lease has passed on this process's clock.

        Local and cheap, without I/O: call it before each side effect.  It narrows the gap; only fence() and finish()
        close it.
        """
        self._core.check(self._store)

    def on_lost(self, callback: Callable[[], object]) -> None:
        """Runs a function once when the claim is lost; at once if it is lost already.

        Args:
            callback: Called without arguments, in the heartbeat's OS thread: keep it short.  What it raises is logged.
        """
        self._core.alarm.on_lost(callback)

    def step_key(self, name: str, message: Message | None = None) -> str:
        """A key for an external effect, 64 hex digits: the same in every turn that has the message.

        Without a message it is the key of the turn's oldest one, whatever else the turn has: a retry may have more
        messages, or that one alone.  So an effect for each message needs the message's own key.  Raises InvalidInput.

        Args:
            name: Tells the effects of one message apart.  Databases do not: put the environment into it.
            message: One of this turn's messages; None is the oldest.
        """
        if message is not None and message not in self._core.messages:
            raise InvalidInput("bad_message", "a step key is made for a message that this turn has")
        return self._core.step_key(name, None if message is None else message.seq)


class Turn(_Face):
    """One run of an agent over the messages that it fetched, under one claim.

    It ends by finish, suspend, fail or release, or by the end of its handler or block; what it tries afterwards raises
    InvalidInput.
    """

    def fetch(self) -> list[Message]:
        """Takes what has arrived since the last fetch, and returns the new messages.  After 20 times a turn it looks no
        more, returns none and says nothing of the claim.

        They are answered with this turn if its finish covers them.  Raises ClaimLost, StoreUnavailable.
        """
        return drive(self._core.fetch(self._store))

    def finish(self, reply: object = None, *, upto: int | None = None, conn: Any = None) -> None:
        """Stores the reply and ends the turn: the messages it fetched become answered.

        Guard: the claim is still this turn's.  Raises ClaimLost (nothing was written), InvalidInput, StoreUnavailable.

        Args:
            reply: Any JSON value, up to 1 MiB.
            upto: The seq of the last message answered; the rest stays pending.  None: all that it fetched.
            conn: A SQLAlchemy Connection or Session of the same database: finish in the caller's own transaction, so
                that both commit together.
        """
        drive(self._core.finish(self._store, reply, upto, conn))

    def suspend(self, question: object, *, awaiting: AwaitingRule = "hold") -> str:
        """Ends the turn with a question as its reply, and frees the thread until a person answers.

        Returns the question's id, step_key("question:1"), for answer().  A question that was open is closed.  Guard and
        errors: as for finish.

        Args:
            question: Any JSON value, up to 1 MiB.
            awaiting: What new messages do meanwhile: "hold" = they wait for the answer, "run" = they get their turns,
                "cancel" = the first closes the question.
        """
        return drive(self._core.suspend(self._store, question, awaiting))

    def fail(self, error: BaseException | str) -> None:
        """Ends the turn as failed, charged as one attempt; its messages are retried after a backoff.

        Raises ClaimLost, StoreUnavailable.

        Args:
            error: What went wrong.  Of an exception the name of its type is stored, of a text 200 characters.
        """
        drive(self._core.fail(self._store, error))

    def release(self) -> bool:
        """Hands the turn back uncharged, due at once.  Safe to repeat.

        Where the turn before was handed back too, nobody is woken: the next look or sweep finds the thread.  To try
        again later is what fail() is for, with its backoff.

        False: the claim was not this turn's any more.  Raises StoreUnavailable.
        """
        return drive(self._core.release(self._store))

    def fence(self, conn: Any, *, resource: str | None = None) -> None:
        """Holds the claim until the caller's transaction on `conn` ends: what it writes commits only under this claim.

        Raises ClaimLost, TransactionNotImmediate, InvalidInput, StoreUnavailable.

        Args:
            conn: A SQLAlchemy Connection or Session of the same database, or the driver's own connection (psycopg,
                sqlite3).
            resource: A name for what is written, where conn is of another database, which has chatlock's tables too:
                from the first such fence on no earlier turn of the thread can write to it, if every transaction on it
                begins with one.
        """
        drive(self._core.fence(self._store, conn, resource))

    def session(self, name: str, create: Callable[[str], str]) -> str:
        """The one identity retained for this thread under a name: an external conversation id.

        What is kept first is what every later turn gets.  Raises ClaimLost, InvalidInput, StoreUnavailable.

        Args:
            name: What the identity is for, 1 to 200 bytes.
            create: create(step_key) makes it where there is none: 1 to 200 bytes.
        """
        return drive(self._core.session(self._store, name, create))

    def mark(self, value: object) -> None:
        """Keeps a note that a retry finds in previous_incomplete.mark; a later note takes its place.

        Raises ClaimLost, InvalidInput, StoreUnavailable.

        Args:
            value: Any JSON value, up to 64 KiB.
        """
        drive(self._core.mark(self._store, value))

    def state_of(self, token: int) -> str | None:
        """How an earlier turn of this thread ended: done, failed, gave_up, released or reclaimed.

        Only a turn that is done has answered.  None: it is not known, as after a deletion of the thread, or after
        `purge` of a turn that answered nothing.  Raises InvalidInput, StoreUnavailable.

        Args:
            token: The turn's token.
        """
        return drive(self._core.state_of(self._store, token))


class AsyncTurn(_Face):
    """A turn in async code; the same methods as Turn, awaited."""

    async def fetch(self) -> list[Message]:
        """See Turn.fetch."""
        return await self._core.fetch(self._store)

    async def finish(self, reply: object = None, *, upto: int | None = None, conn: Any = None) -> None:
        """See Turn.finish.  conn may also be an AsyncConnection or AsyncSession."""
        await self._core.finish(self._store, reply, upto, conn)

    async def suspend(self, question: object, *, awaiting: AwaitingRule = "hold") -> str:
        """See Turn.suspend."""
        return await self._core.suspend(self._store, question, awaiting)

    async def until_cancelled(self) -> None:
        """Returns once `cancelled` is True, or the turn has ended: wait for it beside the work that it is to stop."""
        await self._core.until_cancelled(self._store)

    async def fail(self, error: BaseException | str) -> None:
        """See Turn.fail."""
        await self._core.fail(self._store, error)

    async def release(self) -> bool:
        """See Turn.release."""
        return await self._store.io.shielded(self._core.release(self._store))

    async def fence(self, conn: Any, *, resource: str | None = None) -> None:
        """See Turn.fence.  conn may also be an AsyncConnection or AsyncSession, or one of psycopg or aiosqlite."""
        await self._core.fence(self._store, conn, resource)

    async def session(self, name: str, create: Callable[[str], Awaitable[str] | str]) -> str:
        """See Turn.session; create may be async."""
        return await self._core.session(self._store, name, create)

    async def mark(self, value: object) -> None:
        """See Turn.mark."""
        await self._core.mark(self._store, value)

    async def state_of(self, token: int) -> str | None:
        """See Turn.state_of."""
        return await self._core.state_of(self._store, token)
