"""What is stored, as the test reads it by SQL of its own."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tests.support.databases import connect
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.databases import Database

TENANT = "t"


def rows(database: Database, statement: str, **values: object) -> list[dict[str, Any]]:
    """The rows of a statement with :named values, on a connection of its own, in autocommit."""
    if database.kind == "postgresql":
        statement = re.sub(r"(?<!:):(\w+)", r"%(\1)s", statement)
    with closing(connect(database.url)) as connection:
        cursor = connection.execute(statement, values)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in (cursor.fetchall() if names else ())]


def thread_row(database: Database, thread: str, tenant: str = TENANT) -> dict[str, Any]:
    """The one row of a thread."""
    found = rows(
        database,
        "SELECT * FROM chatlock_threads WHERE tenant = :tenant AND thread_id = :thread",
        tenant=tenant,
        thread=thread,
    )
    assert len(found) == 1, found
    return found[0]


def message_rows(database: Database, thread: str, tenant: str = TENANT) -> list[dict[str, Any]]:
    """The messages of a thread, in order of seq."""
    return rows(
        database,
        "SELECT * FROM chatlock_messages WHERE tenant = :tenant AND thread_id = :thread ORDER BY incarnation, seq",
        tenant=tenant,
        thread=thread,
    )


def turn_rows(database: Database, thread: str, tenant: str = TENANT) -> list[dict[str, Any]]:
    """The turns of a thread, in order of token."""
    return rows(
        database,
        "SELECT * FROM chatlock_turns WHERE tenant = :tenant AND thread_id = :thread ORDER BY token",
        tenant=tenant,
        thread=thread,
    )


def row_count(database: Database) -> dict[str, int]:
    """How many rows each table of the protocol has: what a refused call must not change."""
    tables = ("threads", "messages", "turns", "due", "sessions", "audit")
    return {name: rows(database, f"SELECT count(*) AS n FROM chatlock_{name}")[0]["n"] for name in tables}


def stored(database: Database, thread: str, count: int) -> None:
    """Returns once the thread has so many messages."""
    until(lambda: len(message_rows(database, thread)) >= count, what=f"{count} stored messages")


def count_messages(database: Database) -> int:
    """How many messages are stored, in all threads."""
    return int(rows(database, "SELECT count(*) AS n FROM chatlock_messages")[0]["n"])
