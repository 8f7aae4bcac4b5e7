"""Waiting for a thread: for itself, with few connections, cancelled, too late and behind a long turn (B10 to B17)."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy

from chatlock import AlreadyAnswered, Answered, AsyncChatlock, Chatlock, Limits, Queued, place
from chatlock.wake.waiters import Waiter, Waiters
from tests.acceptance.cases.rows import count_messages, stored
from tests.acceptance.cases.support import (
    SECONDS_MAX,
    TENANT,
    age_message,
    assert_invariants,
    message_rows,
    quiesce,
    reclaim_aged,
    rows,
    until,
)
from tests.support import scaled

if TYPE_CHECKING:
    from collections.abc import Callable

    from chatlock import Outcome, Turn
    from tests.acceptance.cases.support import Agent, Callers, Journal
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]


# -- B10: a turn that messages its own thread --------------------------------------------------------------------------
def forward_by(*senders: Chatlock, told: list[Outcome], **options: Any) -> Callable[[Turn], Any]:
    """A handler whose payload is a path: it submits the rest of it to the next thread, and waits for the outcome."""
    through = itertools.cycle(senders)

    def handle(turn: Turn) -> Any:
        paths = [message.payload for message in turn.messages]
        told.extend(next(through).submit(path[0], path[1:], wait_ms=None, **options) for path in paths if path)
        return paths

    return handle


PATHS = {
    "itself": ["a"],
    "through_another": ["b", "a"],
    "through_two": ["b", "c", "a"],
    "back_to_another": ["b", "c", "b"],
}


@pytest.mark.parametrize("alias", [False, True], ids=["same_name", "alias"])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_turn_that_messages_its_own_thread_is_told_queued(
    database: Database, client: Client, callers: Callers, path: list[str], alias: bool
) -> None:
    """B10: the inner submit never waits for its own caller, by whatever chain, client or spelling of the same key."""
    chat, other = client(database), client(database)
    inner: list[Outcome] = []
    handler = forward_by(other, told=inner, tenant=TENANT) if alias else forward_by(chat, told=inner)
    for one in (chat, other):
        one.handler()(handler)
    assert isinstance(callers.submit(chat, "a", path).result(SECONDS_MAX), Answered)
    assert [type(outcome) for outcome in inner] == [Queued, *[Answered] * (len(path) - 1)]
    quiesce(chat, database)
    last = message_rows(database, path[-1])[-1]
    assert (last["payload"], last["message_id"], last["disposition"]) == ("[]", inner[0].message_id, "answered")
    assert_invariants(database, chat, told=callers.told)


def test_turn_block_and_async_handler_are_told_queued_too(database: Database, client: Client, callers: Callers) -> None:
    """B10: in a `with chat.turn` block, in a task and in an OS thread that an async handler starts."""
    chat = client(database)

    def in_block() -> Outcome:
        with chat.turn("a", "outer") as turn:
            inner = chat.submit("a", "inner", wait_ms=None)
            turn.finish("done")
            return inner

    async def in_tasks() -> list[Outcome]:
        async with AsyncChatlock(database.url, tenant=TENANT, poller=False) as async_chat:
            told: list[Outcome] = []

            @async_chat.handler()
            async def handle(turn: Any) -> str:
                if len(turn.messages) == 1:
                    inner = async_chat.submit("b", "inner", wait_ms=None)
                    told.append(await asyncio.create_task(inner))
                    told.append(await asyncio.to_thread(chat.submit, "b", "inner", wait_ms=None))
                return "done"

            await async_chat.submit("b", "outer")
            return told

    assert isinstance(callers.call(in_block).result(SECONDS_MAX), Queued)
    told = callers.call(asyncio.run, in_tasks()).result(SECONDS_MAX)
    assert [type(outcome) for outcome in told] == [Queued, Queued]


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "control"])
def test_only_a_turn_that_does_not_know_itself_waits_for_itself(
    database: Database, client: Client, callers: Callers, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """B10 and its negative control: a turn that forgets its own thread becomes a waiter of it."""
    if not guarded:
        monkeypatch.setattr(place, "inside_turn_of", lambda key: False)
    chat = client(database)
    waited: list[str] = []
    subscribe = chat._flows.waiters.subscribe

    def noted(key: Any, signal: Any, *, claims: bool) -> Waiter:
        waited.append(key.thread)
        return subscribe(key, signal, claims=claims)

    monkeypatch.setattr(chat._flows.waiters, "subscribe", noted)

    @chat.handler()
    def handle(turn: Turn) -> str:
        chat.submit("a", "inner", wait_ms=1)
        return "done"

    callers.submit(chat, "a", "outer").result(SECONDS_MAX)
    assert waited == ["a"] * (1 if guarded else 2)


# -- B12: holders, waiters and one small pool --------------------------------------------------------------------------
def idle_in_transaction(database: Database) -> int:
    """How many connections of this database hold a transaction open and do nothing."""
    (found,) = rows(
        database,
        "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database()"
        " AND state IN ('idle in transaction', 'idle in transaction (aborted)')",
    )
    return int(found["n"])


def test_waiters_and_holders_hold_no_connection(
    database: Database, serving: Client, agent: Agent, callers: Callers, journal: Journal
) -> None:
    """B12: a pool of two, two turns held and twenty waiters: the pool is free, a status is answered, all finish."""
    chat = serving(database, pool_size=2)
    gates = {thread: agent.hold(thread) for thread in ("a", "b")}
    asked = [callers.submit(chat, thread, "first", message_id=f"{thread}-first") for thread in gates]
    for gate in gates.values():
        gate.wait_entered()
    asked += [callers.submit(chat, thread, n, wait_ms=None) for n in range(10) for thread in gates]
    for thread in gates:
        stored(database, thread, 11)
    until(lambda: len(chat._flows.waiters) == len(asked), what="every waiter")
    if database.kind == "postgresql":
        assert idle_in_transaction(database) == 0
    assert isinstance(chat.status("a", "a-first"), Queued)
    for gate in gates.values():
        gate.open()
    told = [future.result(SECONDS_MAX) for future in asked]
    assert all(isinstance(outcome, Answered | AlreadyAnswered) for outcome in told), told
    quiesce(chat, database)
    assert_invariants(database, chat, journal=journal, told=callers.told)


async def hold_and_wait(database: Database, turns: int, waiters: int) -> tuple[Counter[str], int]:
    """So many held turns and waiters on one loop and a pool of two: what they were told, and open transactions."""
    async with AsyncChatlock(database.url, tenant=TENANT, poller=False, pool_size=2) as chat:
        gate, inside = asyncio.Event(), 0

        @chat.handler()
        async def handle(turn: Any) -> int:
            nonlocal inside
            inside += 1
            await gate.wait()
            return len(turn.messages)

        async def all_of(what: Callable[[], bool]) -> None:
            await asyncio.to_thread(until, what)

        names = [f"thread-{n}" for n in range(turns)]
        asked = [asyncio.ensure_future(chat.submit(name, "first")) for name in names]
        await all_of(lambda: inside == turns)
        asked += [asyncio.ensure_future(chat.submit(names[n % turns], n, wait_ms=None)) for n in range(waiters)]
        await all_of(lambda: count_messages(database) == turns + waiters)
        open_transactions = idle_in_transaction(database) if database.kind == "postgresql" else 0
        gate.set()
        told = await asyncio.wait_for(asyncio.gather(*asked), SECONDS_MAX)
        return Counter(type(outcome).__name__ for outcome in told), open_transactions


def test_fifty_turns_and_two_hundred_waiters_share_two_connections(database: Database, client: Client) -> None:
    """B12: on an event loop as well nobody starves, and nobody is told anything but a reply."""
    told, open_transactions = asyncio.run(hold_and_wait(database, turns=50, waiters=200))
    assert told.keys() <= {"Answered", "AlreadyAnswered"}
    assert told.total() == 250
    assert open_transactions == 0
    chat = client(database)
    quiesce(chat, database)
    assert_invariants(database, chat)


def test_control_a_transaction_that_is_left_open_is_counted(pg_database: Database, serving: Client) -> None:
    """Negative control of B12: a turn that keeps its own transaction open over the model call is seen."""
    chat = serving(pg_database)
    engine = sqlalchemy.create_engine(pg_database.url, poolclass=sqlalchemy.NullPool)
    with engine.connect() as conn, chat.turn("a", "hello") as turn:
        turn.fence(conn)
        assert idle_in_transaction(pg_database) == 1
        conn.rollback()
        assert idle_in_transaction(pg_database) == 0
        turn.finish("done")


# -- B14: cancelled waiters --------------------------------------------------------------------------------------------
async def cancel_waiters(chat: AsyncChatlock, database: Database, prefix: str, count: int) -> None:
    """So many callers wait for the held thread, and all are cancelled there."""
    before = count_messages(database)
    waiting = [
        asyncio.ensure_future(chat.submit("thread", n, message_id=f"{prefix}-{n}", wait_ms=None)) for n in range(count)
    ]

    def all_wait() -> bool:
        armed = [w for ws in chat._flows.waiters._by_key.values() for w in ws if w.waited is not None]
        return len(armed) >= count and count_messages(database) >= before + count

    await asyncio.to_thread(until, all_wait)
    for task in waiting:
        task.cancel()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended)


async def rounds_of_cancelled_waiters(database: Database, agent: Agent, sync: Chatlock, callers: Callers) -> None:
    """B14's rounds: hold, wait, cancel, open, and a fresh waiter is served."""
    async with AsyncChatlock(database.url, tenant=TENANT, poller=False) as chat:
        chat.handler()(lambda turn: len(turn.messages))
        subscribe, kept = chat._flows.waiters.subscribe, weakref.WeakSet[Waiter]()

        def noted(key: Any, signal: Any, *, claims: bool) -> Waiter:
            waiter = subscribe(key, signal, claims=claims)
            kept.add(waiter)
            return waiter

        chat._flows.waiters.subscribe = noted  # type: ignore[method-assign]
        for number in range(2):
            gate = agent.hold("thread")
            holder = callers.submit(sync, "thread", "hold")
            await asyncio.to_thread(gate.wait_entered)
            await cancel_waiters(chat, database, f"round-{number}", scaled(60, 1_000))
            assert len(chat._flows.waiters) == 0
            assert not chat._flows.waiters._by_key
            fresh = asyncio.ensure_future(chat.submit("thread", "fresh", message_id=f"fresh-{number}", wait_ms=None))
            await asyncio.to_thread(until, lambda: len(chat._flows.waiters) == 1)
            gate.open()
            await asyncio.wrap_future(holder)
            assert isinstance(await fresh, Answered)
        await asyncio.to_thread(until, lambda: gc.collect() >= 0 and not kept)  # a waking thread may hold one a moment


