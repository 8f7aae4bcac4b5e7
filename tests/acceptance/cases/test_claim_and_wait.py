"""Claiming a thread and waiting for it: who comes second is not refused, doubled, lost or let past (B06 to B17)."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from sqlalchemy import select, update

from chatlock import AlreadyAnswered, Answered, AsyncChatlock, Chatlock, ClaimLost, Limits, Queued, place
from chatlock.dialects import wall_ms
from chatlock.ops import base, claim
from chatlock.ops.base import b, of_thread
from chatlock.schema import threads
from chatlock.wake.waiters import Waiter, Waiters
from tests.acceptance.cases.support import (
    SECONDS_MAX,
    TENANT,
    Points,
    ProcessGate,
    age_claim,
    age_message,
    assert_invariants,
    hold_statement,
    message_rows,
    quiesce,
    reclaim_aged,
    rows,
    thread_row,
    turn_rows,
    until,
    wait_blocked,
)
from tests.acceptance.cases.wire import Proxy
from tests.support import scaled
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from chatlock import Outcome, Turn
    from tests.acceptance.cases.support import Agent, Callers, Journal
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]
    Keep = Callable[[Child], Child]


def stored(database: Database, thread: str, count: int) -> None:
    """Returns once the thread has so many messages."""
    until(lambda: len(message_rows(database, thread)) >= count, what=f"{count} stored messages")


def count_messages(database: Database) -> int:
    """How many messages are stored, in all threads."""
    return int(rows(database, "SELECT count(*) AS n FROM chatlock_messages")[0]["n"])


# -- B06: a message while a turn runs ----------------------------------------------------------------------------------
def test_messages_sent_while_a_turn_runs_are_all_answered(
    database: Database, serving: Client, agent: Agent, callers: Callers, journal: Journal
) -> None:
    """B06: three callers wait and two do not; none is refused, and the turns stay in order."""
    chat = serving(database)
    gate = agent.hold("thread")
    first = callers.submit(chat, "thread", 1, message_id="m1")
    gate.wait_entered()
    others: dict[int, Future[Outcome]] = {}
    for number in range(2, 7):
        wait_ms = 0 if number % 2 else None
        others[number] = callers.submit(chat, "thread", number, message_id=f"m{number}", wait_ms=wait_ms)
        stored(database, "thread", number)
    assert isinstance(others[3].result(SECONDS_MAX), Queued)
    assert isinstance(others[5].result(SECONDS_MAX), Queued)
    assert len(journal.enters()) == 1
    gate.open()
    assert isinstance(first.result(SECONDS_MAX), Answered)
    waited = [others[number].result(SECONDS_MAX) for number in (2, 4, 6)]
    assert all(isinstance(outcome, Answered | AlreadyAnswered) for outcome in waited), waited
    quiesce(chat, database)
    assert [e.ids for e in journal.enters()] == [("m1",), ("m2", "m3", "m4", "m5", "m6")]
    assert len(callers.replies("thread")) == 2
    assert_invariants(database, chat, journal=journal, told=callers.told)


# -- B07: two workers at one claim -------------------------------------------------------------------------------------
def by_submit(chat: Chatlock, callers: Callers) -> Future[Any]:
    """A caller who submits while messages are pending, and waits."""
    return callers.submit(chat, "thread", "another", wait_ms=None)


def by_sweep(chat: Chatlock, callers: Callers) -> Future[Any]:
    """A poller."""
    return callers.call(chat.sweep_once)


ATTEMPTS = {"caller": by_submit, "poller": by_sweep}


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("second", ATTEMPTS)
@pytest.mark.parametrize("first", ATTEMPTS)
def test_only_one_of_two_workers_claims(
    database: Database,
    serving: Client,
    client: Client,
    agent: Agent,
    callers: Callers,
    journal: Journal,
    first: str,
    second: str,
    where: str,
) -> None:
    """B07: A is stopped before or after its claim's UPDATE, its message already stored; B comes; one handler starts."""
    client(database).submit("thread", "pending", wait_ms=0)
    one, two = serving(database), serving(database)
    held, turn_gate = hold_statement(one, "claim.update", where), agent.hold("thread")
    claims = ATTEMPTS[first](one, callers)
    held.wait_entered()
    came = Points(two)
    comes = ATTEMPTS[second](two, callers)
    if second == "poller" and database.kind == "postgresql":
        assert comes.result(SECONDS_MAX).turns == 0  # it leaves a locked row alone
    else:
        wait_blocked(database, came, "claim_due" if second == "poller" else "submit_hot")
    held.open()
    turn_gate.wait_entered()
    if second == "caller":
        stored(database, "thread", 2)
    assert len(journal.enters()) == len(turn_rows(database, "thread")) == 1
    turn_gate.open()
    for future in (claims, comes):
        future.result(SECONDS_MAX)
    quiesce(one, database)
    assert_invariants(database, one, journal=journal, told=callers.told)


