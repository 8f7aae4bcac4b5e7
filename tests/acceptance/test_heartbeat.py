"""The heartbeat keeps what is alive, whatever its event loop does, and nothing that is not."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import Answered, AsyncChatlock, AsyncTurn, Chatlock, ClaimLost, Limits, Turn, executor
from tests.acceptance.cases.support import TENANT, SetClock
from tests.acceptance.life import MESSAGES, THREAD, TURNS, Stop, read, until_async
from tests.support import servers
from tests.support.databases import Database
from tests.support.waiting import SECONDS_MAX, Gate, until

if TYPE_CHECKING:
    from collections.abc import Iterator

# Real time here: beats come fast, and a lease passes in the time of a few of them.
FAST = Limits(beat_ms=25, lease_ms=500, sweep_ms=25, backoff_ms=0)
LEASES = 3


def row(database: Database, thread: str = "thread") -> dict[str, Any]:
    return read(database, THREAD, thread)[0]


def beats(database: Database, thread: str = "thread") -> int:
    return int(row(database, thread)["beat"])


def until_lease_passed(database: Database, thread: str = "thread") -> None:
    """By the database's clock."""
    clock = "CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)"
    if database.kind == "postgresql":
        clock = "(extract(epoch FROM clock_timestamp())*1000)::bigint"
    query = f"SELECT expires_at < {clock} AS stale FROM chatlock_threads WHERE thread_id = ?"
    until(lambda: read(database, query, thread)[0]["stale"], what="the end of the lease")


def reclaim(chat: Any) -> int:
    """Two sweeps, far enough apart on the sweeper's own clock."""
    clock = SetClock()
    chat._sweep._monotonic = clock
    first: int = chat._sweep.reclaim_stale()
    clock.now_s += chat._sweep._gap_s + 1
    return first + int(chat._sweep.reclaim_stale())


@pytest.fixture
def sweeper(database: Database) -> Iterator[Chatlock]:
    """Another process, as far as the database can tell."""
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=FAST) as chat:
        yield chat


# -- a blocked loop ----------------------------------------------------------------------------------------------------
def test_loop_blocked_for_three_leases_keeps_its_claim(database: Database, sweeper: Chatlock) -> None:
    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=FAST) as chat:
            async with chat.turn("thread", "hello") as turn:
                least = LEASES * FAST.lease_ms // FAST.beat_ms
                until(lambda: beats(database) >= least, what="beats beside the loop")  # blocks it
                assert reclaim(sweeper) == 0
                turn.check()
                await turn.finish("done")
            assert row(database)["status"] == "idle"
            assert [message["disposition"] for message in read(database, MESSAGES, "thread")] == ["answered"]

    asyncio.run(scenario())


def test_control_without_a_heartbeat_a_blocked_loop_loses_its_claim(database: Database, sweeper: Chatlock) -> None:
    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=FAST) as chat:
            lost = chat.turn("thread", "hello")
            turn = await lost.__aenter__()
            chat._flows.heart.close()
            until_lease_passed(database)
            assert reclaim(sweeper) == 1
            with pytest.raises(ClaimLost):
                turn.check()
            with pytest.raises(ClaimLost):
                await turn.finish("late")
            assert not await lost.__aexit__(ClaimLost, ClaimLost(), None)
            assert [message["disposition"] for message in read(database, MESSAGES, "thread")] == ["pending"]

    asyncio.run(scenario())


# -- who keeps a turn alive --------------------------------------------------------------------------------------------
def test_turn_whose_task_ended_is_not_kept(database: Database, sweeper: Chatlock) -> None:
    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=FAST) as chat:

            async def begin() -> AsyncTurn:
                turn = await chat.begin("thread", "hello")
                assert isinstance(turn, AsyncTurn)
                return turn

            turn = await asyncio.ensure_future(begin())
            until(lambda: not len(chat._flows.heart), what="the end of its heartbeat")
            until_lease_passed(database)
            assert reclaim(sweeper) == 1
            with pytest.raises(ClaimLost):
                turn.check()

    asyncio.run(scenario())


def test_turn_whose_os_thread_ended_is_not_kept(database: Database, sweeper: Chatlock) -> None:
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=FAST) as chat:
        turns: list[Any] = []
        os_thread = threading.Thread(target=lambda: turns.append(chat.begin("thread", "hello")))
        os_thread.start()
        os_thread.join()
        until(lambda: not len(chat._flows.heart), what="the end of its heartbeat")
        until_lease_passed(database)
        assert reclaim(sweeper) == 1
        with pytest.raises(ClaimLost):
            turns[0].finish("late")