@pytest.mark.parametrize("repetition", range(scaled(1, 10)))
def test_cancelled_waiters_leave_nothing_behind(
    database: Database, serving: Client, agent: Agent, callers: Callers, repetition: int
) -> None:
    """B14: after every round the registry is empty and the next caller is served; all messages are answered."""
    sync = serving(database)
    asyncio.run(rounds_of_cancelled_waiters(database, agent, sync, callers))
    quiesce(sync, database)
    assert_invariants(database, sync, told=callers.told)


def test_control_a_waiter_that_is_not_forgotten_is_found(
    sqlite_database: Database, serving: Client, agent: Agent, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of B14: without the cleanup the registry keeps an entry for every cancelled caller."""
    monkeypatch.setattr(Waiters, "unsubscribe", lambda self, waiter: None)
    sync = serving(sqlite_database)
    gate = agent.hold("thread")
    callers.submit(sync, "thread", "hold")
    gate.wait_entered()

    async def leak() -> int:
        async with AsyncChatlock(sqlite_database.url, tenant=TENANT, poller=False) as chat:
            chat.handler()(lambda turn: "done")
            await cancel_waiters(chat, sqlite_database, "leaked", 5)
            return len(chat._flows.waiters)

    assert asyncio.run(leak()) == 5
    gate.open()


# -- B15: a wait that is over ------------------------------------------------------------------------------------------
class HourlyClock:
    """A monotonic clock that goes on by an hour each time it is read."""

    def __init__(self) -> None:
        self._now_s = time.monotonic()

    def monotonic(self) -> float:
        self._now_s += 3600
        return self._now_s


@pytest.mark.parametrize("wait_ms", [0, 20, 30_000])
def test_caller_whose_wait_is_over_does_not_run(
    database: Database,
    serving: Client,
    agent: Agent,
    callers: Callers,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    wait_ms: int,
) -> None:
    """B15: at its deadline the caller is told Queued; its message is run once, when the thread is free."""
    chat = serving(database)
    gate = agent.hold("thread")
    first = callers.submit(chat, "thread", "one", message_id="m1")
    gate.wait_entered()
    with monkeypatch.context() as patch:
        if wait_ms == 30_000:
            patch.setattr(place, "time", HourlyClock())
        outcome = callers.submit(chat, "thread", "two", message_id="m2", wait_ms=wait_ms).result(SECONDS_MAX)
    assert outcome == Queued(message_id="m2", seq=2, position=1)
    assert [e.ids for e in journal.enters()] == [("m1",)]
    assert message_rows(database, "thread")[1]["disposition"] == "pending"
    gate.open()
    first.result(SECONDS_MAX)
    quiesce(chat, database)
    assert [e.ids for e in journal.enters()] == [("m1",), ("m2",)]
    assert_invariants(database, chat, journal=journal, told=callers.told)


# -- B17: a message behind a long turn ---------------------------------------------------------------------------------
def test_message_behind_a_long_healthy_turn_stays(
    database: Database, serving: Client, agent: Agent, callers: Callers, journal: Journal
) -> None:
    """B17: however long it has waited, a message is judged by nothing but its turn: it stays pending, then runs."""
    chat, limits = serving(database), Limits()
    gate = agent.hold("thread")
    first = callers.submit(chat, "thread", "one", message_id="m1")
    gate.wait_entered()
    callers.ask(chat, "thread", "two", message_id="m2", wait_ms=0)
    age_message(database, "m2", 10 * max(limits.window_cap_ms, limits.stalls_max * limits.backoff_max_ms))
    assert reclaim_aged(chat) == 0
    assert chat.sweep_once().turns == 0
    assert chat.purge(older_than_ms=1) == 0
    assert message_rows(database, "thread")[1]["disposition"] == "pending"
    gate.open()
    assert isinstance(first.result(SECONDS_MAX), Answered)
    quiesce(chat, database)
    assert [e.ids for e in journal.enters()] == [("m1",), ("m2",)]
    assert_invariants(database, chat, journal=journal, told=callers.told)
