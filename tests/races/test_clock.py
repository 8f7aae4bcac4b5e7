"""The set clock itself: the product's own statements read it, in every process, and nothing else moves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chatlock import Chatlock, Queued, Turn
from chatlock.testing import DatabaseClock, MonotonicClock
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.databases import Database

HOUR_MS = 3_600_000
PREPARED_AFTER = 10
"""More executions than psycopg needs to prepare a statement."""


@pytest.fixture
def chat(database: Database) -> Iterator[Chatlock]:
    with Chatlock(database.url, tenant="acme", poller=False) as made:
        yield made


def test_every_statement_reads_the_set_clock(chat: Chatlock, database: Database) -> None:
    clock = DatabaseClock.install(database.url)
    clock.attach(chat)
    told = []
    for step in range(PREPARED_AFTER):
        told.append(clock.advance(HOUR_MS if step % 2 else 1))
        turn = chat.begin("t1", step)
        assert isinstance(turn, Turn)
        turn.finish("reply")
    rows = database.connect().execute(
        "SELECT m.received_at, t.started_at, t.ended_at FROM chatlock_messages m"
        " JOIN chatlock_turns t ON t.token = m.turn_token ORDER BY m.seq"
    )
    assert [set(row) for row in rows.fetchall()] == [{now} for now in told]


def test_clock_goes_back_and_stands_still(chat: Chatlock, database: Database) -> None:
    clock = DatabaseClock.install(database.url)
    clock.attach(chat)
    clock.set(1_000_000_000_001)
    clock.advance(-1)
    assert [chat.submit("t1", number, wait_ms=0).seq for number in range(3)] == [1, 2, 3]
    rows = database.connect().execute("SELECT DISTINCT received_at FROM chatlock_messages")
    assert rows.fetchall() == [(1_000_000_000_000,)]


def test_whole_protocol_runs_under_the_set_clock(chat: Chatlock, database: Database) -> None:
    """Lease, backoff and due times are judged by the statements' own WHERE."""
    clock = DatabaseClock.install(database.url)
    clock.attach(chat)
    turn = chat.begin("t1", "hello")
    assert isinstance(turn, Turn)
    turn.fail("no")

    @chat.handler()
    def answer(turn: Turn) -> str:
        return "reply"

    assert chat.sweep_once().turns == 0
    clock.advance(1_000)
    assert chat.sweep_once().turns == 1


WORKER = """
import sys
from chatlock import Chatlock
from chatlock.testing import DatabaseClock
chat = Chatlock(sys.argv[1], tenant="acme", poller=False)
DatabaseClock(sys.argv[1]).attach(chat)
print(f"stored {chat.submit('t1', 'there', wait_ms=0).seq}")
chat.close()
"""


def test_another_process_reads_the_same_clock(
    chat: Chatlock, database: Database, child: Callable[[Child], Child]
) -> None:
    clock = DatabaseClock.install(database.url)
    clock.attach(chat)
    clock.advance(HOUR_MS)
    stored = chat.submit("t1", "here", wait_ms=0)
    assert isinstance(stored, Queued)
    other = child(Child.python("-c", WORKER, database.url))
    other.wait_for("stored 2")
    assert other.wait() == 0
    rows = database.connect().execute("SELECT received_at FROM chatlock_messages").fetchall()
    assert rows == [(clock.now_ms,)] * 2


def test_clock_that_is_not_installed_is_reported(
    chat: Chatlock, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: a client that would go on reading the true time cannot be attached."""
    clock = DatabaseClock.install(database.url)
    clock.advance(HOUR_MS)
    monkeypatch.setattr(DatabaseClock, "_teach", lambda self, connection, record: None)
    if database.kind == "postgresql":
        connection = database.connect()
        connection.execute(f"ALTER DATABASE {connection.info.dbname} RESET search_path")
    with pytest.raises(AssertionError, match="the client's database tells"):
        clock.attach(chat)


def test_monotonic_clock_never_goes_back() -> None:
    clock = MonotonicClock()
    clock.advance(1_500)
    assert clock() == 1.5
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1)
