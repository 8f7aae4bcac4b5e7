"""A conflict, a lost turn or a full disk spoils no later turn of the same client (B63)."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event

from chatlock import Answered, Chatlock, ClaimLost, Conflict, Queued, StoreFull, Turn
from tests.acceptance.cases.recovery import STILL, dispositions, dump, turn_states
from tests.acceptance.cases.support import (
    age_claim,
    assert_invariants,
    message_rows,
    quiesce,
    reclaim_aged,
    rows,
    skip_backoff,
    thread_row,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.databases import Database

    Client = Callable[..., Chatlock]

LARGE = "x" * 200_000


GROWTH = {"messages": "INSERT", "turns": "UPDATE OF reply"}
"""The writes that need more room than the row that they replace."""


class Disk:
    """The room that a client's database has: on SQLite a limit of pages, on PostgreSQL an error for the same reason.

    A tablespace with a quota needs a file system of its own; there a trigger raises the server's own disk_full
    (SQLSTATE 53100) at every row that a full disk would refuse.
    """

    def __init__(self, database: Database, chat: Any) -> None:
        self._database, self._full = database, False
        if database.kind == "sqlite":
            event.listen(chat._executor.engine, "checkout", self._limit)

    def _limit(self, connection: Any, record: Any, proxy: Any) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages if self._full else 1 << 30}").fetchone()

    @contextmanager
    def full(self, refused: dict[str, str] = GROWTH) -> Iterator[None]:
        """No table grows any more.  refused: what PostgreSQL refuses, by table."""
        self._full = True
        if self._database.kind == "postgresql":
            rows(
                self._database,
                "CREATE FUNCTION disk_full() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100'; END $$",
            )
            for table, moment in refused.items():
                rows(
                    self._database,
                    f"CREATE TRIGGER disk_full BEFORE {moment} ON chatlock_{table} FOR EACH ROW"
                    " EXECUTE FUNCTION disk_full()",
                )
        try:
            yield
        finally:
            self._full = False
            if self._database.kind == "postgresql":
                rows(self._database, "DROP FUNCTION disk_full() CASCADE")


def persist_ten_turns(database: Database, chat: Chatlock) -> None:
    """Ten turns through the same client are answered, and stored as told."""
    for number in range(10):
        outcome = chat.submit("thread", f"normal {number}", message_id=f"normal-{number}")
        assert isinstance(outcome, Answered)
        stored = {message["message_id"]: message for message in message_rows(database, "thread")}
        assert stored[f"normal-{number}"]["disposition"] == "answered"
        assert stored[f"normal-{number}"]["turn_token"] == outcome.turn


@pytest.fixture
def chat(database: Database, client: Client) -> Chatlock:
    """One client for the whole case, with a handler whose reply is as large as the message asks for."""
    made = client(database, limits=STILL)
    made.handler()(lambda turn: LARGE if turn.messages[-1].payload == "large" else "answer")
    return made


def test_turns_persist_after_a_conflict(database: Database, chat: Chatlock) -> None:
    """B63: the same id with another payload."""
    assert isinstance(chat.submit("thread", "one", message_id="m1"), Answered)
    before = dump(database)
    assert chat.submit("thread", "other", message_id="m1") == Conflict(message_id="m1", seq=1)
    assert dump(database) == before
    persist_ten_turns(database, chat)
    assert_invariants(database, chat)


def test_turns_persist_after_a_lost_turn(database: Database, chat: Chatlock) -> None:
    """B63: the claim was reclaimed under the turn."""

    def lose() -> None:
        with chat.turn("thread", "one", message_id="m1") as turn:
            age_claim(database, "thread")
            assert reclaim_aged(chat) == 1
            turn.finish("late")

    with pytest.raises(ClaimLost):
        lose()
    skip_backoff(database)
    persist_ten_turns(database, chat)
    quiesce(chat, database)
    assert_invariants(database, chat)


def test_message_that_finds_the_disk_full_is_refused_loudly(database: Database, chat: Chatlock) -> None:
    """B63: StoreFull, and nothing of the message is stored; once there is room ten turns persist."""
    persist = chat.submit("thread", "before", message_id="before")
    assert isinstance(persist, Answered)
    disk, before = Disk(database, chat), dump(database)
    with disk.full():
        for _ in range(3):
            with pytest.raises(StoreFull, match="free space"):
                chat.submit("thread", LARGE, message_id="m1")
        assert dump(database) == before
    persist_ten_turns(database, chat)
    quiesce(chat, database)
    assert_invariants(database, chat)


def test_turn_that_finds_the_disk_full_is_never_told_answered(database: Database, chat: Chatlock) -> None:
    """B63: the reply cannot be stored: the turn fails, the thread is free again, and the message is answered later."""
    assert isinstance(chat.submit("thread", "before", message_id="before"), Answered)
    disk = Disk(database, chat)

    def fill(turn: Turn) -> str:
        filled.enter_context(disk.full())
        return LARGE

    with ExitStack() as filled:
        chat.handler("filling")(fill)
        outcome = chat.submit("thread", "one", message_id="m1", agent="filling", wait_ms=0)
    assert isinstance(outcome, Queued)
    assert thread_row(database, "thread")["status"] == "idle"
    assert turn_states(database) == ["done", "failed"]
    assert rows(database, "SELECT error FROM chatlock_turns WHERE state = 'failed'") == [{"error": "StoreFull"}]
    assert dispositions(database)["m1"] == "pending"
    skip_backoff(database)
    persist_ten_turns(database, chat)
    quiesce(chat, database)
    assert dispositions(database)["m1"] == "answered"
    assert_invariants(database, chat)


def test_block_that_finds_the_disk_full_is_told(database: Database, chat: Chatlock) -> None:
    """B63: in a turn's own block finish raises StoreFull; the turn is charged, and the thread is free."""
    assert isinstance(chat.submit("thread", "before", message_id="before"), Answered)
    disk = Disk(database, chat)
    with pytest.raises(StoreFull), chat.turn("thread", "one", message_id="m1") as turn, disk.full():
        turn.finish(LARGE)
    assert thread_row(database, "thread")["status"] == "idle"
    skip_backoff(database)
    persist_ten_turns(database, chat)
    quiesce(chat, database)
    assert_invariants(database, chat)


def test_turn_whose_end_cannot_be_stored_at_all_is_freed_by_its_lease(pg_database: Database, client: Client) -> None:
    """B63: not even the failure finds room: the caller is told StoreFull, and the sweep frees the thread."""
    chat = client(pg_database, limits=STILL)
    chat.handler()(lambda turn: "answer")
    disk = Disk(pg_database, chat)

    def end_on_a_full_disk() -> None:
        with ExitStack() as room, chat.turn("thread", "one", message_id="m1") as turn:
            room.enter_context(disk.full({"threads": "UPDATE", "turns": "UPDATE"}))
            turn.finish("answer")

    with pytest.raises(StoreFull):
        end_on_a_full_disk()
    assert thread_row(pg_database, "thread")["status"] == "running"
    age_claim(pg_database, "thread")
    assert reclaim_aged(chat) == 1
    skip_backoff(pg_database)
    persist_ten_turns(pg_database, chat)
    quiesce(chat, pg_database)
    assert_invariants(pg_database, chat)
