"""Every difference between PostgreSQL and SQLite: engine, clocks, transactions, insert-or-ignore, the meaning of
errors.

Connections are in autocommit; a locked transaction is opened and ended by the explicit text below, so that the two
hot statements and everything else share one pool.  The hot statements themselves stand in ops/hot.py.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import BigInteger, Engine, Executable, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, NoSuchModuleError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import NullPool, QueuePool
from sqlalchemy.sql.functions import FunctionElement

from chatlock.errors import InvalidInput, StoreUnavailable
from chatlock.urls import checked_url

if TYPE_CHECKING:  # its import needs greenlet, which only users of async engines have
    from sqlalchemy.ext.asyncio import AsyncEngine

BEGIN = {"postgresql": "BEGIN ISOLATION LEVEL READ COMMITTED", "sqlite": "BEGIN IMMEDIATE"}
BEGIN_SNAPSHOT = {"postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "sqlite": "BEGIN"}
SQLITE_LEAST = (3, 35, 0)
MOVED_TEXT = "this chatlock store was moved"
"""What the triggers of a store that was moved raise; another trigger is its owner's."""

# statistics taken on empty tables otherwise make the prepared statements scan; the timeouts bound a stopped process
PG_SESSION = (
    "SET enable_seqscan = off; SET default_transaction_isolation = 'read committed'; "
    "SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '10s'"
)

PG_TEXT = {"client_encoding": "UTF8"}  # whatever the server, its role or the URL would have otherwise
PG_PATIENCE = {"connect_timeout": 5, "tcp_user_timeout": 15_000}

WALL_PG = "(extract(epoch FROM clock_timestamp())*1000)::bigint"
STABLE_PG = "(extract(epoch FROM statement_timestamp())*1000)::bigint"
CLOCK_SQLITE = "CAST((julianday('now')-2440587.5)*86400000.0 AS INTEGER)"  # unixepoch('subsec') needs 3.42


class wall_ms(FunctionElement[int]):
    """The database's clock in milliseconds, read when the row is written: in SET and VALUES, after the lock."""

    inherit_cache = True
    type = BigInteger()


class stable_ms(FunctionElement[int]):
    """The database's clock in milliseconds, one value per statement: in WHERE, where an index can serve it."""

    inherit_cache = True
    type = BigInteger()


class least(FunctionElement[int]):
    """The smaller of two values."""

    inherit_cache = True
    type = BigInteger()


class greatest(FunctionElement[int]):
    """The larger of two values."""

    inherit_cache = True
    type = BigInteger()


@compiles(wall_ms, "postgresql")
def _wall_pg(element: Any, compiler: Any, **kw: Any) -> str:
    return WALL_PG


@compiles(stable_ms, "postgresql")
def _stable_pg(element: Any, compiler: Any, **kw: Any) -> str:
    return STABLE_PG


@compiles(wall_ms, "sqlite")
@compiles(stable_ms, "sqlite")
def _clock_sqlite(element: Any, compiler: Any, **kw: Any) -> str:
    return CLOCK_SQLITE


def _renamed(element: type[FunctionElement[int]], dialect: str, name: str) -> None:
    def render(element: Any, compiler: Any, **kw: Any) -> str:
        return f"{name}({compiler.process(element.clauses, **kw)})"

    compiles(element, dialect)(render)


for _dialect, _least, _greatest in (("postgresql", "least", "greatest"), ("sqlite", "min", "max")):
    _renamed(least, _dialect, _least)
    _renamed(greatest, _dialect, _greatest)


class PerDialect(NamedTuple):
    """One statement in the two spellings that SQLAlchemy keeps apart (INSERT .. ON CONFLICT)."""

    postgresql: Executable
    sqlite: Executable

    def on(self, conn: Connection) -> Executable:
        """The spelling for this connection."""
        return self.postgresql if conn.dialect.name == "postgresql" else self.sqlite


def per_dialect(build: Callable[[Any], Executable]) -> PerDialect:
    """`build` called with each dialect's `insert`."""
    return PerDialect(build(postgresql.insert), build(sqlite.insert))


class Fault(StrEnum):
    """What a driver's error means for the operation that met it."""

    RETRY = "retry"
    LOCKED = "locked"
    DISCONNECT = "disconnect"
    LOGIN = "login"
    TOO_MANY = "too_many"
    NO_DATABASE = "no_database"
    CANNOT_OPEN = "cannot_open"
    NOT_A_DATABASE = "not_a_database"
    DISK = "disk"
    FULL = "full"
    READ_ONLY = "read_only"
    NO_SCHEMA = "no_schema"
    CONSTRAINT = "constraint"
    MOVED = "moved"
    STALE_SNAPSHOT = "stale_snapshot"
    FAILED_TRANSACTION = "failed_transaction"
    OTHER = "other"


