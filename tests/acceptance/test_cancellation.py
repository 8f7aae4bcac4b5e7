"""A caller that is stopped, wherever it stands, hands its claim back at once, uncharged, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import AlreadyAnswered, AsyncChatlock, AsyncTurn, Chatlock, Limits
from tests.acceptance.calls import PLAYS, assert_handed_back, one_before, submit, turn
from tests.acceptance.cases.support import TENANT
from tests.acceptance.life import (
    AT_ONCE,
    MESSAGES,
    THREAD,
    TURNS,
    Stop,
    answering,
    assert_at_rest,
    assert_nothing_kept,
    quiet_loop,
    read,
    steps,
    until_async,
)
from tests.support import scaled
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from tests.support.databases import Database

    Play = Callable[[AsyncChatlock, str], Awaitable[Any]]


async def every_point(database: Database, play: str, first: int) -> list[str]:
    """Cancels the call at each point in turn, once and twice by turns; returns the points."""
    prepare, call, attempts = PLAYS[play]
    client = AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE)
    async with client as chat, quiet_loop() as no_task_left:
        answering(chat)
        await prepare(chat, "dry")
        chat._flows.windows._read_at = None
        dry = Stop(chat)
        await call(chat, "dry")
        for number in range(len(dry.passed)):
            thread = f"thread-{number}"
            chat._executor.points = None
            await prepare(chat, thread)
            chat._flows.windows._read_at = None
            stop = Stop(chat, number)
            task = asyncio.ensure_future(call(chat, thread))
            await until_async(lambda stop=stop, task=task: stop.gate.entered.is_set() or task.done(), "the point")
            if not task.done():  # else the tasks of this round came in another order
                for _ in range(1 + (number + first) % 2):
                    task.cancel()
                    await steps()
                stop.gate.open()
                with pytest.raises(asyncio.CancelledError):
                    await task
                chat._executor.points = None
                await no_task_left()
                await assert_handed_back(chat, database, thread, attempts)
        chat._executor.points = None
        assert (await chat.verify()).ok
        return dry.passed


@pytest.mark.parametrize("first", range(scaled(1, 2)))
@pytest.mark.parametrize("play", PLAYS)
def test_call_is_cancelled_at_every_point(database: Database, play: str, first: int) -> None:
    passed = asyncio.run(every_point(database, play, first))
    assert {"submit.commit", "submit_hot.commit", "claim.commit"} & set(passed), passed


# -- at every suspension, without points: the hot path as it is in production ------------------------------------------
class CancelledAt:
    """Awaits a coroutine, and cancels its task at its n-th suspension."""

    def __init__(self, flow: Any, number: int, times: int) -> None:
        self._flow, self._number, self._times = flow, number, times
        self.suspended = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._flow.__await__()
        resume: Callable[[], Any] = lambda: inner.send(None)  # noqa: E731
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                awaited = resume()
            except StopIteration as stop:
                return stop.value
            if self._number <= self.suspended < self._number + self._times:
                task.cancel()
            self.suspended += 1
            try:
                sent = yield awaited
                resume = lambda sent=sent: inner.send(sent)  # noqa: E731
            except BaseException as error:
                resume = lambda error=error: inner.throw(error)  # noqa: E731


async def every_suspension(database: Database, play: str, times: int) -> int:
    """Cancels the call at each suspension in turn, until it has no more; returns how many it had."""
    prepare, call, attempts = PLAYS[play]
    client = AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE)
    async with client as chat, quiet_loop() as no_task_left:
        answering(chat)
        for number in itertools.count():
            thread = f"thread-{number}"
            await prepare(chat, thread)
            cut = CancelledAt(call(chat, thread), number, times)

            async def run(cut: CancelledAt = cut) -> Any:
                return await cut

            task = asyncio.ensure_future(run())
            await asyncio.wait({task})
            await no_task_left()
            if cut.suspended <= number:
                assert not task.cancelled()
                assert task.exception() is None
                break
            assert task.cancelled(), f"the cancellation at suspension {number} of {cut.suspended} was lost"
            await assert_handed_back(chat, database, thread, attempts)
        assert (await chat.verify()).ok
        return number


@pytest.mark.parametrize("times", range(1, scaled(2, 3)))
@pytest.mark.parametrize("play", [play for play in PLAYS if play != "submit_and_wait"])
def test_call_is_cancelled_at_every_suspension(database: Database, play: str, times: int) -> None:
    assert asyncio.run(every_suspension(database, play, times)) >= 2


def test_cancellation_together_with_the_signal_is_not_lost(database: Database) -> None:
    """The look wakes the waiter in the very step in which it is cancelled."""

    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat:
            answering(chat)
            held = await asyncio.create_task(chat.begin("thread", "before"))  # in a context of its own
            assert isinstance(held, AsyncTurn)
            async with quiet_loop():
                task = asyncio.ensure_future(submit(chat, "thread"))
                await until_async(lambda: [w for ws in chat._flows.waiters._by_key.values() for w in ws if w.waited])
                (waiter,) = next(iter(chat._flows.waiters._by_key.values()))
                waiter.signal._event.set()  # type: ignore[attr-defined]
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await held.finish("done")
            await assert_handed_back(chat, database, "thread", 0)

    asyncio.run(scenario())


# -- the release itself is cancelled -----------------------------------------------------------------------------------
@pytest.mark.parametrize("point", ["release.begin", "release.commit"])
@pytest.mark.parametrize("call", [submit, turn])
def test_release_ends_through_every_further_cancellation(database: Database, call: Play, point: str) -> None:
    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat:
            entered = asyncio.Event()

            @chat.handler()
            async def wait_for_ever(held: AsyncTurn) -> None:
                entered.set()
                await asyncio.Event().wait()

            async def run() -> None:
                if call is submit:
                    await submit(chat, "thread")
                async with chat.turn("thread", "hello", message_id="id"):
                    entered.set()
                    await asyncio.Event().wait()

            async with quiet_loop():
                task = asyncio.ensure_future(run())
                await entered.wait()
                stop = Stop(chat, name=point)
                task.cancel()
                await until_async(stop.gate.entered.is_set, point)
                for _ in range(3):
                    task.cancel()
                    await steps()
                    assert not task.done()
                stop.gate.open()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert_nothing_kept(chat)
            assert_at_rest(database, "thread")
            assert [row["state"] for row in read(database, TURNS, "thread")] == ["released"]

    asyncio.run(scenario())


def test_timeout_around_a_turn_releases_it_and_is_a_timeout(database: Database) -> None:
    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat, quiet_loop():

            async def run() -> None:
                async with asyncio.timeout(None) as patience:
                    async with chat.turn("thread", "hello", message_id="id"):
                        patience.reschedule(asyncio.get_running_loop().time())
                        await asyncio.Event().wait()

            with pytest.raises(TimeoutError):
                await run()
            assert_nothing_kept(chat)
            assert_at_rest(database, "thread")
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0

    asyncio.run(scenario())


def test_timeout_that_passes_while_the_turn_begins_releases_it(database: Database) -> None:
    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat, quiet_loop():
            stop = Stop(chat, name="submit_hot.commit")

            async def run() -> None:
                async with asyncio.timeout(None) as patience:
                    patiences.append(patience)
                    async with chat.turn("thread", "hello", message_id="id"):
                        raise AssertionError("the turn began")

            patiences: list[asyncio.Timeout] = []
            task = asyncio.ensure_future(run())
            await until_async(stop.gate.entered.is_set, "the commit")
            patiences[0].reschedule(asyncio.get_running_loop().time())
            await until_async(task.cancelling, "the timeout")
            stop.gate.open()
            with pytest.raises(TimeoutError):
                await task
            assert_nothing_kept(chat)
            assert_at_rest(database, "thread")
            assert [m["disposition"] for m in read(database, MESSAGES, "thread")] == ["pending"]

    asyncio.run(scenario())


def test_finish_that_committed_under_a_cancelled_caller_stays(database: Database) -> None:
    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat:
            answering(chat)
            await one_before(chat, "thread")
            async with quiet_loop():
                stop = Stop(chat, name="finish_hot.commit")
                task = asyncio.ensure_future(submit(chat, "thread"))
                await until_async(stop.gate.entered.is_set, "the commit")
                task.cancel()
                await steps()
                stop.gate.open()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert [m["disposition"] for m in read(database, MESSAGES, "thread")] == ["answered", "answered"]
            assert_nothing_kept(chat)
            replayed = await submit(chat, "thread")
            assert isinstance(replayed, AlreadyAnswered)
            assert replayed.reply == ["id"]

    asyncio.run(scenario())


# -- handlers ----------------------------------------------------------------------------------------------------------
def test_sync_handler_of_a_cancelled_caller_is_fenced_out(database: Database) -> None:
    """The caller does not wait for it; what it still tries is refused."""

    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat:
            gate, refused = Gate(), Gate()

            @chat.handler()
            def work(held: Any) -> None:
                gate.hold()
                try:
                    held.finish("late")
                except Exception as error:
                    tried.append(type(error).__name__)
                refused.entered.set()

            tried: list[str] = []
            async with quiet_loop():
                task = asyncio.ensure_future(submit(chat, "thread"))
                await until_async(gate.entered.is_set, "the handler")
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert_at_rest(database, "thread")
                gate.open()
                await until_async(refused.entered.is_set, "the late finish")
            assert tried == ["InvalidInput"], "the turn has ended here"
            assert_nothing_kept(chat)
            assert_at_rest(database, "thread")

    asyncio.run(scenario())


@pytest.mark.parametrize("runs", ["in submit", "in the poller"])
def test_cancellation_of_another_task_is_the_handlers_failure(database: Database, runs: str) -> None:
    """A handler that awaits a task which was cancelled has failed: uncharged, it would be due at once, for ever."""

    async def scenario() -> None:
        limits = Limits(backoff_ms=0, attempts_max=3, lease_ms=600_000)
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=limits) as chat, quiet_loop():

            @chat.handler()
            async def await_cancelled(held: AsyncTurn) -> None:
                other = asyncio.ensure_future(asyncio.Event().wait())
                await steps(1)
                other.cancel()
                await other

            if runs == "in submit":
                outcome = await chat.submit("thread", "hello", message_id="id", wait_ms=0)
                while read(database, THREAD, "thread")[0]["attempts"]:
                    outcome = await chat.submit("thread", "hello", message_id="id", wait_ms=0)
            else:
                await chat.submit("thread", "hello", message_id="id", agent="other", wait_ms=0)
                chat.handler("other")(await_cancelled)
                for _ in range(3):
                    await chat.sweep_once()
                outcome = await chat.status("thread", "id")
            assert type(outcome).__name__ == "Dead", outcome
            assert [row["state"] for row in read(database, TURNS, "thread")] == ["failed", "failed", "gave_up"]

    asyncio.run(scenario())


def test_async_handler_of_a_sync_client_fails_by_its_own_cancellation(database: Database) -> None:
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=Limits(backoff_ms=0, attempts_max=1)) as chat:

        @chat.handler()
        async def cancel_itself(held: AsyncTurn) -> None:
            raise asyncio.CancelledError

        outcome = chat.submit("thread", "hello")
        assert type(outcome).__name__ == "Dead", outcome