def test_turn_that_was_dropped_is_not_kept(database: Database, sweeper: Chatlock) -> None:
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=FAST) as chat:
        turn = chat.begin("thread", "hello")
        until(lambda: beats(database) >= 2, what="beats while it is held")
        del turn
        gc.collect()
        until(lambda: not len(chat._flows.heart), what="the end of its heartbeat")
        until_lease_passed(database)
        assert reclaim(sweeper) == 1


def test_turn_handed_to_another_task_is_kept(database: Database, sweeper: Chatlock) -> None:
    """Also where nobody used it for a while in between."""

    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=FAST) as chat:

            async def begin() -> AsyncTurn:
                turn = await chat.begin("thread", "hello")
                assert isinstance(turn, AsyncTurn)
                return turn

            async def carry_on(turn: AsyncTurn) -> None:
                turn.check()
                least = beats(database) + LEASES * FAST.lease_ms // FAST.beat_ms
                await until_async(lambda: beats(database) >= least, "beats for the second task")
                await turn.finish("done")

            turn = await asyncio.ensure_future(begin())
            until(lambda: not len(chat._flows.heart), what="the end of its heartbeat")
            await asyncio.ensure_future(carry_on(turn))
            assert [state["state"] for state in read(database, TURNS, "thread")] == ["done"]

    asyncio.run(scenario())


def test_turn_used_by_tasks_that_ended_is_kept_by_the_one_that_runs_it(database: Database, sweeper: Chatlock) -> None:
    """Tools that run side by side use the turn and end; the handler that waits for a model goes on."""

    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=FAST) as chat:

            async def tool(turn: AsyncTurn, name: str) -> None:
                turn.check()
                await turn.mark(name)

            @chat.handler()
            async def answer(turn: AsyncTurn) -> str:
                await asyncio.gather(tool(turn, "one"), tool(turn, "two"))
                await asyncio.to_thread(turn.check)
                least = beats(database) + LEASES * FAST.lease_ms // FAST.beat_ms
                await until_async(lambda: beats(database) >= least, "beats after the tools")
                assert reclaim(sweeper) == 0
                return "done"

            assert isinstance(await chat.submit("thread", "hello"), Answered)

    asyncio.run(scenario())


def test_sync_handler_beside_a_blocked_loop_is_kept(database: Database, sweeper: Chatlock) -> None:
    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, limits=FAST) as chat:
            gate = Gate()

            @chat.handler()
            def answer(turn: Turn) -> str:
                turn.check()
                gate.hold()
                turn.check()
                return "done"

            task = asyncio.ensure_future(chat.submit("thread", "hello"))
            await until_async(gate.entered.is_set)
            until(lambda: beats(database) >= LEASES * FAST.lease_ms // FAST.beat_ms, what="beats")
            gate.open()
            assert isinstance(await task, Answered)

    asyncio.run(scenario())


# -- lost --------------------------------------------------------------------------------------------------------------
def test_turn_past_its_window_is_lost_and_told_once(database: Database, sweeper: Chatlock) -> None:
    limits = Limits(beat_ms=25, lease_ms=500, backoff_ms=0, window_default_ms=700, window_floor_ms=1)
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=limits) as chat:
        turn = chat.begin("thread", "hello")
        assert isinstance(turn, Turn)
        told: list[str] = []
        turn.on_lost(lambda: told.append(threading.current_thread().name))
        turn.on_lost(lambda: 1 / 0)
        turn.on_lost(lambda: told.append("after one that failed"))
        until(lambda: turn.lost, what="the end of the window")
        until(lambda: not len(chat._flows.heart), what="the end of its heartbeat")
        assert reclaim(sweeper) == 1
        with pytest.raises(ClaimLost):
            turn.check()
        with pytest.raises(ClaimLost):
            turn.finish("late")
        assert told == ["chatlock-heart", "after one that failed"]
        turn.on_lost(lambda: told.append("registered later"))
        assert told[-1] == "registered later"
        assert [state["state"] for state in read(database, TURNS, "thread")] == ["reclaimed"]


@pytest.mark.parametrize("end", ["release", "fail"])
def test_end_of_its_own_is_never_told_as_a_loss(database: Database, end: str) -> None:
    """A beat that meets the committed end, before the call that ended it has returned, is no loss."""
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=Limits(beat_ms=9_999, backoff_ms=0)) as chat:
        turn = chat.begin("thread", "hello")
        assert isinstance(turn, Turn)
        told: list[str] = []
        turn.on_lost(lambda: told.append("lost"))
        heart, core = chat._flows.heart, turn._core
        transaction = chat._executor.transaction

        def beat_before_it_returns(name: str, op: Any) -> Any:
            result = transaction(name, op)
            heart._beat_once(core)
            return result

        chat._executor.transaction = beat_before_it_returns  # type: ignore[method-assign]
        turn.release() if end == "release" else turn.fail("it failed")
        assert not told
        assert not turn.lost