def test_control_a_claim_by_read_then_write_starts_two_turns(
    pg_database: Database, serving: Client, client: Client, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of B07: without the lock, the condition and the unique index both workers claim: (1, 1)."""
    client(pg_database).submit("thread", "pending", wait_ms=0)
    columns = [threads.c[name] for name in base.ThreadRow.__dataclass_fields__ if name != "now"]
    monkeypatch.setattr(base, "LOCK_SKIP", select(*columns, wall_ms()).where(of_thread(threads)))
    written = {"status": "running", "token": threads.c.token + 1, "claim_id": b("claim_id")}
    unguarded = (
        update(threads)
        .where(of_thread(threads))
        .values(
            **written,
            claimed_at=b("now"),
            expires_at=b("life_end"),
            window_ends_at=b("window_end"),
            fetched_seq=threads.c.done_seq,
        )
    )
    monkeypatch.setattr(claim, "CLAIM", unguarded.returning(threads.c.token))
    monkeypatch.setitem(base.CATALOG, "claim.update", claim.CLAIM)
    rows(pg_database, "DROP INDEX chatlock_turns_one_running")
    one, two = serving(pg_database), serving(pg_database)
    held = hold_statement(one, "claim.update")
    first = callers.call(one._sweep.claim_due, ["default"], 1)
    held.wait_entered()
    second = two._sweep.claim_due(["default"], 1)
    held.open()
    assert (len(first.result(SECONDS_MAX)), len(second)) == (1, 1)


# -- B08: two writers on one thread ------------------------------------------------------------------------------------
def write_state(database: Database, turn: Turn, *, fenced: bool) -> str:
    """Appends a state to the application's history, all of which follow the state 0, under the turn's fence."""
    engine = sqlalchemy.create_engine(database.url, poolclass=sqlalchemy.NullPool)
    try:
        with engine.begin() as conn:
            if fenced:
                turn.fence(conn)
            conn.exec_driver_sql(f"INSERT INTO states VALUES ({turn.token}, 0)")
    except ClaimLost:
        return "lost"
    return "committed"


def be_a_writer(database: Database, gates: dict[str, ProcessGate], *, fenced: bool) -> None:
    """A process that begins a turn and writes when it is told to."""
    gates["begin"].hold()
    with Chatlock(database.url, tenant=TENANT, poller=False, heartbeat=False) as chat:
        turn = chat.begin("thread", "hello", wait_ms=None)
        print(f"holds {turn.token}")
        gates["write"].hold()
        print("wrote", written := write_state(database, turn, fenced=fenced))
        try:
            turn.finish(written)
            print("ended done")
        except ClaimLost:
            print("ended lost")


def two_writers(
    database: Database, client: Client, child: Keep, order: str, *, fenced: bool = True
) -> dict[str, list[str]]:
    """What an older and a newer holder of one thread each printed, writing in that order."""
    rows(database, "CREATE TABLE states (token integer, parent integer)")
    gates = {name: {"begin": ProcessGate(), "write": ProcessGate()} for name in ("old", "new")}
    writers = {
        name: child(Child.fork(lambda mine=mine: be_a_writer(database, mine, fenced=fenced)))
        for name, mine in gates.items()
    }
    chat = client(database, limits=Limits(backoff_ms=1))
    gates["old"]["begin"].open()
    writers["old"].wait_for("holds 1")
    age_claim(database, "thread")
    assert reclaim_aged(chat) == 1
    gates["new"]["begin"].open()
    writers["new"].wait_for("holds 3")
    for name in ORDERS[order]:
        gates[name]["write"].open()
        if order != "together":
            writers[name].wait_for("ended")
    assert [writer.wait() for writer in writers.values()] == [0, 0], [writer.text for writer in writers.values()]
    return {name: writer.text.splitlines()[1:] for name, writer in writers.items()}


ORDERS = {"old_first": ("old", "new"), "new_first": ("new", "old"), "together": ("old", "new")}


@pytest.mark.parametrize("order", ORDERS)
def test_of_two_writers_the_one_with_the_older_token_is_lost(
    database: Database, client: Client, child: Keep, order: str
) -> None:
    """B08: both hold a turn of the thread and write after the same state; the history has one tip."""
    told = two_writers(database, client, child, order)
    assert told == {"old": ["wrote lost", "ended lost"], "new": ["wrote committed", "ended done"]}
    assert rows(database, "SELECT token FROM states") == [{"token": 3}]
    assert thread_row(database, "thread")["token"] == 3
    chat = client(database)
    quiesce(chat, database)
    assert_invariants(database, chat)


def test_control_without_the_fence_the_history_forks(database: Database, client: Client, child: Keep) -> None:
    """Negative control of B08: without the fence both writers succeed, and one state becomes unreachable."""
    told = two_writers(database, client, child, "old_first", fenced=False)
    assert [lines[0] for lines in told.values()] == ["wrote committed"] * 2
    assert len(rows(database, "SELECT token FROM states WHERE parent = 0")) == 2


# -- B09: many pollers, one row each -----------------------------------------------------------------------------------
DUE_THREADS = 5_000
POLLERS = 8


def test_pollers_claim_as_many_threads_as_they_start(pg_database: Database, client: Client, callers: Callers) -> None:
    """B09: under plans made from stale statistics eight pollers claim one thread a sweep, and none is left over."""
    for table, columns, values in (
        ("threads", "tenant, thread_id, last_seq", "'t', 'thread-' || n, 1"),
        (
            "messages",
            "tenant, thread_id, incarnation, seq, message_id, payload, payload_hash, received_at",
            "'t', 'thread-' || n, 1, 1, 'm', '1', '', 0",
        ),
        ("due", "tenant, thread_id, due_at", "'t', 'thread-' || n, n"),
    ):
        numbers = f"generate_series(1, {DUE_THREADS}) AS n"
        rows(pg_database, f"INSERT INTO chatlock_{table} ({columns}) SELECT {values} FROM {numbers}")
    name = sqlalchemy.make_url(pg_database.url).database
    for setting in ("enable_hashjoin", "enable_hashagg", "enable_material"):
        rows(pg_database, f"ALTER DATABASE {name} SET {setting} = off")
    sweeps, barrier = scaled(10, 200), threading.Barrier(POLLERS)

    def poll(chat: Any) -> list[list[Any]]:
        barrier.wait(SECONDS_MAX)
        return [chat._sweep.claim_due(["default"], 1) for _ in range(sweeps)]

    polls = [callers.call(poll, client(pg_database)) for _ in range(POLLERS)]
    batches = [batch for future in polls for batch in future.result(SECONDS_MAX)]
    assert all(len(batch) <= 1 for batch in batches)
    granted = [batch[0].claim.claim_id for batch in batches if batch]
    running = rows(pg_database, "SELECT claim_id FROM chatlock_threads WHERE status = 'running'")
    assert granted
    assert sorted(granted) == sorted(row["claim_id"] for row in running)
    assert client(pg_database).verify().ok


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


# -- B11: one lock around the store ------------------------------------------------------------------------------------
OTHERS = 50


def test_query_that_hangs_holds_up_no_other_thread(pg_database: Database, serving: Client, callers: Callers) -> None:
    """B11: the reply to one thread's query is held on the wire; fifty other threads claim, write and finish."""
    with Proxy(pg_database.url) as wire:
        chat = serving(pg_database, url=wire.url)
        callers.ask(chat, "warm", "up")
        held = wire.on(b"thread-a", do="hold_reply")
        hangs = callers.submit(chat, "thread-a", "hello")
        held.wait_entered()
        others = [callers.submit(chat, f"other-{n}", "hello") for n in range(OTHERS)]
        assert {type(other.result(SECONDS_MAX)) for other in others} == {Answered}
        assert not hangs.done()
        held.open()
        assert isinstance(hangs.result(SECONDS_MAX), Answered)
        assert_invariants(pg_database, chat, told=callers.told)


def test_statements_of_two_transactions_never_interleave_on_sqlite(
    sqlite_database: Database, serving: Client, callers: Callers
) -> None:
    """B11: SQLite has one writer; every transaction runs whole, on one connection and in one OS thread."""
    chat = serving(sqlite_database, heartbeat=False)
    engine, sent = chat._executor.engine, list[tuple[int, int, str]]()

    def trace(connection: Any, record: Any) -> None:
        connection.set_trace_callback(
            lambda text: sent.append((id(connection), threading.get_ident(), text.split()[0].upper()))
        )

    sqlalchemy.event.listen(engine, "connect", trace)
    engine.dispose()
    others = [callers.submit(chat, f"other-{n}", "hello") for n in range(OTHERS)]
    assert {type(other.result(SECONDS_MAX)) for other in others} == {Answered}
    within: tuple[int, int] | None = None
    transactions = 0
    for connection, os_thread, word in list(sent):
        if word == "BEGIN":
            assert within is None, "a transaction began inside another"
            within, transactions = (connection, os_thread), transactions + 1
        elif word in ("COMMIT", "ROLLBACK"):
            assert within == (connection, os_thread)
            within = None
        elif word in ("INSERT", "UPDATE", "DELETE"):
            assert within == (connection, os_thread), "a write outside its transaction"
    assert transactions >= 2 * OTHERS
    assert_invariants(sqlite_database, chat, told=callers.told)


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
