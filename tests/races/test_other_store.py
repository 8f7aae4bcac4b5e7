"""Writes to another database than chatlock's: fence(conn, resource=..) there, and what goes wrong without it.

The turn before has lost its claim and does not know; its successor takes over what it wrote: a counter in a ledger.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection, Engine

from chatlock import Chatlock, ClaimLost, InvalidInput, Turn
from tests.support.databases import KINDS, Database, Templates
from tests.support.waiting import SECONDS_MAX, blocked_backends, until

RESOURCE = "ledger"


@pytest.fixture(scope="module")
def chat(templates: Templates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chatlock]:
    home = templates.sqlite(tmp_path_factory.mktemp("home") / "chatlock.db")
    with Chatlock(home.url, tenant="t", poller=False) as made:
        yield made
    home.dispose()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def other(kind: str, templates: Templates, tmp_path: Path) -> Iterator[Database]:
    made = templates.sqlite(tmp_path / "other.db") if kind == "sqlite" else templates.postgresql()
    made.connect().execute("CREATE TABLE ledger (total integer)")
    made.connect().execute("INSERT INTO ledger VALUES (0)")
    yield made
    made.dispose()


@pytest.fixture
def engine(other: Database) -> Iterator[Engine]:
    made = create_engine(other.url)
    yield made
    made.dispose()


@pytest.fixture
def turns(chat: Chatlock, request: pytest.FixtureRequest) -> Iterator[tuple[Turn, Turn]]:
    """The turn that lost its claim, and its successor."""
    thread = request.node.name
    old = chat.begin(thread, "hello", message_id="m1")
    assert isinstance(old, Turn)
    assert chat.free(thread, turn=old.token, force=True).done
    new = chat.begin(thread, "hello", message_id="m1")
    assert isinstance(new, Turn)
    yield old, new
    new.release()


def total(other: Database) -> int:
    return int(other.connect().execute("SELECT total FROM ledger").fetchone()[0])


def read(conn: Connection) -> int:
    return int(conn.execute(text("SELECT total FROM ledger")).scalar_one())


def write(conn: Connection, value: int) -> None:
    conn.execute(text("UPDATE ledger SET total = :value"), {"value": value})


def added(engine: Engine, turn: Turn) -> None:
    """One fenced transaction that adds 1."""
    with engine.begin() as conn:
        turn.fence(conn, resource=RESOURCE)
        write(conn, read(conn) + 1)


def test_takeover_that_fences_before_it_reads_loses_no_update(
    engine: Engine, other: Database, turns: tuple[Turn, Turn]
) -> None:
    old, new = turns
    added(engine, old)  # it has not heard, and nobody has taken over here yet
    with engine.begin() as conn:
        new.fence(conn, resource=RESOURCE)
        seen = read(conn)
    with pytest.raises(ClaimLost):
        added(engine, old)
    with engine.begin() as conn:
        new.fence(conn, resource=RESOURCE)
        write(conn, seen + 1)
    assert total(other) == 2
    assert (old.lost, new.lost) == (True, False)


def test_control_takeover_that_reads_before_it_fences_loses_an_update(
    engine: Engine, other: Database, turns: tuple[Turn, Turn]
) -> None:
    old, new = turns
    with engine.begin() as conn:
        seen = read(conn)
    added(engine, old)
    with engine.begin() as conn:
        new.fence(conn, resource=RESOURCE)
        write(conn, seen + 1)
    assert total(other) == 1


@pytest.mark.parametrize("kind", ["postgresql"])
def test_fence_is_held_until_what_follows_it_commits(engine: Engine, other: Database, turns: tuple[Turn, Turn]) -> None:
    old, new = turns
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as conn:
            old.fence(conn, resource=RESOURCE)
            taking_over = pool.submit(added, engine, new)
            until(lambda: blocked_backends(other.connect()), what="the successor, which waits for the fence")
            write(conn, read(conn) + 1)
        taking_over.result(SECONDS_MAX)
    assert total(other) == 2


@pytest.mark.parametrize("kind", ["postgresql"])
def test_control_fence_in_a_transaction_before_the_write_lets_the_successor_between(
    engine: Engine, other: Database, turns: tuple[Turn, Turn]
) -> None:
    old, new = turns
    with engine.begin() as conn:
        old.fence(conn, resource=RESOURCE)
        seen = read(conn)
    added(engine, new)
    with engine.begin() as conn:
        write(conn, seen + 1)
    assert total(other) == 1


def test_drivers_own_connection_is_fenced_too(other: Database, kind: str, turns: tuple[Turn, Turn]) -> None:
    old, new = turns
    url = other.url.replace("+psycopg", "")
    conn: Any = psycopg.connect(url) if kind == "postgresql" else sqlite3.connect(url.removeprefix("sqlite:///"))
    for turn, name in ((new, RESOURCE), (old, "another")):
        turn.fence(conn, resource=name)
        conn.commit()
    with pytest.raises(ClaimLost):
        old.fence(conn, resource=RESOURCE)
    conn.close()


@pytest.mark.parametrize("resource", ["", "a\nb", "x" * 201, 7])
@pytest.mark.parametrize("kind", ["sqlite"])
def test_bad_resource_is_refused(engine: Engine, turns: tuple[Turn, Turn], resource: Any) -> None:
    with engine.begin() as conn, pytest.raises(InvalidInput, match="resource"):
        turns[1].fence(conn, resource=resource)
