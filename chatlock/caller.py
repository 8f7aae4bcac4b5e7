"""The caller's own transaction: a Connection, a Session, or their async kinds, of the same database.

For a fence also a connection of the driver itself: psycopg, sqlite3, aiosqlite.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import InvalidRequestError, PendingRollbackError
from sqlalchemy.orm import Session

from chatlock.dialects import Fault, commits_each_statement, fault_of, is_driver_error
from chatlock.errors import ChatlockError, InvalidInput, TransactionNotImmediate
from chatlock.faults import typed_error
from chatlock.io import Io, SyncIo

T = TypeVar("T")


async def on_caller(io: Io, conn: Any, op: Callable[[Connection], T]) -> T:
    """Runs `op` in the transaction that the caller has open on `conn`; its commit or rollback stays the caller's.

    The op's first statement must write: that takes SQLite's write lock, whatever way the transaction was begun.  An
    error of the database or of the connection is typed; any other, such as one of the caller's own event hooks, is
    raised as it is.
    """
    try:
        if hasattr(conn, "run_sync"):  # an async kind; importing its type would need greenlet
            if isinstance(io, SyncIo):
                raise InvalidInput("bad_conn", "an async conn needs AsyncChatlock")
            result: T = await conn.run_sync(lambda inner: op(_connection(inner)))
            return result
        if isinstance(conn, Connection | Session):
            return op(_connection(conn))
    except Exception as error:
        if _is_of_conn(error):
            raise _typed(error) from None
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
    if getattr(conn, "closed", False):
        raise InvalidInput("bad_conn", "conn is closed")
    try:
        for statement, values in statements:
            result = await _ready(io, conn.execute(statement, values))
        rows: list[Any] = list(await _ready(io, result.fetchall()))
    except Exception as error:
        if _is_of_conn(error):
            raise _typed(error) from None
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


def _is_of_conn(error: Exception) -> bool:
    return is_driver_error(error) or isinstance(error, InvalidRequestError)


def _typed(error: Exception) -> ChatlockError:
    """What is wrong with the caller's connection or transaction, without SQL, parameters or URL."""
    fault = fault_of(error)
    if fault is Fault.STALE_SNAPSHOT:
        return TransactionNotImmediate()
    if fault is Fault.FAILED_TRANSACTION or isinstance(error, PendingRollbackError):
        text = "the transaction on conn has failed already: roll it back, and begin another"
        return InvalidInput("failed_transaction", text)
    if fault is Fault.NO_SCHEMA:
        text = "the database of conn has not chatlock's tables: use chatlock's own, or run `chatlock db upgrade` on it"
        return InvalidInput("other_database", text)
    if isinstance(error, InvalidRequestError) or (type(error).__name__ == "ProgrammingError" and fault is Fault.OTHER):
        return InvalidInput("bad_conn", f"conn cannot be used here ({type(error).__name__}): it may be closed")
    return typed_error(error, fault)


def _autocommit() -> InvalidInput:
    return InvalidInput("autocommit", "conn is in autocommit, so it has no transaction: open one on it first")


def _connection(conn: Connection | Session) -> Connection:
    inner = conn.connection() if isinstance(conn, Session) else conn
    if commits_each_statement(inner):
        raise _autocommit()
    return inner
