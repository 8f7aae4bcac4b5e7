"""The two worlds under the flows: a sync flow runs in one step, an async one is never abandoned half-way."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from chatlock.errors import InvalidInput
from chatlock.io import AsyncIo, Io, SyncIo, drive, lives, settle
from tests.support.waiting import SECONDS_MAX

WORD: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="unset")


# -- sync --------------------------------------------------------------------------------------------------------------
def test_sync_flow_gives_its_result() -> None:
    async def flow(io: Io) -> int:
        return await io.run(lambda: 1) + await io.shielded(other(io))

    async def other(io: Io) -> int:
        return await io.run(lambda: 2)

    assert drive(flow(SyncIo())) == 3


def test_sync_flow_raises_its_error() -> None:
    async def flow() -> None:
        await SyncIo().run(lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        drive(flow())


def test_sync_flow_that_suspends_is_refused_and_closed() -> None:
    closed = []

    async def flow() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(InvalidInput) as refused:
        drive(flow())
    assert refused.value.reason == "async_call"
    assert closed == [True]


def test_nobody_cancels_an_os_thread() -> None:
    assert SyncIo().cancelled() is False


def test_caller_of_the_sync_world_is_its_os_thread() -> None:
    found: list[Any] = []
    os_thread = threading.Thread(target=lambda: found.append(SyncIo().caller()))
    os_thread.start()
    os_thread.join()
    assert found == [os_thread]
    assert not lives(os_thread)
    assert lives(threading.current_thread())


@pytest.mark.parametrize("timeout_s", [None, 0, SECONDS_MAX])
def test_sync_signal_is_kept_until_it_is_waited_for(timeout_s: float | None) -> None:
    signal = SyncIo().signal()
    signal.set()
    assert drive(signal.wait(timeout_s)) is True
    assert drive(signal.wait(0)) is False


# -- async -------------------------------------------------------------------------------------------------------------
def test_async_signal_is_kept_until_it_is_waited_for() -> None:
    async def main() -> list[bool]:
        signal = AsyncIo(1).signal()
        await asyncio.to_thread(signal.set)
        return [await signal.wait(SECONDS_MAX), await signal.wait(0)]

    assert asyncio.run(main()) == [True, False]


def test_async_signal_of_a_loop_that_has_closed_wakes_nobody() -> None:
    async def main() -> Any:
        return AsyncIo(1).signal()

    asyncio.run(main()).set()


def test_call_runs_off_the_loop_with_the_callers_context() -> None:
    async def main() -> tuple[str, str]:
        io = AsyncIo(1)
        WORD.set("set by the caller")
        found = await io.run(lambda: (WORD.get(), threading.current_thread().name))
        io.close()
        return found

    word, name = asyncio.run(main())
    assert word == "set by the caller"
    assert name.startswith("chatlock-op")


def test_error_of_a_call_is_raised() -> None:
    async def main() -> None:
        io = AsyncIo(1)
        try:
            await io.run(lambda: 1 / 0)
        finally:
            io.close()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())


def test_cancelled_call_has_ended_before_the_cancellation_goes_on() -> None:
    begun, go, ended = threading.Event(), threading.Event(), []

    def call() -> None:
        begun.set()
        assert go.wait(SECONDS_MAX)
        ended.append(True)

    async def main() -> None:
        io = AsyncIo(1)
        task = asyncio.create_task(io.run(call))
        await asyncio.to_thread(begun.wait, SECONDS_MAX)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]
        io.close()

    asyncio.run(main())


def test_shielded_flow_runs_to_its_end_and_the_cancellation_goes_on_after_it() -> None:
    begun, go, steps = threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        assert go.wait(SECONDS_MAX)
        steps.append(1)

    async def main() -> None:
        io = AsyncIo(1)

        async def cleanup() -> None:
            await io.run(first)
            await io.run(lambda: steps.append(2))

        task = asyncio.create_task(io.shielded(cleanup()))
        await asyncio.to_thread(begun.wait, SECONDS_MAX)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert steps == [1, 2]
        io.close()

    asyncio.run(main())


def test_shielded_flow_that_is_collected_elsewhere_ends_without_a_noise() -> None:
    """Its loop ended under it: whoever closes it then does so in a context of their own."""

    async def main() -> Any:
        shielded = AsyncIo(1).shielded(asyncio.Event().wait())
        contextvars.copy_context().run(shielded.send, None)
        return shielded

    asyncio.run(main()).close()


def test_settled_future_lets_its_result_through() -> None:
    async def main() -> int:
        future = asyncio.get_running_loop().create_future()
        future.set_result(7)
        return await settle(future)

    assert asyncio.run(main()) == 7


def test_cancelled_task_knows_it_and_an_awaited_cancellation_is_not_its_own() -> None:
    async def main() -> list[bool]:
        io, found = AsyncIo(1), []

        async def cancelled() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                found.append(io.cancelled())

        task = asyncio.create_task(cancelled())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        try:
            await task
        except asyncio.CancelledError:
            found.append(io.cancelled())
        return found

    assert asyncio.run(main()) == [True, False]


def test_caller_of_the_async_world_is_its_task() -> None:
    async def main() -> bool:
        io = AsyncIo(1)

        async def work() -> Any:
            return io.caller()

        task = asyncio.create_task(work())
        found = await task
        assert found is task
        return lives(found)

    assert asyncio.run(main()) is False


def test_pool_that_was_closed_is_opened_again_by_the_next_call() -> None:
    async def main() -> int:
        io = AsyncIo(1)
        await io.run(lambda: 1)
        io.close()
        found = await io.run(lambda: 2)
        io.close()
        return found

    assert asyncio.run(main()) == 2