_PG_FAULTS = {
    "40001": Fault.RETRY, "40P01": Fault.RETRY, "55P03": Fault.LOCKED, "25P02": Fault.FAILED_TRANSACTION,
    "53100": Fault.FULL, "58030": Fault.DISK, "25006": Fault.READ_ONLY, "42501": Fault.READ_ONLY,
    "42P01": Fault.NO_SCHEMA, "3F000": Fault.NO_SCHEMA, "42703": Fault.NO_SCHEMA,
    "57P01": Fault.DISCONNECT, "57P02": Fault.DISCONNECT, "57P03": Fault.DISCONNECT, "25P03": Fault.DISCONNECT,
    "57P05": Fault.DISCONNECT, "53300": Fault.TOO_MANY,
    "28P01": Fault.LOGIN, "28000": Fault.LOGIN, "3D000": Fault.NO_DATABASE,
}  # fmt: skip
# libpq keeps no SQLSTATE of a refused login; a server that speaks another language is told as one out of reach
_PG_REFUSALS = {
    Fault.TOO_MANY: re.compile(
        r"too many (connections|clients)|connection slots are reserved|no more connections allowed"
    ),
    Fault.NO_DATABASE: re.compile(r'database "[^"]*" does not exist|no such database'),
    Fault.LOGIN: re.compile(
        r"authentication failed|pg_hba\.conf|permission denied for database|no such user"
        r'|role "[^"]*" (does not exist|is not permitted to log in)'
    ),
}
_SQLITE_FAULTS = {
    sqlite3.SQLITE_BUSY: Fault.RETRY, sqlite3.SQLITE_LOCKED: Fault.RETRY, sqlite3.SQLITE_PROTOCOL: Fault.RETRY,
    sqlite3.SQLITE_FULL: Fault.FULL, sqlite3.SQLITE_READONLY: Fault.READ_ONLY, sqlite3.SQLITE_PERM: Fault.READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: Fault.CANNOT_OPEN, sqlite3.SQLITE_NOTADB: Fault.NOT_A_DATABASE,
    sqlite3.SQLITE_CORRUPT: Fault.NOT_A_DATABASE, sqlite3.SQLITE_IOERR: Fault.DISK,
    sqlite3.SQLITE_CONSTRAINT: Fault.CONSTRAINT,
}  # fmt: skip


