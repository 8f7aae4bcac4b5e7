"""While a turn runs chatlock holds no transaction and no connection that the handler could spoil (B53)."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy

from chatlock import Answered, Chatlock, InvalidInput, Turn
from tests.acceptance.cases.recovery import beat
from tests.acceptance.cases.support import SECONDS_MAX, assert_invariants, quiesce, rows, thread_row, until
from tests.support.databases import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.acceptance.cases.support import Agent, Callers, Journal
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]

IN_TRANSACTION = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%%'"
)
LIMIT_MS = 300


@pytest.fixture
def impatient(pg_database: Database) -> Database:
    """A database whose server ends sessions that idle in a transaction for 300 ms."""
    pg_database.connect().execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET idle_in_transaction_session_timeout = "
        f"{LIMIT_MS}', current_database()); END $$"
    )
    return pg_database


@pytest.fixture
def own(impatient: Database) -> Iterator[Any]:
    """The handler's own connection."""
    connection = connect(impatient.url)
    yield connection
    connection.close()


@pytest.fixture
def engine(pg_database: Database) -> Iterator[sqlalchemy.Engine]:
    """The application's own engine."""
    made = sqlalchemy.create_engine(pg_database.url)
    yield made
    made.dispose()


def wait_for_waiter(chat: Any) -> None:
    """Returns once a caller has stored its message and waits."""
    registry = chat._flows.waiters._by_key
    until(lambda: any(w.waited for waiters in list(registry.values()) for w in list(waiters)), what="a waiter")


def outlast_the_limit(database: Database) -> None:
    """Returns once the server has ended a session that idled in a transaction from now on: so long did this take."""
    with connect(database.url) as idle:
        idle.execute("BEGIN")
        (pid,) = idle.execute("SELECT pg_backend_pid()").fetchone()
        assert {"pid": pid} in rows(database, IN_TRANSACTION)
        until(lambda: {"pid": pid} not in rows(database, IN_TRANSACTION), what="the end of an idle session")
        with pytest.raises(psycopg.Error):
            idle.execute("SELECT 1")


def test_turn_outlasts_the_limit_on_idle_transactions(
    impatient: Database, serving: Client, agent: Agent, callers: Callers, journal: Journal
) -> None:
    """B53: neither the turn nor the callers that wait behind it idle in a transaction, so the server ends none."""
    chat = serving(impatient)
    gate = agent.hold("thread")
    first = callers.submit(chat, "thread", "one", message_id="m1")
    gate.wait_entered()
    second = callers.submit(chat, "thread", "two", message_id="m2")
    wait_for_waiter(chat)
    assert rows(impatient, IN_TRANSACTION) == []
    outlast_the_limit(impatient)
    (turn,) = chat._flows.heart.live()
    assert beat(chat, turn.claim)
    gate.open()
    assert isinstance(first.result(SECONDS_MAX), Answered)
    assert isinstance(second.result(SECONDS_MAX), Answered)
    quiesce(chat, impatient)
    assert_invariants(impatient, chat, journal=journal, told=callers.told)


def test_handler_that_breaks_its_own_connection_ends_its_turn(
    impatient: Database, client: Client, callers: Callers, own: Any
) -> None:
    """B53: a syntax error in the handler's open transaction, which the server then ends as well."""
    chat = client(impatient)

    @chat.handler()
    def answer(turn: Turn) -> str:
        own.execute("BEGIN")
        with pytest.raises(psycopg.errors.SyntaxError):
            own.execute("SELEC 1")
        outlast_the_limit(impatient)
        assert beat(chat, turn._core.claim)
        turn.mark("halfway")
        return "answer"

    assert isinstance(callers.ask(chat, "thread", "one", message_id="m1"), Answered)
    with pytest.raises(psycopg.Error):
        own.execute("ROLLBACK")
    quiesce(chat, impatient)
    assert_invariants(impatient, chat, told=callers.told)


def test_turn_goes_on_after_it_was_given_a_broken_transaction(
    pg_database: Database, client: Client, engine: sqlalchemy.Engine
) -> None:
    """B53: fence and finish inside the caller's failed transaction are refused; the turn then finishes by itself."""
    chat = client(pg_database)
    turn = chat.begin("thread", "one", message_id="m1")
    assert isinstance(turn, Turn)
    with engine.connect() as conn:
        with pytest.raises(sqlalchemy.exc.ProgrammingError):
            conn.exec_driver_sql("SELEC 1")
        for refused in (lambda: turn.fence(conn), lambda: turn.finish("answer", conn=conn)):
            with pytest.raises((InvalidInput, sqlalchemy.exc.InternalError)):
                refused()
            assert not turn.lost
    assert thread_row(pg_database, "thread")["status"] == "running"
    turn.finish("answer")
    quiesce(chat, pg_database)
    assert_invariants(pg_database, chat)


def test_turn_finishes_after_the_server_ended_every_session(
    pg_database: Database, serving: Client, agent: Agent, callers: Callers
) -> None:
    """B53: one recycle of the server's connections during a turn costs neither the turn nor its heartbeat."""
    chat = serving(pg_database)
    gate = agent.hold("thread")
    first = callers.submit(chat, "thread", "one", message_id="m1")
    gate.wait_entered()
    ended = rows(
        pg_database,
        "SELECT pg_terminate_backend(pid) AS done FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    assert ended
    assert all(row["done"] for row in ended)
    (turn,) = chat._flows.heart.live()
    assert beat(chat, turn.claim)
    gate.open()
    assert isinstance(first.result(SECONDS_MAX), Answered)
    quiesce(chat, pg_database)
    assert_invariants(pg_database, chat, told=callers.told)


def test_others_write_to_the_file_while_a_turn_runs(
    sqlite_database: Database, serving: Client, agent: Agent, callers: Callers
) -> None:
    """B53 on SQLite: a held turn and its waiter keep no lock; a writer that waits for nothing gets it."""
    chat = serving(sqlite_database)
    gate = agent.hold("thread")
    callers.submit(chat, "thread", "one", message_id="m1")
    gate.wait_entered()
    callers.submit(chat, "thread", "two", message_id="m2")
    wait_for_waiter(chat)
    path = sqlite_database.url.removeprefix("sqlite:///")
    writer = sqlite3.connect(path, timeout=0, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("ROLLBACK")
    writer.close()
    gate.open()
