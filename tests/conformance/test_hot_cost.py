"""What a turn costs, counted at the server or in SQLite's trace: statements, commits, HOT updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event

from chatlock import Chatlock, Queued
from tests.conformance.bridge import Bridge
from tests.support.databases import Database, Templates

TURNS = 20
WARM = 8  # psycopg prepares a statement at its sixth use, once per connection: that is a commit of its own

OpenChat = Callable[[Database], Any]


@pytest.fixture(params=["sync", "async"])
def open_chat(request: pytest.FixtureRequest) -> Iterator[OpenChat]:
    """A client with one connection and an answering handler, whose statements are prepared."""
    opened: list[Any] = []

    def make(database: Database) -> Any:
        if database.kind == "postgresql":
            name = database.url.rpartition("/")[2]
            database.connect().execute(f"ALTER DATABASE {name} SET pg_stat_statements.track = 'top'")
        options: dict[str, Any] = {"tenant": "t", "poller": False, "pool_size": 1}
        sync = request.param == "sync"
        chat = Chatlock(database.url, **options) if sync else Bridge(database.url, **options)
        opened.append(chat)
        chat.handler()(lambda turn: "ok")
        for n in range(WARM):
            chat.submit("known", n)
        return chat

    yield make
    for chat in opened:
        chat.close()


class Server:
    """The counters of a PostgreSQL database, seen from another one, so that a look costs the counted one nothing."""

    def __init__(self, templates: Templates) -> None:
        self._elsewhere = templates.postgresql(empty=True)
        self._own = self._elsewhere.connect()
        self._own.execute("CREATE EXTENSION pg_stat_statements")

    def _flush(self, chat: Any) -> None:
        """Has the client's one backend report, which costs it one statement and one commit."""
        with chat._executor.engine.connect() as conn:
            conn.exec_driver_sql("SELECT pg_stat_force_next_flush()")

    def _look(self, chat: Any) -> tuple[int, int]:
        self._flush(chat)
        name = chat._executor.engine.url.database
        found = self._own.execute(
            "SELECT (SELECT sum(calls) FROM pg_stat_statements WHERE dbid = oid), pg_stat_get_db_xact_commit(oid)"
            " FROM pg_database WHERE datname = %s",
            [name],
        ).fetchone()
        return int(found[0]), int(found[1])

    def cost(self, chat: Any, call: Callable[[], object]) -> tuple[int, int]:
        """The statements and the commits of the call, without those of the look after it."""
        before = self._look(chat)
        call()
        after = self._look(chat)
        return after[0] - before[0] - 1, after[1] - before[1] - 1

    def updates(self, chat: Any, database: Database, call: Callable[[], object]) -> tuple[int, int]:
        """How many updates of chatlock_threads the call made, and how many of them were HOT."""
        own = database.connect()
        read = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'chatlock_threads'"
        self._flush(chat)
        before = own.execute(read).fetchone()
        call()
        self._flush(chat)
        after = own.execute(read).fetchone()
        return after[0] - before[0], after[1] - before[1]

    def close(self) -> None:
        self._elsewhere.dispose()


@pytest.fixture(scope="module")
def server(templates: Templates) -> Iterator[Server]:
    made = Server(templates)
    yield made
    made.close()


def submits(chat: Any, thread: str, times: int = 1) -> Callable[[], None]:
    def call() -> None:
        for n in range(times):
            assert chat.submit(thread, n).reply == "ok"

    return call


# -- PostgreSQL --------------------------------------------------------------------------------------------------------
def test_uncontended_turn_is_two_statements_and_two_commits(
    open_chat: OpenChat, pg_database: Database, server: Server
) -> None:
    chat = open_chat(pg_database)
    cost = server.cost(chat, submits(chat, "known", TURNS))
    assert cost == (2 * TURNS, 2 * TURNS)


def test_turn_that_the_caller_runs_costs_the_same(open_chat: OpenChat, pg_database: Database, server: Server) -> None:
    chat = open_chat(pg_database)
    cost = server.cost(chat, lambda: chat.begin("known", "hello").finish("ok"))
    assert cost == (2, 2)


def test_first_message_of_a_thread_is_two_statements_more(
    open_chat: OpenChat, pg_database: Database, server: Server
) -> None:
    chat = open_chat(pg_database)
    cost = server.cost(chat, submits(chat, "new"))
    assert cost == (4, 4)


