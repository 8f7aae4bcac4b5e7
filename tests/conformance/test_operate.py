"""park, resume, free, delete: receipts that say what happened, and one audit row for each act that took effect."""

from __future__ import annotations

from typing import Any

import pytest

from chatlock import AlreadyAnswered, Answered, ClaimLost, Gone, InvalidInput, Limits, Parked, Queued, Receipt
from tests.conformance import rows
from tests.conformance.clocks import now
from tests.conformance.conftest import BOTH, NewChat
from tests.support.databases import Database

pytestmark = BOTH


def audit(database: Database) -> list[tuple[Any, ...]]:
    entries = sorted(rows.table(database, "chatlock_audit"), key=lambda row: row["audit_id"])
    return [(row["action"], row["token"], row["actor"], row["reason"]) for row in entries]


def stored(chat: Any, message_id: str = "m1") -> None:
    chat.submit("c1", message_id, message_id=message_id, wait_ms=0)


# -- park and resume ---------------------------------------------------------------------------------------------------
def test_park_takes_an_idle_thread_out_of_service(chat: Any, database: Database) -> None:
    stored(chat)
    assert chat.park("c1", actor="ann", reason="spam") == Receipt(True, "parked", "parked")
    assert chat.status("c1", "m1") == Parked(message_id="m1", seq=1)
    assert rows.table(database, "chatlock_due") == []
    chat.handler()(lambda turn: "ok")
    assert chat.sweep_once().turns == 0
    assert isinstance(chat.submit("c1", "more", wait_ms=0), Parked)
    assert audit(database) == [("park", 0, "ann", "spam")]


def test_parked_thread_without_messages_gives_the_next_one_no_turn(chat: Any) -> None:
    chat.handler()(lambda turn: "ok")
    chat.submit("c1", "hello")
    chat.park("c1")
    assert isinstance(chat.submit("c1", "more"), Parked)


def test_park_of_a_running_thread_must_name_its_turn(chat: Any, database: Database) -> None:
    with chat.turn("c1", "hello") as turn:
        before = rows.dump(database)
        assert chat.park("c1") == Receipt(False, "running", "running")
        assert chat.park("c1", turn=turn.token + 1) == Receipt(False, "other_turn", "running")
        assert rows.dump(database) == before
        turn.finish("ok")


def test_park_of_a_running_thread_releases_its_turn_and_fences_it_out(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "hello")
    assert chat.park("c1", turn=turn.token) == Receipt(True, "parked", "parked")
    row = rows.thread_row(database)
    assert (row["status"], row["token"], row["attempts"]) == ("parked", turn.token + 1, 0)
    assert [(r["state"], r["error"]) for r in rows.turns(database)] == [("released", "parked")]
    with pytest.raises(ClaimLost):
        turn.finish("late")
    assert audit(database)[0][:2] == ("park", turn.token)


def test_park_twice_is_parked_once(chat: Any, database: Database) -> None:
    stored(chat)
    chat.park("c1")
    before = rows.dump(database)
    assert chat.park("c1") == Receipt(True, "parked", "parked")
    assert rows.dump(database) == before


def test_resume_puts_a_parked_thread_back_due_at_once(chat: Any, database: Database) -> None:
    stored(chat)
    chat.park("c1")
    assert chat.resume("c1", actor="ann", reason="checked") == Receipt(True, "resumed", "idle")
    assert rows.table(database, "chatlock_due")[0]["due_at"] <= now(database)
    chat.handler()(lambda turn: "ok")
    assert chat.sweep_once().turns == 1
    assert isinstance(chat.status("c1", "m1"), AlreadyAnswered)
    assert [entry[0] for entry in audit(database)] == ["park", "resume"]


def test_resume_of_a_thread_that_is_not_parked_is_refused(chat: Any, database: Database) -> None:
    stored(chat)
    before = rows.dump(database)
    assert chat.resume("c1") == Receipt(False, "not_parked", "idle")
    assert rows.dump(database) == before


def test_parked_thread_without_messages_resumes_to_nothing_due(chat: Any, database: Database) -> None:
    chat.begin("c1", "hello").finish("ok")
    chat.park("c1")
    chat.resume("c1")
    assert rows.table(database, "chatlock_due") == []


# -- free --------------------------------------------------------------------------------------------------------------
def test_free_refuses_a_live_holder_without_force(chat: Any, database: Database) -> None:
    with chat.turn("c1", "hello") as turn:
        before = rows.dump(database)
        assert chat.free("c1", turn=turn.token) == Receipt(False, "alive", "running")
        assert rows.dump(database) == before
        turn.finish("ok")


def test_free_refuses_another_turn_than_the_named_one(chat: Any, database: Database) -> None:
    chat.begin("c1", "first").finish("ok")
    with chat.turn("c1", "hello") as turn:
        before = rows.dump(database)
        assert chat.free("c1", turn=turn.token - 1, force=True) == Receipt(False, "other_turn", "running")
        assert rows.dump(database) == before
        turn.finish("ok")


def test_free_of_an_idle_thread_is_refused(chat: Any, database: Database) -> None:
    stored(chat)
    before = rows.dump(database)
    assert chat.free("c1", turn=0, force=True) == Receipt(False, "not_running", "idle")
    assert rows.dump(database) == before


def test_forced_free_releases_the_turn_uncharged_and_fences_it_out(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "hello", message_id="m1")
    assert chat.free("c1", turn=turn.token, force=True, actor="ann", reason="stuck") == Receipt(True, "freed", "idle")
    row = rows.thread_row(database)
    assert (row["token"], row["attempts"], row["stalls"], row["not_before"]) == (turn.token + 1, 0, 0, 0)
    assert [(r["state"], r["error"]) for r in rows.turns(database)] == [("released", "freed")]
    assert isinstance(chat.status("c1", "m1"), Queued)
    assert audit(database) == [("free", turn.token, "ann", "stuck")]
    with pytest.raises(ClaimLost):
        turn.finish("late")


