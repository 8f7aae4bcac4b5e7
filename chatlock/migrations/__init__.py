"""The schema's revisions, behind three doors: `chatlock db`, your own revision, printed SQL.

Another schema than the default one of PostgreSQL is chosen by search_path.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import column, inspect, select, table

from chatlock.dialects import SQLITE_LEAST
from chatlock.errors import InvalidInput, SchemaMismatch, StoreUnavailable
from chatlock.migrations.transaction import write_transaction
from chatlock.schema import SCHEMA_VERSION, VERSION_TABLE, meta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection

SERVER_LEAST = {"postgresql": (15,), "sqlite": SQLITE_LEAST}
SERVER_NAMES = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}

_REVISION: Any = select(column("version_num")).select_from(table(VERSION_TABLE))
_MIN_CLIENT = select(meta.c.value).where(meta.c.name == "min_client")


def upgrade(conn: Connection, to: int | str = "head") -> None:
    """Bring the tables to a revision; what is there already stays.

    **Guard**: one caller at a time, by a lock taken before the revision is read; the others wait,
    then find the work done.  **Effect**: one transaction, so a caller that dies leaves nothing and
    the next one does it all.  In a transaction that is open already, as inside a revision of your
    own, it is left to you to commit (keep it READ COMMITTED).

    Raises SchemaMismatch for tables too new for this chatlock, StoreUnavailable for a database
    server that is too old, InvalidInput for another kind of database or an unknown revision.

    Args:
        conn: A SQLAlchemy Connection.
        to: The number of the revision, or "head" for the newest.
    """
    # Alembic takes a quarter of a second to import, and only this and sql() need it.
    from chatlock.migrations import revisions

    _check_server(conn)
    with write_transaction(conn):
        found = current(conn)
        if found is not None and found > SCHEMA_VERSION:
            _check_newer(conn, found)
        else:
            revisions.apply(conn, to)


def current(conn: Connection) -> int | None:
    """The revision of the tables in this database; None where there are none.

    Args:
        conn: A SQLAlchemy Connection.
    """
    with _as_found(conn):
        if not inspect(conn).has_table(VERSION_TABLE):
            return None
        revisions = [str(revision) for revision in conn.execute(_REVISION).scalars()]
    if len(revisions) > 1 or not all(revision.isdecimal() for revision in revisions):
        raise SchemaMismatch(f"{VERSION_TABLE} does not hold one revision of chatlock; restore it from a backup")
    return int(revisions[0]) if revisions else None


def check(conn: Connection) -> None:
    """Verify that this chatlock may work on these tables; nothing is written.

    A newer schema is fine as long as its own `min_client` admits this version.  Raises
    SchemaMismatch, which names the remedy, and StoreUnavailable for a server that is too old.

    Args:
        conn: A SQLAlchemy Connection.
    """
    _check_server(conn)
    found = current(conn)
    if found is None:
        raise SchemaMismatch("this database has no chatlock tables; run `chatlock db upgrade`, or call setup()")
    if found < SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the chatlock tables are at revision {found} and this version needs {SCHEMA_VERSION};"
            " run `chatlock db upgrade`"
        )
    if found > SCHEMA_VERSION:
        _check_newer(conn, found)


def sql(dialect: str, from_: int | str | None = None, to: int | str = "head") -> str:
    """The SQL from one revision to another, as one transaction to run anywhere.

    Raises InvalidInput for another dialect or an unknown revision.

    Args:
        dialect: postgresql or sqlite.
        from_: The number of the revision to start from.  None: an empty database.
        to: The number of the revision to end with, or "head" for the newest.
    """
    from chatlock.migrations import revisions

    if dialect not in SERVER_LEAST:
        raise _unknown_dialect(dialect)
    return revisions.render(dialect, from_, to)


def _check_server(conn: Connection) -> None:
    name = conn.dialect.name
    if name not in SERVER_LEAST:
        raise _unknown_dialect(name)
    found = conn.dialect.server_version_info
    if not found:  # Alembic's offline mode has a stand-in here
        raise InvalidInput("no_connection", "this is no connection to a database; `chatlock db sql` prints the SQL")
    if found < SERVER_LEAST[name]:
        product, needed = SERVER_NAMES[name], ".".join(map(str, SERVER_LEAST[name]))
        raise StoreUnavailable(f"{product} {'.'.join(map(str, found))} is too old: chatlock needs {needed} or newer")
    if name == "postgresql":
        with _as_found(conn):
            encoding = conn.exec_driver_sql("SHOW server_encoding").scalar_one()
        if encoding != "UTF8":
            raise StoreUnavailable("this database is not in UTF-8; create one with ENCODING 'UTF8' TEMPLATE template0")


def _unknown_dialect(name: str) -> InvalidInput:
    return InvalidInput("bad_dialect", f"chatlock runs on postgresql and sqlite, not on {name!r}")


def _check_newer(conn: Connection, found: int) -> None:
    with _as_found(conn):
        least = conn.execute(_MIN_CLIENT).scalar_one_or_none()
    if least is None or least > SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the chatlock tables are at revision {found}, too new for this version"
            f" (revision {SCHEMA_VERSION}); upgrade the chatlock package"
        )


@contextmanager
def _as_found(conn: Connection) -> Iterator[None]:
    """Ends the transaction that reading begins, unless the caller has one open."""
    open_before = conn.in_transaction()
    try:
        yield
    finally:
        if not open_before:
            conn.rollback()
