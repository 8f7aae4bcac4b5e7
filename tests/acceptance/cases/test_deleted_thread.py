"""A thread that is deleted while its turn runs: fenced out, never re-created by the old turn (B61)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.exc import NoResultFound

from chatlock import AlreadyAnswered, Chatlock, ClaimLost, Gone, NotFound, Turn
from chatlock.ops import base, finish, unanswered
from tests.acceptance.cases.recovery import LATE, STILL, dispositions, dump, turn_states
from tests.acceptance.cases.support import (
    SECONDS_MAX,
    Points,
    age_claim,
    assert_invariants,
    message_rows,
    quiesce,
    reclaim_aged,
    rows,
    thread_row,
    until,
    wait_blocked,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.acceptance.cases.support import Agent, Callers
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]


def refused(chat: Any, turn: Turn) -> None:
    """Whatever the old turn still tries is refused."""
    for name, write in LATE.items():
        try:
            taken = write(chat, turn._core.claim)
        except ClaimLost:
            taken = None
        assert not taken, name
    with pytest.raises(ClaimLost):
        turn.finish("late")
    assert turn.lost


@pytest.mark.parametrize("recreated", [False, True])
def test_turn_of_a_deleted_thread_writes_nothing(
    database: Database, client: Client, serving: Client, callers: Callers, recreated: bool
) -> None:
    """B61: deleted under its turn (and recreated, and running again), then what the old turn tries, sweeps, a restart.

    Pending messages become deleted and their waiters get Gone; a later submit is refused, unless it recreates the
    thread, whose tokens go on rising.
    """
    chat, other = client(database, limits=STILL), serving(database)
    turn = chat.begin("thread", "one", message_id="m1")
    assert isinstance(turn, Turn)
    turn.session("name", lambda key: "kept")
    waiting = callers.submit(other, "thread", "two", message_id="m2", wait_ms=None)
    until(lambda: len(message_rows(database, "thread")) == 2, what="m2")
    assert chat.delete("thread", reason="asked for").done
    assert isinstance(waiting.result(SECONDS_MAX), Gone)
    assert dispositions(database) == {"m1": "deleted", "m2": "deleted"}
    assert isinstance(other.submit("thread", "three", message_id="m3"), Gone)
    deleted_at = thread_row(database, "thread")["token"]
    assert deleted_at > turn.token
    new = None
    if recreated:
        new = other.begin("thread", "three", message_id="m3", recreate=True)
        assert isinstance(new, Turn)
        assert new.token > deleted_at
    before = dump(database)
    refused(chat, turn)
    assert dump(database) == before
    if new is not None:
        new.finish("answer")
        before = dump(database)
    chat.close()
    restarted = serving(database)
    quiesce(restarted, database)
    assert dump(database) == before
    states = ["released", "done"] if recreated else ["released"]
    assert turn_states(database) == states
    assert rows(database, "SELECT * FROM chatlock_sessions") == []
    if new is not None:
        assert restarted.status("thread", "m3") == AlreadyAnswered(
            message_id="m3", seq=1, reply="answer", turn=new.token
        )
        assert isinstance(restarted.status("thread", "m1"), NotFound)
    else:
        assert isinstance(restarted.status("thread", "m1"), Gone)
        assert isinstance(restarted.submit("thread", "four", message_id="m4"), Gone)
    assert_invariants(database, restarted)


def test_guard_that_forgets_the_token_and_the_incarnation_is_found(
    pg_database: Database, client: Client, serving: Client, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B61's control: then the old turn gets as far as the statements of the thread's next life."""
    for module in (base, finish, unanswered):
        monkeypatch.setattr(module, "holds", lambda row, claim: row.status == "running")
    with pytest.raises((AssertionError, NoResultFound)):
        test_turn_of_a_deleted_thread_writes_nothing(pg_database, client, serving, callers, True)


def test_handler_of_a_deleted_thread_answers_nobody(
    database: Database, serving: Client, agent: Agent, callers: Callers
) -> None:
    """B61: the caller whose own turn it was is told Gone, not the reply that could not be stored."""
    chat = serving(database)
    gate = agent.hold("thread")
    first = callers.submit(chat, "thread", "one", message_id="m1")
    gate.wait_entered()
    assert chat.delete("thread").done
    gate.open()
    assert first.result(SECONDS_MAX) == Gone(message_id="m1", seq=1)
    quiesce(chat, database)
    assert_invariants(database, chat, told=callers.told)


@pytest.mark.parametrize("first", ["delete", "finish"])
def test_delete_and_finish_at_once(database: Database, client: Client, callers: Callers, first: str) -> None:
    """B61: both orders of the two transactions, the second waiting for the first."""
    deleting, finishing = client(database, limits=STILL), client(database, limits=STILL)
    turn = finishing.begin("thread", "one", message_id="m1")
    assert isinstance(turn, Turn)
    of_delete, of_finish = Points(deleting), Points(finishing)
    if first == "delete":
        locked = of_delete.hold("delete.commit")
        deleted = callers.call(deleting.delete, "thread")
        locked.wait_entered()
        finished = callers.call(turn.finish, "answer")
        wait_blocked(database, of_finish, "finish_hot")
        locked.open()
        with pytest.raises(ClaimLost):
            finished.result(SECONDS_MAX)
    else:
        locked = of_finish.hold("finish_hot.commit")
        finished = callers.call(turn.finish, "answer")
        locked.wait_entered()
        deleted = callers.call(deleting.delete, "thread")
        wait_blocked(database, of_delete, "delete")
        locked.open()
        finished.result(SECONDS_MAX)
    assert deleted.result(SECONDS_MAX).done
    assert turn_states(database) == [{"delete": "released", "finish": "done"}[first]]
    assert dispositions(database) == {"m1": {"delete": "deleted", "finish": "answered"}[first]}
    assert thread_row(database, "thread")["status"] == "deleted"
    quiesce(deleting, database)
    assert_invariants(database, deleting)


def test_sweep_that_saw_the_turn_before_the_delete_changes_nothing(
    database: Database, client: Client, callers: Callers
) -> None:
    """B61: a deleted thread is not rescheduled by a reclaim that comes late, nor its next life by that of the first."""
    chat, sweeper = client(database, limits=STILL), client(database)
    chat.begin("thread", "one", message_id="m1")
    age_claim(database, "thread")
    late = Points(sweeper).hold("reclaim.begin")
    swept = callers.call(reclaim_aged, sweeper)
    late.wait_entered()
    assert chat.delete("thread").done
    assert isinstance(chat.begin("thread", "two", message_id="m2", recreate=True), Turn)
    age_claim(database, "thread")
    before = dump(database)
    late.open()
    assert swept.result(SECONDS_MAX) == 0
    assert dump(database) == before
