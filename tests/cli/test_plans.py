"""How the database answers what operators ask in an emergency: from small indexes, however many threads there are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event

from chatlock.console import Console, Scope
from chatlock.executor import Executor
from chatlock.ops.base import CATALOG
from tests.conformance import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.databases import Database

THREADS = 3_000
BOUND = {
    "tenant": "acme", "thread": "t1", "older": 300_000, "limit": 100, "agent": "default", "status": "parked",
    "after_tenant": "", "after_thread": "", "since": 3_600_000, "payloads": 0,
    "message_id": "m1", "incarnation": 1, "seq": 1, "state": None,
}  # fmt: skip
BOUNDED = [
    *("report.stale", "report.stale_of_all", "report.overdue", "report.overdue_of_all"),
    *("report.running", "report.running_of_all", "report.oldest_running", "report.oldest_running_of_all"),
    *("load.running", "load.running_of_all", "load.waiting", "load.waiting_of_all"),
    *("contents.inbox_of_thread", "contents.message", "contents.turns_of_thread", "contents.attempts"),
    *("report.service", "report.running_of_each", "report.thread"),
]
SHOWN = ("Node Type", "Relation Name", "Index Name", "Index Cond")
SCANS = ["report.threads", "report.threads_of_all"]


@pytest.fixture
def executor(database: Database) -> Iterator[Executor]:
    """Three thousand answered threads; one runs, one is due."""
    connection = database.connect()
    numbers = (
        f"SELECT n FROM generate_series(1, {THREADS}) AS series(n)"
        if database.kind == "postgresql"
        else f"WITH RECURSIVE s(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM s WHERE n < {THREADS}) SELECT n FROM s"
    )
    connection.execute(
        "INSERT INTO chatlock_threads(tenant, thread_id, token, last_seq, fetched_seq, done_seq)"
        f" SELECT 'acme', 't' || n, 1, 1, 1, 1 FROM ({numbers}) AS numbers"
    )
    connection.execute(
        "INSERT INTO chatlock_turns(tenant, thread_id, incarnation, token, claim_id, from_seq, to_seq, state,"
        f" started_at, ended_at) SELECT 'acme', 't' || n, 1, 1, 'c', 0, 1, 'done', 1, n FROM ({numbers}) AS numbers"
    )
    connection.execute("INSERT INTO chatlock_due(tenant, thread_id, due_at) VALUES ('acme', 't1', 1)")
    connection.execute("ANALYZE")
    executor = Executor(database.url, pool_size=1, pooler=None)
    yield executor
    executor.close()


def plan(executor: Executor, name: str) -> list[str]:
    """One line for each step that reads a table: how, and by what condition."""
    bound = {f"b_{name}": value for name, value in BOUND.items()}

    def op(conn: Any) -> Any:
        return conn.execute(CATALOG[name], bound).cursor.fetchall()

    def explained(conn: Any, cursor: Any, text: str, *rest: Any) -> tuple[str, Any]:
        how = "QUERY PLAN" if conn.dialect.name == "sqlite" else "(FORMAT JSON)"
        return f"EXPLAIN {how} {text}", rest[0]

    engine = executor.engine
    event.listen(engine, "before_cursor_execute", explained, retval=True)
    try:
        rows = executor.read("explain", op)
    finally:
        event.remove(engine, "before_cursor_execute", explained)
    if engine.dialect.name == "sqlite":
        return [str(detail) for *_, detail in rows]
    ((found,),) = rows
    return list(steps(found[0]["Plan"]))


def steps(node: dict[str, Any]) -> Iterator[str]:
    if "Relation Name" in node or "Index Name" in node:
        yield json.dumps(
            {key: node[key] for key in ("Node Type", "Relation Name", "Index Name", "Index Cond") if key in node}
        )
    for inner in node.get("Plans", ()):
        yield from steps(inner)


def scans_of_large_tables(found: list[str]) -> list[str]:
    """The steps that read all threads or turns, or a tenant's: those that no narrow index condition bounds."""
    return [step for step in found if _reads_much(step)]


def _reads_much(step: str) -> bool:
    if "one_running" in step:
        return False
    if "chatlock_threads" in step or "threads_pkey" in step or "chatlock_turns" in step:
        return "thread_id = " not in step.split("Index Cond", 1)[-1] if "{" in step else "thread_id=?" not in step
    return False


def test_no_large_table_is_scanned(executor: Executor) -> None:
    for name in BOUNDED:
        found = plan(executor, name)
        assert found, name
        assert scans_of_large_tables(found) == [], name


def test_a_scan_is_seen(executor: Executor) -> None:
    for name in SCANS:
        assert scans_of_large_tables(plan(executor, name)), name


def test_a_longer_list_of_the_stuck_takes_no_more_statements(executor: Executor, database: Database) -> None:
    waiting, statements = [f"t{number}" for number in range(2, 120)], []
    names = ", ".join(f"'{name}'" for name in ["t1", *waiting])
    rows.execute(database, f"UPDATE chatlock_threads SET last_seq = 2 WHERE thread_id IN ({names})")
    due = ", ".join(f"('acme', '{name}', 1)" for name in waiting)
    rows.execute(database, f"INSERT INTO chatlock_due(tenant, thread_id, due_at) VALUES {due}")
    executor.read("connect", lambda conn: None)
    event.listen(executor.engine, "before_cursor_execute", lambda *about: statements.append(about[2]))
    taken = {}
    for limit in (1, 100):
        statements.clear()
        assert len(Console(executor).stuck(Scope(None), 0, limit)) == limit
        taken[limit] = len(statements)
    assert taken[1] == taken[100] <= 7, statements