def test_further_message_in_a_burst_is_one_statement(
    open_chat: OpenChat, pg_database: Database, server: Server
) -> None:
    chat = open_chat(pg_database)
    turn = chat.begin("known", "first")

    def burst() -> None:
        for n in range(TURNS):
            assert isinstance(chat.submit("known", n, wait_ms=0), Queued)

    cost = server.cost(chat, burst)
    assert cost == (TURNS, TURNS)
    turn.finish("ok")


def steered(chat: Any) -> Callable[[], None]:
    """A turn that one steered message joins."""

    def call() -> None:
        turn = chat.begin("known", "first")
        chat.submit("known", "second", policy="steer", wait_ms=0)
        assert [message.payload for message in turn.fetch()] == ["second"]
        turn.finish("ok")

    return call


def test_steered_message_costs_a_fetch_more(open_chat: OpenChat, pg_database: Database, server: Server) -> None:
    """Begin, submit and finish are one statement each; fetch is six, with BEGIN and COMMIT."""
    chat = open_chat(pg_database)
    steered(chat)()
    assert server.cost(chat, steered(chat)) == (3 + 6, 3 + 1)


def test_every_update_of_a_thread_is_hot(open_chat: OpenChat, pg_database: Database, server: Server) -> None:
    chat = open_chat(pg_database)

    def work() -> None:
        for n in range(TURNS):
            submits(chat, f"t{n}", 5)()

    assert server.updates(chat, pg_database, work) == (10 * TURNS, 10 * TURNS)


def test_control_locked_operations_cost_more(open_chat: OpenChat, pg_database: Database, server: Server) -> None:
    chat = open_chat(pg_database)
    chat._executor.hot = lambda name, op: None
    statements, commits = server.cost(chat, submits(chat, "known"))
    assert statements > 2
    assert commits == 2


def test_control_index_on_the_lease_ends_hot_updates(
    open_chat: OpenChat, pg_database: Database, server: Server
) -> None:
    chat = open_chat(pg_database)
    pg_database.connect().execute("CREATE INDEX of_the_lease ON chatlock_threads (expires_at)")
    assert server.updates(chat, pg_database, submits(chat, "known", 5)) == (10, 0)


# -- SQLite ------------------------------------------------------------------------------------------------------------
def trace(chat: Any) -> list[str]:
    """Every statement that the client's connections run from now on."""
    seen: list[str] = []
    engine = chat._executor.engine
    engine.dispose()
    event.listen(engine, "connect", lambda connection, record: connection.set_trace_callback(seen.append))
    chat.status("known", "none")
    seen.clear()
    return seen


def count(seen: list[str], word: str) -> int:
    return sum(statement.strip().upper().startswith(word) for statement in seen)


def test_uncontended_turn_on_sqlite_is_two_commits(open_chat: OpenChat, sqlite_database: Database) -> None:
    chat = open_chat(sqlite_database)
    seen = trace(chat)
    submits(chat, "known", TURNS)()
    assert (count(seen, "BEGIN"), count(seen, "COMMIT")) == (2 * TURNS, 2 * TURNS)
    assert count(seen, "ROLLBACK") == 0


def test_first_message_on_sqlite_is_in_the_same_two_commits(open_chat: OpenChat, sqlite_database: Database) -> None:
    chat = open_chat(sqlite_database)
    seen = trace(chat)
    submits(chat, "new")()
    assert count(seen, "COMMIT") == 2


def test_further_message_on_sqlite_is_one_commit(open_chat: OpenChat, sqlite_database: Database) -> None:
    chat = open_chat(sqlite_database)
    turn = chat.begin("known", "first")
    seen = trace(chat)
    chat.submit("known", "more", wait_ms=0)
    assert count(seen, "COMMIT") == 1
    turn.finish("ok")


def test_steered_message_on_sqlite_is_two_commits_more(open_chat: OpenChat, sqlite_database: Database) -> None:
    chat = open_chat(sqlite_database)
    seen = trace(chat)
    steered(chat)()
    assert (count(seen, "COMMIT"), count(seen, "ROLLBACK")) == (4, 0)


def test_control_trace_sees_a_commit_more(open_chat: OpenChat, sqlite_database: Database) -> None:
    chat = open_chat(sqlite_database)
    seen = trace(chat)
    with chat.turn("known", "hello") as turn:
        turn.mark("one commit more")
        turn.finish("ok")
    assert count(seen, "COMMIT") == 3


def test_waiting_costs_no_statement_of_its_own_where_the_turn_is_granted(
    open_chat: OpenChat, sqlite_database: Database
) -> None:
    chat = open_chat(sqlite_database)
    seen = trace(chat)
    submits(chat, "known")()
    assert not [statement for statement in seen if "FROM chatlock_messages JOIN" in statement]
