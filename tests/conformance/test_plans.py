"""The statements that run often use an index on big tables, by the planner's own choice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.engine import Connection

from chatlock.dialects import PerDialect
from chatlock.ops import catalog
from tests.conformance import rows
from tests.conformance.conftest import Shelf
from tests.support.databases import KINDS, Database

THREADS = 3000
MESSAGES_OF_ONE = 3000
DUE_OF_ONE, TENANTS = 30_000, 200

# (statement, its values, the index of PostgreSQL or SQLite's automatic one)
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "arrivals.received": ({"b_since": 5_000}, "chatlock_turns_by_end"),
    "arrivals.received_of_all": ({"b_since": 5_000}, "chatlock_messages_pkey"),
    "due.list": ({"b_agents": ["default"], "b_limit": 100, "b_backoff_max": 60_000}, "chatlock_due_order"),
    "due.list_of_anyone": ({"b_limit": 100, "b_backoff_max": 60_000}, "chatlock_due_order"),
    "due.of_each_queue": ({"b_agents": ["default"], "b_limit": 400, "b_backoff_max": 60_000}, "chatlock_due_by_tenant"),
    "due.of_each_queue_of_anyone": ({"b_limit": 400, "b_backoff_max": 60_000}, "chatlock_due_by_tenant"),
    "due.busy": ({"b_tenants": '["hot", "t1"]', "b_limit": 8}, "chatlock_due_by_tenant"),
    "messages.look": (
        {"b_waited": [("t", "busy", 1, 100), ("t", "c7", 1, 1)], "b_backoff_max": 60_000},
        "chatlock_messages_pkey",
    ),
    "threads.look": ({"b_waited": [("t", "busy"), ("t", "c7")], "b_backoff_max": 60_000}, "chatlock_threads_pkey"),
    "fetch.batch": ({"b_incarnation": 1, "b_after": 2000, "b_fetched": 2010}, "chatlock_messages_pkey"),
    "messages.first_pending": ({"b_incarnation": 1, "b_done": 2000}, "chatlock_messages_pkey"),
    "messages.known": ({"b_incarnation": 1, "b_message_id": "m2000"}, "chatlock_messages_once"),
    "message.outcome": ({"b_message_id": "m2000"}, "chatlock_messages_once"),
    "reclaim.observe": ({}, "chatlock_turns_one_running"),
    "report.last_turns": ({"b_waited": [("t", "busy"), ("t", "c7")]}, "chatlock_turns_pkey"),
    "resolve.overdue": ({"b_incarnation": 1, "b_above": 2000, "b_now": 5}, "chatlock_messages_pkey"),
    "resolve.last_end": ({"b_incarnation": 1}, "chatlock_turns_pkey"),
    "submit.oldest": ({"b_incarnation": 1, "b_above": 2000}, "chatlock_messages_pkey"),
    "submit.too_old": ({"b_incarnation": 1, "b_above": 2000, "b_newer": 9}, "chatlock_messages_pkey"),
    "turn.before": ({"b_incarnation": 1, "b_token": 3}, "chatlock_turns_pkey"),
    "purge.old_turns": ({"b_since": 0, "b_age": 10**12, "b_limit": 200}, "chatlock_turns_by_end"),
    "purge.page": ({"b_limit": 200}, "chatlock_threads_pkey"),
    "purge.left_messages": (
        {"b_thread": "c1", "b_last_tenant": "t", "b_last_thread": "c1000", "b_horizon": 5},
        "chatlock_messages_pkey",
    ),
    "windows.observed": ({"b_since": 10**12, "b_until": 10**12 + 5}, "chatlock_turns_by_end"),
}

NUMBERS = {
    "sqlite": "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT {count}) SELECT {columns} FROM n",
    "postgresql": "SELECT {columns} FROM generate_series(1, {count}) n",
}
FILLS = [
    ("threads(tenant, thread_id, last_seq)", "'t', 'c' || n, 1", THREADS),
    ("threads(tenant, thread_id, last_seq)", "'t', 'busy', 0", 1),
    ("due(tenant, thread_id, due_at)", "'t', 'c' || n, 4000000000000 + n", THREADS),
    ("threads(tenant, thread_id, last_seq)", "'hot', 'c' || n, 1", DUE_OF_ONE),
    ("threads(tenant, thread_id, last_seq)", "'t' || n, 'c1', 1", TENANTS),
    ("due(tenant, thread_id, due_at, priority)", "'hot', 'c' || n, n, 10 * (n % 3)", DUE_OF_ONE),
    ("due(tenant, thread_id, due_at)", "'t' || n, 'c1', n", TENANTS),
    ("windows(agent, day, longest_ms, runs)", "'a' || n, 1, 1, 1", THREADS),
    (
        "messages(tenant, thread_id, incarnation, seq, message_id, payload_hash, received_at)",
        "'t', 'c' || n, 1, 1, 'm' || n, 'hash', 1",
        THREADS,
    ),
    (
        "messages(tenant, thread_id, incarnation, seq, message_id, payload_hash, received_at)",
        "'t', 'busy', 1, n, 'm' || n, 'hash', 1",
        MESSAGES_OF_ONE,
    ),
    (
        "turns(tenant, thread_id, incarnation, token, claim_id, from_seq, to_seq, state, started_at, ended_at)",
        "'t', 'c' || n, 1, 1, 'x', 0, 1, 'done', 1, 1000000000000 + 1000 * n",
        THREADS,
    ),
]


@pytest.fixture(scope="module", params=KINDS)
def big(request: pytest.FixtureRequest, shelf: Shelf) -> Iterator[Database]:
    """A database with thousands of threads and one long one, analyzed, filled once for all the tests of a kind."""
    for database in shelf.lend(request.param):
        for table, columns, count in FILLS:
            numbers = NUMBERS[database.kind].format(columns=columns, count=count)
            rows.execute(database, f"INSERT INTO chatlock_{table} {numbers}")
        rows.execute(database, "ANALYZE")
        yield database


@pytest.fixture
def explain(big: Database) -> Iterator[Callable[[str], list[str]]]:
    """The plan of a catalogued statement, on a connection without any setting of chatlock's."""
    engine = sqlalchemy.create_engine(big.url)
    with engine.connect() as conn:
        yield lambda name: plan(conn, name, CASES[name][0])
        conn.rollback()
    engine.dispose()


