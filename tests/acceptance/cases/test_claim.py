"""Claiming a thread: who comes second is not refused, doubled, lost or let past (B06 to B09, B11)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from sqlalchemy import select, update

from chatlock import AlreadyAnswered, Answered, Chatlock, ClaimLost, Limits, Queued
from chatlock.dialects import wall_ms
from chatlock.ops import base, claim
from chatlock.ops.base import b, of_thread
from chatlock.schema import threads
from tests.acceptance.cases.rows import stored
from tests.acceptance.cases.support import (
    SECONDS_MAX,
    TENANT,
    Points,
    ProcessGate,
    age_claim,
    assert_invariants,
    hold_statement,
    quiesce,
    reclaim_aged,
    rows,
    thread_row,
    turn_rows,
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