def test_freed_turn_is_told_once_although_many_notice(database: Database, sweeper: Chatlock) -> None:
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=Limits(beat_ms=9_999)) as chat:
        turn = chat.begin("thread", "hello")
        assert isinstance(turn, Turn)
        told: list[int] = []
        turn.on_lost(lambda: told.append(1))
        assert sweeper.free("thread", turn=turn.token, force=True).done
        barrier = threading.Barrier(8)

        def notice() -> None:
            barrier.wait(SECONDS_MAX)
            turn._core.set_lost()

        noticing = [threading.Thread(target=notice) for _ in range(8)]
        for os_thread in noticing:
            os_thread.start()
        for os_thread in noticing:
            os_thread.join()
        assert told == [1]


def test_lease_counts_from_when_the_claim_was_asked_for(database: Database) -> None:
    """The answer may have come late: check() then knows that the database's lease has passed already."""
    limits = Limits(beat_ms=199, lease_ms=200)
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=limits) as chat:
        chat._flows.heart.close()  # no beat comes between
        chat.submit("thread", "before", wait_ms=0)
        stop = Stop(chat, name="submit.commit")
        began: list[Any] = []
        os_thread = threading.Thread(target=lambda: began.append(chat.begin("thread", "hello")))
        os_thread.start()
        stop.gate.wait_entered()
        asked_at = time.monotonic()
        until(lambda: time.monotonic() > asked_at + 2 * limits.lease_ms / 1000, what="two leases")
        stop.gate.open()
        os_thread.join()
        with pytest.raises(ClaimLost):
            began[0].check()


# -- the heart itself --------------------------------------------------------------------------------------------------
def test_heart_survives_an_outage_of_the_database(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beats fail while the server is away; the turn is neither told lost nor forgotten, and beats again after it."""
    monkeypatch.setattr(executor, "RECONNECTS_MAX", 0)
    limits = Limits(beat_ms=20, lease_ms=60_000)
    with servers.PostgreSQL() as server, Chatlock(server.url, tenant=TENANT, poller=False, limits=limits) as chat:
        chat.setup()
        turn = chat.begin("thread", "hello")
        assert isinstance(turn, Turn)
        server.kill()
        until(lambda: caplog.messages.count("heartbeat.failed") >= 3, what="beats that failed")
        server.start()
        database = Database("postgresql", server.url, lambda: None)
        seen = beats(database)
        until(lambda: beats(database) >= seen + 3, what="beats after the outage")
        assert not turn.lost
        turn.check()
        turn.finish("done")
        assert chat.verify().ok
        database.dispose()


def test_beats_of_many_turns_hold_one_connection(pg_database: Database) -> None:
    with Chatlock(pg_database.url, tenant=TENANT, poller=False, pool_size=1, limits=FAST) as chat:
        turns = [chat.begin(f"thread-{number}", "hello") for number in range(10)]
        until(lambda: all(beats(pg_database, f"thread-{n}") >= 3 for n in range(10)), what="beats of every turn")
        others = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        assert len(read(pg_database, others)) == 2, "the pool's and the heart's"
        for turn in turns:
            assert isinstance(turn, Turn)
            turn.finish("done")
        until(lambda: not len(chat._flows.heart), what="the end of every heartbeat")


def test_heart_ends_with_its_last_turn_and_starts_again(database: Database) -> None:
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=FAST) as chat:
        for number in range(3):
            with chat.turn(f"thread-{number}", "hello") as turn:
                until(lambda number=number: beats(database, f"thread-{number}") >= 1, what="a beat")
                turn.finish("done")
            until(lambda: chat._flows.heart._os_thread is None, what="the end of the heart's OS thread")


def test_error_in_one_turns_beat_does_not_stop_the_others(database: Database) -> None:
    with Chatlock(database.url, tenant=TENANT, poller=False, limits=FAST) as chat:
        first, second = chat.begin("first", "hello"), chat.begin("second", "hello")
        beat = chat._flows.heart._beat

        def broken(claim: Any) -> Any:
            if claim.key.thread == "first":
                raise RuntimeError("forced by the test")
            return beat(claim)

        chat._flows.heart._beat = broken
        seen = beats(database, "second")
        until(lambda: beats(database, "second") >= seen + 3, what="beats of the other turn")
        assert isinstance(first, Turn)
        assert isinstance(second, Turn)
        assert not first.lost
        second.finish("done")
        first.finish("done")
