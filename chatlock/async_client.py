"""AsyncChatlock, the client for async code: the same methods as Chatlock, awaited, over the same flows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar, Unpack

from chatlock.admin import Swept, act
from chatlock.client_base import Client, ClientOptions, Source, SubmitOptions, last_events, log_background
from chatlock.errors import ChatlockError, TurnNotGranted
from chatlock.handlers import Event
from chatlock.io import AsyncIo, settle
from chatlock.ops.audit import Receipt
from chatlock.ops.verify import Verified
from chatlock.polling import BATCH
from chatlock.protocol import Outcome
from chatlock.turn import AsyncTurn
from chatlock.turn_core import TurnCore, enter_turn, exit_turn

T = TypeVar("T")


class AsyncChatlock(Client):
    """The client for async code: one turn per thread.

    Its database calls run on a small pool of OS threads of its own; it can be used from one event loop after another.
    Handlers that the poller starts run as tasks on the loop that used the client last.  Options: see ClientOptions.
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
        await settle(asyncio.ensure_future(asyncio.to_thread(self._close, drain_ms)))

    async def _do(self, flow: Coroutine[Any, Any, T]) -> T:
        self._ready()
        return await flow

    def _ready(self) -> None:
        self._loop = asyncio.get_running_loop()
        super()._ready()

    def _capacity(self) -> int:
        loop = self._loop
        return super()._capacity() if loop is not None and loop.is_running() else 0

    def _start_flow(self, flow: Coroutine[Any, Any, Any]) -> None:
        loop = self._loop
        work = self._work(flow)
        self._count(1)
        try:
            if loop is None:
                raise RuntimeError("no event loop has used this client")
            asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:  # the loop has closed since: the lease frees the claim
            work.close()
            flow.close()
            self._count(-1)

    async def _work(self, flow: Coroutine[Any, Any, Any]) -> None:
        try:
            await flow
        except ChatlockError as error:
            log_background(error)
        finally:
            self._count(-1)
            self._flows.nudge()

    async def setup(self) -> None:
        """See Chatlock.setup."""
        await self._admin.setup()

    async def submit(
        self, thread: str, payload: object, *, conn: Any = None, **options: Unpack[SubmitOptions]
    ) -> Outcome:
        """See Chatlock.submit.  conn may also be an AsyncConnection or AsyncSession.

        A cancelled call hands its claim back uncharged; its message stays stored.
        """
        what, wait_ms = self._submission(thread, payload, options)
        return await (self._flows.submit_in(conn, what) if conn is not None else self._flows.submit(what, wait_ms))

    async def begin(self, thread: str, payload: object, **options: Unpack[SubmitOptions]) -> AsyncTurn | Outcome:
        """See Chatlock.begin."""
        what, wait_ms = self._submission(thread, payload, options)
        got = await self._flows.begin(what, wait_ms)
        return AsyncTurn(got, self._flows.store) if isinstance(got, TurnCore) else got

    @asynccontextmanager
    async def turn(self, thread: str, payload: object, **options: Unpack[SubmitOptions]) -> AsyncIterator[AsyncTurn]:
        """See Chatlock.turn.  A cancellation releases the turn, shielded, before it goes on."""
        what, wait_ms = self._submission(thread, payload, options)
        core = await self._flows.begin(what, wait_ms)
        if not isinstance(core, TurnCore):
            raise TurnNotGranted(core)
        shielded = self._flows.store.io.shielded
        enter_turn(core)
        try:
            yield AsyncTurn(core, self._flows.store)
        except BaseException as error:
            await shielded(self._flows.leave_turn(core, error))
            raise
        else:
            await shielded(self._flows.leave_turn(core, None))
        finally:
            exit_turn(core)

    async def stream(self, thread: str, payload: object, **options: Unpack[SubmitOptions]) -> AsyncIterator[Event]:
        """See Chatlock.stream.  Leaving early cancels this call's turn, which is released uncharged."""
        what, wait_ms = self._submission(thread, payload, options)
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event | None]()

        def put(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        stop = self._flows.feeds.listen(what.key, what.message_id, put)
        task = asyncio.ensure_future(self._flows.submit(what, wait_ms))
        task.add_done_callback(lambda done: loop.call_soon(events.put_nowait, None))
        try:
            streamed = False
            while (event := await events.get()) is not None:
                streamed = True
                yield event
            for event in last_events(await task, streamed):
                yield event
        finally:
            stop()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def status(self, thread: str, message_id: str, *, tenant: str | None = None) -> Outcome:
        """See Chatlock.status."""
        return await self._do(self._admin.status(self._flows.key(tenant, thread), message_id))

    async def cancel(self, thread: str, message_id: str, *, tenant: str | None = None) -> Outcome:
        """See Chatlock.cancel."""
        return await self._do(self._admin.cancel(self._flows.key(tenant, thread), message_id))

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
                await self._flows.run_loop(granted)
                turns += 1
        await run(self._sweep.observe_windows)
        return Swept(reclaimed, turns)
