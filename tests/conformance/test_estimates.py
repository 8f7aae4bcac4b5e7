"""When a message may be answered, by how long the thread's latest turns took, and how its holder is."""

from __future__ import annotations

from typing import Any

from chatlock import Answered, Busy, Queued
from tests.conformance import rows
from tests.conformance.conftest import BOTH
from tests.support.databases import Database

pytestmark = BOTH

HOUR_MS = 3_600_000


def answer_once(chat: Any, database: Database) -> None:
    """The thread's history: one turn of an hour."""
    with chat.turn("c1", "first") as turn:
        turn.finish("ok")
    rows.execute(database, f"UPDATE chatlock_turns SET started_at = ended_at - {HOUR_MS} WHERE state = 'done'")


def test_message_behind_a_turn_waits_for_it_and_for_its_own(chat: Any, database: Database) -> None:
    answer_once(chat, database)
    with chat.turn("c1", "second", message_id="m2") as turn:
        rows.execute(database, f"UPDATE chatlock_threads SET claimed_at = claimed_at - {HOUR_MS // 2}")
        chat.submit("c1", "third", message_id="m3", wait_ms=0)
        in_turn, behind = chat.status("c1", "m2"), chat.status("c1", "m3")
        assert (in_turn.position, behind.position) == (0, 1)
        assert 0 < in_turn.eta_ms <= HOUR_MS // 2
        assert HOUR_MS < behind.eta_ms <= HOUR_MS // 2 + HOUR_MS
        turn.finish("ok")


def test_turn_that_takes_longer_than_usual_may_end_any_moment(chat: Any, database: Database) -> None:
    answer_once(chat, database)
    with chat.turn("c1", "second", message_id="m2") as turn:
        rows.execute(database, f"UPDATE chatlock_threads SET claimed_at = claimed_at - {2 * HOUR_MS}")
        assert chat.status("c1", "m2").eta_ms == 0
        turn.finish("ok")


def test_thread_without_a_history_has_no_estimate(chat: Any, database: Database) -> None:
    with chat.turn("c1", "first", message_id="m1") as turn:
        assert chat.status("c1", "m1").eta_ms is None
        turn.finish("ok")


def test_estimate_is_of_this_thread_and_of_its_latest_turns(chat: Any, database: Database) -> None:
    answer_once(chat, database)
    for n in range(5):
        with chat.turn("c1", n) as turn:
            turn.finish("ok")
    chat.submit("c1", "queued", message_id="m", wait_ms=0)
    assert chat.status("c1", "m").eta_ms < HOUR_MS
    chat.submit("c2", "elsewhere", message_id="m", wait_ms=0)
    assert chat.status("c2", "m").eta_ms is None


def test_refused_caller_learns_of_the_holder(chat: Any, database: Database) -> None:
    answer_once(chat, database)
    with chat.turn("c1", "second") as turn:
        busy = chat.submit("c1", "third", policy="reject")
        assert isinstance(busy, Busy)
        assert (busy.live, busy.position) == (True, 1)
        assert 0 < busy.eta_ms <= HOUR_MS
        rows.execute(database, "UPDATE chatlock_threads SET expires_at = claimed_at - 1")
        assert chat.submit("c1", "third", policy="reject").live is False
        turn.finish("ok")


def test_outcomes_name_the_incarnation(chat: Any, database: Database) -> None:
    @chat.handler()
    def answer(turn: Any) -> str:
        return "ok"

    first = chat.submit("c1", "a", message_id="m1")
    assert isinstance(first, Answered)
    chat.delete("c1")
    again = chat.submit("c1", "b", message_id="m2", recreate=True)
    queued = chat.submit("c2", "c", message_id="m3", wait_ms=0, agent="another")
    assert isinstance(queued, Queued)
    told = [first, again, chat.status("c1", "m2"), queued, chat.status("c2", "m3")]
    assert [outcome.incarnation for outcome in told] == [1, 2, 2, 1, 1]
