"""Many at once: few connections serve many waiters, and no process starves another at SQLite's one write lock."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import (
    AlreadyAnswered,
    Answered,
    AsyncChatlock,
    AsyncTurn,
    Chatlock,
    Limits,
    StoreUnavailable,
    Turn,
    executor,
)
from chatlock.turnstile import Turnstile
from tests.acceptance.cases.support import TENANT, Points
from tests.acceptance.life import AT_ONCE, MESSAGES, read, until_async
from tests.support import scaled
from tests.support.databases import connect
from tests.support.processes import Child
from tests.support.waiting import SECONDS_MAX, Gate, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database

    Keep = Callable[[Child], Child]

POOL = 2
TURNS = 50
WAITERS = 200


def connections(database: Database) -> int:
    """What the server says: connections to this database beside the test's own."""
    others = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    return len(read(database, others))


def waiting(chat: Any) -> int:
    return sum(w.waited is not None for waiters in list(chat._flows.waiters._by_key.values()) for w in list(waiters))


def assert_everyone_is_answered(database: Database, told: list[Any]) -> None:
    assert Counter(type(outcome) for outcome in told).keys() <= {Answered, AlreadyAnswered}
    assert len(told) == TURNS + WAITERS
    assert read(database, "SELECT DISTINCT disposition FROM chatlock_messages") == [{"disposition": "answered"}]
    tokens = Counter((o.turn, o.message_id) for o in told if isinstance(o, Answered))
    assert max(tokens.values()) == 1


# -- a pool of two -----------------------------------------------------------------------------------------------------
def test_pool_of_two_serves_200_waiters_and_50_turns(database: Database) -> None:
    with Chatlock(database.url, tenant=TENANT, poller=False, pool_size=POOL, limits=AT_ONCE) as chat:
        gate, inside = threading.Event(), threading.Semaphore(0)

        @chat.handler()
        def hold(turn: Turn) -> int:
            inside.release()
            assert gate.wait(SECONDS_MAX)
            return len(turn.messages)

        with ThreadPoolExecutor(TURNS + WAITERS) as pool:
            told = [pool.submit(chat.submit, f"thread-{n}", "first", wait_ms=None) for n in range(TURNS)]
            for _ in range(TURNS):
                assert inside.acquire(timeout=SECONDS_MAX)
            told += [pool.submit(chat.submit, f"thread-{n % TURNS}", "more", wait_ms=None) for n in range(WAITERS)]
            until(lambda: waiting(chat) == WAITERS, what="every waiter")
            if database.kind == "postgresql":
                assert connections(database) <= POOL
                active = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL"
                until(lambda: len(read(database, active)) == 1, what="nobody but this query in a transaction")
            assert chat._executor.engine.pool.status().startswith(f"Pool size: {POOL}")
            gate.set()
            assert_everyone_is_answered(database, [future.result(SECONDS_MAX) for future in told])
        assert chat.verify().ok


def test_pool_of_two_serves_200_waiting_tasks_and_50_turns(database: Database) -> None:
    async def scenario() -> None:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False, pool_size=POOL, limits=AT_ONCE) as chat:
            gate, inside = asyncio.Event(), []

            @chat.handler()
            async def hold(turn: AsyncTurn) -> int:
                inside.append(turn.key.thread)
                await gate.wait()
                return len(turn.messages)

            told = [asyncio.ensure_future(chat.submit(f"thread-{n}", "first", wait_ms=None)) for n in range(TURNS)]
            await until_async(lambda: len(inside) == TURNS, "every turn")
            told += [
                asyncio.ensure_future(chat.submit(f"thread-{n % TURNS}", "more", wait_ms=None)) for n in range(WAITERS)
            ]
            await until_async(lambda: waiting(chat) == WAITERS, "every waiter")
            os_threads = [os_thread for os_thread in threading.enumerate() if os_thread.name.startswith("chatlock-op")]
            assert len(os_threads) <= POOL
            if database.kind == "postgresql":
                assert connections(database) <= POOL
            gate.set()
            assert_everyone_is_answered(database, await asyncio.gather(*told))
            assert (await chat.verify()).ok

    asyncio.run(scenario())


