"""SQLite has one writer: no operation is sent away half-way through, and none that fails locks the others out (B54)."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from sqlalchemy import event

from chatlock import (
    Answered,
    Chatlock,
    ChatlockError,
    InvalidInput,
    Queued,
    TransactionNotImmediate,
    Turn,
    dialects,
)
from tests.acceptance.cases.recovery import STILL, dump
from tests.acceptance.cases.support import (
    SECONDS_MAX,
    Points,
    assert_invariants,
    quiesce,
    rows,
    until,
)
from tests.support.waiting import Gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.acceptance.cases.support import Callers
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]

WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE)\b")


class Trace:
    """The trace callback of every connection of a client: it fires before each statement."""

    def __init__(self, chat: Any) -> None:
        self._gate: Gate | None = None
        engine = chat._executor.engine
        engine.dispose()
        event.listen(engine, "connect", lambda connection, _: connection.set_trace_callback(self._before))

    def hold_next_write(self) -> Gate:
        """A gate before the next statement that writes."""
        self._gate = Gate()
        return self._gate

    def _before(self, statement: str) -> None:
        gate = self._gate
        if gate is not None and WRITES.match(statement):
            self._gate = None
            gate.hold()


def turn_on(chat: Chatlock, thread: str) -> Turn:
    """A running turn with one message in hand."""
    turn = chat.begin(thread, "one", message_id="m1")
    assert isinstance(turn, Turn)
    return turn


def with_follower(chat: Chatlock, thread: str) -> Turn:
    """A running turn with a message behind it."""
    turn = turn_on(chat, thread)
    chat.submit(thread, "two", message_id="m2", wait_ms=0)
    return turn


def with_hole(chat: Chatlock, thread: str) -> Turn:
    """A running turn with a cancelled message behind it: the hot finish does not match."""
    turn = with_follower(chat, thread)
    chat.cancel(thread, "m2")
    return turn


def pending(chat: Chatlock, thread: str) -> None:
    """An idle thread with a pending message."""
    turn_on(chat, thread).release()


def parked(chat: Chatlock, thread: str) -> None:
    """A parked thread."""
    pending(chat, thread)
    chat.park(thread)


def deleted(chat: Chatlock, thread: str) -> None:
    """A deleted thread."""
    pending(chat, thread)
    chat.delete(thread)


ACTIONS: dict[str, tuple[Callable[[Chatlock, str], Any], Callable[[Any, str, Any], object]]] = {
    "first submit": (lambda chat, thread: None, lambda chat, thread, _: chat.begin(thread, "two", message_id="new")),
    "hot submit": (
        lambda chat, thread: turn_on(chat, thread).finish("answer"),
        lambda chat, thread, _: chat.begin(thread, "two", message_id="new"),
    ),
    "submit behind a turn": (
        turn_on,
        lambda chat, thread, _: chat.submit(thread, "two", message_id="new", wait_ms=0),
    ),
    "locked submit": (
        deleted,
        lambda chat, thread, _: chat.begin(thread, "two", message_id="new", recreate=True),
    ),
    "claim": (pending, lambda chat, thread, _: chat.begin(thread, "one", message_id="m1")),
    "fetch": (with_follower, lambda chat, thread, turn: turn.fetch()),
    "mark": (turn_on, lambda chat, thread, turn: turn.mark("note")),
    "session": (turn_on, lambda chat, thread, turn: turn.session("name", lambda key: "value")),
    "hot finish": (turn_on, lambda chat, thread, turn: turn.finish("answer")),
    "locked finish": (with_hole, lambda chat, thread, turn: turn.finish("answer")),
    "fail": (turn_on, lambda chat, thread, turn: turn.fail("error")),
    "release": (turn_on, lambda chat, thread, turn: turn.release()),
    "cancel": (pending, lambda chat, thread, _: chat.cancel(thread, "m1")),
    "park": (pending, lambda chat, thread, _: chat.park(thread)),
    "resume": (parked, lambda chat, thread, _: chat.resume(thread)),
    "delete": (pending, lambda chat, thread, _: chat.delete(thread)),
    "free": (turn_on, lambda chat, thread, turn: chat.free(thread, turn=turn.token, force=True)),
}
"""What a client writes: how the thread is made ready, and the call."""


ONE_ROW = {"fetch", "mark", "session"}
"""Those that write one row only; every other one is refused after its first row."""


# -- (a) read, then write ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("action", ACTIONS)
def test_writer_between_a_read_and_a_write_waits_and_nobody_is_sent_away(
    sqlite_database: Database, client: Client, callers: Callers, action: str
) -> None:
    """B54: the operation is stopped before its first write; another client's submit begins and waits; both succeed."""
    chat, other = client(sqlite_database, limits=STILL), client(sqlite_database)
    prepare, act = ACTIONS[action]
    ready = prepare(chat, "thread")
    points = Points(other)
    gate = Trace(chat).hold_next_write()
    acting = callers.call(act, chat, "thread", ready)
    gate.wait_entered()
    second = callers.submit(other, "another", "one", message_id="m1", wait_ms=0)
    until(lambda: second.done() or points.passed.count("submit_hot.begin") > 1, what="a second writer that waits")
    came_between = second.done()
    gate.open()
    assert not came_between
    acting.result(SECONDS_MAX)
    assert isinstance(second.result(SECONDS_MAX), Queued)
    assert chat.verify().ok


