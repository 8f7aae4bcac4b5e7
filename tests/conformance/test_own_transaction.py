"""finish, fence and submit in the caller's own transaction: they commit with its rows, or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from chatlock import (
    AlreadyAnswered,
    Chatlock,
    ClaimLost,
    Gone,
    InvalidInput,
    Queued,
    Refused,
    StoreUnavailable,
    TurnNotFinished,
)
from chatlock.dialects import PG_SESSION
from chatlock.errors import TransactionNotImmediate
from chatlock.executor import LOCK_WAITS_MAX
from tests.conformance import rows
from tests.conformance.bridge import Bridge
from tests.conformance.conftest import NewChat, Shelf, Start
from tests.conformance.owned import ASYNC, KINDS, Owned
from tests.support.databases import Database, Templates
from tests.support.waiting import SECONDS_MAX, blocked_backends, until

SOME = ["pysqlite+begin-connection", "aiosqlite-session", "psycopg-session", "asyncpg-connection"]
of_some_kinds = pytest.mark.parametrize("kind", SOME)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Which kind of connection the caller has."""
    return str(request.param)


@pytest.fixture
def database(kind: str, shelf: Shelf) -> Iterator[Database]:
    """The database that the kind is made for, with the application's own table."""
    for lent in shelf.lend(KINDS[kind]):
        rows.execute(lent, "DROP TABLE IF EXISTS notes")
        rows.execute(lent, "CREATE TABLE notes (text text)")
        yield lent


@pytest.fixture
def world(kind: str) -> str:
    """Async connections are for the async client."""
    return "async" if kind.startswith(ASYNC) else "sync"


@pytest.fixture
def chat(new_chat: NewChat, world: str) -> Any:
    return new_chat()


@pytest.fixture
def owned(database: Database, kind: str, chat: Any) -> Iterator[Owned]:
    """The caller's connection, closed before the client is."""
    made = Owned(database.url, kind, chat if isinstance(chat, Bridge) else None)
    yield made
    made.close()


def notes(database: Database) -> list[str]:
    return [text for (text,) in rows.select(database, "SELECT text FROM notes ORDER BY text")]


# -- finish(conn=) -----------------------------------------------------------------------------------------------------
def test_finish_commits_with_the_callers_rows(chat: Any, owned: Owned, database: Database) -> None:
    with chat.turn("c1", "hello", message_id="m1") as turn, owned.transaction() as conn:
        owned.note("reply")
        turn.finish("ok", conn=conn)
        assert notes(database) == []
        assert isinstance(chat.status("c1", "m1"), Queued)
    assert notes(database) == ["reply"]
    assert chat.status("c1", "m1") == AlreadyAnswered(message_id="m1", seq=1, reply="ok", turn=1)


@of_some_kinds
def test_finish_may_come_before_the_callers_rows(chat: Any, owned: Owned, database: Database) -> None:
    with chat.turn("c1", "hello") as turn, owned.transaction() as conn:
        turn.finish("ok", conn=conn)
        owned.note("reply")
    assert (notes(database), rows.dispositions(database)) == (["reply"], ["answered"])


def test_finish_that_is_rolled_back_lets_the_turn_go_on(chat: Any, owned: Owned, database: Database) -> None:
    with chat.turn("c1", "hello") as turn:
        owned.note("first")
        turn.finish("first", conn=owned.conn)
        owned.rollback()
        assert (notes(database), rows.dispositions(database)) == ([], ["pending"])
        chat.submit("c1", "more", wait_ms=0)
        assert [message.payload for message in turn.fetch()] == ["more"]
        with owned.transaction() as conn:
            owned.note("second")
            turn.finish("second", conn=conn)
    assert (notes(database), rows.dispositions(database)) == (["second"], ["answered"] * 2)


@of_some_kinds
def test_turn_left_after_a_rolled_back_finish_is_not_finished(chat: Any, owned: Owned, database: Database) -> None:
    def leave() -> None:
        with chat.turn("c1", "hello") as turn:
            turn.finish("ok", conn=owned.conn)
            owned.rollback()

    with pytest.raises(TurnNotFinished, match="commit it inside the block"):
        leave()
    assert [row["state"] for row in rows.turns(database)] == ["failed"]


