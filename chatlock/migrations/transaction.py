"""One writer at a time, on whatever connection the caller hands in."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from chatlock.dialects import BEGIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection

ADVISORY_LOCK = int.from_bytes(b"chatlock", "big")
LOCK_SQL = f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"


@contextmanager
def write_transaction(conn: Connection) -> Iterator[None]:
    """A transaction that holds the migration lock before anything is read.

    **Effect**: commits what it began; a transaction that the caller has open is left to the caller.
    The lock ends with the transaction, so it is safe behind a transaction pooler.
    """
    callers = conn.in_transaction()
    with nullcontext() if callers else conn.begin():
        begins = not _driver_in_transaction(conn)
        ends = begins and _driver_autocommits(conn)
        if begins:
            conn.exec_driver_sql(BEGIN[conn.dialect.name])
        try:
            if conn.dialect.name == "postgresql":
                _lock_postgresql(conn, callers=callers)
            yield
        except BaseException:
            if ends:
                with suppress(SQLAlchemyError):
                    conn.exec_driver_sql("ROLLBACK")
            raise
        if ends:
            conn.exec_driver_sql("COMMIT")


def _lock_postgresql(conn: Connection, *, callers: bool) -> None:
    level = conn.exec_driver_sql("SHOW transaction_isolation").scalar_one()
    if level != "read committed" and not callers:
        # A stricter level would read the revision as it was before the wait for the lock.
        conn.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    conn.exec_driver_sql(LOCK_SQL)


def _driver_in_transaction(conn: Connection) -> bool:
    """Whether a statement sent now is part of a transaction, whatever SQLAlchemy was told."""
    if conn.dialect.name == "sqlite":
        # The sqlite3 module begins by itself only before INSERT, UPDATE and DELETE.
        return bool(_driver(conn).in_transaction)
    return not _driver_autocommits(conn)


def _driver_autocommits(conn: Connection) -> bool:
    if conn.dialect.name == "sqlite":
        return _driver(conn).isolation_level is None
    adapted: Any = conn.connection.dbapi_connection
    return bool(adapted.autocommit)


def _driver(conn: Connection) -> Any:
    return conn.connection.driver_connection
