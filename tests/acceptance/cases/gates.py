"""X, W, K: the parked row, gates at points and statements, and where a child stops to be killed."""

from __future__ import annotations

import signal
from collections import defaultdict, deque
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import sqlalchemy

from chatlock.dialects import PerDialect
from chatlock.ops.base import CATALOG
from tests.acceptance.cases.agents import Holding
from tests.acceptance.cases.rows import TENANT
from tests.support.databases import connect
from tests.support.waiting import Gate, blocked_backends, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.databases import Database


# -- X: the parked row -------------------------------------------------------------------------------------------------
class ParkedRow:
    """X: the test's own transaction on a thread's row (on SQLite: on the file)."""

    def __init__(self, database: Database, connection: Any) -> None:
        self.database, self.connection = database, connection
        self._open = True

    def let_go(self, how: str = "COMMIT") -> None:
        """Ends the transaction; who waits goes on."""
        if self._open:
            self._open = False
            self.connection.execute(how)


@contextmanager
def parked_row(database: Database, thread: str, tenant: str = TENANT) -> Iterator[ParkedRow]:
    """X: holds the thread's row until let go; see `wait_blocked` for the barrier."""
    with closing(connect(database.url)) as connection:
        if database.kind == "sqlite":
            connection.execute("BEGIN IMMEDIATE")
        else:
            connection.execute("BEGIN")
            locked = connection.execute(
                "SELECT 1 FROM chatlock_threads WHERE tenant = %s AND thread_id = %s FOR UPDATE", (tenant, thread)
            ).fetchall()
            assert locked, "there is no such row to park"
        parked = ParkedRow(database, connection)
        try:
            yield parked
        finally:
            parked.let_go()


def wait_blocked(database: Database, points: Points, op: str, count: int = 1) -> None:
    """Returns once `count` backends wait for a lock; on SQLite once the client was sent away busy and came again.

    SQLite's busy retry begins the operation anew, so the second `<op>.begin` proves that the first met the lock.
    """
    if database.kind == "sqlite":
        until(lambda: points.passed.count(f"{op}.begin") > count, what=f"{op} that is sent away busy")
        return
    with closing(connect(database.url)) as watcher:
        until(lambda: len(blocked_backends(watcher)) >= count, what=f"{count} blocked backends")


# -- W: gates at points and statements ---------------------------------------------------------------------------------
class Points:
    """W: the pause points of one client.  `passed` records them; `hold` stops the next one that passes a name."""

    def __init__(self, chat: Any) -> None:
        self.passed: list[str] = []
        self._gates: dict[str, deque[Holding]] = defaultdict(deque)
        self._calls: dict[str, Callable[[], object]] = {}
        chat._executor.points = self

    def __call__(self, name: str) -> None:
        self.passed.append(name)
        if self._gates[name]:
            self._gates[name].popleft().hold()
        if name in self._calls:
            self._calls[name]()

    def hold(self, name: str) -> Gate:
        """A gate for one passing of `<op>.begin` or `<op>.commit`."""
        gate = Gate()
        self.hold_by(name, gate)
        return gate

    def hold_by(self, name: str, gate: Holding) -> None:
        """As `hold`, by a gate of the test's own."""
        self._gates[name].append(gate)

    def on(self, name: str, call: Callable[[], object]) -> None:
        """Calls `call` at every passing of the point, after any gate there; what it raises goes to the product."""
        self._calls[name] = call


def hold_statement(chat: Any, name: str, when: str = "before") -> Gate:
    """W: a gate before or after one catalogued statement of this client, the next time that it is executed."""
    gate, entry = Gate(), CATALOG[name]
    statements = tuple(entry) if isinstance(entry, PerDialect) else (entry,)
    waiting = [gate]

    def stop(conn: Any, cursor: Any, text: str, parameters: Any, context: Any, many: bool) -> None:
        if waiting and any(context.invoked_statement is statement for statement in statements):
            waiting.pop().hold()

    sqlalchemy.event.listen(chat._executor.engine, f"{when}_cursor_execute", stop)
    return gate


# -- K: where a child stops to be killed -------------------------------------------------------------------------------
def stop_here(where: str) -> None:
    """In a child: says where it stands and stays there until it is killed."""
    print(f"stopped at {where}", flush=True)
    while True:
        signal.pause()


def stop_at_point(chat: Any, name: str) -> None:
    """K: in a child, stops for ever at a pause point."""
    Points(chat).on(name, lambda: stop_here(name))


def stop_at_statement(chat: Any, number: int) -> None:
    """K: in a child, stops for ever before the client's `number`-th statement from now on (BEGIN and COMMIT count)."""
    count = 0

    def before(text: object) -> None:
        nonlocal count
        count += 1
        if count == number:
            stop_here(f"statement {number}: {' '.join(str(text).split())[:60]}")

    engine = chat._executor.engine
    if engine.dialect.name == "sqlite":
        engine.dispose()
        sqlalchemy.event.listen(engine, "connect", lambda connection, _: connection.set_trace_callback(before))
        engine.connect().close()
        count = 0
        return
    execute = psycopg.Cursor.execute

    def counted(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        before(query)
        return execute(self, query, *arguments, **options)

    psycopg.Cursor.execute = counted  # type: ignore[method-assign]