@of_some_kinds
def test_exception_after_finish_rolls_both_back_and_fails_the_turn(chat: Any, owned: Owned, database: Database) -> None:
    with suppress(ZeroDivisionError), chat.turn("c1", "hello") as turn, owned.transaction() as conn:
        owned.note("reply")
        turn.finish("ok", conn=conn)
        _ = 1 / 0
    assert (notes(database), rows.dispositions(database)) == ([], ["pending"])
    assert [(row["state"], row["error"]) for row in rows.turns(database)] == [("failed", "ZeroDivisionError")]


def test_finish_without_the_claim_is_refused_and_the_callers_rows_go_with_it(
    chat: Any, owned: Owned, database: Database
) -> None:
    turn = chat.begin("c1", "hello")
    chat.free("c1", turn=turn.token, force=True)
    before = rows.dump(database)

    def late() -> None:
        with owned.transaction() as conn:
            turn.finish("late", conn=conn)
            owned.note("reply")

    with pytest.raises(ClaimLost):
        late()
    assert (notes(database), rows.dump(database)) == ([], before)
    assert turn.lost


@of_some_kinds
def test_finish_up_to_a_message_in_the_callers_transaction_leaves_the_rest_due(
    chat: Any, owned: Owned, database: Database
) -> None:
    chat.submit("c1", 1, wait_ms=0)
    with chat.turn("c1", 2) as turn, owned.transaction() as conn:
        turn.finish("the first", upto=1, conn=conn)
    assert rows.dispositions(database) == ["answered", "pending"]
    assert len(rows.table(database, "chatlock_due")) == 1


@of_some_kinds
def test_waiting_call_is_told_of_a_finish_in_the_callers_transaction(chat: Any, owned: Owned, start: Start) -> None:
    with chat.turn("c1", "hello", message_id="m1") as turn:
        waiting = start(lambda: chat.submit("c1", "hello", message_id="m1", wait_ms=SECONDS_MAX * 1000))
        with owned.transaction() as conn:
            turn.finish("ok", conn=conn)
    assert waiting.result(SECONDS_MAX) == AlreadyAnswered(message_id="m1", seq=1, reply="ok", turn=1)


# -- fence -------------------------------------------------------------------------------------------------------------
def test_fenced_rows_commit_while_the_claim_is_held(chat: Any, owned: Owned, database: Database) -> None:
    with chat.turn("c1", "hello") as turn:
        before = rows.dump(database)
        with owned.transaction() as conn:
            turn.fence(conn)
            owned.note("effect")
        assert (notes(database), rows.dump(database)) == (["effect"], before)
        turn.finish("ok")


@of_some_kinds
def test_fence_without_the_claim_is_refused_and_the_callers_rows_go_with_it(
    chat: Any, owned: Owned, database: Database
) -> None:
    turn = chat.begin("c1", "hello")
    chat.free("c1", turn=turn.token, force=True)

    def late() -> None:
        with owned.transaction() as conn:
            owned.note("effect")
            turn.fence(conn)

    with pytest.raises(ClaimLost):
        late()
    assert notes(database) == []
    assert turn.lost


@of_some_kinds
def test_claim_cannot_be_taken_while_a_fenced_transaction_is_open(
    chat: Any, owned: Owned, database: Database, start: Start
) -> None:
    turn = chat.begin("c1", "hello")
    begun: list[str] = []
    with owned.transaction() as conn:
        turn.fence(conn)
        chat._executor.points = begun.append
        freed = start(lambda: chat.free("c1", turn=turn.token, force=True))
        until(
            lambda: blocked_backends(rows.plain(database)) if database.kind == "postgresql" else "free.begin" in begun
        )
        assert not freed.done()
        owned.note("effect")
    assert freed.result(SECONDS_MAX).done
    assert notes(database) == ["effect"]
    with pytest.raises(ClaimLost):
        turn.finish("late")


# -- submit(conn=) -----------------------------------------------------------------------------------------------------
def test_submit_is_stored_with_the_callers_rows_and_run_afterwards(chat: Any, owned: Owned, database: Database) -> None:
    chat.handler()(lambda turn: [message.payload for message in turn.messages])
    with owned.transaction() as conn:
        owned.note("order")
        assert chat.submit("c1", "hello", message_id="m1", conn=conn) == Queued(message_id="m1", seq=1, position=0)
        assert rows.table(database, "chatlock_messages") == []
    assert notes(database) == ["order"]
    assert chat.sweep_once().turns == 1
    assert chat.status("c1", "m1").reply == ["hello"]


