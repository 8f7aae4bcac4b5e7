"""The application's own connection, in each of the kinds that `conn=` takes, with one sync way to use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from chatlock import InvalidInput
from tests.conformance import rows
from tests.conformance.bridge import Bridge
from tests.support.databases import Database

KINDS = {
    "pysqlite-connection": "sqlite",
    "pysqlite-session": "sqlite",
    "pysqlite+begin-connection": "sqlite",
    "pysqlite+begin-session": "sqlite",
    "aiosqlite-connection": "sqlite",
    "aiosqlite-session": "sqlite",
    "psycopg-connection": "postgresql",
    "psycopg-session": "postgresql",
    "psycopg_async-connection": "postgresql",
    "psycopg_async-session": "postgresql",
    "asyncpg-connection": "postgresql",
    "asyncpg-session": "postgresql",
}
ASYNC = ("aiosqlite", "psycopg_async", "asyncpg")
SOME = ["pysqlite+begin-connection", "aiosqlite-session", "psycopg-session", "asyncpg-connection"]
of_some_kinds = pytest.mark.parametrize("kind", SOME)


class Owned:
    """An engine of the application and one connection or session of it.  A table of its own: notes(text)."""

    def __init__(self, url: str, kind: str, bridge: Bridge | None, **engine_options: Any) -> None:
        driver, _, self._what = kind.rpartition("-")
        self.driver, _, begins = driver.partition("+")
        self._bridge = bridge
        made = sqlalchemy.make_url(url)
        made = made.set(drivername=f"{made.get_backend_name()}+{self.driver}")
        if self.is_async:
            self.engine: Any = create_async_engine(made, **engine_options)
        else:
            self.engine = sqlalchemy.create_engine(made, **engine_options)
        self._begins = bool(begins)
        if begins:  # the documented way to have sqlite3 begin when SQLAlchemy does
            event.listen(self.engine, "connect", lambda dbapi, record: setattr(dbapi, "isolation_level", None))
            event.listen(self.engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN"))
        self.conn = self._open()

    @property
    def is_async(self) -> bool:
        return self.driver in ASYNC

    def _do(self, call: Any) -> Any:
        return self._bridge.run(call) if self._bridge is not None and self.is_async else call

    def _open(self) -> Any:
        if self._what == "session":
            return AsyncSession(self.engine) if self.is_async else Session(self.engine)
        return self._do(self.engine.connect().start()) if self.is_async else self.engine.connect()

    def execute(self, statement: str) -> Any:
        return self._do(self.conn.execute(sqlalchemy.text(statement)))

    def note(self, text: str) -> None:
        self.execute(f"INSERT INTO notes VALUES ('{text}')")

    def begin_and_read(self) -> None:
        """A transaction that has read, and holds no write lock: a snapshot, on SQLite."""
        if self.driver in ("pysqlite", "aiosqlite") and not self._begins:
            self.execute("BEGIN")
        self.execute("SELECT count(*) FROM chatlock_threads").fetchall()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Commits at the end, or rolls back what an exception left."""
        try:
            yield self.conn
        except BaseException:
            self.rollback()
            raise
        self.commit()

    def commit(self) -> None:
        self._do(self.conn.commit())

    def rollback(self) -> None:
        self._do(self.conn.rollback())

    def close(self) -> None:
        self._do(self.conn.close())
        self._do(self.engine.dispose())


def notes(database: Database) -> list[str]:
    return [text for (text,) in rows.select(database, "SELECT text FROM notes ORDER BY text")]


def refused(call: Callable[[], Any], reason: str) -> None:
    """A typed error that names the remedy and shows neither statement nor value; nothing is known to be lost."""
    with pytest.raises(InvalidInput) as error:
        call()
    assert error.value.reason == reason
    for secret in ("SELECT", "UPDATE", "INSERT", "chatlock_threads", "c1"):
        assert secret not in str(error.value)
