"""What the tables hold, and how a test moves a thread's times without waiting for them."""

from __future__ import annotations

from typing import Any

from chatlock.schema import metadata
from tests.support.databases import Database

TABLES = tuple(sorted(table.name for table in metadata.sorted_tables))
Row = dict[str, Any]


def plain(database: Database) -> Any:
    """The test's own connection, in autocommit."""
    if "plain" not in vars(database):
        vars(database)["plain"] = database.connect()
    return vars(database)["plain"]


def select(database: Database, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    return [tuple(row) for row in plain(database).execute(query).fetchall()]


def execute(database: Database, statement: str) -> None:
    """A statement of the test's own, such as a corruption or a passed time."""
    plain(database).execute(statement)


def table(database: Database, name: str) -> list[Row]:
    """A table's rows as dicts, ordered by all their columns."""
    cursor = plain(database).execute(f"SELECT * FROM {name}")
    names = [column[0] for column in cursor.description]
    return sorted((dict(zip(names, row, strict=True)) for row in cursor.fetchall()), key=str)


def dump(database: Database) -> dict[str, list[Row]]:
    """Every row of every table."""
    return {name: table(database, name) for name in TABLES}


def thread_row(database: Database, thread: str = "c1") -> Row:
    """The thread's row."""
    (row,) = [row for row in table(database, "chatlock_threads") if row["thread_id"] == thread]
    return row


def turns(database: Database, thread: str = "c1") -> list[Row]:
    """The thread's turns, by token."""
    found = [row for row in table(database, "chatlock_turns") if row["thread_id"] == thread]
    return sorted(found, key=lambda row: row["token"])


def messages(database: Database, thread: str = "c1") -> list[Row]:
    """The thread's messages, by incarnation and seq."""
    found = [row for row in table(database, "chatlock_messages") if row["thread_id"] == thread]
    return sorted(found, key=lambda row: (row["incarnation"], row["seq"]))


def dispositions(database: Database, thread: str = "c1") -> list[str]:
    """The dispositions of the thread's messages, by seq."""
    return [row["disposition"] for row in messages(database, thread)]


def pass_backoff(database: Database) -> None:
    """Every backoff has passed."""
    execute(database, "UPDATE chatlock_threads SET not_before = 0")
    execute(database, "UPDATE chatlock_due SET due_at = 0")


def pass_lease(database: Database) -> None:
    """Every running turn's lease has passed."""
    execute(database, "UPDATE chatlock_threads SET expires_at = 1 WHERE status = 'running'")


def open_question(database: Database) -> None:
    """Every thread has the open question q1."""
    execute(database, "UPDATE chatlock_threads SET awaiting = 'q1', awaiting_rule = 'run'")


def pass_grace(database: Database) -> None:
    """Every running turn was asked to stop, and its grace has passed."""
    execute(database, "UPDATE chatlock_threads SET cancel_token = token, cancel_until = 1 WHERE status = 'running'")


def expire_all(database: Database) -> None:
    """Every message has waited for longer than it may."""
    execute(database, "UPDATE chatlock_messages SET expire_ms = 1, received_at = 1")
    execute(database, "UPDATE chatlock_turns SET ended_at = 1 WHERE ended_at IS NOT NULL")


def pass_window(database: Database) -> None:
    """Every running turn beat on until its window passed."""
    execute(
        database, "UPDATE chatlock_threads SET expires_at = 1, window_ends_at = 1, beat = 1 WHERE status = 'running'"
    )
