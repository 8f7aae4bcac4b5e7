"""finish, fence and submit in the caller's own transaction: they commit with its rows, or not at all."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from chatlock import AlreadyAnswered, ClaimLost, Gone, Queued, Refused, StoreUnavailable, TurnNotFinished
from chatlock.dialects import PG_SESSION
from chatlock.executor import LOCK_WAITS_MAX
from tests.conformance import rows
from tests.conformance.conftest import Start
from tests.conformance.owned import Owned, notes, of_some_kinds
from tests.support.databases import Database
from tests.support.waiting import SECONDS_MAX, blocked_backends, until


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
