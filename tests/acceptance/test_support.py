"""The tools of the suite itself: each has to do what it says, and to fail when it should."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from tests.support.databases import connect
from tests.support.processes import Child
from tests.support.servers import PG_PROGRAMS, PostgreSQL, ServerFailed, Valkey, postgres_programs
from tests.support.waiting import Gate, blocked_backends, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.databases import Database, Templates
    from tests.support.servers import Endpoint

    Keep = Callable[[Child], Child]


def tables(database: Database) -> set[str]:
    query = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table'",
        "postgresql": "SELECT tablename FROM pg_tables WHERE schemaname = 'public'",
    }
    return {row[0] for row in database.connect().execute(query[database.kind])}


def test_database_has_the_schema(database: Database) -> None:
    assert "chatlock_threads" in tables(database)


def test_empty_database_has_no_table(empty_database: Database) -> None:
    assert tables(empty_database) == set()


def test_databases_of_two_tests_share_nothing(templates: Templates, tmp_path: Path) -> None:
    for make in (lambda name: templates.sqlite(tmp_path / name), lambda _: templates.postgresql()):
        first, second = make("first"), make("second")
        first.connect().execute("CREATE TABLE mine (id integer)")
        assert "mine" in tables(first)
        assert "mine" not in tables(second)
        first.dispose()
        second.dispose()


def test_disposed_database_is_gone(templates: Templates, tmp_path: Path) -> None:
    path = tmp_path / "gone.db"
    templates.sqlite(path).dispose()
    assert not path.exists()
    database = templates.postgresql()
    held = connect(database.url)
    database.dispose()
    with pytest.raises(psycopg.OperationalError):
        held.execute("SELECT 1")
    held.close()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        connect(database.url)


def test_sqlite_databases_use_the_write_ahead_log(
    templates: Templates, sqlite_database: Database, tmp_path: Path
) -> None:
    empty = templates.sqlite(tmp_path / "empty.db", empty=True)
    for database in (sqlite_database, empty):
        assert database.connect().execute("PRAGMA journal_mode").fetchone() == ("wal",)
    empty.dispose()


def test_statements_can_be_counted_at_the_server(pg_database: Database) -> None:
    connection = pg_database.connect()
    connection.execute("CREATE EXTENSION pg_stat_statements")
    connection.execute("SET pg_stat_statements.track = 'top'")
    connection.execute("SELECT 42 AS counted")
    counted = connection.execute(
        "SELECT calls FROM pg_stat_statements WHERE query LIKE '%counted%' AND dbid ="
        " (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    assert counted.fetchone() == (1,)


def test_killed_postgresql_keeps_what_it_committed() -> None:
    with PostgreSQL() as server:
        with connect(server.url) as connection:
            connection.execute("CREATE TABLE kept (id integer)")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            connect(server.url)
        server.start()
        with connect(server.url) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    assert not server.directory.exists()


def test_killed_valkey_comes_back_empty_on_its_port() -> None:
    with Valkey() as server:
        with redis.Redis.from_url(server.url) as client:
            client.set("held", "1")
        server.kill()
        server.start()
        with redis.Redis.from_url(server.url) as client:
            assert client.get("held") is None
    assert not server.directory.exists()


def test_server_that_cannot_start_says_why() -> None:
    server = PostgreSQL({"no_such_setting": 1})
    with pytest.raises(ServerFailed, match="no_such_setting"):
        server.start()
    assert not server.directory.exists()


def test_redis_database_is_empty(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0


def test_existing_servers_are_used(
    request: pytest.FixtureRequest, pg_server: Endpoint, valkey_server: Endpoint, child: Keep
) -> None:
    test = f"{request.path}::test_database_has_the_schema"
    environment = {
        "CHATLOCK_TEST_PG_URL": pg_server.url,
        "CHATLOCK_TEST_REDIS_URL": valkey_server.url,
    }
    run = child(Child.python("-m", "pytest", "-q", test, environment=environment))
    assert run.wait() == 0, run.text
    nowhere = {"CHATLOCK_TEST_PG_URL": "postgresql+psycopg://postgres@127.0.0.1:1/postgres"}
    run = child(Child.python("-m", "pytest", "-q", test, environment=nowhere))
    assert run.wait() == 1, run.text


def test_another_postgresql_is_chosen_by_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PG_PROGRAMS, str(tmp_path))
    assert postgres_programs() == tmp_path


def test_until_returns_the_value_and_is_bounded() -> None:
    values = iter([0, None, 7])
    assert until(lambda: next(values)) == 7
    with pytest.raises(AssertionError, match="the moon did not hold"):
        until(lambda: False, timeout=0.01, what="the moon")


def test_gate_holds_until_it_is_opened() -> None:
    gate, passed = Gate(), threading.Event()

    def enter() -> None:
        gate.hold()
        passed.set()

    os_thread = threading.Thread(target=enter)
    os_thread.start()
    gate.wait_entered()
    assert not passed.is_set()
    gate.open()
    os_thread.join()
    assert passed.is_set()


def test_blocked_backend_names_who_blocks_it(pg_database: Database) -> None:
    holder, waiter, observer = (pg_database.connect() for _ in range(3))
    holder.execute("SELECT pg_advisory_lock(1)")
    assert blocked_backends(observer) == []
    os_thread = threading.Thread(target=waiter.execute, args=["SELECT pg_advisory_lock(1)"])
    os_thread.start()
    (blocked,) = until(lambda: blocked_backends(observer))
    assert blocked.pid == waiter.info.backend_pid
    assert blocked.blockers == (holder.info.backend_pid,)
    holder.execute("SELECT pg_advisory_unlock(1)")
    os_thread.join()


def ready_and_wait() -> None:
    print("ready")
    signal.pause()


@pytest.mark.parametrize("start", ["fork", "python"])
def test_child_is_waited_for_and_killed(start: str, child: Keep) -> None:
    if start == "fork":
        process = child(Child.fork(ready_and_wait))
    else:
        code = "from tests.acceptance.test_support import ready_and_wait as f; f()"
        process = child(Child.python("-c", code))
    assert process.wait_for("read") == "ready"
    process.kill()
    assert process.wait() == -signal.SIGKILL


def test_child_reports_its_exit_code_and_its_output(child: Keep) -> None:
    process = child(Child.python("-c", "print('first'); print('second'); raise SystemExit(3)"))
    assert process.wait() == 3
    assert process.wait_for("second") == "second"
    assert process.text == "first\nsecond\n"


def test_child_that_fails_shows_its_error(child: Keep) -> None:
    process = child(Child.fork(lambda: 1 / 0))
    assert process.wait() == 1
    assert "ZeroDivisionError" in process.text


def test_child_that_never_prints_the_line_fails_the_wait(child: Keep) -> None:
    process = child(Child.fork(lambda: print("something else")))
    with pytest.raises(AssertionError, match="something else"):
        process.wait_for("ready")


def test_child_is_killed_with_all_that_it_started(child: Keep) -> None:
    code = f"import os; os.system('{sys.executable} -c \"import signal; signal.pause()\" & echo $!')"
    process = child(Child.python("-c", code))
    started = int(process.wait_for(""))
    process.kill()

    def gone() -> bool:
        try:
            os.kill(started, 0)
        except ProcessLookupError:
            return True
        with open(f"/proc/{started}/stat") as stat:
            return stat.read().split()[2] == "Z"

    assert until(gone)
