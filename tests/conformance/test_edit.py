"""edit: a pending message is replaced by a new one at the end, once."""

from __future__ import annotations

from typing import Any

from chatlock import AlreadyAnswered, Cancelled, Conflict, Gone, NotFound, Parked, Queued, Refused, Superseded
from tests.conformance import rows
from tests.conformance.conftest import BOTH, Start
from tests.support.databases import Database
from tests.support.waiting import SECONDS_MAX

pytestmark = BOTH


def payloads(turn: Any) -> list[Any]:
    return [message.payload for message in turn.messages]


def stored(chat: Any, *names: str, **options: Any) -> list[Any]:
    return [chat.submit("c1", name, message_id=name, wait_ms=0, **options) for name in names]


def test_edited_message_stands_at_the_end(chat: Any, database: Database) -> None:
    stored(chat, "m1", "m2", "m3")
    assert chat.edit("c1", "m2", "new", "e1") == Queued(message_id="e1", seq=4, position=2)
    assert chat.status("c1", "m2") == Superseded(message_id="m2", seq=2, by=4)
    row = rows.thread_row(database)
    assert (row["done_seq"], row["holes"]) == (0, 1)
    chat.handler()(payloads)
    assert chat.submit("c1", "m4").reply == ["m1", "m3", "new", "m4"]


def test_edited_head_makes_way(chat: Any, database: Database) -> None:
    stored(chat, "m1")
    rows.execute(database, "UPDATE chatlock_threads SET attempts = 2, not_before = 9000000000000")
    chat.edit("c1", "m1", "new", "e1")
    row = rows.thread_row(database)
    assert (row["done_seq"], row["holes"], row["attempts"], row["not_before"]) == (1, 0, 0, 0)


def test_edit_is_done_once(chat: Any, database: Database) -> None:
    stored(chat, "m1")
    first = chat.edit("c1", "m1", "new", "e1")
    before = rows.dump(database)
    assert chat.edit("c1", "m1", "new", "e1") == first
    assert chat.edit("c1", "m1", "other", "e1") == Conflict(message_id="e1", seq=2)
    assert rows.dump(database) == before


def test_id_of_another_message_is_no_edit(chat: Any, database: Database) -> None:
    """Told the other message's outcome, the caller would take the edit for made."""
    stored(chat, "m1", "m2")
    before = rows.dump(database)
    for name in ("m1", "m2", "unknown"):
        assert chat.edit("c1", name, "m2", "m2") == Conflict(message_id="m2", seq=2)
    assert rows.dump(database) == before


def test_message_that_a_turn_has_is_not_edited(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1", message_id="m1") as turn:
        stored(chat, "m2", "m3")
        turn.fetch()
        stored(chat, "m4")
        before = rows.dump(database)
        for name, seq in (("m1", 1), ("m3", 3)):
            refused = Refused(message_id=name, seq=seq, reason="in_turn", state="running")
            assert chat.edit("c1", name, "new", "e1") == refused
        assert rows.dump(database) == before
        assert isinstance(chat.edit("c1", "m4", "new", "e1"), Queued)
        turn.finish("three")
    assert rows.dispositions(database) == ["answered", "answered", "answered", "superseded", "pending"]


def test_resolved_message_tells_its_outcome(chat: Any) -> None:
    stored(chat, "m1", "m2")
    chat.cancel("c1", "m2")
    chat.handler()(payloads)
    chat.submit("c1", "m3")
    assert isinstance(chat.edit("c1", "m1", "new", "e1"), AlreadyAnswered)
    assert chat.edit("c1", "m2", "new", "e1") == Cancelled(message_id="m2", seq=2)
    assert chat.edit("c1", "m9", "new", "e1") == NotFound(message_id="m9")
    assert chat.status("c1", "e1") == NotFound(message_id="e1")


def test_edit_keeps_how_long_the_message_may_wait(chat: Any, database: Database) -> None:
    stored(chat, "m1", expire_ms=60_000, policy="latest")
    chat.edit("c1", "m1", "new", "e1")
    old, new = rows.messages(database)
    assert (new["expire_ms"], new["policy"]) == (old["expire_ms"], old["policy"]) == (60_000, "latest")


def test_waiter_is_told_that_its_message_was_edited(chat: Any, start: Start) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2")
        waiting = start(lambda: chat.submit("c1", "m2", message_id="m2", wait_ms=None))
        chat.edit("c1", "m2", "new", "e1")
        assert waiting.result(SECONDS_MAX) == Superseded(message_id="m2", seq=2, by=3)
        turn.finish("one")


def test_parked_and_deleted_threads(chat: Any) -> None:
    stored(chat, "m1")
    chat.park("c1")
    assert chat.edit("c1", "m1", "new", "e1") == Parked(message_id="e1", seq=2)
    chat.delete("c1")
    assert chat.edit("c1", "e1", "newer", "e2") == Gone(message_id="e1", seq=2)
    assert chat.edit("c2", "m1", "new", "e1") == NotFound(message_id="m1")


def test_decision_is_not_edited(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        question = turn.suspend("go on?")
    stored(chat, "m2")
    assert chat.edit("c1", "m2", "yes", question).reason == "answer"
    chat.answer("c1", question, "yes", wait_ms=0)
    assert chat.edit("c1", question, "no", "e1").reason == "answer"
    assert rows.dispositions(database) == ["answered", "pending", "pending"]
