"""The client's flows, written once as coroutines over Io: submit, wait, run a turn, hand off, close.

Chatlock and AsyncChatlock are thin shells over this module.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from chatlock.caller import on_caller
from chatlock.errors import ChatlockError, ClaimLost, Closed, InvalidInput, TurnNotFinished, place_of
from chatlock.executor import Executor
from chatlock.handlers import Feeds, Handler, call_handler
from chatlock.heart import Heart
from chatlock.hooks import By, ClaimGranted, Hooks, MessagesFetched, TurnEnded
from chatlock.inputs import Key, checked_key, key_hash
from chatlock.inside import enter_turn, exit_turn
from chatlock.intake import Intake
from chatlock.io import Io, SyncIo, is_main_thread
from chatlock.live import Live, hand_back
from chatlock.ops import inspect
from chatlock.ops.base import Message
from chatlock.ops.claim import Granted, Request
from chatlock.ops.heartbeat import heartbeat
from chatlock.ops.stop import rolled_back
from chatlock.ops.submit import Submission, submit_in
from chatlock.place import Place
from chatlock.policies import POLICIES
from chatlock.protocol import AlreadyAnswered, Answered, Limits, Outcome
from chatlock.store import Store, owner_name
from chatlock.turn_core import TurnCore
from chatlock.wake.channel import Channel
from chatlock.wake.waiters import Waiters
from chatlock.window import Windows

log = logging.getLogger("chatlock")

HANDED_BACK = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)


@dataclass(frozen=True)
class Config:
    """What a client was made with."""

    tenant: str | None
    intake: Intake
    limits: Limits
    heartbeat: bool
    wake: Channel | None = None

    def __post_init__(self) -> None:
        if self.wake is not None and not isinstance(self.wake, Channel):
            raise InvalidInput("bad_wake", f"wake must be a RedisWake or PostgresWake, not {type(self.wake).__name__}")


class Flows:
    """Everything a client does, over one Io."""

    def __init__(self, io: Io, executor: Executor, config: Config) -> None:
        self.config, self.executor, self.hooks = config, executor, Hooks()
        self.store = Store(io, executor, config.limits, owner_name())
        self.windows = Windows(executor, config.limits, self.store.owner, heartbeat=config.heartbeat)
        self.handlers: dict[str, Handler] = {}
        self.on_rollback: dict[str, Handler] = {}
        self.feeds = Feeds()
        far = config.limits.backoff_max_ms
        self.waiters = Waiters(
            lambda waited: executor.read("look", lambda c: inspect.look(c, waited, far)),
            lambda keys: executor.read("look.threads", lambda c: inspect.standings(c, keys, far)),
        )
        self.heart = Heart(lambda claim: executor.beat(lambda c: heartbeat(c, claim)), config.limits.beat_ms)
        self.nudge: Callable[[], None] = lambda: None
        self.prepare: Callable[[TurnCore], None] = lambda core: None
        self.closing = False
        self.signals_raise: Callable[[threading.Thread], bool] = is_main_thread  # Ctrl-C does there
        self.live = Live()

    def after_fork(self) -> None:
        """In a forked child: no turn, waiter or OS thread of the parent is ours."""
        self.live.after_fork()
        self.store.owner = self.windows.owner = owner_name()
        self.waiters.after_fork()
        if self.config.wake is not None:
            self.config.wake.after_fork()
        self.heart.after_fork()
        self.feeds.after_fork()

    # -- input -------------------------------------------------------------------------------------------------------
    def key(self, tenant: str | None, thread: str) -> Key:
        """The checked key; the client's tenant where the call gives none."""
        return checked_key(tenant if tenant is not None else self.config.tenant, thread)

    # -- submit and wait ---------------------------------------------------------------------------------------------
    async def submit(
        self, what: Submission, wait_ms: int | None, on_stored: Callable[[Outcome], object] | None = None
    ) -> Outcome:
        """Stores, runs the turn if this call wins the claim and has a handler, else waits for the message's outcome."""
        return await self.hooks.answered(what, lambda what: self._submit(what, wait_ms, on_stored))

    async def _submit(
        self, what: Submission, wait_ms: int | None, on_stored: Callable[[Outcome], object] | None
    ) -> Outcome:
        handler = self.handlers.get(what.agent)
        ran: set[int] = set()
        place = Place(self, what, wait_ms, claims=handler is not None, on_stored=on_stored)
        try:
            got = await place.first()
            while isinstance(got, TurnCore) and handler is not None:
                ran.add(got.claim.token)
                await self.run_turn(got, handler)
                if got.answers(what.message_id):
                    return place.answered(got)
                got = await place.next()
        except BaseException:
            await self.store.io.shielded(place.give_back())
            raise
        finally:
            place.leave()
        if isinstance(got, TurnCore):
            raise AssertionError("a claim was granted to a call without a handler")
        if isinstance(got, AlreadyAnswered) and got.turn in ran:  # its finish committed, which was long in doubt
            return Answered(**vars(got))
        return got

    async def begin(
        self, what: Submission, wait_ms: int | None, keep: Callable[[TurnCore], object] = lambda core: None
    ) -> TurnCore | Outcome:
        """Stores, and waits for the claim; the caller runs the turn itself.

        keep: is given the turn while a Ctrl-C still gives it back, so that there is no moment in which nobody would.
        """
        return await self.hooks.answered(what, lambda what: self._begin(what, wait_ms, keep))

    async def _begin(
        self, what: Submission, wait_ms: int | None, keep: Callable[[TurnCore], object]
    ) -> TurnCore | Outcome:
        place = Place(self, what, wait_ms, claims=True)
        try:
            got = await place.first()
            if isinstance(got, TurnCore):
                await got.first_fetch(self.store)
                await self._undo(got)
                keep(got)
            return got
        except BaseException:
            await self.store.io.shielded(place.give_back())
            raise
        finally:
            place.leave()

    async def submit_in(self, conn: Any, what: Submission) -> Outcome:
        """Stores in the caller's transaction; never claims.  The poller finds it after the commit."""
        if POLICIES[what.policy].store == "never":
            raise InvalidInput("bad_policy", f"{what.policy} stores nothing: it has no use for conn")

        async def store(what: Submission) -> Outcome:
            return (await on_caller(self.store.io, conn, lambda c: submit_in(c, what, self.config.limits))).outcome

        return await self.hooks.answered(what, store)

    async def request(self, agent: str) -> Request:
        """A claim request with the window in force."""
        if self.windows.stale:
            await self.store.io.run(self.windows.refresh)
        return self.windows.request(agent)

    def opened(self, granted: Granted, by: By, own_id: str | None = None, waited_s: float | None = None) -> TurnCore:
        """A live turn for a granted claim; own_id: the message of the call that runs it."""
        core = TurnCore(self.store, self.heart, granted, self._took, self._ended, self.config.heartbeat)
        core.own_id = own_id
        self.prepare(core)
        self.live.opened(core)
        if self.hooks.subscribers:
            self.hooks.tell(ClaimGranted(core.claim, by, waited_s))
        self._took(core, core.messages)
        return core

    async def asking(self, key: Key, request: Request, attempt: Awaitable[Granted | None]) -> Granted | None:
        """An attempt to claim for a turn that run_loop is to run; given back if the caller is stopped meanwhile."""
        self.live.expect(key, request.claim_id)
        try:
            granted = await attempt
        except HANDED_BACK:
            await self.store.io.shielded(self.give_back(key, request.claim_id))
            raise
        except BaseException:
            self.live.forget(request.claim_id)
            raise
        if granted is None:
            self.live.forget(request.claim_id)
        return granted

    async def give_back(self, key: Key, claim_id: str) -> bool:
        """Releases a claim that may have been granted to a caller who was stopped.

        False: the end of the client, which refused this, hands it back.
        """
        try:
            await self.store.release(key, claim_id)
        except Closed:
            self.live.expect(key, claim_id)
            return False
        except ChatlockError as error:  # the lease frees it
            log.warning("claim.release_failed", extra={"claim_id": claim_id, "error": type(error).__name__})
        self.live.forget(claim_id)
        return True

    def hand_back_expected(self, claim_id: str | None) -> None:
        """Releases a claim whose turn could not begin here, in the calling OS thread."""
        key = self.live.forget(claim_id) if claim_id is not None else None
        if claim_id is not None and key is not None:
            hand_back(claim_id, self.store.over(SyncIo()).release(key, claim_id))

    def _took(self, core: TurnCore, messages: tuple[Message, ...]) -> None:
        if messages and self.hooks.subscribers:
            self.hooks.tell(MessagesFetched(core.claim, messages))

    def _ended(self, core: TurnCore) -> None:
        self.live.ended(core)
        if self.hooks.subscribers:
            seconds = time.monotonic() - core.began_at
            how, held = core.ended or "left", len(core.messages)
            self.hooks.tell(TurnEnded(core.claim, how, seconds, held, core.error_type))
        left = core.finished is None or core.finished.left
        if core.cancelled or core.ended != "released" or not core.claim.after_release:
            self.changed(core.claim.key, due=left and not core.interrupted, elsewhere=left or core.served_others)
        if core.delivers:
            self.nudge()

    def changed(self, key: Key, *, due: bool, elsewhere: bool) -> None:
        """Sends wakes after a commit: to waiters here and elsewhere, and to the poller if no waiter here will claim."""
        self.waiters.wake(key)
        if due and not self.waiters.will_claim(key):
            self.nudge()
        if elsewhere and self.config.wake is not None:
            self.config.wake.send(key_hash(key))

    def told(self, key: Key, token: int, effect: str, seq: int = 0) -> None:
        """What a policy did to a running turn, told at once if it runs here: elsewhere its heartbeat finds out."""
        for core in self.live.of(key, token):
            if effect == "rollback":
                self.heart.soon(core.claim.claim_id)
            else:
                core.told(cancelled=effect == "interrupt", steered=seq if effect == "tell" else 0)

    def woken(self, name: str | None) -> None:
        """A wake from another process."""
        self.waiters.wake_named(name)
        self.nudge()

    # -- running a turn ----------------------------------------------------------------------------------------------
    async def run_turn(self, core: TurnCore, handler: Handler, request: Request | None = None) -> Granted | None:
        """Runs the handler and ends the turn.  Returns the next turn's claim where the finish handed off.

        The handler's own exception is charged, stored and logged, never raised; a cancellation releases and goes on.
        """
        try:
            await core.first_fetch(self.store)
            if not core.messages:
                await core.release(self.store)
                return None
            enter_turn(core, self.hooks)
            await self._undo(core)
            reply = await call_handler(handler, core, self.store, self.feeds)
            if core.ended is None and core.finished is None:
                await core.finish(self.store, reply, request=request)
            await self.leave_turn(core, None)
        except BaseException as error:  # charged and stored, never raised
            stopped = self._hands_back(error) and not self._exits_alone(core, error)
            await self.store.io.shielded(self.leave_turn(core, error, request, stopped))
            if stopped or not isinstance(error, (Exception, *HANDED_BACK)):
                raise
            if core.ended != "released" or not isinstance(error, ClaimLost):  # else it was released on purpose before
                fields = core.claim.named() | {"error": type(error).__name__}
                log.warning("turn.failed: %s", place_of(error, handler.call), extra=fields)
        finally:
            exit_turn(core, self.hooks)
        return core.finished.granted if core.finished is not None else None

    async def _undo(self, core: TurnCore) -> None:
        """Runs the agent's hook over the turns that were rolled back since the thread's last done turn."""
        hook = self.on_rollback.get(core.claim.agent)
        tokens = [] if hook is None else await self.store.read("rolled_back", lambda c: rolled_back(c, core.claim))
        if hook is not None and tokens:
            call = hook.call
            await call_handler(replace(hook, call=lambda turn: call(turn, tokens)), core, self.store, self.feeds)

    async def leave_turn(
        self,
        core: TurnCore,
        error: BaseException | None,
        request: Request | None = None,
        stopped: bool | None = None,
    ) -> None:
        """Ends a turn whose block or handler was left, with or without an error.  stopped: whether it is handed back.

        Raises TurnNotFinished if it was left without an error and without finish; the error itself is the caller's
        to raise.
        """
        if core.ended is not None:
            return
        uncommitted = core.finished is not None
        try:
            if core.finished is not None and await core.confirm(self.store):
                return
            if self._hands_back(error) if stopped is None else stopped:
                core.interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
                await core.release(self.store)
                if request is not None:
                    await self.store.release(core.claim.key, request.claim_id)
            elif core.lost or isinstance(error, ClaimLost):
                await core.close_lost(self.store)
            else:
                await core.fail(self.store, error if error is not None else TurnNotFinished())
        except ChatlockError as failed:  # the lease frees what this could not
            log.warning("turn.leave_failed", extra={"claim_id": core.claim.claim_id, "error": type(failed).__name__})
            if isinstance(failed, Closed):  # the end of the client, which refused this, hands the claim back
                self.live.expect(core.claim.key, core.claim.claim_id)
            core.end("left")
        if error is None:
            raise TurnNotFinished(uncommitted=uncommitted)

    def _hands_back(self, error: BaseException | None) -> bool:
        """Whether the turn's caller was stopped.  A handler may also fail by another task's cancellation."""
        if isinstance(error, asyncio.CancelledError):
            return self.store.io.cancelled()
        return isinstance(error, HANDED_BACK)

    def _exits_alone(self, core: TurnCore, error: BaseException) -> bool:
        """Whether an exit or interrupt is the handler's own doing: nobody else raises it there, or no caller awaits."""
        heard = self.signals_raise(core.raised_in or threading.current_thread())
        by_signal = heard and not core.unattended and isinstance(error, SystemExit | KeyboardInterrupt)
        return not by_signal and not isinstance(error, asyncio.CancelledError)

    async def run_loop(self, granted: Granted, by: By, *, unattended: bool = False) -> None:
        """A poller's or worker's turn, and those that its finishes hand off to, at most hand_offs_max in a row."""
        next_turn: Granted | None = granted
        for left in range(self.config.limits.hand_offs_max, -1, -1):
            if next_turn is None:
                return
            core = self.opened(next_turn, by)
            core.unattended = unattended
            next_turn, by = await self._run_next(core, hands_off=bool(left)), "hand_off"

    async def _run_next(self, core: TurnCore, *, hands_off: bool) -> Granted | None:
        request, next_turn = None, None
        try:
            handler = self.handlers.get(core.claim.agent)
            if handler is not None and not self.closing:
                request = await self.request(core.claim.agent) if hands_off else None
                if request is not None:
                    self.live.expect(core.claim.key, request.claim_id)
                next_turn = await self.run_turn(core, handler, request)
            return next_turn
        finally:
            if request is not None and next_turn is None:
                self.live.forget(request.claim_id)
            try:
                await self.store.io.shielded(core.release(self.store))
            except Closed:  # nobody may hold the turn any more when the end of the client hands claims back
                self.live.expect(core.claim.key, core.claim.claim_id)
                raise

    # -- the end -----------------------------------------------------------------------------------------------------
    def close_now(self, drain_s: float) -> None:
        """Stops intake, tells the waiters, lets running turns end for up to drain_s, releases the others uncharged."""
        self.closing = True
        self.waiters.close()
        self.live.drain(drain_s)
        self.heart.close()
        self.executor.close(lambda: self.live.hand_all_back(self.store.over(SyncIo())))
        if self.config.wake is not None:
            self.config.wake.close()
