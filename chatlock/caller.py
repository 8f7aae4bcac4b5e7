"""The caller's own transaction: a Connection, a Session, or their async kinds, of the same database.

For a fence also a connection of the driver itself: psycopg, sqlite3, aiosqlite.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from chatlock.dialects import Fault, commits_each_statement, fault_of
from chatlock.errors import InvalidInput, TransactionNotImmediate
from chatlock.io import Io, SyncIo

T = TypeVar("T")


async def on_caller(io: Io, conn: Any, op: Callable[[Connection], T]) -> T:
    """Runs `op` in the transaction that the caller has open on `conn`; its commit or rollback stays the caller's.

    The op's first statement must write: that takes SQLite's write lock, whatever way the transaction was begun.
    """
    try:
        if hasattr(conn, "run_sync"):  # an async kind; importing its type would need greenlet
            if isinstance(io, SyncIo):
                raise InvalidInput("bad_conn", "an async conn needs AsyncChatlock")
            result: T = await conn.run_sync(lambda inner: op(_connection(inner)))
            return result
        if isinstance(conn, Connection | Session):
            return op(_connection(conn))
    except DBAPIError as error:
        if fault_of(error) is Fault.STALE_SNAPSHOT:
            raise TransactionNotImmediate from None
        raise
    raise InvalidInput("bad_conn", "conn must be a SQLAlchemy Connection, Session, AsyncConnection or AsyncSession")


def driver_kind(conn: Any) -> Literal["postgresql", "sqlite"] | None:
    """Whose connection it is, if it is a driver's own; the packages need not be installed."""
    drivers = {base.__module__.partition(".")[0] for base in type(conn).__mro__}
    if not hasattr(conn, "cursor"):
        return None
    if "psycopg" in drivers:
        return "postgresql"
    return "sqlite" if drivers & {"sqlite3", "aiosqlite"} else None


async def on_driver(io: Io, conn: Any, statements: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Executes them in the transaction that is open on a driver's own connection.  The rows of the last one."""
    try:
        for statement, values in statements:
            result = await _ready(io, conn.execute(statement, values))
        rows: list[Any] = list(await _ready(io, result.fetchall()))
    except Exception as error:
        if fault_of(error) is Fault.STALE_SNAPSHOT:
            raise TransactionNotImmediate from None
        raise
    in_transaction = conn.in_transaction if hasattr(conn, "in_transaction") else conn.info.transaction_status != 0
    if not in_transaction:
        raise _autocommit()
    return rows


async def _ready(io: Io, result: Any) -> Any:
    if not inspect.isawaitable(result):
        return result
    if isinstance(io, SyncIo):
        result.close()  # type: ignore[attr-defined]
        raise InvalidInput("bad_conn", "an async conn needs AsyncChatlock")
    return await result


def _autocommit() -> InvalidInput:
    return InvalidInput("autocommit", "conn is in autocommit, so it has no transaction: open one on it first")


def _connection(conn: Connection | Session) -> Connection:
    inner = conn.connection() if isinstance(conn, Session) else conn
    if commits_each_statement(inner):
        raise _autocommit()
    return inner