def test_free_of_a_stale_turn_needs_no_force_and_is_charged(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(heartbeat=False)
    turn = chat.begin("c1", "hello")
    rows.execute(database, "UPDATE chatlock_threads SET beat = 1, expires_at = 1")
    assert chat.free("c1", turn=turn.token) == Receipt(True, "freed", "idle")
    row = rows.thread_row(database)
    assert (row["attempts"], row["stalls"]) == (1, 0)
    assert [(r["state"], r["error"]) for r in rows.turns(database)] == [("reclaimed", "silent")]


def test_free_of_a_turn_past_its_window_records_that_it_hung(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(heartbeat=False)
    turn = chat.begin("c1", "hello")
    rows.pass_window(database)
    assert chat.free("c1", turn=turn.token) == Receipt(True, "freed", "idle")
    assert [(r["state"], r["error"]) for r in rows.turns(database)] == [("reclaimed", "window")]


def test_free_of_a_stale_turn_that_parks_its_thread_says_so(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(heartbeat=False, limits=Limits(stalls_max=1))
    turn = chat.begin("c1", "hello")
    rows.pass_lease(database)
    assert chat.free("c1", turn=turn.token) == Receipt(True, "freed", "parked")
    assert rows.thread_row(database)["status"] == "parked"


# -- delete ------------------------------------------------------------------------------------------------------------
def test_delete_leaves_a_tombstone_under_a_higher_token(chat: Any, database: Database) -> None:
    chat.begin("c1", "hello").finish("ok")
    stored(chat, "m2")
    assert chat.delete("c1", actor="ann", reason="asked") == Receipt(True, "deleted", "deleted")
    row = rows.thread_row(database)
    assert (row["status"], row["token"]) == ("deleted", 2)
    assert rows.dispositions(database) == ["answered", "deleted"]
    assert rows.table(database, "chatlock_due") == []
    assert chat.status("c1", "m2") == Gone(message_id="m2", seq=2)
    assert audit(database) == [("delete", 1, "ann", "asked")]


def test_delete_fences_the_running_turn_out(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "hello")
    chat.delete("c1")
    with pytest.raises(ClaimLost):
        turn.finish("late")
    assert [(r["state"], r["error"]) for r in rows.turns(database)] == [("released", "deleted")]
    assert rows.thread_row(database)["token"] > turn.token


def test_delete_twice_deletes_once(chat: Any, database: Database) -> None:
    stored(chat)
    chat.delete("c1")
    before = rows.dump(database)
    assert chat.delete("c1") == Receipt(True, "deleted", "deleted")
    assert rows.dump(database) == before


def test_token_rises_over_claims_deletions_and_lives(chat: Any) -> None:
    tokens = []
    for _ in range(3):
        with chat.turn("c1", "hello", recreate=True) as turn:
            tokens.append(turn.token)
            turn.finish("ok")
        chat.delete("c1")
    assert tokens == sorted(set(tokens))


def test_late_turn_of_an_earlier_life_changes_nothing(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "first life")
    chat.delete("c1")
    with chat.turn("c1", "second life", recreate=True) as second:
        with pytest.raises(ClaimLost):
            turn.finish("late")
        second.finish("ok")
    assert [(r["incarnation"], r["disposition"]) for r in rows.messages(database)] == [
        (1, "deleted"),
        (2, "answered"),
    ]


# -- all of them -------------------------------------------------------------------------------------------------------
def test_acts_on_a_thread_that_never_was_are_refused(chat: Any, database: Database) -> None:
    before = rows.dump(database)
    assert chat.park("c1") == chat.resume("c1") == chat.delete("c1") == Receipt(False, "not_found", "absent")
    assert chat.free("c1", turn=1, force=True) == Receipt(False, "not_running", "absent")
    assert rows.dump(database) == before


def test_status_that_is_told_is_plain_text(chat: Any) -> None:
    told = [chat.park("c1"), chat.cancel("c1", turn=1), chat.submit("c1", "hello", if_turn=1)]
    told = [chat.park("c1"), chat.cancel("c1", turn=1), chat.submit("c1", "hello", if_turn=1)]
    assert [(type(answer.state), answer.state) for answer in told] == [(str, "absent")] * 3


def test_act_without_an_actor_names_the_user_of_the_process(chat: Any, database: Database) -> None:
    stored(chat)
    chat.park("c1")
    (entry,) = audit(database)
    assert entry[2]
    assert entry[3] == ""


@pytest.mark.parametrize("wrong", [{"actor": ""}, {"actor": "a\nb"}, {"reason": "x" * 1001}, {"reason": "\ud800"}])
def test_act_with_a_bad_actor_or_reason_is_refused(chat: Any, database: Database, wrong: dict[str, str]) -> None:
    stored(chat)
    before = rows.dump(database)
    for act in (chat.park, chat.resume, chat.delete):
        with pytest.raises(InvalidInput):
            act("c1", **wrong)
    with pytest.raises(InvalidInput):
        chat.free("c1", turn=1, **wrong)
    assert rows.dump(database) == before


def test_acts_of_one_thread_leave_the_others(chat: Any) -> None:
    chat.handler()(lambda turn: "ok")
    for thread in ("c1", "c2"):
        chat.submit(thread, "hello")
    chat.park("c1")
    assert isinstance(chat.submit("c2", "more"), Answered)
    chat.delete("c1")
    assert isinstance(chat.submit("c2", "more"), Answered)
