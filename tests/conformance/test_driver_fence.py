"""fence on a connection of the driver itself: psycopg, sqlite3 and aiosqlite, sync and async."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import aiosqlite
import psycopg
import pytest

from chatlock import ClaimLost, InvalidInput
from chatlock.errors import TransactionNotImmediate
from tests.conformance import rows
from tests.conformance.bridge import Bridge
from tests.conformance.conftest import NewChat, Shelf
from tests.support.databases import Database

OPEN: dict[str, Any] = {
    "psycopg": lambda name, **options: psycopg.connect(name, **options),
    "psycopg_async": lambda name, **options: psycopg.AsyncConnection.connect(name, **options),
    "sqlite3": lambda name, **options: sqlite3.connect(name, check_same_thread=False, **options),
    "aiosqlite": lambda name, **options: aiosqlite.connect(name, **options),
}
ASYNC = ("psycopg_async", "aiosqlite")
PG = ("psycopg", "psycopg_async")
AUTOCOMMIT = {"psycopg": {"autocommit": True}, "sqlite3": {"isolation_level": None}}


@pytest.fixture(params=OPEN)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def database(driver: str, shelf: Shelf) -> Iterator[Database]:
    for lent in shelf.lend("postgresql" if driver in PG else "sqlite"):
        rows.execute(lent, "DROP TABLE IF EXISTS notes")
        rows.execute(lent, "CREATE TABLE notes (text text)")
        yield lent


@pytest.fixture
def world(driver: str) -> str:
    return "async" if driver in ASYNC else "sync"


@pytest.fixture
def chat(new_chat: NewChat, world: str) -> Any:
    return new_chat()


class Driven:
    """The driver's connection, with one sync way to use it."""

    def __init__(self, database: Database, driver: str, chat: Any, **options: Any) -> None:
        self._chat = chat
        url = database.url.replace("+psycopg", "")
        self.conn = self.do(OPEN[driver](url if driver in PG else url.removeprefix("sqlite:///"), **options))

    def do(self, call: Any) -> Any:
        return self._chat.run(call) if isinstance(self._chat, Bridge) and hasattr(call, "__await__") else call

    def note(self) -> None:
        self.do(self.conn.execute("INSERT INTO notes VALUES ('effect')"))

    def end(self, how: str) -> None:
        self.do(getattr(self.conn, how)())


@pytest.fixture
def driven(database: Database, driver: str, chat: Any) -> Iterator[Driven]:
    made = Driven(database, driver, chat)
    yield made
    made.end("close")


def notes(database: Database) -> list[Any]:
    return rows.select(database, "SELECT text FROM notes")


def test_rows_commit_while_the_claim_is_held(chat: Any, driven: Driven, database: Database) -> None:
    with chat.turn("c1", "hello") as turn:
        before = rows.dump(database)
        turn.fence(driven.conn)
        driven.note()
        driven.end("commit")
        assert (len(notes(database)), rows.dump(database)) == (1, before)
        turn.finish("ok")


def test_fence_without_the_claim_is_refused(chat: Any, driven: Driven, database: Database) -> None:
    turn = chat.begin("c1", "hello")
    chat.free("c1", turn=turn.token, force=True)
    with pytest.raises(ClaimLost):
        turn.fence(driven.conn)
    driven.end("rollback")
    assert turn.lost


@pytest.mark.parametrize("driver", AUTOCOMMIT)
def test_connection_in_autocommit_is_refused(chat: Any, driver: str, database: Database) -> None:
    driven = Driven(database, driver, chat, **AUTOCOMMIT[driver])
    with chat.turn("c1", "hello") as turn:
        with pytest.raises(InvalidInput, match="autocommit"):
            turn.fence(driven.conn)
        turn.finish("ok")
    driven.end("close")


@pytest.mark.parametrize("driver", ["sqlite3"])
def test_transaction_that_read_before_another_wrote_is_told(chat: Any, driven: Driven) -> None:
    turn = chat.begin("c1", "hello")
    driven.conn.execute("BEGIN")
    driven.conn.execute("SELECT count(*) FROM chatlock_threads").fetchall()
    chat.submit("c1", "meanwhile", wait_ms=0)
    with pytest.raises(TransactionNotImmediate, match="BEGIN IMMEDIATE"):
        turn.fence(driven.conn)
    driven.end("rollback")
    turn.release()


@pytest.mark.parametrize("driver", ["aiosqlite"])
@pytest.mark.parametrize("world", ["sync"])
def test_sync_turn_does_not_use_an_async_connection(chat: Any, tmp_path: Any, world: str) -> None:
    with chat.turn("c1", "hello") as turn:
        with pytest.raises(InvalidInput, match="AsyncChatlock"):
            turn.fence(aiosqlite.connect(tmp_path / "never-opened.db"))
        turn.finish("ok")
