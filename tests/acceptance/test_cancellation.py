"""A caller that is stopped, wherever it stands, hands its claim back at once, uncharged, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import dis
import itertools
import sys
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import chatlock
from chatlock import AlreadyAnswered, Answered, AsyncChatlock, AsyncTurn, Chatlock, Limits, Outcome
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
    from collections.abc import Awaitable, Callable, Generator, Iterator
    from types import FrameType

    from tests.support.databases import Database

    Play = Callable[[AsyncChatlock, str], Awaitable[Any]]


# -- what is cancelled -------------------------------------------------------------------------------------------------
async def submit(chat: AsyncChatlock, thread: str) -> Outcome:
    return await chat.submit(thread, "hello", message_id="id")


async def begin(chat: AsyncChatlock, thread: str) -> None:
    turn = await chat.begin(thread, "hello", message_id="id")
    assert isinstance(turn, AsyncTurn)
    await turn.release()


async def turn(chat: AsyncChatlock, thread: str) -> None:
    async with chat.turn(thread, "hello", message_id="id") as held:
        await held.fetch()
        await held.mark("noted")
        await held.session("kept", lambda key: key)
        await held.finish("done")


async def stream(chat: AsyncChatlock, thread: str) -> None:
    async with aclosing(chat.stream(thread, "hello", message_id="id")) as events:
        async for _ in events:
            pass


async def submit_and_wait(chat: AsyncChatlock, thread: str) -> Outcome:
    """Its thread is freed by another task once it waits."""
    held = await asyncio.create_task(chat.begin(thread, "before"))  # in a context of its own
    assert isinstance(held, AsyncTurn)

    async def free() -> None:
        await until_async(lambda: [w for w in chat._flows.waiters._by_key.values() if w], "the waiter")
        await held.finish("done")

    freeing = asyncio.ensure_future(free())
    try:
        return await submit(chat, thread)
    finally:
        while not freeing.done():  # through every cancellation: it is no part of what is tested
            await asyncio.wait({freeing})


async def nothing(chat: AsyncChatlock, thread: str) -> None: ...


async def one_before(chat: AsyncChatlock, thread: str) -> None:
    await chat.submit(thread, "before")


async def failed_before(chat: AsyncChatlock, thread: str) -> None:
    held = await asyncio.create_task(chat.begin(thread, "before"))  # in a context of its own
    assert isinstance(held, AsyncTurn)
    await held.fail("the first attempt")


# name -> what happens before, what is cancelled, attempts charged before
PLAYS: dict[str, tuple[Play, Play, int]] = {
    "first_submit": (nothing, submit, 0),
    "later_submit": (one_before, submit, 0),
    "submit_after_a_failure": (failed_before, submit, 1),
    "submit_and_wait": (nothing, submit_and_wait, 0),
    "begin": (one_before, begin, 0),
    "begin_after_a_failure": (failed_before, begin, 1),
    "turn": (one_before, turn, 0),
    "stream": (one_before, stream, 0),
}


async def assert_handed_back(chat: AsyncChatlock, database: Database, thread: str, attempts: int) -> None:
    """Nothing of the cancelled call is left but its message, which the next call brings to its answer."""
    stored = read(database, MESSAGES, thread)
    answered = [m["message_id"] for m in stored if m["disposition"] == "answered"]
    still_charged = 0 if answered and attempts else attempts
    assert_nothing_kept(chat)
    assert_at_rest(database, thread, attempts=still_charged)
    outcome = await submit(chat, thread)
    assert isinstance(outcome, AlreadyAnswered if "id" in answered else Answered), outcome
    assert {m["disposition"] for m in read(database, MESSAGES, thread)} == {"answered"}


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


# -- streams -----------------------------------------------------------------------------------------------------------
def streaming(chat: AsyncChatlock) -> asyncio.Event:
    """A handler that streams one chunk, and the rest once it is let go."""
    go = asyncio.Event()

    @chat.handler()
    async def chunks(held: AsyncTurn) -> Any:
        yield "one"
        await go.wait()
        yield "two"

    return go


def test_stream_that_is_never_started_stores_nothing(database: Database) -> None:
    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat, quiet_loop():
            streaming(chat)
            events = chat.stream("thread", "hello", message_id="id")
            del events
            assert_nothing_kept(chat)
            assert type(await chat.status("thread", "id")).__name__ == "NotFound"

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["closed", "dropped", "cancelled", "cancelled twice"])
def test_stream_that_is_left_early_releases_its_turn(database: Database, how: str) -> None:
    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat, quiet_loop():
            go = streaming(chat)
            if how in ("closed", "dropped"):
                events = chat.stream("thread", "hello", message_id="id")
                assert (await anext(events)).data == "one"
                if how == "closed":
                    await events.aclose()
                else:
                    del events
                    await until_async(lambda: not turn_is_running(database), "the release")
            else:
                first = asyncio.Event()

                async def read() -> None:
                    async for _ in chat.stream("thread", "hello", message_id="id"):
                        first.set()

                task = asyncio.ensure_future(read())
                await first.wait()
                stop = Stop(chat, name="release.commit")
                task.cancel()
                await until_async(stop.gate.entered.is_set, "the release")
                if how == "cancelled twice":
                    task.cancel()
                    await steps()
                    assert not task.done()
                stop.gate.open()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await until_async(lambda: not chat._flows.live.turns, "the end of the turn")
            assert_nothing_kept(chat)
            assert_at_rest(database, "thread")
            assert not chat._flows.feeds._listeners
            go.set()
            outcome = await submit(chat, "thread")
            assert isinstance(outcome, Answered)
            assert outcome.reply == "onetwo"

    asyncio.run(scenario())


def turn_is_running(database: Database) -> bool:
    return read(database, THREAD, "thread")[0]["status"] == "running"


def test_stream_that_is_left_after_its_call_failed_loses_no_exception(database: Database) -> None:
    async def scenario() -> None:
        chat = AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE)
        streaming(chat)
        async with quiet_loop():
            events = chat.stream("thread", "hello", message_id="id")
            assert (await anext(events)).data == "one"
            await chat.close()
            await until_async(lambda: len(asyncio.all_tasks()) == 2, "the call's wait")
            chat._flows.waiters.close()
            chat._flows.handlers.clear()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
                await asyncio.wait({task})
            await events.aclose()

    asyncio.run(scenario())


def test_chunks_for_a_reader_whose_loop_has_closed_do_not_fail_the_turn(database: Database) -> None:
    chat = AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE)
    kept: list[Any] = []

    async def listen() -> None:
        put = chat._flows.feeds.listen
        events = chat.stream("thread", "hello", message_id="id")
        kept.extend([put, events])
        chat._flows.handlers.clear()
        reading = asyncio.ensure_future(anext(events))
        await until_async(lambda: read(database, MESSAGES, "thread"), "the message")
        kept.append(reading)
        reading.cancel()
        await asyncio.wait({reading})

    async def answer() -> Outcome:
        streaming(chat).set()
        outcome = await submit(chat, "thread")
        await chat.close()
        return outcome

    asyncio.run(listen())
    assert isinstance(asyncio.run(answer()), Answered)


# -- sync code: Ctrl-C -------------------------------------------------------------------------------------------------
def sync_submit(chat: Chatlock, thread: str) -> None:
    chat.submit(thread, "hello", message_id="id", wait_ms=0)


def sync_turn(chat: Chatlock, thread: str) -> None:
    with chat.turn(thread, "hello", message_id="id", wait_ms=0) as held:
        held.mark("noted")
        held.finish("done")


SYNC_PLAYS = {"submit": sync_submit, "turn": sync_turn}


@pytest.fixture
def sync_chat(database: Database) -> Iterator[Chatlock]:
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat:
        chat.handler()(lambda held: "done")
        sync_submit(chat, "before")
        yield chat


def assert_interrupted_well(chat: Chatlock, database: Database, thread: str) -> None:
    """The claim was handed back, and the same client goes on."""
    chat._executor.points = None
    assert_nothing_kept(chat)
    assert chat._executor._gate._inside == 0
    assert_at_rest(database, thread)
    outcome = chat.submit(thread, "hello", message_id="id", wait_ms=0)
    assert isinstance(outcome, Answered | AlreadyAnswered), outcome


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupted_sync_handler_releases_its_turn(
    sync_chat: Chatlock, database: Database, error: type[BaseException]
) -> None:
    @sync_chat.handler("interrupted")
    def interrupted(held: Any) -> None:
        raise error

    with pytest.raises(error):
        sync_chat.submit("thread", "hello", message_id="id", agent="interrupted")
    assert [turn["state"] for turn in read(database, TURNS, "thread")] == ["released"]
    assert_interrupted_well(sync_chat, database, "thread")


@pytest.mark.parametrize("play", SYNC_PLAYS)
def test_interrupt_at_every_point_releases(sync_chat: Chatlock, database: Database, play: str) -> None:
    call = SYNC_PLAYS[play]
    dry = Stop(sync_chat)
    call(sync_chat, "dry")
    for number, name in enumerate(dry.passed):
        thread, passed = f"thread-{number}", itertools.count()

        def interrupt(point: str, number: int = number, passed: Iterator[int] = passed) -> None:
            if next(passed) == number:
                raise KeyboardInterrupt

        sync_chat._executor.points = interrupt
        with pytest.raises(KeyboardInterrupt):
            call(sync_chat, thread)
        assert next(passed) >= number, name
        assert_interrupted_well(sync_chat, database, thread)
    assert sync_chat.verify().ok


# Where CPython looks whether a signal came: after a call, at the start of a function, and in a loop.
LOOKS = {
    dis.opmap[name] for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD") if name in dis.opmap
}
PACKAGE = str(Path(chatlock.__file__).parent)


class CtrlC:
    """Raises KeyboardInterrupt at the n-th place inside chatlock where the interpreter looks for signals."""

    def __init__(self, number: int) -> None:
        self.number, self.seen = number, 0
        self._last: dict[FrameType, int] = {}

    def __enter__(self) -> CtrlC:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)
        self._last.clear()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            last = self._last.get(frame)
            self._last[frame] = frame.f_lasti
            if last is not None and frame.f_code.co_code[last] in LOOKS:
                self.seen += 1
                if self.seen - 1 == self.number:
                    raise KeyboardInterrupt
        elif event == "return":
            self._last.pop(frame, None)
        return self._trace


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("play", SYNC_PLAYS)
def test_ctrl_c_anywhere_in_chatlock_releases(sqlite_database: Database, play: str) -> None:
    """Not only where a call waits: between any two instructions between which the interpreter lets a signal in."""
    call = SYNC_PLAYS[play]
    with Chatlock(sqlite_database.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat:
        chat.handler()(lambda held: "done")
        sync_submit(chat, "before")
        with CtrlC(-1) as dry:
            call(chat, "dry")
        assert dry.seen > 200
        for number in range(0, dry.seen, scaled(9, 1)):
            with CtrlC(number) as interrupt, suppress(KeyboardInterrupt):
                call(chat, f"thread-{number}")
            assert interrupt.seen > number
            assert_interrupted_well(chat, sqlite_database, f"thread-{number}")
        assert chat.verify().ok
