"""First use: many come at once to a schema or a file that is not there yet (B04, B05)."""

from __future__ import annotations

import multiprocessing
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy

from chatlock import AlreadyAnswered, Chatlock, StoreUnavailable, dialects, executor, migrations
from chatlock.schema import SCHEMA_VERSION
from tests.acceptance.cases.support import SECONDS_MAX, TENANT, rows, stop_here, until
from tests.support import scaled
from tests.support.databases import connect
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.acceptance.cases.support import Callers
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]
    Keep = Callable[[Child], Child]

REPLICAS = 8
FORK = multiprocessing.get_context("fork")


# -- B04: concurrent setup ---------------------------------------------------------------------------------------------
def start_replica(database: Database, barrier: Any, number: int) -> None:
    """One of the processes that are deployed together on an empty database."""
    with Chatlock(database.url, tenant=TENANT, poller=False) as chat:
        barrier.wait(SECONDS_MAX)
        chat.setup()
        chat.submit(f"thread-{number}", "hello", wait_ms=0)


@pytest.mark.parametrize("revision", [0, SCHEMA_VERSION - 1], ids=["empty", "one_behind"])
def test_replicas_started_together_all_set_up(
    empty_database: Database, client: Client, child: Keep, revision: int
) -> None:
    """B04: eight processes call setup() at once on an empty or an old database; all succeed, and each can store."""
    if revision:
        engine = sqlalchemy.create_engine(empty_database.url, poolclass=sqlalchemy.NullPool)
        with engine.begin() as conn:
            migrations.upgrade(conn, revision)
    barrier = FORK.Barrier(REPLICAS)
    replicas = [
        child(Child.fork(lambda number=n: start_replica(empty_database, barrier, number))) for n in range(REPLICAS)
    ]
    assert [replica.wait() for replica in replicas] == [0] * REPLICAS, [replica.text for replica in replicas]
    assert [replica.text for replica in replicas] == [""] * REPLICAS
    assert len(rows(empty_database, "SELECT 1 FROM chatlock_threads")) == REPLICAS
    assert len(rows(empty_database, "SELECT 1 FROM chatlock_alembic_version")) == 1
    assert client(empty_database).verify().ok


def set_up_until(database: Database, table: str) -> None:
    """A migrator that stops before it creates `table`."""

    def stop(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.lstrip().startswith(f"CREATE TABLE {table}"):
            stop_here(table)

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", stop)
    Chatlock(database.url, tenant=TENANT, poller=False).setup()


def test_the_next_replica_completes_the_setup_of_a_killed_one(
    empty_database: Database, client: Client, child: Keep
) -> None:
    """B04: a migrator is killed half-way; nothing of it is seen, and the next one completes."""
    killed = child(Child.fork(lambda: set_up_until(empty_database, "chatlock_turns")))
    killed.wait_for("stopped at chatlock_turns")
    killed.kill()
    chat = client(empty_database)
    chat.setup()
    chat.submit("thread", "hello", wait_ms=0)
    assert len(rows(empty_database, "SELECT 1 FROM chatlock_alembic_version")) == 1
    assert chat.verify().ok


# -- B05: SQLite's first open ------------------------------------------------------------------------------------------
OPENERS = 16


def open_files(directory: Path, files: int, barrier: Any, number: int) -> None:
    """One of the processes that open each missing file together, and store a message in it."""
    for file in range(files):
        barrier.wait(SECONDS_MAX)
        with Chatlock(f"sqlite:///{directory}/{file}.db", tenant=TENANT, poller=False) as chat:
            chat.setup()
            chat.submit(f"thread-{number}", "hello", wait_ms=0)


@pytest.mark.parametrize("repetition", range(scaled(1, 10)))
def test_processes_that_open_a_missing_file_together_all_store(tmp_path: Path, child: Keep, repetition: int) -> None:
    """B05: the switch to WAL ignores SQLite's busy timeout; no opener fails all the same."""
    files, barrier = scaled(1, 5), FORK.Barrier(OPENERS)
    openers = [child(Child.fork(lambda number=n: open_files(tmp_path, files, barrier, number))) for n in range(OPENERS)]
    assert [opener.wait(SECONDS_MAX * 2) for opener in openers] == [0] * OPENERS, [opener.text for opener in openers]
    for file in range(files):
        with closing(connect(f"sqlite:///{tmp_path}/{file}.db")) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert connection.execute("SELECT count(*) FROM chatlock_messages").fetchone() == (OPENERS,)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each attempt to open a file ended: the name of its error, or `open`."""
    attempts: list[str] = []
    original = dialects._switch_to_wal

    def counted(connection: Any) -> None:
        try:
            original(connection)
        except sqlite3.OperationalError as error:
            attempts.append(error.sqlite_errorname)
            raise
        attempts.append("open")

    monkeypatch.setattr(dialects, "_switch_to_wal", counted)
    return attempts


def open_while_exclusively_locked(tmp_path: Path, callers: Callers, opened: list[str]) -> Any:
    """A first use while another process holds a fresh rollback-journal file; it is let go once the open met it."""
    with closing(connect(f"sqlite:///{tmp_path}/fresh.db")) as holder:
        holder.execute("CREATE TABLE mine (id integer)")
        holder.execute("BEGIN EXCLUSIVE")
        chat = Chatlock(f"sqlite:///{tmp_path}/fresh.db", tenant=TENANT, poller=False)
        done = callers.call(chat.setup)
        until(lambda: opened, what="an attempt to open the file")
        holder.execute("COMMIT")
        error = done.exception(SECONDS_MAX)
        chat.close()
        return error


def test_file_that_is_locked_while_it_is_opened_is_waited_for(
    tmp_path: Path, callers: Callers, opened: list[str]
) -> None:
    """B05: the open meets an exclusive lock, comes again, and switches the file to WAL."""
    assert open_while_exclusively_locked(tmp_path, callers, opened) is None
    assert opened[0] == "SQLITE_BUSY"
    assert opened[-1] == "open"


def test_control_an_open_that_does_not_come_again_fails(
    tmp_path: Path, callers: Callers, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of B05: without the repeated open a busy file is an error."""
    monkeypatch.setattr(executor, "BUSY_S", -1.0)
    assert isinstance(open_while_exclusively_locked(tmp_path, callers, opened), StoreUnavailable)


def test_file_that_cannot_have_a_write_ahead_log_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """B05: where WAL cannot be set (no shared memory, as on a network disk) one typed error names the remedy."""
    url = f"sqlite:///file:{tmp_path}/network.db?vfs=unix-dotfile&uri=true"
    with Chatlock(url, tenant=TENANT, poller=False) as chat, pytest.raises(StoreUnavailable, match="local disk"):
        chat.setup()


def test_process_that_starts_again_answers_what_waited(database: Database) -> None:
    """setup is enough: its client polls, although nobody calls it."""
    with Chatlock(database.url, tenant=TENANT, poller=False) as before:
        before.submit("thread", "hello", message_id="m1", wait_ms=0)
    with Chatlock(database.url, tenant=TENANT) as chat, Chatlock(database.url, tenant=TENANT, poller=False) as other:
        chat.handler()(lambda turn: "done")
        chat.setup()
        until(lambda: isinstance(other.status("thread", "m1"), AlreadyAnswered), what="the answer")
