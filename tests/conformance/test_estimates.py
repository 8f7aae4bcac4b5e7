"""When a message may be answered, by how long its agent's turns take, and how its holder is."""

from __future__ import annotations

from typing import Any

import pytest

from chatlock import Answered, Busy, Queued
from chatlock.middleware.http import answer_to_status, answer_to_submit
from tests.conformance import rows
from tests.conformance.clocks import now
from tests.conformance.conftest import BOTH
from tests.support.databases import Database

pytestmark = BOTH

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def counted(database: Database, *, mean_ms: int = HOUR_MS, runs: int = 2, days_ago: int = 0) -> None:
    """The agent's history: so many runs, as a sweeper counted them."""
    rows.execute(
        database,
        "INSERT INTO chatlock_windows(agent, day, longest_ms, total_ms, runs) VALUES"
        f" ('default', {now(database) // DAY_MS - days_ago}, {2 * mean_ms}, {runs * mean_ms}, {runs})",
    )


def test_message_behind_a_turn_waits_for_it_and_for_its_own(chat: Any, database: Database) -> None:
    counted(database)
    with chat.turn("c1", "second", message_id="m2") as turn:
        rows.execute(database, f"UPDATE chatlock_threads SET claimed_at = claimed_at - {HOUR_MS // 2}")
        chat.submit("c1", "third", message_id="m3", wait_ms=0)
        in_turn, behind = chat.status("c1", "m2"), chat.status("c1", "m3")
        assert (in_turn.position, behind.position) == (0, 1)
        assert 0 < in_turn.eta_ms <= HOUR_MS // 2
        assert HOUR_MS < behind.eta_ms <= HOUR_MS // 2 + HOUR_MS
        turn.finish("ok")


@pytest.mark.parametrize("locked", [{}, {"expire_ms": DAY_MS}], ids=["hot", "locked"])
def test_caller_that_does_not_wait_is_told_what_status_tells(locked: Any, chat: Any, database: Database) -> None:
    def queued(thread: str) -> Any:
        return chat.submit(thread, "hello", wait_ms=0, **locked)

    assert queued("c1").eta_ms is None
    counted(database)
    first, second = queued("idle"), queued("idle")
    assert (first.eta_ms, second.eta_ms) == (HOUR_MS, HOUR_MS)
    assert chat.status("idle", second.message_id).eta_ms == HOUR_MS
    edited = chat.edit("idle", second.message_id, "hello, again", "edited")
    assert (edited.position, edited.eta_ms) == (1, HOUR_MS)
    with chat.turn("c2", "first") as turn:
        rows.execute(database, f"UPDATE chatlock_threads SET claimed_at = claimed_at - {HOUR_MS // 2}")
        assert HOUR_MS < queued("c2").eta_ms <= HOUR_MS // 2 + HOUR_MS
        turn.finish("ok")


def test_turn_that_takes_longer_than_usual_may_end_any_moment(chat: Any, database: Database) -> None:
    counted(database)
    with chat.turn("c1", "second", message_id="m2") as turn:
        rows.execute(database, f"UPDATE chatlock_threads SET claimed_at = claimed_at - {2 * HOUR_MS}")
        assert chat.status("c1", "m2").eta_ms == 0
        turn.finish("ok")


def test_agent_without_a_history_has_no_estimate(chat: Any, database: Database) -> None:
    counted(database, days_ago=7)  # too old
    counted(database, mean_ms=0)  # by a version that kept no total
    with chat.turn("c1", "first", message_id="m1") as turn:
        assert chat.status("c1", "m1").eta_ms is None
        assert chat.submit("c1", "second", policy="reject").eta_ms is None
        turn.finish("ok")


def test_estimate_is_of_the_agent_and_its_latest_days(chat: Any, database: Database) -> None:
    for days_ago, mean_ms, runs in ((7, HOUR_MS, 9), (6, 20_000, 1), (0, 10_000, 3)):
        counted(database, mean_ms=mean_ms, runs=runs, days_ago=days_ago)
    chat.submit("c1", "queued", message_id="m", wait_ms=0)
    assert chat.status("c1", "m").eta_ms == 12_500
    chat.submit("c2", "elsewhere", message_id="m", wait_ms=0, agent="another")
    assert chat.status("c2", "m").eta_ms is None


def test_a_caller_over_http_is_told_when_to_ask_again(chat: Any, database: Database) -> None:
    chat.submit("c1", "queued", message_id="m", wait_ms=0)
    assert answer_to_status(chat.status("c1", "m")).headers["Retry-After"] == "2"
    counted(database, mean_ms=4_100)
    queued = chat.status("c1", "m")
    for answer in (answer_to_status(queued), answer_to_submit(queued, "/")):
        assert answer.headers["Retry-After"] == "5"
    busy = answer_to_submit(chat.submit("c1", "x", policy="reject"), "/")
    assert (busy.headers["Retry-After"], busy.body["eta_ms"]) == ("5", 4_100)
    counted(database, mean_ms=HOUR_MS, days_ago=1)
    assert answer_to_status(chat.status("c1", "m")).headers["Retry-After"] == "10"


def test_refused_caller_learns_of_the_holder(chat: Any, database: Database) -> None:
    counted(database)
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
