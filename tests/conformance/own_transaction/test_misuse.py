"""A connection that the caller must not give, or not so: one typed error that names the remedy."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from chatlock import AlreadyAnswered, Chatlock, InvalidInput, StoreUnavailable
from chatlock.errors import TransactionNotImmediate
from tests.conformance import rows
from tests.conformance.bridge import Bridge
from tests.conformance.owned import ASYNC, KINDS, Owned, notes, of_some_kinds, refused
from tests.support.databases import Database, Templates

CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "fence": lambda chat, turn, conn: turn.fence(conn),
    "finish": lambda chat, turn, conn: turn.finish("ok", conn=conn),
    "submit": lambda chat, turn, conn: chat.submit("c2", "more", conn=conn),
}


@pytest.mark.parametrize("kind", [kind for kind, of in KINDS.items() if of == "sqlite"])
@pytest.mark.parametrize("call", CALLS)
def test_transaction_that_read_before_another_wrote_is_told_to_begin_immediate(
    chat: Any, owned: Owned, database: Database, call: str
) -> None:
    turn = chat.begin("c1", "hello")
    owned.begin_and_read()
    chat.submit("c1", "meanwhile", wait_ms=0)
    with pytest.raises(TransactionNotImmediate, match="BEGIN IMMEDIATE"):
        CALLS[call](chat, turn, owned.conn)
    owned.rollback()
    turn.release()


@pytest.mark.parametrize("kind", [kind for kind, of in KINDS.items() if of == "sqlite"])
@pytest.mark.parametrize("call", CALLS)
def test_transaction_that_read_first_may_go_on_if_nobody_wrote(
    chat: Any, owned: Owned, database: Database, call: str
) -> None:
    with chat.turn("c1", "hello") as turn:
        owned.begin_and_read()
        CALLS[call](chat, turn, owned.conn)
        owned.note("mine")
        owned.commit()
        if call != "finish":
            turn.finish("ok")
    assert notes(database) == ["mine"]


@pytest.mark.parametrize("kind", [f"{driver}-connection" for driver in ("pysqlite", "psycopg", *ASYNC)])
@pytest.mark.parametrize("call", CALLS)
def test_connection_in_autocommit_is_refused_before_anything_is_written(
    chat: Any, kind: str, database: Database, call: str
) -> None:
    with chat.turn("c1", "hello") as turn:
        bridge = chat if isinstance(chat, Bridge) else None
        autocommit = Owned(database.url, kind, bridge, isolation_level="AUTOCOMMIT")
        before = rows.dump(database)
        with pytest.raises(InvalidInput, match="autocommit") as refused:
            CALLS[call](chat, turn, autocommit.conn)
        assert refused.value.reason == "autocommit"
        autocommit.close()
        assert rows.dump(database) == before
        turn.finish("ok")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["pysqlite-connection", "psycopg_async-connection"])
def test_what_is_no_connection_is_refused(chat: Any, owned: Owned, database: Database, call: str) -> None:
    with chat.turn("c1", "hello") as turn:
        before = rows.dump(database)
        for wrong in (owned.engine, object(), "sqlite:///chat.db"):
            with pytest.raises(InvalidInput, match="conn must be") as refused:
                CALLS[call](chat, turn, wrong)
            assert refused.value.reason == "bad_conn"
        assert rows.dump(database) == before
        turn.finish("ok")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", [f"{driver}-connection" for driver in ASYNC])
def test_async_connection_is_refused_by_the_sync_client(chat: Any, owned: Owned, database: Database, call: str) -> None:
    with Chatlock(database.url, tenant="t", poller=False) as sync, sync.turn("c1", "hello") as turn:
        before = rows.dump(database)
        with pytest.raises(InvalidInput) as refused:
            CALLS[call](sync, turn, owned.conn)
        assert refused.value.reason == "bad_conn"
        assert rows.dump(database) == before
        turn.finish("ok")


@pytest.mark.parametrize("kind", ["pysqlite-connection"])
def test_create_that_is_async_is_refused_by_the_sync_client(database: Database) -> None:
    async def create(key: str) -> str:
        return await asyncio.sleep(0, key)

    with Chatlock(database.url, tenant="t", poller=False) as sync, sync.turn("c1", "hello") as turn:
        with pytest.raises(InvalidInput):
            turn.session("provider", create)
        turn.finish("ok")


@of_some_kinds
def test_second_finish_in_one_transaction_is_misuse_and_the_first_one_holds(
    chat: Any, owned: Owned, database: Database
) -> None:
    with chat.turn("c1", "hello", message_id="m1") as turn, owned.transaction() as conn:
        turn.finish("first", conn=conn)
        refused(lambda: turn.finish("second", conn=conn), "finished_already")
        refused(lambda: turn.fence(conn), "finished_already")
        assert not turn.lost
        owned.note("reply")
    assert notes(database) == ["reply"]
    assert chat.status("c1", "m1") == AlreadyAnswered(message_id="m1", seq=1, reply="first", turn=1)


@pytest.mark.parametrize("kind", ["psycopg-session", "asyncpg-connection"])
@pytest.mark.parametrize("call", CALLS)
def test_transaction_that_has_failed_is_to_be_rolled_back(
    chat: Any, owned: Owned, database: Database, call: str
) -> None:
    with chat.turn("c1", "hello") as turn:
        with pytest.raises(DBAPIError):
            owned.execute("SELECT no_such_column FROM notes")
        refused(lambda: CALLS[call](chat, turn, owned.conn), "failed_transaction")
        owned.rollback()
        assert not turn.lost
        with owned.transaction() as conn:
            CALLS[call](chat, turn, conn)
        if call != "finish":
            turn.finish("ok")


@pytest.fixture
def elsewhere(kind: str, templates: Templates, tmp_path: Path) -> Iterator[Callable[..., Owned]]:
    """The caller's connection to another database, with or without chatlock's tables."""
    made: list[Any] = []

    def make(chat: Any, *, empty: bool) -> Owned:
        of_sqlite = KINDS[kind] == "sqlite"
        other = templates.sqlite(tmp_path / "other.db", empty=empty) if of_sqlite else templates.postgresql(empty=empty)
        conn = Owned(other.url, kind, chat if isinstance(chat, Bridge) else None)
        made.extend((other.dispose, conn.close))
        return conn

    yield make
    for end in reversed(made):
        end()


@pytest.mark.parametrize("kind", ["pysqlite+begin-connection", "asyncpg-connection"])
@pytest.mark.parametrize("call", ["fence", "finish"])
@pytest.mark.parametrize("empty", [True, False])
def test_connection_of_another_database_is_misuse_and_the_turn_goes_on(
    chat: Any, elsewhere: Callable[..., Owned], database: Database, call: str, empty: bool
) -> None:
    other = elsewhere(chat, empty=empty)
    with chat.turn("c1", "hello") as turn:
        refused(lambda: CALLS[call](chat, turn, other.conn), "other_database")
        other.rollback()
        assert not turn.lost
        turn.finish("ok")
    assert rows.dispositions(database) == ["answered"]


@pytest.mark.parametrize("kind", ["psycopg-connection", "aiosqlite-connection"])
@pytest.mark.parametrize("call", CALLS)
def test_closed_connection_is_misuse(chat: Any, owned: Owned, database: Database, call: str) -> None:
    with chat.turn("c1", "hello") as turn:
        owned._do(owned.conn.close())
        refused(lambda: CALLS[call](chat, turn, owned.conn), "bad_conn")
        assert not turn.lost
        turn.finish("ok")


@pytest.mark.parametrize("kind", ["pysqlite+begin-connection", "psycopg-session"])
@pytest.mark.parametrize("call", CALLS)
def test_error_of_the_callers_own_hook_is_raised_as_it_is(
    chat: Any, owned: Owned, database: Database, call: str
) -> None:
    def hook(*args: Any) -> None:
        raise ZeroDivisionError("the caller's own")

    with chat.turn("c1", "hello") as turn:
        event.listen(owned.engine, "before_cursor_execute", hook)
        with pytest.raises(ZeroDivisionError, match="the caller's own"):
            CALLS[call](chat, turn, owned.conn)
        event.remove(owned.engine, "before_cursor_execute", hook)
        owned.rollback()
        turn.finish("ok")


@pytest.mark.parametrize("kind", ["pysqlite+begin-connection"])
@pytest.mark.parametrize("call", CALLS)
def test_file_that_another_writer_holds_is_unavailable(chat: Any, database: Database, kind: str, call: str) -> None:
    """How long the caller's own connection waits is the caller's choice."""
    hasty = Owned(database.url, kind, None, connect_args={"timeout": 0})
    with chat.turn("c1", "hello") as turn:
        rows.execute(database, "BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked by another writer"):
            CALLS[call](chat, turn, hasty.conn)
        rows.execute(database, "ROLLBACK")
        hasty.close()
        turn.finish("ok")


@pytest.mark.parametrize("kind", ["psycopg-connection"])
def test_fence_on_a_drivers_own_connection_in_a_failed_transaction(chat: Any, database: Database) -> None:
    with psycopg.connect(database.url.replace("+psycopg", "")) as conn, chat.turn("c1", "hello") as turn:
        with pytest.raises(psycopg.Error):
            conn.execute("SELECT no_such_column")
        refused(lambda: turn.fence(conn), "failed_transaction")
        conn.close()
        refused(lambda: turn.fence(conn), "bad_conn")
        turn.finish("ok")


@pytest.mark.parametrize("kind", ["pysqlite-connection"])
def test_fence_on_a_drivers_own_connection_that_is_wrong(chat: Any, database: Database, tmp_path: Path) -> None:
    with chat.turn("c1", "hello") as turn:
        conn = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
        conn.execute("BEGIN IMMEDIATE")
        refused(lambda: turn.fence(conn), "other_database")
        conn.close()
        refused(lambda: turn.fence(conn), "bad_conn")
        turn.finish("ok")