def test_heart_beats_although_the_pool_is_taken(pg_database: Database) -> None:
    """Its connection is its own: no load on the pool keeps a beat from a turn."""
    limits = Limits(beat_ms=20, lease_ms=600_000)
    with Chatlock(pg_database.url, tenant=TENANT, poller=False, pool_size=1, limits=limits) as chat:
        turn = chat.begin("thread", "hello")
        assert isinstance(turn, Turn)
        gate = Points(chat).hold("submit_hot.begin")
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(chat.submit, "other", "hello", wait_ms=0)
            gate.wait_entered()
            beats = "SELECT beat FROM chatlock_threads WHERE thread_id = 'thread'"
            before = read(pg_database, beats)[0]["beat"]
            until(lambda: read(pg_database, beats)[0]["beat"] >= before + 3, what="beats")
            gate.open()
            held.result(SECONDS_MAX)
        turn.finish("done")


# -- one writer --------------------------------------------------------------------------------------------------------
PROCESSES = 8
SUBMITS = scaled(40, 1000)
FORK = multiprocessing.get_context("fork")


def submit_many(url: str, process: int, barrier: Any) -> None:
    """One process: submits from four OS threads, each with its share."""
    with Chatlock(url, tenant=TENANT, poller=False) as chat:
        chat.handler()(lambda turn: "done")
        barrier.wait(SECONDS_MAX)
        with ThreadPoolExecutor(4) as pool:
            told = [
                pool.submit(
                    chat.submit, f"thread-{process}-{n % 4}", "hello", message_id=f"{process}-{n}", wait_ms=None
                )
                for n in range(SUBMITS)
            ]
            answers = [future.result(120) for future in told]
    assert all(isinstance(answer, Answered | AlreadyAnswered) for answer in answers)
    print("finished", len(answers), flush=True)


def test_eight_processes_write_one_file_and_each_finishes_its_share(sqlite_database: Database, child: Keep) -> None:
    barrier = FORK.Barrier(PROCESSES)
    writers = [
        child(Child.fork(lambda process=n: submit_many(sqlite_database.url, process, barrier)))
        for n in range(PROCESSES)
    ]
    assert [writer.wait(240) for writer in writers] == [0] * PROCESSES, [writer.text for writer in writers]
    assert [writer.text for writer in writers] == [f"finished {SUBMITS}\n"] * PROCESSES
    stored = Counter(
        row["message_id"].split("-")[0] for row in read(sqlite_database, "SELECT message_id FROM chatlock_messages")
    )
    assert stored == {str(n): SUBMITS for n in range(PROCESSES)}
    assert read(sqlite_database, "SELECT DISTINCT disposition FROM chatlock_messages") == [{"disposition": "answered"}]
    assert read(sqlite_database, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]
    with Chatlock(sqlite_database.url, tenant=TENANT, poller=False) as chat:
        assert chat.verify().ok


def test_writer_that_comes_late_among_busy_ones_is_served(sqlite_database: Database, child: Keep) -> None:
    """The others write without a pause until it has finished its share: it can only finish if it gets its turns."""
    done = FORK.Event()

    def write_on(process: int) -> None:
        with Chatlock(sqlite_database.url, tenant=TENANT, poller=False) as chat:
            number = 0
            while not done.is_set():
                number += 1
                chat.submit(f"busy-{process}", "hello", message_id=f"{process}-{number}", wait_ms=0)
                if number == 5:
                    print("writing", flush=True)

    writers = [child(Child.fork(lambda process=n: write_on(process))) for n in range(3)]
    for writer in writers:
        writer.wait_for("writing")
    with Chatlock(sqlite_database.url, tenant=TENANT, poller=False) as chat:
        for number in range(scaled(40, 400)):
            chat.submit("late", "hello", message_id=f"late-{number}", wait_ms=0)
    done.set()
    assert [writer.wait(60) for writer in writers] == [0, 0, 0], [writer.text for writer in writers]


