"""transfer: a whole store out of SQLite, and into an empty one, each in one transaction.

The old store is marked as moved under its write lock: triggers then refuse every write of processes that still run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import func, insert, literal, select, text
from sqlalchemy.engine import Connection

from chatlock.dialects import MOVED_TEXT, per_dialect, wall_ms
from chatlock.inputs import Key
from chatlock.ops.base import b, lock, named, run
from chatlock.ops.unanswered import end_unanswered, uncharged
from chatlock.protocol import TurnState
from chatlock.schema import audit, due, fences, intents, messages, meta, sessions, threads, turns, windows

EXPORT_ID = "export_id"
MOVED_AT = "moved_at"
NUMBERS = ("epoch", "windows_through", "purged_through")
"""The numbers of a database that go with its rows."""

TABLES: dict[str, Any] = {
    table.name.removeprefix("chatlock_"): table
    for table in (threads, messages, turns, due, sessions, fences, windows, intents, audit)
}
_COLUMNS = {name: [c for c in table.c if c.name != "audit_id"] for name, table in TABLES.items()}
READ = {
    name: named(f"transfer.read_{name}", select(*_COLUMNS[name]).order_by(*table.primary_key.columns))
    for name, table in TABLES.items()
}
WRITE = {
    name: named(f"transfer.write_{name}", insert(table).values({c.name: b(c.name) for c in _COLUMNS[name]}))
    for name, table in TABLES.items()
}
COUNT = {
    name: named(f"transfer.count_{name}", select(func.count()).select_from(table)) for name, table in TABLES.items()
}
LOCK_PG = named("transfer.lock", text("LOCK TABLE chatlock_threads IN SHARE ROW EXCLUSIVE MODE"))
READ_META = named("transfer.read_meta", select(meta.c.name, meta.c.value))
RUNNING = named("transfer.running", select(turns.c.tenant, turns.c.thread_id).where(turns.c.state == "running"))


def _put(insert_of: Any) -> Any:
    new = insert_of(meta).values(name=b("name"), value=b("value"))
    return new.on_conflict_do_update(index_elements=[meta.c.name], set_={"value": new.excluded.value})


PUT_META = named("transfer.write_meta", per_dialect(_put))
MARK = named(
    "transfer.mark",
    insert(meta).from_select(["name", "value"], select(literal(MOVED_AT), wall_ms())),
)
UNMARK = named("transfer.unmark", meta.delete().where(meta.c.name.in_([MOVED_AT, EXPORT_ID])))


def _triggers() -> Iterator[tuple[str, str]]:
    """Each trigger's name, and the statement that makes it."""
    for table in TABLES.values():
        for event in ("INSERT", "UPDATE", "DELETE"):
            name = f"{table.name}_moved_{event.lower()}"
            yield (
                name,
                f"CREATE TRIGGER {name} BEFORE {event} ON {table.name} BEGIN SELECT RAISE(ABORT, '{MOVED_TEXT}'); END",
            )


def read_numbers(conn: Connection) -> dict[str, int]:
    """The numbers of the whole database."""
    return {name: int(value) for name, value in run(conn, READ_META)}


def count_running(conn: Connection) -> int:
    """How many turns run."""
    return len(run(conn, RUNNING).all())


def mark_moved(conn: Connection, export_id: int) -> None:
    """Refuses every later write to the store.  Guard: SQLite's write lock, and the store is not marked yet."""
    run(conn, MARK)
    run(conn, PUT_META, None, name=EXPORT_ID, value=export_id)
    for _, statement in _triggers():
        conn.exec_driver_sql(statement)


def unmark_moved(conn: Connection) -> None:
    """Takes writes again.  Guard: SQLite's write lock."""
    for name, _ in _triggers():
        conn.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name}")
    run(conn, UNMARK)


def read_rows(conn: Connection, table: str) -> Iterator[dict[str, Any]]:
    """A table's rows in the order of their keys.  Guard: one snapshot."""
    for row in conn.execute(READ[table]).mappings():
        yield dict(row)


def lock_store(conn: Connection) -> None:
    """Keeps every other writer out until the end of the transaction.  SQLite's has the write lock already."""
    if conn.dialect.name == "postgresql":
        run(conn, LOCK_PG)


def write_rows(conn: Connection, table: str, rows: Iterable[dict[str, Any]]) -> None:
    """Inserts rows as they are.  Guard: the store's lock."""
    conn.execute(WRITE[table], [{f"b_{name}": value for name, value in row.items()} for row in rows])


def count_rows(conn: Connection) -> dict[str, int]:
    """The rows of every table."""
    return {name: int(conn.execute(statement).scalar_one()) for name, statement in COUNT.items()}


def write_numbers(conn: Connection, numbers: dict[str, int]) -> None:
    """Sets numbers of the whole database.  Guard: the store's lock."""
    for name, value in numbers.items():
        run(conn, PUT_META, None, name=name, value=value)


def release_moved(conn: Connection) -> int:
    """Releases the turns that ran when the store was moved, uncharged, token + 1.  Guard: the store's lock."""
    held = [Key(row.tenant, row.thread_id) for row in run(conn, RUNNING)]
    for key in held:
        row = lock(conn, key)
        if row is None:
            raise AssertionError("a running turn has no thread")
        end_unanswered(conn, key, row, state=TurnState.RELEASED, charged=uncharged(row), bump=1, error="moved")
    return len(held)