@pytest.mark.parametrize("action", ["locked submit", "locked finish", "release"])
def test_transaction_that_does_not_begin_with_the_lock_is_found(
    sqlite_database: Database, client: Client, callers: Callers, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B54's control: a deferred BEGIN lets the other writer in between."""
    monkeypatch.setitem(dialects.BEGIN, "sqlite", "BEGIN")
    with pytest.raises(AssertionError, match="assert not True"):
        test_writer_between_a_read_and_a_write_waits_and_nobody_is_sent_away(sqlite_database, client, callers, action)


def test_caller_whose_own_transaction_read_first_is_told_the_remedy(sqlite_database: Database, client: Client) -> None:
    """B54: in a deferred transaction of the caller, another writer came between its read and the fence."""
    chat = client(sqlite_database)
    turn = turn_on(chat, "thread")
    engine = sqlalchemy.create_engine(sqlite_database.url)
    with engine.connect() as conn:
        conn.exec_driver_sql("BEGIN")
        conn.exec_driver_sql("SELECT * FROM chatlock_threads").all()
        chat.submit("another", "one", wait_ms=0)
        with pytest.raises(TransactionNotImmediate, match="BEGIN IMMEDIATE"):
            turn.fence(conn)
        conn.exec_driver_sql("ROLLBACK")
        conn.exec_driver_sql("BEGIN IMMEDIATE")
        conn.exec_driver_sql("SELECT * FROM chatlock_threads").all()
        turn.fence(conn)
        conn.exec_driver_sql("COMMIT")
    engine.dispose()
    turn.finish("answer")


# -- (b) a write that fails half-way -----------------------------------------------------------------------------------
WRITER = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute('BEGIN IMMEDIATE')"


def assert_not_locked(database: Database) -> None:
    """A writer that waits for nothing gets the lock."""
    path = database.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("ROLLBACK")


class Boom(Exception):
    """What the tests raise inside an operation."""


def raise_at_commit(chat: Any) -> None:
    """Every transaction of the client fails when all of its rows are written."""

    def point(name: str) -> None:
        if name.endswith(".commit"):
            raise Boom

    chat._executor.points = point


def refuse_rows(database: Database, after: int) -> None:
    """The database refuses every row of a transaction after the first `after`."""
    rows(database, "CREATE TABLE app_written (one integer)")
    for table in ("threads", "messages", "turns", "due", "sessions", "audit"):
        for verb in ("INSERT", "UPDATE", "DELETE"):
            rows(
                database,
                f"CREATE TRIGGER refuse_{table}_{verb} AFTER {verb} ON chatlock_{table} BEGIN"
                f" SELECT RAISE(FAIL, 'refused') WHERE (SELECT count(*) FROM app_written) >= {after};"
                " INSERT INTO app_written VALUES (1); END",
            )


def admit_rows(database: Database) -> None:
    """As before."""
    for row in rows(database, "SELECT name FROM sqlite_master WHERE type = 'trigger'"):
        rows(database, f"DROP TRIGGER {row['name']}")
    rows(database, "DROP TABLE app_written")


@pytest.mark.parametrize("action", ACTIONS)
def test_operation_that_fails_half_way_locks_nobody_out(sqlite_database: Database, client: Client, action: str) -> None:
    """B54: by an exception before its commit, and by the database after a row that it had written.

    Either way nothing of it stays, another writer gets the file at once, and the same call then succeeds.
    """
    chat = client(sqlite_database, limits=STILL)
    prepare, act = ACTIONS[action]
    ready = prepare(chat, "thread")
    before = dump(sqlite_database)
    raise_at_commit(chat)
    with pytest.raises(Boom):
        act(chat, "thread", ready)
    chat._executor.points = None
    assert_not_locked(sqlite_database)
    assert dump(sqlite_database) == before
    refuse_rows(sqlite_database, after=0 if action in ONE_ROW else 1)
    with pytest.raises(ChatlockError):
        act(chat, "thread", ready)
    assert_not_locked(sqlite_database)
    admit_rows(sqlite_database)
    assert dump(sqlite_database) == before
    act(chat, "thread", ready)
    assert dump(sqlite_database) != before


def test_another_process_writes_after_a_payload_that_could_not_be_stored(
    sqlite_database: Database, client: Client
) -> None:
    """B54: what cannot be serialized is refused before anything is written; a process that waits for nothing writes."""
    chat = client(sqlite_database)
    chat.handler()(lambda turn: "answer")
    for broken in (object(), {"at": {1, 2}}, float("nan"), "\ud800"):
        with pytest.raises(InvalidInput):
            chat.submit("thread", {"text": "fine", "metadata": broken})
    raise_at_commit(chat)
    with pytest.raises(Boom):
        chat.submit("thread", "one")
    chat._executor.points = None
    path = sqlite_database.url.removeprefix("sqlite:///")
    subprocess.run([sys.executable, "-c", WRITER, path], check=True, timeout=SECONDS_MAX)
    assert isinstance(chat.submit("thread", "one"), Answered)
    quiesce(chat, sqlite_database)
    assert_invariants(sqlite_database, chat)