def test_submit_is_gone_with_the_callers_rollback(chat: Any, owned: Owned, database: Database) -> None:
    before = rows.dump(database)
    owned.note("order")
    chat.submit("c1", "hello", message_id="m1", conn=owned.conn)
    owned.rollback()
    assert (notes(database), rows.dump(database)) == ([], before)


@of_some_kinds
def test_submit_in_the_callers_transaction_is_idempotent(chat: Any, owned: Owned, database: Database) -> None:
    with owned.transaction() as conn:
        first = chat.submit("c1", "hello", message_id="m1", conn=conn)
        assert chat.submit("c1", "hello", message_id="m1", conn=conn) == first
    assert len(rows.messages(database)) == 1


@of_some_kinds
def test_submit_in_the_callers_transaction_tells_what_is_so(chat: Any, owned: Owned) -> None:
    with chat.turn("c1", "hello") as turn:
        with owned.transaction() as conn:
            assert chat.submit("c1", "more", message_id="m2", conn=conn) == Queued(message_id="m2", seq=2, position=1)
        turn.finish("ok")
    chat.delete("c1")
    with owned.transaction() as conn:
        assert chat.submit("c1", "gone", message_id="m3", conn=conn) == Gone(message_id="m3")


@of_some_kinds
@pytest.mark.parametrize("state", [{"if_turn": 7}, {"if_awaiting": "q1"}])
def test_refused_submit_writes_nothing_in_the_callers_transaction(
    chat: Any, owned: Owned, database: Database, state: dict[str, Any]
) -> None:
    before = rows.dump(database)
    with owned.transaction() as conn:
        assert isinstance(chat.submit("c1", "hello", conn=conn, **state), Refused)
    assert rows.dump(database) == before


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another transaction holds is given up soon."""
    hasty = PG_SESSION.replace("lock_timeout = '10s'", "lock_timeout = '9ms'")
    monkeypatch.setattr("chatlock.dialects.PG_SESSION", hasty)
    monkeypatch.setattr("chatlock.executor.BUSY_S", -1.0)


@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize("kind", ["pysqlite+begin-connection", "psycopg-session"])
def test_turn_whose_finish_is_committed_after_its_block_is_answered(
    chat: Any, owned: Owned, database: Database
) -> None:
    def leave() -> None:
        with chat.turn("c1", "hello") as turn:
            turn.finish("ok", conn=owned.conn)

    with pytest.raises(TurnNotFinished, match="charged as a failure unless that commit still comes"):
        leave()
    owned.commit()
    assert rows.dispositions(database) == ["answered"]


@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize("kind", ["psycopg-connection"])
def test_transaction_that_is_left_open_is_named_once_others_have_waited(
    chat: Any, owned: Owned, database: Database
) -> None:
    passed: list[str] = []
    with chat.turn("c1", "hello") as turn:
        turn.finish("ok", conn=owned.conn)
        chat._executor.points = passed.append
        with pytest.raises(StoreUnavailable, match="conn= that was neither committed nor rolled back"):
            chat.submit("c1", "more", wait_ms=0)
        assert passed.count("submit_hot.begin") == 1 + LOCK_WAITS_MAX
        owned.commit()
    assert rows.dispositions(database) == ["answered"]


# -- misuse ------------------------------------------------------------------------------------------------------------
CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "fence": lambda chat, turn, conn: turn.fence(conn),
    "finish": lambda chat, turn, conn: turn.finish("ok", conn=conn),
    "submit": lambda chat, turn, conn: chat.submit("c2", "more", conn=conn),
}


@pytest.mark.parametrize("kind", [kind for kind, of in KINDS.items() if of == "sqlite"])
@pytest.mark.parametrize("call", CALLS)
def test_transaction_that_read_before_another_wrote_is_told_to_begin_immediate(
    chat: Any, owned: Owned, database: Database, call: str
) -> None:
    turn = chat.begin("c1", "hello")
    owned.begin_and_read()
    chat.submit("c1", "meanwhile", wait_ms=0)
    with pytest.raises(TransactionNotImmediate, match="BEGIN IMMEDIATE"):
        CALLS[call](chat, turn, owned.conn)
    owned.rollback()
    turn.release()


@pytest.mark.parametrize("kind", [kind for kind, of in KINDS.items() if of == "sqlite"])
@pytest.mark.parametrize("call", CALLS)
def test_transaction_that_read_first_may_go_on_if_nobody_wrote(
    chat: Any, owned: Owned, database: Database, call: str
) -> None:
    with chat.turn("c1", "hello") as turn:
        owned.begin_and_read()
        CALLS[call](chat, turn, owned.conn)
        owned.note("mine")
        owned.commit()
        if call != "finish":
            turn.finish("ok")
    assert notes(database) == ["mine"]


@pytest.mark.parametrize("kind", [f"{driver}-connection" for driver in ("pysqlite", "psycopg", *ASYNC)])
@pytest.mark.parametrize("call", CALLS)
def test_connection_in_autocommit_is_refused_before_anything_is_written(
    chat: Any, kind: str, database: Database, call: str
) -> None:
    with chat.turn("c1", "hello") as turn:
        bridge = chat if isinstance(chat, Bridge) else None
        autocommit = Owned(database.url, kind, bridge, isolation_level="AUTOCOMMIT")
        before = rows.dump(database)
        with pytest.raises(InvalidInput, match="autocommit") as refused:
            CALLS[call](chat, turn, autocommit.conn)
        assert refused.value.reason == "autocommit"
        autocommit.close()
        assert rows.dump(database) == before
        turn.finish("ok")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["pysqlite-connection", "psycopg_async-connection"])
def test_what_is_no_connection_is_refused(chat: Any, owned: Owned, database: Database, call: str) -> None:
    with chat.turn("c1", "hello") as turn:
        before = rows.dump(database)
        for wrong in (owned.engine, object(), "sqlite:///chat.db"):
            with pytest.raises(InvalidInput, match="conn must be") as refused:
                CALLS[call](chat, turn, wrong)
            assert refused.value.reason == "bad_conn"
        assert rows.dump(database) == before
        turn.finish("ok")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", [f"{driver}-connection" for driver in ASYNC])
def test_async_connection_is_refused_by_the_sync_client(chat: Any, owned: Owned, database: Database, call: str) -> None:
    with Chatlock(database.url, tenant="t", poller=False) as sync, sync.turn("c1", "hello") as turn:
        before = rows.dump(database)
        with pytest.raises(InvalidInput) as refused:
            CALLS[call](sync, turn, owned.conn)
        assert refused.value.reason == "bad_conn"
        assert rows.dump(database) == before
        turn.finish("ok")


@pytest.mark.parametrize("kind", ["pysqlite-connection"])
def test_create_that_is_async_is_refused_by_the_sync_client(database: Database) -> None:
    async def create(key: str) -> str:
        return await asyncio.sleep(0, key)

    with Chatlock(database.url, tenant="t", poller=False) as sync, sync.turn("c1", "hello") as turn:
        with pytest.raises(InvalidInput):
            turn.session("provider", create)
        turn.finish("ok")


# -- what is wrong with the caller's connection ------------------------------------------------------------------------
def refused(call: Callable[[], Any], reason: str) -> None:
    """A typed error that names the remedy and shows neither statement nor value; nothing is known to be lost."""
    with pytest.raises(InvalidInput) as error:
        call()
    assert error.value.reason == reason
    for secret in ("SELECT", "UPDATE", "INSERT", "chatlock_threads", "c1"):
        assert secret not in str(error.value)


@of_some_kinds
def test_second_finish_in_one_transaction_is_misuse_and_the_first_one_holds(
    chat: Any, owned: Owned, database: Database
) -> None:
    with chat.turn("c1", "hello", message_id="m1") as turn, owned.transaction() as conn:
        turn.finish("first", conn=conn)
        refused(lambda: turn.finish("second", conn=conn), "finished_already")
        refused(lambda: turn.fence(conn), "finished_already")
        assert not turn.lost
        owned.note("reply")
    assert notes(database) == ["reply"]
    assert chat.status("c1", "m1") == AlreadyAnswered(message_id="m1", seq=1, reply="first", turn=1)


@pytest.mark.parametrize("kind", ["psycopg-session", "asyncpg-connection"])
@pytest.mark.parametrize("call", CALLS)
def test_transaction_that_has_failed_is_to_be_rolled_back(
    chat: Any, owned: Owned, database: Database, call: str
) -> None:
    with chat.turn("c1", "hello") as turn:
        with pytest.raises(DBAPIError):
            owned.execute("SELECT no_such_column FROM notes")
        refused(lambda: CALLS[call](chat, turn, owned.conn), "failed_transaction")
        owned.rollback()
        assert not turn.lost
        with owned.transaction() as conn:
            CALLS[call](chat, turn, conn)
        if call != "finish":
            turn.finish("ok")


@pytest.fixture
def elsewhere(kind: str, templates: Templates, tmp_path: Path) -> Iterator[Callable[..., Owned]]:
    """The caller's connection to another database, with or without chatlock's tables."""
    made: list[Any] = []

    def make(chat: Any, *, empty: bool) -> Owned:
        of_sqlite = KINDS[kind] == "sqlite"
        other = templates.sqlite(tmp_path / "other.db", empty=empty) if of_sqlite else templates.postgresql(empty=empty)
        conn = Owned(other.url, kind, chat if isinstance(chat, Bridge) else None)
        made.extend((other.dispose, conn.close))
        return conn

    yield make
    for end in reversed(made):
        end()


@pytest.mark.parametrize("kind", ["pysqlite+begin-connection", "asyncpg-connection"])
@pytest.mark.parametrize("call", ["fence", "finish"])
@pytest.mark.parametrize("empty", [True, False])
def test_connection_of_another_database_is_misuse_and_the_turn_goes_on(
    chat: Any, elsewhere: Callable[..., Owned], database: Database, call: str, empty: bool
) -> None:
    other = elsewhere(chat, empty=empty)
    with chat.turn("c1", "hello") as turn:
        refused(lambda: CALLS[call](chat, turn, other.conn), "other_database")
        other.rollback()
        assert not turn.lost
        turn.finish("ok")
    assert rows.dispositions(database) == ["answered"]


@pytest.mark.parametrize("kind", ["psycopg-connection", "aiosqlite-connection"])
@pytest.mark.parametrize("call", CALLS)
def test_closed_connection_is_misuse(chat: Any, owned: Owned, database: Database, call: str) -> None:
    with chat.turn("c1", "hello") as turn:
        owned._do(owned.conn.close())
        refused(lambda: CALLS[call](chat, turn, owned.conn), "bad_conn")
        assert not turn.lost
        turn.finish("ok")


@pytest.mark.parametrize("kind", ["pysqlite+begin-connection", "psycopg-session"])
@pytest.mark.parametrize("call", CALLS)
def test_error_of_the_callers_own_hook_is_raised_as_it_is(
    chat: Any, owned: Owned, database: Database, call: str
) -> None:
    def hook(*args: Any) -> None:
        raise ZeroDivisionError("the caller's own")

    with chat.turn("c1", "hello") as turn:
        event.listen(owned.engine, "before_cursor_execute", hook)
        with pytest.raises(ZeroDivisionError, match="the caller's own"):
            CALLS[call](chat, turn, owned.conn)
        event.remove(owned.engine, "before_cursor_execute", hook)
        owned.rollback()
        turn.finish("ok")


@pytest.mark.parametrize("kind", ["pysqlite+begin-connection"])
@pytest.mark.parametrize("call", CALLS)
def test_file_that_another_writer_holds_is_unavailable(chat: Any, database: Database, kind: str, call: str) -> None:
    """How long the caller's own connection waits is the caller's choice."""
    hasty = Owned(database.url, kind, None, connect_args={"timeout": 0})
    with chat.turn("c1", "hello") as turn:
        rows.execute(database, "BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked by another writer"):
            CALLS[call](chat, turn, hasty.conn)
        rows.execute(database, "ROLLBACK")
        hasty.close()
        turn.finish("ok")


@pytest.mark.parametrize("kind", ["psycopg-connection"])
def test_fence_on_a_drivers_own_connection_in_a_failed_transaction(chat: Any, database: Database) -> None:
    with psycopg.connect(database.url.replace("+psycopg", "")) as conn, chat.turn("c1", "hello") as turn:
        with pytest.raises(psycopg.Error):
            conn.execute("SELECT no_such_column")
        refused(lambda: turn.fence(conn), "failed_transaction")
        conn.close()
        refused(lambda: turn.fence(conn), "bad_conn")
        turn.finish("ok")


@pytest.mark.parametrize("kind", ["pysqlite-connection"])
def test_fence_on_a_drivers_own_connection_that_is_wrong(chat: Any, database: Database, tmp_path: Path) -> None:
    with chat.turn("c1", "hello") as turn:
        conn = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
        conn.execute("BEGIN IMMEDIATE")
        refused(lambda: turn.fence(conn), "other_database")
        conn.close()
        refused(lambda: turn.fence(conn), "bad_conn")
        turn.finish("ok")
