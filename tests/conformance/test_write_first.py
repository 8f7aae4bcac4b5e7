"""In the caller's own transaction the first statement writes: on SQLite that takes the lock a later write needs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event

from chatlock import Chatlock
from tests.support.databases import Database


@pytest.fixture
def chat(sqlite_database: Database) -> Iterator[Chatlock]:
    with Chatlock(sqlite_database.url, tenant="t", poller=False) as made:
        yield made


@contextmanager
def locked_by_the_first(engine: Engine, path: str) -> Iterator[list[bool]]:
    """Whether another writer is kept out, noted after each statement of the caller's transactions."""
    kept_out: list[bool] = []

    def look(*statement: Any) -> None:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
                kept_out.append(False)
            except sqlite3.OperationalError:
                kept_out.append(True)

    event.listen(engine, "after_cursor_execute", look)
    yield kept_out
    event.remove(engine, "after_cursor_execute", look)


@pytest.mark.parametrize("what", ["submit", "precondition", "finish", "fence"])
def test_first_statement_takes_the_write_lock(what: str, chat: Chatlock, sqlite_database: Database) -> None:
    path = sqlite_database.url.removeprefix("sqlite:///")
    acts: dict[str, Callable[[Any, Any], object]] = {
        "submit": lambda turn, conn: chat.submit("t2", "hello", conn=conn),
        "precondition": lambda turn, conn: chat.submit("t1", "hello", if_turn=turn.token, conn=conn),
        "finish": lambda turn, conn: turn.finish("ok", conn=conn),
        "fence": lambda turn, conn: turn.fence(conn),
    }
    engine = create_engine(sqlite_database.url)
    with chat.turn("t1", "hello") as turn, locked_by_the_first(engine, path) as kept_out:
        with engine.begin() as conn:
            acts[what](turn, conn)
        assert kept_out
        assert all(kept_out)
        if what != "finish":
            turn.finish("ok")
    engine.dispose()
