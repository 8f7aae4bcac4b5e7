"""The state of a turn and its flows, written once for sync and async code."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.engine import Connection

from chatlock.alarm import Alarm
from chatlock.caller import driver_kind, on_caller, on_driver
from chatlock.errors import ClaimLost, InvalidInput
from chatlock.heart import Heart
from chatlock.inputs import (
    canonical_json,
    check_callable,
    check_text,
    checked_id,
    checked_int,
    checked_word,
    digest,
    from_json,
    reply_json,
    storable,
)
from chatlock.io import Caller, lives
from chatlock.ops import fence as fence_ops
from chatlock.ops import finish as finish_ops
from chatlock.ops.base import Message, state_of, turn_state
from chatlock.ops.claim import Granted, Request
from chatlock.ops.finish import Finish, Finished, Question
from chatlock.ops.intents import REPLY, Effect
from chatlock.policies import AWAITING_RULES
from chatlock.protocol import TurnState
from chatlock.store import Store

MARK_BYTES_MAX = 64 * 1024
ERROR_CHARS_MAX = 200
QUESTION = "question:1"
"""The step that is a turn's question: asking ends the turn, so there is one."""


class TurnCore:
    """The state of a turn and its flows, written once; Turn and AsyncTurn (turn.py) are its two faces."""

    def __init__(
        self,
        store: Store,
        heart: Heart,
        granted: Granted,
        on_fetch: Callable[[TurnCore, tuple[Message, ...]], None],
        on_end: Callable[[TurnCore], None],
        beats: bool,
    ) -> None:
        self.claim = granted.claim
        self.messages: tuple[Message, ...] = granted.messages
        self.began_at = time.monotonic()
        self.ended: str | None = None
        self.interrupted = False  # the process may be about to end: its own poller is not told to begin the turn again
        self.finished: Finished | None = None
        self.reply: Any = None
        self.question: str | None = None
        self.upto = 0
        self.own_id: str | None = None
        self.delivers = False
        self.deliver_ms: int | None = None
        self.error_type: str | None = None
        self.unattended = False  # a poller's: no caller awaits it who could be told to end
        self.raised_in: threading.Thread | None = None
        self._heart, self._on_fetch, self._on_end, self._beats = heart, on_fetch, on_end, beats
        self.alarm, self._finishing = Alarm(self.claim.claim_id), threading.Lock()
        self._mid_fetches = 0
        self._steered = self._heard = 0  # the newest message that it was told to fetch, and had been when it last did
        self._users: list[Caller] = [store.io.caller()]
        self._valid_until = self.claim.asked_at + self.claim.lease_ms / 1000
        if beats:
            heart.add(self)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Around the call of a handler: keeps in which OS thread it raised, since only the main one hears signals."""
        try:
            yield
        except BaseException:
            self.raised_in = threading.current_thread()
            raise

    # -- what the heart asks and tells -------------------------------------------------------------------------------
    def alive(self) -> bool:
        """Whether the turn is open and a task or OS thread that has used it lives."""
        return self.ended is None and any(lives(user) for user in self._users)

    def beaten(self, sent_at: float) -> None:
        """The lease was extended by a beat that was sent then: it may have taken long to come back."""
        self._valid_until = sent_at + self.claim.lease_ms / 1000

    def told(self, *, cancelled: bool = False, steered: int = 0) -> None:
        """It is asked to stop; there is a message of this seq to fetch.  From any OS thread, also late or again."""
        self._steered = max(self._steered, steered)
        if cancelled:
            self.alarm.ask()

    @property
    def lost(self) -> bool:
        """Whether the claim is known to be lost."""
        return self.alarm.lost

    @property
    def cancelled(self) -> bool:
        """Whether the turn was asked to stop, or its claim is lost."""
        return self.alarm.raised

    def waiting(self, store: Store) -> bool:
        """Whether a fetch may bring what the turn was told of."""
        held = self.messages[-1].seq if self.messages else self.claim.from_seq
        return self._steered > max(held, self._heard) and self._mid_fetches < store.limits.mid_fetches_max

    async def until_cancelled(self, store: Store) -> None:
        """Returns once `cancelled`, or once the turn has ended."""
        await self.alarm.wait(store.io.signal(), lambda: self.ended is not None)

    def _used_by(self, caller: Caller) -> None:
        """A turn may be handed on, and used by several tasks; the heart forgets it with the last of them."""
        if caller is self._users[-1]:
            return
        self._users = [*(user for user in self._users if user is not caller and lives(user)), caller]
        if self._beats and self.ended is None and not self.lost:
            self._heart.add(self)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """The heart does not beat meanwhile, and so never takes an end of our own for a loss."""
        beat = self._heart.remove(self.claim.claim_id)
        try:
            yield
        finally:
            if beat and self.ended is None and not self.lost:
                self._heart.add(self)

    def set_lost(self) -> None:
        """The claim is gone; of a turn that has ended nobody needs to be told."""
        if self.ended is None:
            self.alarm.lose()

    def check(self, store: Store) -> None:
        """Raises ClaimLost once the turn is lost or ended, or the lease has passed on the monotonic clock.  No I/O."""
        self._used_by(store.io.caller())
        if self.ended is not None:
            raise ClaimLost(f"this turn has ended ({self.ended}): it holds the claim no more")
        if self.lost or time.monotonic() >= self._valid_until:
            raise ClaimLost("this turn's claim is lost, or its lease has passed: stop, others may have the thread")

    def _check_open(self, store: Store) -> None:
        self._used_by(store.io.caller())
        if self.ended is not None:
            raise InvalidInput("turn_ended", f"this turn has ended: {self.ended}")
        if self.lost:
            raise ClaimLost

    # -- flows -------------------------------------------------------------------------------------------------------
    async def first_fetch(self, store: Store) -> None:
        """The first messages, where they did not ride in the claim's transaction."""
        if not self.messages:
            self.messages = await store.fetch(self.claim, self.claim.from_seq)
            self._on_fetch(self, self.messages)

    async def fetch(self, store: Store) -> list[Message]:
        self._check_open(store)
        if self._mid_fetches >= store.limits.mid_fetches_max:
            return []
        self._mid_fetches += 1
        after = self.messages[-1].seq if self.messages else self.claim.from_seq
        told_of = self._steered
        new = await self._losing(store.fetch(self.claim, after))
        self._heard = max(self._heard, told_of)
        self.messages = (*self.messages, *new)
        self._on_fetch(self, new)
        return list(new)

    async def _losing(self, flow: Awaitable[Any]) -> Any:
        try:
            return await flow
        except ClaimLost:
            self.set_lost()
            raise

    @contextmanager
    def _one_finish(self) -> Iterator[None]:
        """Of two at once neither could tell whose reply was stored."""
        if not self._finishing.acquire(blocking=False):
            raise InvalidInput("turn_ended", "this turn is being finished by another call")
        try:
            yield
        finally:
            self._finishing.release()

    def _finish_of(self, store: Store, reply: object, upto: int | None, question: Question | None = None) -> Finish:
        self._check_open(store)
        held = [m.seq for m in self.messages]
        if upto is None:
            upto = held[-1] if held else None
        elif upto not in held or isinstance(upto, bool):
            raise InvalidInput("bad_upto", "upto must be the seq of a message that this turn has fetched")
        if upto is None:
            raise InvalidInput("nothing_fetched", "a turn that has fetched nothing cannot finish: release it")
        text = reply_json(reply)
        effect = Effect(REPLY, self.step_key(REPLY), text, self.deliver_ms) if self.delivers else None
        return Finish(self.claim, upto, sum(seq <= upto for seq in held), text, effect, question)

    async def finish(
        self,
        store: Store,
        reply: object = None,
        upto: int | None = None,
        conn: Any = None,
        request: Request | None = None,
    ) -> Finished:
        with self._one_finish():
            what = self._finish_of(store, reply, upto)
            if conn is not None:
                return await self._finish_in(store, conn, what)
            return await self._finish(store, what, request)

    async def suspend(self, store: Store, question: object, rule: str) -> str:
        checked_word(rule, "awaiting", AWAITING_RULES)
        asked = Question(self.step_key(QUESTION), rule)
        with self._one_finish():
            await self._finish(store, self._finish_of(store, question, None, asked))
        if self.question != asked.question_id:  # found done: an earlier finish, which seemed to fail, had no question
            self._check_open(store)
        return asked.question_id

    async def _finish(self, store: Store, what: Finish, request: Request | None = None) -> Finished:
        finished = await store.finish(what, request)
        if finished is None:
            await self.close_lost(store)
            raise ClaimLost
        stored = finished.found or what.stored
        self.reply, self.upto, self.question = from_json(stored.reply), stored.upto, stored.question_id
        self.finished = finished
        self.end("done")
        return finished

    async def _finish_in(self, store: Store, conn: Any, what: Finish) -> Finished:
        """Inside the caller's transaction: whether the turn is done is read back when its block ends."""
        call = on_caller(store.io, conn, lambda c: finish_ops.finish_in(c, what))
        finished: Finished = await self._on_conn(store, call)
        self.finished, self.reply, self.upto = finished, from_json(what.reply), what.upto
        return finished

    async def _on_conn(self, store: Store, call: Awaitable[Any]) -> Any:
        """What is refused in the caller's transaction although the claim is held says something of that transaction."""
        try:
            return await call
        except ClaimLost:
            if await store.read("turn_state", lambda c: turn_state(c, self.claim)) != TurnState.RUNNING:
                self.set_lost()
                raise
        if self.finished is not None:
            text = "this turn is finished already in a transaction that is not committed: commit that one"
            raise InvalidInput("finished_already", text)
        text = "conn does not see this turn: it is of another database, or its transaction is older than the turn"
        raise InvalidInput("other_database", text)

    async def confirm(self, store: Store) -> bool:
        """Whether a finish in the caller's transaction was committed, read by token.  False: rolled back, the turn
        goes on.
        """
        state = await store.read("turn_state", lambda c: turn_state(c, self.claim))
        if state == "done":
            self.end("done")
        elif state != "running":
            await self.close_lost(store)
            raise ClaimLost
        else:
            self.finished = None
        return state == "done"

    async def fail(self, store: Store, error: BaseException | str) -> None:
        self._check_open(store)
        self.error_type = None if isinstance(error, str) else type(error).__name__
        text = storable(error if isinstance(error, str) else type(error).__name__, ERROR_CHARS_MAX)
        with self._ending():
            ended = await store.fail(self.claim, len(self.messages), text)
            if ended is not None:
                self.end("failed")
        if ended is None:
            await self.close_lost(store)
            raise ClaimLost

    async def release(self, store: Store) -> bool:
        """Hands the claim back uncharged.  False: it was not ours any more."""
        if self.ended is not None:
            return False
        with self._ending():
            released = await store.release(self.claim.key, self.claim.claim_id)
            self.end("released")
        return released

    async def close_lost(self, store: Store) -> None:
        """The turn ends without a claim: its late report is noted, for the window of its agent."""
        self.set_lost()
        if self.ended is None:
            self.end("lost")
            await store.report_late(self.claim)

    def end(self, how: str) -> None:
        """The turn is over for this process."""
        if self.ended is None:
            self.ended = how
            self._heart.remove(self.claim.claim_id)
            self.alarm.wake()
            self._on_end(self)

    async def fence(self, store: Store, conn: Any, resource: str | None) -> None:
        self._check_open(store)
        if resource is not None:
            resource = checked_id(resource, "resource")
        if (kind := driver_kind(conn)) is not None:
            await self._on_conn(store, self._fence_driver(store, conn, kind, resource))
            return

        def hold(inner: Connection) -> None:
            if resource is None:
                fence_ops.fence(inner, self.claim)
            else:
                fence_ops.raise_highest(inner, self.claim, resource)

        await self._on_conn(store, on_caller(store.io, conn, hold))

    async def _fence_driver(self, store: Store, conn: Any, kind: fence_ops.Kind, resource: str | None) -> None:
        fence_ops.judge(await on_driver(store.io, conn, fence_ops.on_driver(kind, self.claim, resource)))

    async def session(self, store: Store, name: str, create: Callable[..., Any]) -> str:
        self._check_open(store)
        name = checked_id(name, "name")
        check_callable(create, "create")
        kept = await store.kept_session(self.claim, name)
        if kept is not None:
            return kept
        made = create(self.step_key(f"session:{name}"))
        value = checked_id(await made if inspect.isawaitable(made) else made, "session")
        kept_now: str = await self._losing(store.keep_session(self.claim, name, value))
        return kept_now

    async def state_of(self, store: Store, token: int) -> str | None:
        self._check_open(store)
        token = checked_int(token, "token")
        return await store.read("turn_state", lambda c: state_of(c, self.claim, token))

    async def mark(self, store: Store, value: object) -> None:
        self._check_open(store)
        await self._losing(store.mark(self.claim, canonical_json(value, "mark", MARK_BYTES_MAX)))

    @property
    def served_others(self) -> bool:
        """Whether it held messages whose senders may wait in another process."""
        return any(m.message_id != self.own_id for m in self.messages)

    def answers(self, message_id: str) -> bool:
        """Whether this turn committed and its finish covered the message."""
        return self.ended == "done" and any(m.message_id == message_id and m.seq <= self.upto for m in self.messages)

    def step_key(self, name: str, seq: int | None = None) -> str:
        """hash(tenant, thread, incarnation, seq, name); the oldest message's seq is done_seq + 1."""
        check_text(name, "name")
        c = self.claim
        return digest(c.key.tenant, c.key.thread, c.incarnation, seq or c.from_seq + 1, name)
