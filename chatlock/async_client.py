"""AsyncChatlock, the client for async code: the same methods as Chatlock, awaited, over the same flows."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Self, TypeVar, Unpack, overload

from chatlock.admin import Swept, act
from chatlock.client_base import Client, begun_with, last_events, log_background
from chatlock.errors import InvalidInput, TurnNotGranted
from chatlock.handlers import Event, in_os_thread
from chatlock.inputs import Key, checked_id, checked_wait
from chatlock.inside import enter_turn, exit_turn, hold_turn
from chatlock.io import AsyncIo, settle
from chatlock.ops.audit import Receipt
from chatlock.ops.stop import CancelReceipt
from chatlock.ops.verify import Verified
from chatlock.options import GRACE_MS, WAIT_MS, ClientOptions, Source, SubmitOptions
from chatlock.place import await_outcome
from chatlock.policies import Backlog
from chatlock.polling import BATCH
from chatlock.protocol import Outcome
from chatlock.turn import AsyncTurn
from chatlock.turn_core import TurnCore

T = TypeVar("T")


class _Started:
    """A flow that was handed to an event loop, which may close before it begins it, or in the middle of it."""

    def __init__(
        self,
        flow: Coroutine[Any, Any, Any],
        claim_id: str | None,
        loop: asyncio.AbstractEventLoop,
        over: Callable[[_Started], None],
    ) -> None:
        self.claim_id = claim_id
        self._flow, self._loop, self._over = flow, loop, over

    @property
    def stranded(self) -> bool:
        """Whether nothing will run it any more."""
        return self._loop.is_closed()

    def begin(self) -> None:
        """On the loop."""
        self._task = self._loop.create_task(self._flow)  # kept: the loop itself would let it be collected
        self._task.add_done_callback(self._ended)

    def drop(self) -> None:
        """It never ends; perhaps it has not even begun."""
        if inspect.getcoroutinestate(self._flow) == inspect.CORO_CREATED:
            self._flow.close()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():  # perhaps before its first step: the claim that it may leave is released beside the loop
            threading.Thread(target=self._over, args=(self,), name="chatlock-turn", daemon=True).start()
            return
        self._over(self)
        error = task.exception()
        if error is not None:
            log_background(error)


class AsyncChatlock(Client):
    """The client for async code: one turn per thread.  The same methods as Chatlock, awaited.

    Its database calls run on a small pool of OS threads of its own; it can be used from one event loop after another.
    Handlers that the poller starts run as tasks on the loop that used the client last.

    Args:
        source: As for Chatlock; it may also be an AsyncEngine.
        options: See ClientOptions.
    """

    def __init__(self, source: Source, **options: Unpack[ClientOptions]) -> None:
        super().__init__(source, AsyncIo, options)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self, drain_ms: int = 0) -> None:
        """See Chatlock.close."""
        await settle(asyncio.ensure_future(in_os_thread(lambda: self._close(drain_ms))))

    async def _do(self, flow: Coroutine[Any, Any, T]) -> T:
        self._ready()
        return await flow

    def _ready(self) -> None:
        self._loop = asyncio.get_running_loop()
        super()._ready()

    def _after_fork(self) -> None:
        super()._after_fork()
        self._loop = None

    def _capacity(self) -> int:
        self._forget_stranded()
        loop = self._loop
        return super()._capacity() if loop is not None and loop.is_running() else 0

    def _forget_stranded(self) -> None:
        """What was handed to a loop that has closed since runs no more."""
        with self._counting:
            stranded = [started for started in self._started if isinstance(started, _Started) and started.stranded]
        for started in stranded:
            started.drop()
            self._over(started)

    def _over(self, started: _Started) -> None:
        self._flows.hand_back_expected(started.claim_id)
        self._ends(started)

    def _start_flow(self, flow: Coroutine[Any, Any, Any], claim_id: str | None = None) -> None:
        if self._loop is None:
            raise RuntimeError("no event loop has used this client")
        started = _Started(flow, claim_id, self._loop, self._over)
        self._begins(started)
        with suppress(RuntimeError):  # the loop has closed since: it is stranded
            self._loop.call_soon_threadsafe(started.begin)

    async def setup(self) -> None:
        """See Chatlock.setup."""
        await self._admin.setup()
        self._ready()

    async def submit(
        self,
        thread: str,
        payload: object,
        *,
        conn: Any = None,
        on_stored: Callable[[Outcome], object] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Outcome:
        """See Chatlock.submit.  conn may also be an AsyncConnection or AsyncSession.

        A cancelled call hands its claim back uncharged; its message stays stored.
        """
        what, wait_ms = self._submission(thread, payload, options)
        if conn is not None:
            return await self._flows.submit_in(conn, what)
        return await self._flows.submit(what, wait_ms, on_stored)

    async def answer(
        self,
        thread: str,
        question_id: str,
        decision: object,
        *,
        tenant: str | None = None,
        wait_ms: int | None = WAIT_MS,
    ) -> Outcome:
        """See Chatlock.answer."""
        return await self._do(self._answer(thread, question_id, decision, tenant, wait_ms))

    async def begin(self, thread: str, payload: object, **options: Unpack[SubmitOptions]) -> AsyncTurn | Outcome:
        """See Chatlock.begin."""
        what, wait_ms = self._submission(thread, payload, options)
        got = await self._flows.begin(what, wait_ms)
        if not isinstance(got, TurnCore):
            return got
        hold_turn(got)
        return AsyncTurn(got, self._flows.store)

    @asynccontextmanager
    async def turn(self, thread: str, payload: object, **options: Unpack[SubmitOptions]) -> AsyncIterator[AsyncTurn]:
        """See Chatlock.turn.  A cancellation releases the turn, shielded, before it goes on."""
        what, wait_ms = self._submission(thread, payload, options)
        core = await self._flows.begin(what, wait_ms)
        if not isinstance(core, TurnCore):
            raise TurnNotGranted(core)
        shielded = self._flows.store.io.shielded
        try:
            enter_turn(core, self._flows.hooks)
            yield AsyncTurn(core, self._flows.store)
        except BaseException as error:
            await shielded(self._flows.leave_turn(core, error))
            raise
        else:
            await shielded(self._flows.leave_turn(core, None))
        finally:
            exit_turn(core, self._flows.hooks)

    def stream(self, thread: str, payload: object, **options: Unpack[SubmitOptions]) -> AsyncIterator[Event]:
        """See Chatlock.stream.  Leaving early cancels this call's turn, which is released uncharged."""
        what, wait_ms = self._submission(thread, payload, options)
        return self._events(what.key, what.message_id, lambda: self._flows.submit(what, wait_ms))

    def follow(
        self, thread: str, message_id: str, *, tenant: str | None = None, wait_ms: int | None = WAIT_MS
    ) -> AsyncIterator[Event]:
        """See Chatlock.follow."""
        self._ready()
        key, found, wait = self._flows.key(tenant, thread), checked_id(message_id, "message_id"), checked_wait(wait_ms)
        return self._events(key, found, lambda: await_outcome(self._flows, key, found, wait))

    async def _events(
        self, key: Key, message_id: str, flow: Callable[[], Coroutine[Any, Any, Outcome]]
    ) -> AsyncIterator[Event]:
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event | None]()

        def put(event: Event) -> None:
            with suppress(RuntimeError):  # the loop has closed, and with it the reader
                loop.call_soon_threadsafe(events.put_nowait, event)

        stop = self._flows.feeds.listen(key, message_id, put)
        task = asyncio.ensure_future(flow())
        task.add_done_callback(lambda done: loop.call_soon(events.put_nowait, None))
        try:
            first = ""
            while (event := await events.get()) is not None:
                first = begun_with(first, event)
                yield event
            for event in last_events(await task, first):
                yield event
        finally:
            stop()
            task.cancel()
            await settle(asyncio.gather(task, return_exceptions=True))

    async def status(self, thread: str, message_id: str, *, tenant: str | None = None) -> Outcome:
        """See Chatlock.status."""
        return await self._do(self._admin.status(self._flows.key(tenant, thread), message_id))

    @overload
    async def cancel(self, thread: str, message_id: str, *, tenant: str | None = None) -> Outcome: ...
    @overload
    async def cancel(
        self,
        thread: str,
        *,
        turn: int,
        queued: Backlog = "keep",
        grace_ms: int = GRACE_MS,
        tenant: str | None = None,
    ) -> CancelReceipt: ...
    async def cancel(
        self,
        thread: str,
        message_id: str | None = None,
        *,
        turn: int | None = None,
        queued: Backlog = "keep",
        grace_ms: int = GRACE_MS,
        tenant: str | None = None,
    ) -> Outcome | CancelReceipt:
        """See Chatlock.cancel."""
        key = self._flows.key(tenant, thread)
        if message_id is not None and turn is None:
            return await self._do(self._admin.cancel(key, message_id))
        if turn is not None and message_id is None:
            return await self._do(self._admin.stop(key, turn, queued, grace_ms))
        raise InvalidInput("bad_cancel", "cancel takes either a message_id or a turn")

    async def edit(
        self, thread: str, message_id: str, payload: object, edit_id: str, *, tenant: str | None = None
    ) -> Outcome:
        """See Chatlock.edit."""
        return await self._do(self._admin.edit(self._flows.key(tenant, thread), message_id, payload, edit_id))

    async def promote(self, thread: str, *, tenant: str | None = None) -> Receipt:
        """See Chatlock.promote."""
        return await self._do(self._admin.promote(self._flows.key(tenant, thread)))

    async def park(
        self,
        thread: str,
        *,
        turn: int | None = None,
        tenant: str | None = None,
        actor: str | None = None,
        reason: str = "",
    ) -> Receipt:
        """See Chatlock.park."""
        return await self._do(self._admin.park(self._flows.key(tenant, thread), turn, act("park", actor, reason)))

    async def resume(
        self, thread: str, *, tenant: str | None = None, actor: str | None = None, reason: str = ""
    ) -> Receipt:
        """See Chatlock.resume."""
        return await self._do(self._admin.resume(self._flows.key(tenant, thread), act("resume", actor, reason)))

    async def free(
        self,
        thread: str,
        *,
        turn: int,
        force: bool = False,
        tenant: str | None = None,
        actor: str | None = None,
        reason: str = "",
    ) -> Receipt:
        """See Chatlock.free."""
        what = act("free", actor, reason)
        return await self._do(self._admin.free(self._flows.key(tenant, thread), turn, force, what))

    async def delete(
        self, thread: str, *, tenant: str | None = None, actor: str | None = None, reason: str = ""
    ) -> Receipt:
        """See Chatlock.delete."""
        return await self._do(self._admin.delete(self._flows.key(tenant, thread), act("delete", actor, reason)))

    async def redrive(self, thread: str, message_id: str, *, tenant: str | None = None) -> Outcome:
        """See Chatlock.redrive."""
        return await self._do(self._admin.redrive(self._flows.key(tenant, thread), message_id))

    async def verify(self, *, tenant: str | None = None) -> Verified:
        """See Chatlock.verify."""
        return await self._do(self._admin.verify(tenant))

    async def purge(self, *, older_than_ms: int) -> int:
        """See Chatlock.purge."""
        return await self._do(self._admin.purge(older_than_ms))

    async def sweep_once(self) -> Swept:
        """See Chatlock.sweep_once."""
        run = self._flows.store.io.run
        reclaimed, turns = await run(self._sweep.reclaim_stale), 0
        for key, agent in await run(lambda: self._sweep.due(self._agents(), BATCH)):
            granted = await run(partial(self._sweep.claim, key, agent))
            if granted is not None:
                await self._flows.run_loop(granted, "poller")
                turns += 1
        await run(self._sweep.observe_windows)
        return Swept(reclaimed, turns)