def fault_of(error: BaseException) -> Fault:
    """Classifies by SQLSTATE or SQLite result code, and by text only where there is no code."""
    orig = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if isinstance(orig, sqlite3.Error):
        code = getattr(orig, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
            return Fault.STALE_SNAPSHOT
        if code == sqlite3.SQLITE_CONSTRAINT_TRIGGER and str(orig) == MOVED_TEXT:
            return Fault.MOVED
        if code == sqlite3.SQLITE_ERROR and str(orig).startswith("no such "):
            return Fault.NO_SCHEMA
        return _SQLITE_FAULTS.get(code & 0xFF, Fault.OTHER) if code is not None else Fault.OTHER
    state = getattr(orig, "sqlstate", None)
    if state is not None:
        if state.startswith("08"):
            return Fault.DISCONNECT
        if state.startswith("23"):
            return Fault.CONSTRAINT
        return _PG_FAULTS.get(state, Fault.OTHER)
    invalidated = isinstance(error, DBAPIError) and error.connection_invalidated
    if not invalidated and type(orig).__name__ not in ("OperationalError", "InterfaceError"):
        return Fault.OTHER
    return _refusal(orig) or Fault.DISCONNECT


def _refusal(error: BaseException) -> Fault | None:
    """Why a server that was reached let nobody in; None: it may not have been reached."""
    if getattr(getattr(error, "pgconn", None), "needs_password", False):
        return Fault.LOGIN
    return next((fault for fault, text in _PG_REFUSALS.items() if text.search(str(error))), None)


def is_driver_error(error: BaseException) -> bool:
    """Whether a database driver raised it, wrapped by SQLAlchemy or not."""
    module = type(error).__module__.partition(".")[0]
    return isinstance(error, DBAPIError) or module in ("sqlite3", "psycopg")


def make_engine(
    source: str | URL | Engine | AsyncEngine, *, pool_size: int = 5, pooler: str | None = None, pooled: bool = True
) -> Engine:
    """An engine with a pool of its own, in autocommit.  pooler="transaction": nothing that needs a session is used."""
    url = checked_url(source)
    arguments: dict[str, Any] = {"poolclass": NullPool}
    if pooled:
        arguments = {"poolclass": QueuePool, "pool_size": pool_size, "max_overflow": 0, "pool_timeout": 60}
    connect_args: dict[str, Any] = (
        {"timeout": 0, "check_same_thread": False} if url.get_backend_name() == "sqlite" else _pg_arguments(url)
    )
    if pooler == "transaction" and url.get_backend_name() == "postgresql":
        connect_args["prepare_threshold"] = None
    try:
        engine = create_engine(
            url,
            isolation_level="AUTOCOMMIT",
            pool_reset_on_return=None,
            connect_args=connect_args,
            hide_parameters=True,
            **arguments,
        )
    except (NoSuchModuleError, ImportError):  # not installed, or without libpq
        raise StoreUnavailable("PostgreSQL needs psycopg: install chatlock with its extra 'postgres'") from None
    except (ArgumentError, ValueError, TypeError):  # their texts quote the URL
        raise InvalidInput("bad_url", "a parameter of the database URL cannot be read") from None
    if url.get_backend_name() == "sqlite":
        file = _File()
        event.listen(engine, "do_connect", file.look)
        event.listen(engine, "connect", file.opened)
        event.listen(engine, "checkout", file.check)
    elif pooler != "transaction":
        event.listen(engine, "connect", _open_postgresql)
    return engine


def _pg_arguments(url: URL) -> dict[str, Any]:
    """Text is UTF-8.  A server that does not answer is given up within seconds, unless the URL says otherwise."""
    return {name: value for name, value in PG_PATIENCE.items() if name not in url.query} | PG_TEXT


@contextmanager
def _closed_on_error(connection: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


class _File:
    """The SQLite file of one engine.  SQLite goes on with a file that was deleted or replaced beneath it, as if nothing
    were: what it then commits is gone with the last connection.
    """

    def __init__(self) -> None:
        self._path = ""

    def look(self, *connecting: Any) -> None:
        """Before a connection: the first may make the file, a later one would make an empty one."""
        if self._path:
            _identity(self._path)

    def opened(self, connection: Any, record: Any) -> None:
        """A new connection."""
        with _closed_on_error(connection):
            _switch_to_wal(connection)
            self._path = connection.execute("PRAGMA database_list").fetchone()[2]
            record.info["file"] = _identity(self._path)

    def check(self, connection: Any, record: Any, proxy: Any) -> None:
        """Before each use; a connection to a file that was replaced is opened anew."""
        if record.info["file"] != _identity(self._path):
            raise DisconnectionError


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise StoreUnavailable("the SQLite file was deleted or moved while it was in use: nothing is stored") from None
    return found.st_dev, found.st_ino


def _switch_to_wal(connection: Any) -> None:
    if sqlite3.sqlite_version_info < SQLITE_LEAST:
        raise StoreUnavailable(f"SQLite {sqlite3.sqlite_version} is too old: chatlock needs 3.35 or newer")
    cursor = connection.cursor()
    mode = cursor.execute("PRAGMA journal_mode").fetchone()[0]
    if mode != "wal":  # the switch ignores any busy timeout: the executor retries the whole operation
        mode = cursor.execute("PRAGMA journal_mode=wal").fetchone()[0]
    if mode != "wal":
        raise StoreUnavailable(
            "this SQLite file cannot be switched to WAL; put it on a local disk where the folder is writable"
        )
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _open_postgresql(connection: Any, record: Any) -> None:
    with _closed_on_error(connection):
        connection.execute(PG_SESSION)


def commits_each_statement(conn: Connection) -> bool:
    """Whether a connection of the caller is in autocommit, and so in no transaction that could be joined."""
    if not conn.in_transaction():
        conn.begin()  # an engine may send its own BEGIN now
    adapted: Any = conn.connection.dbapi_connection
    if conn.dialect.name == "postgresql":
        return bool(adapted.autocommit)
    by_itself = adapted.isolation_level is None or getattr(adapted, "autocommit", None) is True
    driver: Any = conn.connection.driver_connection
    return by_itself and not driver.in_transaction
