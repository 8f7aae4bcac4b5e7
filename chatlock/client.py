"""Chatlock, the client for sync code: a shell of a few lines a method over the flows.  async_client.py is its twin."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar, Unpack, overload

from chatlock.admin import Swept, act
from chatlock.client_base import Client, begun_with, last_events, log_background
from chatlock.errors import InvalidInput, TurnNotGranted
from chatlock.handlers import Event
from chatlock.inputs import Key, checked_id, checked_wait
from chatlock.inside import enter_turn, exit_turn, hold_turn
from chatlock.io import SyncIo, drive
from chatlock.ops.audit import Receipt
from chatlock.ops.stop import CancelReceipt
from chatlock.ops.verify import Verified
from chatlock.options import GRACE_MS, WAIT_MS, ClientOptions, Source, SubmitOptions
from chatlock.place import await_outcome
from chatlock.policies import Backlog
from chatlock.polling import BATCH
from chatlock.protocol import Outcome
from chatlock.turn import Turn
from chatlock.turn_core import TurnCore

T = TypeVar("T")


class Chatlock(Client):
    """The client for sync code: one turn per thread.  It opens nothing until first use.

    Every method but close may raise InvalidInput (before anything is written), MissingTenant, SchemaMismatch,
    StoreUnavailable and Closed.

    Args:
        source: A database URL (sqlite:///chat.db, postgresql://..), or an Engine, whose URL is used: the client always
            has a pool of its own.
        options: See ClientOptions.

    Other Parameters:
        thread: The conversation, 1 to 200 bytes, from trusted code.
        tenant: Its owner, from trusted code.  None: the client's.
        payload: The message: any JSON value, up to 256 KiB.
        message_id: The id of a message of this thread.
        wait_ms: How long to wait for an outcome, in ms.  0 = not at all, None = until there is one.
        options: See SubmitOptions.
        actor: Who acts, for the audit.  None: the operating system's user.
        reason: Why, for the audit; up to 1,000 characters.
    """

    def __init__(self, source: Source, **options: Unpack[ClientOptions]) -> None:
        super().__init__(source, lambda threads: SyncIo(), options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self, drain_ms: int = 0) -> None:
        """Ends the client: waiters are told (Closed), and what still runs after the drain is released uncharged.

        Args:
            drain_ms: How long running turns may take to end, in ms.
        """
        self._close(drain_ms)

    def _do(self, flow: Coroutine[Any, Any, T]) -> T:
        self._ready()
        return drive(flow)

    def _start_flow(self, flow: Coroutine[Any, Any, Any], claim_id: str | None = None) -> None:
        def work() -> None:
            try:
                drive(flow)
            except BaseException as error:  # noqa: BLE001  nobody else could tell
                log_background(error)
            finally:
                self._ends(flow)

        self._begins(flow)
        try:
            threading.Thread(target=work, name="chatlock-turn", daemon=True).start()
        except RuntimeError as error:  # no more OS threads
            flow.close()
            self._flows.hand_back_expected(claim_id)
            self._ends(flow)
            log_background(error)

    def setup(self) -> None:
        """Creates or upgrades the tables; any number of processes may call it at once.  Raises StoreUnavailable.

        Then the client's poller begins: what waited while no process ran is answered without a further call.
        """
        drive(self._admin.setup())
        self._ready()

    def submit(
        self,
        thread: str,
        payload: object,
        *,
        conn: Any = None,
        on_stored: Callable[[Outcome], object] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Outcome:
        """Stores a message, idempotent on message_id, and brings it to an outcome.

        Effect: if it wins the claim and its agent has a handler here, runs the turn; else waits up to wait_ms.  Never
        raises the handler's error.  Outcomes: Answered (this call ran the turn: show the reply), AlreadyAnswered
        (another did), Queued, Busy, Cancelled, Expired, Superseded, Dead, Parked, Gone, Conflict, Refused, Unknown.

        Args:
            conn: A SQLAlchemy Connection or Session of the same database: store the message in the caller's
                transaction, without a claim; Queued at best, and a poller runs it once that has committed.
            on_stored: Called once with the outcome so far, as soon as the message is stored and before its turn begins.
        """
        what, wait_ms = self._submission(thread, payload, options)
        if conn is not None:
            return drive(self._flows.submit_in(conn, what))
        return drive(self._flows.submit(what, wait_ms, on_stored))

    def answer(
        self,
        thread: str,
        question_id: str,
        decision: object,
        *,
        tenant: str | None = None,
        wait_ms: int | None = WAIT_MS,
    ) -> Outcome:
        """Answers the thread's open question: a submit of the decision under the question's id, to the thread's agent.

        Exactly once: the same decision again tells its outcome, another one is Conflict.  Refused("not_awaiting") or
        Refused("other_question") where this question is not open, and nothing is stored.  The next turn finds it among
        its messages, with `answers` set.  Outcomes: as of submit.

        Args:
            question_id: What Turn.suspend returned; Answered.question and Delivery.question name it.
            decision: The answer: any JSON value, up to 256 KiB.
        """
        return self._do(self._answer(thread, question_id, decision, tenant, wait_ms))

    def begin(self, thread: str, payload: object, **options: Unpack[SubmitOptions]) -> Turn | Outcome:
        """Stores a message and waits up to wait_ms for its thread.  A Turn is the caller's to run and to end.

        Prefer turn(), which ends it whatever happens.  A Turn that is dropped is reclaimed after its lease.
        Until it ends, a submit to its thread in the same context never waits.  Outcomes, where there is no turn for
        the caller: as of submit, but Answered.
        """
        what, wait_ms = self._submission(thread, payload, options)
        got = drive(self._flows.begin(what, wait_ms))
        if not isinstance(got, TurnCore):
            return got
        hold_turn(got)
        return Turn(got, self._flows.store)

    @contextmanager
    def turn(self, thread: str, payload: object, **options: Unpack[SubmitOptions]) -> Iterator[Turn]:
        """begin() as a context manager.

        An exception fails the turn, charged, and is raised on; KeyboardInterrupt, SystemExit and GeneratorExit release
        it; leaving without finish fails it and raises TurnNotFinished.  Raises TurnNotGranted where there is no turn.
        """
        what, wait_ms = self._submission(thread, payload, options)
        kept: list[TurnCore] = []
        try:
            core = drive(self._flows.begin(what, wait_ms, kept.append))
            if not isinstance(core, TurnCore):
                raise TurnNotGranted(core)
            enter_turn(core, self._flows.hooks)
            yield Turn(core, self._flows.store)
            drive(self._flows.leave_turn(core, None))
        except BaseException as error:
            for core in kept:
                drive(self._flows.leave_turn(core, error))
            raise
        finally:
            for core in kept:
                exit_turn(core, self._flows.hooks)

    def stream(self, thread: str, payload: object, **options: Unpack[SubmitOptions]) -> Iterator[Event]:
        """submit() as events: the chunks of an async-generator handler that runs in this process, then the outcome.

        Elsewhere, or later, the stored reply comes as one event.  Leaving early lets the turn run on.  The arguments
        are checked by this call; the message is stored when the first event is asked for.
        """
        what, wait_ms = self._submission(thread, payload, options)
        return self._events(what.key, what.message_id, lambda: self._flows.submit(what, wait_ms))

    def follow(
        self, thread: str, message_id: str, *, tenant: str | None = None, wait_ms: int | None = WAIT_MS
    ) -> Iterator[Event]:
        """The events of a message that is stored already, as stream() gives them; NotFound for one that is not there.

        It waits up to wait_ms (None: until there is an outcome) and never claims.
        """
        self._ready()
        key, found, wait = self._flows.key(tenant, thread), checked_id(message_id, "message_id"), checked_wait(wait_ms)
        return self._events(key, found, lambda: await_outcome(self._flows, key, found, wait))

    def _events(self, key: Key, message_id: str, flow: Callable[[], Coroutine[Any, Any, Outcome]]) -> Iterator[Event]:
        events: queue.SimpleQueue[Event | Outcome | BaseException] = queue.SimpleQueue()
        stop = self._flows.feeds.listen(key, message_id, events.put)

        def work() -> None:
            try:
                events.put(drive(flow()))
            except BaseException as error:  # noqa: BLE001  raised again by the reader
                events.put(error)

        try:
            run = contextvars.copy_context().run
            threading.Thread(target=run, args=(work,), name="chatlock-stream", daemon=True).start()
            first = ""
            while isinstance(item := events.get(), Event):
                first = begun_with(first, item)
                yield item
            if isinstance(item, BaseException):
                raise item
            yield from last_events(item, first)
        finally:
            stop()

    def status(self, thread: str, message_id: str, *, tenant: str | None = None) -> Outcome:
        """The message's outcome now; NotFound for one that this tenant's thread does not have."""
        return self._do(self._admin.status(self._flows.key(tenant, thread), message_id))

    @overload
    def cancel(self, thread: str, message_id: str, *, tenant: str | None = None) -> Outcome: ...
    @overload
    def cancel(
        self,
        thread: str,
        *,
        turn: int,
        queued: Backlog = "keep",
        grace_ms: int = GRACE_MS,
        tenant: str | None = None,
    ) -> CancelReceipt: ...
    def cancel(
        self,
        thread: str,
        message_id: str | None = None,
        *,
        turn: int | None = None,
        queued: Backlog = "keep",
        grace_ms: int = GRACE_MS,
        tenant: str | None = None,
    ) -> Outcome | CancelReceipt:
        """Resolves a pending message as Cancelled, or asks the turn with that token to stop.  Safe to repeat.

        Outcomes of a message: Cancelled, Refused("in_turn") if a turn has it, NotFound, or the one it has already.
        A turn that finishes anyway is answered.  Another turn than the named one is never touched.

        Args:
            message_id: The message to resolve.  The id of the open question closes it: a later answer is refused.
            turn: The token of the turn to stop: sets its `cancelled`.
            queued: What becomes of the messages that the turn has, and of those behind them; the receipt names them
                all.  "keep" = pending, the next turn takes them; "cancel" = cancelled, what the turn has only if it
                ends without an answer; "park" = pending, and the thread is parked when the turn is over.
            grace_ms: A turn that has not ended after so many ms is released by force, uncharged; at least 1.
        """
        key = self._flows.key(tenant, thread)
        if message_id is not None and turn is None:
            return self._do(self._admin.cancel(key, message_id))
        if turn is not None and message_id is None:
            return self._do(self._admin.stop(key, turn, queued, grace_ms))
        raise InvalidInput("bad_cancel", "cancel takes either a message_id or a turn")

    def edit(
        self, thread: str, message_id: str, payload: object, edit_id: str, *, tenant: str | None = None
    ) -> Outcome:
        """Puts a new message at the end in place of a pending one, which becomes Superseded by it.

        Outcome of the new message: Queued or Parked; it keeps the old one's expire_ms.  Refused("in_turn") if a turn
        has the old one, Refused("answer") for an answer, NotFound, or the outcome it has already.  Repeating it tells
        the new message's outcome; with another payload it is Conflict.

        Args:
            message_id: The pending message.
            payload: What the new message holds: any JSON value, up to 256 KiB.
            edit_id: The id of the new message, 1 to 200 bytes.
        """
        return self._do(self._admin.edit(self._flows.key(tenant, thread), message_id, payload, edit_id))

    def promote(self, thread: str, *, tenant: str | None = None) -> Receipt:
        """Puts a thread with pending messages among the first that pollers take, and ends its quiet time.

        The order inside the thread and a backoff after a failure stay.  Refused: "nothing_pending", "not_found".
        """
        return self._do(self._admin.promote(self._flows.key(tenant, thread)))

    def park(
        self,
        thread: str,
        *,
        turn: int | None = None,
        tenant: str | None = None,
        actor: str | None = None,
        reason: str = "",
    ) -> Receipt:
        """Takes the thread out of automatic service until resume; its messages stay pending.

        Refused: "running" (a turn runs and was not named), "other_turn", "not_found".

        Args:
            turn: The token of the running turn, which is released uncharged and fenced out; None: none runs.
        """
        return self._do(self._admin.park(self._flows.key(tenant, thread), turn, act("park", actor, reason)))

    def resume(self, thread: str, *, tenant: str | None = None, actor: str | None = None, reason: str = "") -> Receipt:
        """Puts a parked thread back into service, due at once, with its counters of attempts and stalls cleared.

        Refused: "not_parked", "not_found".
        """
        return self._do(self._admin.resume(self._flows.key(tenant, thread), act("resume", actor, reason)))

    def free(
        self,
        thread: str,
        *,
        turn: int,
        force: bool = False,
        tenant: str | None = None,
        actor: str | None = None,
        reason: str = "",
    ) -> Receipt:
        """Frees a thread of the named turn, which can then commit nothing more.  A turn that is stale is charged.

        Refused: "alive" (without force), "not_running", "other_turn".

        Args:
            turn: The token of the turn.
            force: Free it although it lives, uncharged.
        """
        return self._do(self._admin.free(self._flows.key(tenant, thread), turn, force, act("free", actor, reason)))

    def delete(self, thread: str, *, tenant: str | None = None, actor: str | None = None, reason: str = "") -> Receipt:
        """Deletes the thread: a running turn is fenced out, pending messages become deleted, later submits are Gone.

        Safe to repeat.  Refused: "not_found".
        """
        return self._do(self._admin.delete(self._flows.key(tenant, thread), act("delete", actor, reason)))

    def redrive(self, thread: str, message_id: str, *, tenant: str | None = None) -> Outcome:
        """Sends a dead message again, as a new message that names it.  Repeating it does not send it twice.

        Outcomes: that of the new message, Refused("not_dead"), Refused("purged") once its payload is forgotten, or
        NotFound.
        """
        return self._do(self._admin.redrive(self._flows.key(tenant, thread), message_id))

    def verify(self, *, tenant: str | None = None) -> Verified:
        """Checks every invariant in one read-only snapshot; `.ok` and `.breaches` tell.

        Args:
            tenant: Whose threads; None: those of all tenants.
        """
        return self._do(self._admin.verify(tenant))

    def purge(self, *, older_than_ms: int) -> int:
        """Forgets payloads, replies and unanswered turns of all tenants, in bounded batches; ids stay.

        Returns how many rows it changed.

        Args:
            older_than_ms: What ended longer ago than so many ms; at least 1.
        """
        return self._do(self._admin.purge(older_than_ms))

    def sweep_once(self) -> Swept:
        """One bounded pass of a poller: reclaims what is stale, then runs what is due here, one turn after another."""
        reclaimed, turns = self._sweep.reclaim_stale(), 0
        for key, agent in self._sweep.due(self._agents(), BATCH):
            granted = self._sweep.claim(key, agent)
            if granted is not None:
                drive(self._flows.run_loop(granted, "poller"))
                turns += 1
        self._sweep.observe_windows()
        return Swept(reclaimed, turns)