def test_file_held_by_a_writer_for_a_while_is_waited_for(sqlite_database: Database) -> None:
    with Chatlock(sqlite_database.url, tenant=TENANT, poller=False) as chat, ThreadPoolExecutor(12) as pool:
        chat.submit("thread", "before", wait_ms=0)
        points = Points(chat)
        with closing(connect(sqlite_database.url)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            asked = [pool.submit(chat.submit, f"thread-{n}", "hello", wait_ms=0) for n in range(10)]
            until(lambda: points.passed.count("submit_hot.begin") > 30, what="many busy attempts")
            assert not any(future.done() for future in asked)
            holder.execute("COMMIT")
            assert all(type(future.result(SECONDS_MAX)).__name__ == "Queued" for future in asked)


def test_file_held_beyond_the_busy_limit_is_unavailable(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted from the first time that the call met the lock; nothing was written, and the client goes on."""
    monkeypatch.setattr(executor, "BUSY_S", 0.05)
    with Chatlock(sqlite_database.url, tenant=TENANT, poller=False) as chat:
        chat.submit("thread", "before", wait_ms=0)
        points = Points(chat)
        with closing(connect(sqlite_database.url)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="locked by another writer"):
                chat.submit("thread", "hello", message_id="id", wait_ms=0)
            assert points.passed.count("submit_hot.begin") > 1
            holder.execute("ROLLBACK")
        assert len(read(sqlite_database, MESSAGES, "thread")) == 1
        chat.submit("thread", "hello", message_id="id", wait_ms=0)
        assert len(read(sqlite_database, MESSAGES, "thread")) == 2


def test_control_without_retries_a_busy_file_reaches_the_caller(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "BUSY_S", -1.0)
    with (
        Chatlock(sqlite_database.url, tenant=TENANT, poller=False) as chat,
        closing(connect(sqlite_database.url)) as holder,
    ):
        chat.submit("thread", "before", wait_ms=0)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            chat.submit("thread", "hello", wait_ms=0)


def test_reads_go_on_while_a_writer_holds_the_file(sqlite_database: Database) -> None:
    with (
        Chatlock(sqlite_database.url, tenant=TENANT, poller=False) as chat,
        closing(connect(sqlite_database.url)) as holder,
    ):
        chat.submit("thread", "hello", message_id="id", wait_ms=0)
        holder.execute("BEGIN IMMEDIATE")
        assert type(chat.status("thread", "id")).__name__ == "Queued"
        assert chat.verify().ok


def test_setup_waits_for_a_busy_file_as_long_as_any_call(tmp_path: Any) -> None:
    """It is the first thing that a process does: no schema has been looked at yet."""
    with closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None, check_same_thread=False)) as holder:
        holder.execute("PRAGMA journal_mode = WAL")
        holder.execute("CREATE TABLE mine (id integer)")
        holder.execute("BEGIN IMMEDIATE")
        with (
            Chatlock(f"sqlite:///{tmp_path}/new.db", tenant=TENANT, poller=False) as chat,
            ThreadPoolExecutor(1) as pool,
        ):
            attempts: list[int] = []
            upgrade = chat._executor.set_up

            def counted(run: Any) -> None:
                def noted(conn: Any) -> None:
                    attempts.append(1)
                    run(conn)

                upgrade(noted)

            chat._executor.set_up = counted  # type: ignore[method-assign]
            done = pool.submit(chat.setup)
            until(
                lambda: len(attempts) > 4 * executor.CONFLICTS_MAX, what="more attempts than PostgreSQL's conflicts get"
            )
            holder.execute("COMMIT")
            done.result(SECONDS_MAX)


# -- the line inside one process ---------------------------------------------------------------------------------------
def test_turnstile_serves_in_order_of_arrival() -> None:
    turnstile, served, gates = Turnstile(), [], [Gate() for _ in range(6)]

    def pass_through(number: int) -> None:
        with turnstile.ticket():
            served.append(number)
            gates[number].hold()

    os_threads = []
    for number in range(6):
        os_threads.append(threading.Thread(target=pass_through, args=(number,)))
        os_threads[-1].start()
        until(lambda number=number: len(turnstile._line) == number + 1, what="its place in the line")
    for gate in gates:
        gate.wait_entered()
        gate.open()
    for os_thread in os_threads:
        os_thread.join()
    assert served == list(range(6))
    assert not turnstile._line


@pytest.mark.parametrize("inside", [True, False])
def test_turnstile_goes_on_when_a_place_is_given_up(inside: bool) -> None:
    turnstile = Turnstile()
    first, given_up, last = turnstile.ticket(), turnstile.ticket(), turnstile.ticket()
    turnstile.join(first)
    turnstile.join(given_up)
    turnstile.join(last)
    turnstile.leave(first if inside else given_up)
    turnstile.leave(given_up if inside else first)
    assert last.let_in
    for ticket in (first, given_up, last):
        turnstile.leave(ticket)
    assert not turnstile._line
