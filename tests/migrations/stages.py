"""What the migration tests share: a newer set of revisions, and a place in its middle."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy

from chatlock.migrations import revisions
from chatlock.migrations.transaction import write_transaction
from chatlock.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.engine import Connection

    from tests.support.databases import Database

NEWEST = SCHEMA_VERSION
NEXT = NEWEST + 1
WITH_NEXT = (*revisions.DIRECTORIES, Path(__file__).parent / "next_revision")


def nothing() -> None:
    """What happens in the middle of the newer revision unless a test says otherwise."""


midway: Callable[[], object] = nothing


@contextmanager
def plain_connection(database: Database, **options: object) -> Iterator[Connection]:
    """A connection as an application makes it, with the driver's own transactions."""
    engine = sqlalchemy.create_engine(database.url, **options)
    try:
        with engine.connect() as conn:
            yield conn
    finally:
        engine.dispose()


def upgrade_to_next(conn: Connection) -> None:
    """As `chatlock.migrations.upgrade`, for the release that brings the newer revision."""
    with write_transaction(conn):
        revisions.apply(conn, "head", WITH_NEXT)


def tables(conn: Connection) -> set[str]:
    return set(sqlalchemy.inspect(conn).get_table_names())


def number(conn: Connection, name: str) -> int:
    """One of the numbers in chatlock_meta."""
    query = sqlalchemy.text("SELECT value FROM chatlock_meta WHERE name = :name")
    return int(conn.execute(query, {"name": name}).scalar_one())
