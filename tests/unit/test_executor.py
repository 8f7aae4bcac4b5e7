"""How an operation is run: its transaction, its points, its retries and its errors; and who goes in before whom."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.engine import Connection

from chatlock import executor as executor_module
from chatlock import migrations
from chatlock.errors import (
    Closed,
    InvalidInput,
    LoginRefused,
    SchemaMismatch,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from chatlock.executor import Executor
from chatlock.ops.hot import NotAsHeld
from chatlock.turnstile import Turnstile
from tests.support.waiting import SECONDS_MAX, until


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path}/chat.db"
    engine = sqlalchemy.create_engine(made)
    with engine.begin() as conn:
        migrations.upgrade(conn)
        conn.exec_driver_sql("CREATE TABLE notes (text text)")
    engine.dispose()
    return made


@pytest.fixture
def executor(url: str) -> Iterator[Executor]:
    made = Executor(url, pool_size=2, pooler=None)
    yield made
    made.close()


RELATIVE = ["sqlite:///chat.db", "sqlite:///file:chat.db?uri=true", "sqlite:///chat.db?uri=true"]


@pytest.mark.parametrize("relative", RELATIVE)
def test_a_relative_path_outlives_a_change_of_directory(
    url: str, relative: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    made = Executor(relative, pool_size=2, pooler=None)
    monkeypatch.chdir(elsewhere)
    assert made.transaction("test", note) == "done"
    assert made.beat(lambda c: c.exec_driver_sql("SELECT count(*) FROM notes").scalar_one()) == 1
    made.close()
    assert list(elsewhere.iterdir()) == []


def test_a_relative_uri_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (odd := tmp_path / "50%3F of #it").mkdir()
    monkeypatch.chdir(odd)
    made = Executor("sqlite:///file:chat.db?uri=true", pool_size=2, pooler=None)
    made.set_up(migrations.upgrade)
    made.close()
    assert [path.name for path in odd.iterdir()] == ["chat.db"]


@pytest.mark.parametrize("path", ["{}/typo.db", "file:{}/typo%2Edb?uri=true", "file://localhost{}/typo.db?uri=true"])
def test_only_setup_makes_the_file(tmp_path: Path, path: str) -> None:
    made = Executor(f"sqlite:///{path.format(tmp_path)}", pool_size=2, pooler=None)
    for run in (lambda: made.read("test", notes_of), lambda: made.beat(notes_of)):
        with pytest.raises(StoreUnavailable, match="no such SQLite file"):
            run()
        assert list(tmp_path.iterdir()) == []
    made.set_up(migrations.upgrade)
    assert made.read("test", migrations.current) == migrations.SCHEMA_VERSION
    made.close()


def notes_of(conn: Connection) -> int:
    return int(conn.exec_driver_sql("SELECT count(*) FROM notes").scalar_one())


def note(conn: Connection) -> str:
    conn.exec_driver_sql("INSERT INTO notes VALUES ('written')")
    return "done"


def notes(executor: Executor) -> int:
    return int(executor.read("test", lambda c: c.exec_driver_sql("SELECT count(*) FROM notes").scalar_one()))


def driver_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("SELECT secret FROM chat WHERE password = 'hunter2'")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "SQLITE_TEST"
    return error


class Lost(Exception):
    """A connection that broke, as a driver tells it."""

    sqlstate = "08006"


class Failing:
    """An operation that fails so many times with what a driver raises, and then writes."""

    def __init__(self, error: Exception, times: int) -> None:
        self._error, self._times, self.calls = error, times, 0

    def __call__(self, conn: Connection) -> str:
        self.calls += 1
        note(conn)
        if self.calls <= self._times:
            raise self._error
        return "done"


# -- transactions and points -------------------------------------------------------------------------------------------
def test_nothing_is_opened_before_the_first_use(tmp_path: Path) -> None:
    made = Executor(f"sqlite:///{tmp_path}/never.db", pool_size=2, pooler=None)
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_operation_commits_and_gives_its_result(executor: Executor) -> None:
    assert executor.transaction("test", note) == "done"
    assert notes(executor) == 1


@pytest.mark.parametrize("error", [ValueError, AssertionError, InvalidInput("x", "y"), KeyboardInterrupt])
def test_operation_that_raises_is_rolled_back_and_not_repeated(executor: Executor, error: Any) -> None:
    calls = []

    def op(conn: Connection) -> None:
        calls.append(note(conn))
        raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        executor.transaction("test", op)
    assert (notes(executor), len(calls)) == (0, 1)


def test_points_name_the_operation_before_its_first_statement_and_before_its_commit(executor: Executor) -> None:
    assert executor.engine
    seen: list[str] = []
    executor.points = seen.append

    def op(conn: Connection) -> None:
        seen.append("the operation")

    executor.transaction("test", op)
    assert seen == ["test.begin", "the operation", "test.commit"]


def test_hot_operation_has_the_same_points(executor: Executor) -> None:
    assert executor.engine
    seen: list[str] = []
    executor.points = seen.append
    assert executor.hot("test", lambda cursor: seen.append("the operation")) is None
    assert seen == ["test.begin", "the operation", "test.commit"]


def test_hot_operation_that_met_something_else_is_rolled_back_and_none(executor: Executor) -> None:
    def op(cursor: Any) -> None:
        cursor.execute("INSERT INTO notes VALUES ('hot')")
        raise NotAsHeld

    assert executor.hot("test", op) is None
    assert notes(executor) == 0


def test_snapshot_sees_one_moment_and_writes_nothing(executor: Executor, url: str) -> None:
    other = Executor(url, pool_size=1, pooler=None)

    def op(conn: Connection) -> tuple[int, int]:
        count = "SELECT count(*) FROM notes"
        before = conn.exec_driver_sql(count).scalar_one()
        other.transaction("test", note)
        return before, conn.exec_driver_sql(count).scalar_one()

    assert executor.snapshot("test", op) == (0, 0)
    assert notes(executor) == 1
    other.close()


def test_connections_go_back_to_the_pool(executor: Executor) -> None:
    opened: list[Any] = []
    sqlalchemy.event.listen(executor.engine, "connect", lambda *connection: opened.append(connection))
    for _ in range(10):
        executor.transaction("test", note)
        with pytest.raises(ValueError, match="x"):
            executor.transaction("test", lambda c: (_ for _ in ()).throw(ValueError("x")))
    assert executor.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    assert opened == []  # those that failed too: they were rolled back, and go on


# -- retries and errors ------------------------------------------------------------------------------------------------
def test_busy_file_is_tried_again_from_the_start(executor: Executor) -> None:
    op = Failing(driver_error(sqlite3.SQLITE_BUSY), times=3)
    assert executor.transaction("test", op) == "done"
    assert (op.calls, notes(executor)) == (4, 1)


def test_file_that_stays_busy_is_given_up_typed(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "BUSY_S", -1.0)
    op = Failing(driver_error(sqlite3.SQLITE_BUSY), times=100)
    with pytest.raises(StoreUnavailable, match="locked by another writer") as told:
        executor.transaction("test", op)
    assert (op.calls, told.value.commit_unknown) == (1, False)


def test_connection_that_broke_is_made_anew(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor._gate, "sleep", lambda seconds: None)
    op = Failing(Lost(), times=executor_module.RECONNECTS_MAX)
    assert executor.transaction("test", op) == "done"
    assert notes(executor) == 1


@pytest.mark.parametrize(("cut_at", "unknown"), [("INSERT", False), ("COMMIT", True)])
def test_connection_that_stays_lost_tells_whether_its_commit_may_have_arrived(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, cut_at: str, unknown: bool
) -> None:
    def cut(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith(cut_at):
            raise Lost

    monkeypatch.setattr(executor._gate, "sleep", lambda seconds: None)
    sqlalchemy.event.listen(executor.engine, "before_cursor_execute", cut)
    with pytest.raises(StoreUnavailable) as told:
        executor.transaction("test", note)
    assert told.value.commit_unknown is unknown


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, StoreFull),
        (sqlite3.SQLITE_READONLY, StoreReadOnly),
        (sqlite3.SQLITE_CORRUPT, StoreUnavailable),
    ],
)
def test_error_of_the_database_is_typed_and_not_repeated(executor: Executor, code: int, kind: type) -> None:
    op = Failing(driver_error(code), times=100)
    with pytest.raises(kind):
        executor.transaction("test", op)
    assert (op.calls, notes(executor)) == (1, 0)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT])
def test_error_shows_no_statement_and_no_value(executor: Executor, code: int) -> None:
    with pytest.raises(StoreUnavailable) as told:
        executor.transaction("test", Failing(driver_error(code), times=100))
    chain = [told.value, told.value.__cause__]
    assert not any(word in str(error) for error in chain for word in ("SELECT", "secret", "hunter2"))
    assert told.value.__suppress_context__


REFUSALS = {
    'FATAL:  password authentication failed for user "hunter2"': "refused the login",
    'FATAL:  no pg_hba.conf entry for host "::1", user "hunter2", database "app", no encryption': "refused the login",
    'FATAL:  role "hunter2" is not permitted to log in': "refused the login",
    'FATAL:  permission denied for database "hunter2"': "refused the login",
    "FATAL:  SASL authentication failed": "refused the login",
    'FATAL:  database "hunter2" does not exist': "has no such database",
}


@pytest.mark.parametrize("text", REFUSALS)
def test_refused_login_is_told_at_once_and_apart_from_an_outage(executor: Executor, text: str) -> None:
    op = Failing(psycopg.OperationalError(f"connection failed: {text}"), times=1)
    with pytest.raises(LoginRefused, match=REFUSALS[text]) as told:
        executor.transaction("test", op)
    assert (op.calls, "hunter2" in str(told.value)) == (1, False)


def test_control_server_that_goes_away_is_tried_again(executor: Executor) -> None:
    op = Failing(psycopg.OperationalError("server closed the connection unexpectedly"), times=1)
    assert (executor.transaction("test", op), op.calls) == ("done", 2)


def test_missing_tables_name_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    made = Executor(f"sqlite:///{tmp_path}/empty.db", pool_size=1, pooler=None)
    with pytest.raises(SchemaMismatch, match="chatlock db upgrade"):
        made.transaction("test", note)
    made.close()


def test_closed_executor_refuses(executor: Executor) -> None:
    executor.transaction("test", note)
    executor.close()
    for way in (executor.transaction, executor.read, executor.snapshot):
        with pytest.raises(Closed):
            way("test", note)
    with pytest.raises(Closed):
        executor.hot("test", lambda cursor: None)
    with pytest.raises(Closed):
        executor.beat(note)


# -- the line of writers -----------------------------------------------------------------------------------------------
def test_writers_go_in_by_order_of_arrival() -> None:
    turnstile, order = Turnstile(), []

    def visit(number: int) -> None:
        with turnstile.ticket():
            order.append(number)

    with turnstile.ticket():
        os_threads = []
        for number in range(5):
            os_threads.append(threading.Thread(target=visit, args=[number]))
            os_threads[-1].start()
            until(lambda number=number: len(turnstile._line) == number + 2)
        assert order == []
    for os_thread in os_threads:
        os_thread.join(SECONDS_MAX)
    assert order == [0, 1, 2, 3, 4]


def test_writer_that_fails_lets_the_next_one_in() -> None:
    turnstile = Turnstile()
    with pytest.raises(ValueError, match="x"), turnstile.ticket():
        raise ValueError("x")
    with turnstile.ticket():
        pass
    assert not turnstile._line


def test_wait_that_is_broken_off_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    turnstile = Turnstile()
    ticket = turnstile.ticket()
    with turnstile.ticket():
        door = SimpleNamespace(acquire=Mock(side_effect=KeyboardInterrupt), release=Mock())
        monkeypatch.setattr(ticket, "_door", door)
        with pytest.raises(KeyboardInterrupt):
            ticket.__enter__()
        assert len(turnstile._line) == 1
    with turnstile.ticket():
        pass
