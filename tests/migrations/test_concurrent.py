"""Starters that race to upgrade one database, and one that is killed on the way."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from sqlalchemy.exc import DBAPIError

import chatlock
import chatlock.migrations
from chatlock.migrations import transaction
from tests.migrations import stages
from tests.migrations.stages import NEWEST, NEXT, number, plain_connection, tables, upgrade_to_next
from tests.support.processes import Child
from tests.support.waiting import SECONDS_MAX, Gate, blocked_backends, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database

STARTERS = 8


def assert_complete(database: Database) -> None:
    with plain_connection(database) as conn:
        assert chatlock.migrations.current(conn) == number(conn, "schema") == NEXT
        assert {"chatlock_threads", "chatlock_next"} <= tables(conn)


class Complaints(logging.Handler):
    """Prints what is logged as a warning or worse."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            print("complaint:", record.getMessage())


def start(database: Database, barrier: Any) -> None:
    """What each starter does, in a process of its own."""
    logging.getLogger().addHandler(Complaints())
    stages.midway = lambda: print("applied")
    with plain_connection(database) as conn:
        barrier.wait(SECONDS_MAX)
        upgrade_to_next(conn)
        assert chatlock.migrations.current(conn) == NEXT
    print("started")


def race(database: Database, child: Callable[[Child], Child]) -> list[str]:
    barrier = multiprocessing.get_context("fork").Barrier(STARTERS)
    starters = [child(Child.fork(lambda: start(database, barrier))) for _ in range(STARTERS)]
    codes = [starter.wait() for starter in starters]
    printed = [starter.text for starter in starters]
    assert codes == [0] * STARTERS, "\n".join(printed)
    return printed


def test_starters_together_on_an_empty_database(empty_database: Database, child: Callable[[Child], Child]) -> None:
    printed = race(empty_database, child)
    assert sum("applied" in text for text in printed) == 1
    assert not any("complaint" in text for text in printed)
    assert_complete(empty_database)


def test_starters_together_on_a_database_one_revision_behind(
    database: Database, child: Callable[[Child], Child]
) -> None:
    printed = race(database, child)
    assert sum("applied" in text for text in printed) == 1
    assert not any("complaint" in text for text in printed)
    assert_complete(database)


def set_up(url: str, barrier: Any) -> None:
    """As an application starts: its client makes the tables."""
    logging.getLogger().addHandler(Complaints())
    with chatlock.Chatlock(url, tenant="acme", poller=False) as chat:
        barrier.wait(SECONDS_MAX)
        chat.setup()
        assert chat.verify().ok


def test_clients_together_set_up_a_database_that_is_not_there_yet(
    empty_database: Database, child: Callable[[Child], Child]
) -> None:
    if empty_database.kind == "sqlite":
        Path(str(sqlalchemy.make_url(empty_database.url).database)).unlink()
    barrier = multiprocessing.get_context("fork").Barrier(STARTERS)
    url = empty_database.url
    starters = [child(Child.fork(lambda: set_up(url, barrier))) for _ in range(STARTERS)]
    codes = [starter.wait() for starter in starters]
    printed = "\n".join(starter.text for starter in starters)
    assert codes == [0] * STARTERS, printed
    assert "complaint" not in printed


def be_killed_midway(database: Database) -> None:
    def wait_to_be_killed() -> None:
        print("midway")
        signal.pause()

    stages.midway = wait_to_be_killed
    with plain_connection(database) as conn:
        upgrade_to_next(conn)


def test_the_next_starter_completes_what_a_killed_one_began(
    empty_database: Database, child: Callable[[Child], Child]
) -> None:
    killed = child(Child.fork(lambda: be_killed_midway(empty_database)))
    killed.wait_for("midway")
    killed.kill()
    with plain_connection(empty_database) as conn:
        upgrade_to_next(conn)
    assert_complete(empty_database)


def test_a_starter_killed_midway_leaves_the_old_revision_whole(
    database: Database, child: Callable[[Child], Child]
) -> None:
    killed = child(Child.fork(lambda: be_killed_midway(database)))
    killed.wait_for("midway")
    killed.kill()
    with plain_connection(database) as conn:
        assert chatlock.migrations.current(conn) == number(conn, "schema") == NEWEST
        assert "chatlock_next" not in tables(conn)
        chatlock.migrations.check(conn)
        conn.rollback()
        upgrade_to_next(conn)
    assert_complete(database)


def upgrade_beside(database: Database, about_to_wait: threading.Event, **options: Any) -> None:
    """The second starter: tells when it is about to run the statement that must wait."""
    must_wait = ("BEGIN IMMEDIATE", "CREATE TABLE", "SELECT pg_advisory_xact_lock")

    def watch(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.strip().startswith(must_wait):
            about_to_wait.set()

    with plain_connection(database, **options) as conn:
        sqlalchemy.event.listen(conn, "before_cursor_execute", watch)
        upgrade_to_next(conn)


def meet_midway(database: Database, monkeypatch: pytest.MonkeyPatch, **options: Any) -> BaseException | None:
    """A second starter comes while the first is midway; how the second one ends."""
    gate, about_to_wait = Gate(), threading.Event()
    monkeypatch.setattr(stages, "midway", gate.hold)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(upgrade_beside, database, threading.Event())
        gate.wait_entered()
        second = pool.submit(upgrade_beside, database, about_to_wait, **options)
        assert about_to_wait.wait(SECONDS_MAX)
        if database.kind == "postgresql":
            watcher = database.connect()
            until(lambda: blocked_backends(watcher), what="the second starter's wait")
        gate.open()
        first.result(SECONDS_MAX)
        return second.exception(SECONDS_MAX)


def test_a_second_starter_waits_for_the_first(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    assert meet_midway(database, monkeypatch) is None
    assert_complete(database)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"])
def test_a_second_starter_reads_the_revision_after_its_wait(
    pg_database: Database, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert meet_midway(pg_database, monkeypatch, isolation_level=level) is None
    assert_complete(pg_database)


def test_without_the_lock_the_second_starter_fails(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "LOCK_SQL", "SELECT 1")
    monkeypatch.setitem(transaction.BEGIN, "sqlite", "BEGIN")
    assert isinstance(meet_midway(database, monkeypatch), DBAPIError)
    assert_complete(database)