def plan(conn: Connection, name: str, values: dict[str, Any]) -> list[str]:
    statement = dict(catalog())[name]
    statement = statement.on(conn) if isinstance(statement, PerDialect) else statement
    bound = {"b_tenant": "t", "b_thread": "busy"} | values
    state = statement.compile(conn).construct_expanded_state(bound, escape_names=False)
    prefix = "EXPLAIN QUERY PLAN " if conn.dialect.name == "sqlite" else "EXPLAIN "
    found: Any = state.positional_parameters if state.positiontup else state.parameters
    lines = conn.exec_driver_sql(prefix + state.statement, tuple(found) if state.positiontup else found)
    return [str(row[-1]) for row in lines]


def scans(lines: list[str]) -> list[str]:
    """What reads a whole table."""
    return [line for line in lines if "Seq Scan" in line or re.match(r"SCAN chatlock_(?!.* USING)", line)]


@pytest.mark.parametrize("name", CASES)
def test_statement_uses_an_index_on_big_tables(big: Database, explain: Callable[[str], list[str]], name: str) -> None:
    lines = explain(name)
    assert not scans(lines), lines
    if big.kind == "postgresql":
        assert any(CASES[name][1] in line for line in lines), lines


@pytest.mark.parametrize("name", ["due.of_each_queue", "due.of_each_queue_of_anyone", "due.list", "due.list_of_anyone"])
def test_no_queue_is_sorted(explain: Callable[[str], list[str]], name: str) -> None:
    lines = explain(name)
    assert not [line for line in lines if re.search(r"\bSort\b|TEMP B-TREE", line)], lines


@pytest.mark.parametrize("index", ["chatlock_due_order"])
def test_control_without_its_index_the_table_is_scanned(
    big: Database, explain: Callable[[str], list[str]], index: str
) -> None:
    (create,) = rows.select(
        big,
        f"SELECT sql FROM sqlite_master WHERE name = '{index}'"
        if big.kind == "sqlite"
        else f"SELECT indexdef FROM pg_indexes WHERE indexname = '{index}'",
    )[0]
    rows.execute(big, f"DROP INDEX {index}")
    try:
        assert scans(explain("due.list"))
    finally:
        rows.execute(big, create)
