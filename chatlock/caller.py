"""The caller's own transaction: a Connection, a Session, or their async kinds, of the same database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

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


def _connection(conn: Connection | Session) -> Connection:
    inner = conn.connection() if isinstance(conn, Session) else conn
    if commits_each_statement(inner):
        raise InvalidInput("autocommit", "conn is in autocommit, so it has no transaction: open one on it first")
    return inner
