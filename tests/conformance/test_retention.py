"""redrive sends a dead message again; purge forgets what is old, and never an id of a living thread."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from chatlock import AlreadyAnswered, Conflict, Dead, Gone, InvalidInput, Key, Limits, NotFound, Queued, Refused
from chatlock.ops.purge import purge_thread
from tests.conformance import rows
from tests.conformance.clocks import now
from tests.conformance.conftest import BOTH, NewChat
from tests.support.databases import Database

pytestmark = BOTH

HOUR_MS = 3_600_000


@pytest.fixture
def strict(new_chat: NewChat) -> Any:
    """A client whose messages are dead after one attempt."""
    return new_chat(limits=Limits(attempts_max=1))


def die(chat: Any, message_id: str = "m1") -> None:
    with suppress(RuntimeError), chat.turn("c1", {"order": 7}, message_id=message_id, wait_ms=0):
        raise RuntimeError("not today")


def answer(chat: Any, thread: str = "c1", message_id: str = "m1") -> None:
    with chat.turn(thread, "hello", message_id=message_id, wait_ms=0) as turn:
        turn.finish("ok")


def age(database: Database, hours: int = 2) -> None:
    """All that has happened until now is so old."""
    rows.execute(database, f"UPDATE chatlock_messages SET received_at = received_at - {hours * HOUR_MS}")
    for column in ("started_at", "ended_at"):
        rows.execute(database, f"UPDATE chatlock_turns SET {column} = {column} - {hours * HOUR_MS}")


# -- redrive -----------------------------------------------------------------------------------------------------------
def test_redrive_sends_a_dead_message_again_as_a_new_one_that_names_it(strict: Any, database: Database) -> None:
    die(strict)
    outcome = strict.redrive("c1", "m1")
    assert outcome == Queued(message_id=outcome.message_id, seq=2, position=0)
    seen: list[Any] = []
    strict.handler()(lambda turn: seen.extend(turn.messages))
    assert strict.sweep_once().turns == 1
    assert [(m.message_id, m.payload, m.redrive_of) for m in seen] == [(outcome.message_id, {"order": 7}, "m1")]
    assert rows.dispositions(database) == ["dead", "answered"]


def test_redrive_twice_sends_once(strict: Any, database: Database) -> None:
    die(strict)
    first = strict.redrive("c1", "m1")
    before = rows.messages(database)
    assert strict.redrive("c1", "m1") == first
    assert rows.messages(database) == before
    answer_redriven(strict, first.message_id)
    assert isinstance(strict.redrive("c1", "m1"), AlreadyAnswered)


def answer_redriven(chat: Any, message_id: str) -> None:
    chat.handler()(lambda turn: "ok")
    chat.sweep_once()
    assert isinstance(chat.status("c1", message_id), AlreadyAnswered)


def test_redriven_message_that_dies_can_be_sent_again(strict: Any, database: Database) -> None:
    die(strict)
    second = strict.redrive("c1", "m1").message_id
    strict.handler()(lambda turn: 1 / 0)
    strict.sweep_once()
    assert isinstance(strict.status("c1", second), Dead)
    third = strict.redrive("c1", second).message_id
    assert len({"m1", second, third}) == 3
    assert [row["redrive_of"] for row in rows.messages(database)] == [None, "m1", second]


def test_redrive_of_a_message_that_is_not_dead_is_refused(chat: Any, database: Database) -> None:
    answer(chat)
    before = rows.dump(database)
    assert chat.redrive("c1", "m1") == Refused(message_id="m1", seq=1, reason="not_dead", state="answered")
    assert chat.redrive("c1", "m2") == NotFound(message_id="m2")
    assert rows.dump(database) == before


def test_redrive_of_a_purged_message_is_refused(strict: Any, database: Database) -> None:
    die(strict)
    age(database)
    strict.purge(older_than_ms=HOUR_MS)
    assert strict.redrive("c1", "m1") == Refused(message_id="m1", seq=1, reason="purged", state="dead")


def test_redrive_in_a_deleted_thread_is_gone(strict: Any, database: Database) -> None:
    die(strict)
    strict.delete("c1")
    before = rows.dump(database)
    assert isinstance(strict.redrive("c1", "m1"), Gone)
    assert rows.dump(database) == before


# -- purge -------------------------------------------------------------------------------------------------------------
def test_purge_forgets_payloads_and_replies_and_keeps_ids(chat: Any, database: Database) -> None:
    answer(chat)
    age(database)
    assert chat.purge(older_than_ms=HOUR_MS) == 2
    (message,) = rows.messages(database)
    (turn,) = rows.turns(database)
    assert (message["payload"], message["message_id"], message["disposition"]) == (None, "m1", "answered")
    assert (turn["reply"], turn["state"]) == (None, "done")


def test_purge_forgets_although_the_clock_was_ahead_at_the_last_one(chat: Any, database: Database) -> None:
    answer(chat)
    age(database)
    ahead = now(database) + 365 * 24 * HOUR_MS
    rows.execute(database, f"INSERT INTO chatlock_meta(name, value) VALUES ('purged_through', {ahead})")
    assert chat.purge(older_than_ms=HOUR_MS) == 2
    assert rows.select(database, "SELECT value FROM chatlock_meta WHERE name = 'purged_through'")[0][0] < ahead


def test_purge_forgets_the_note_of_a_turn(strict: Any, database: Database) -> None:
    with suppress(RuntimeError), strict.turn("c1", "hello", message_id="m1") as turn:
        turn.mark({"customer": "secret"})
        raise RuntimeError("not today")
    age(database)
    strict.purge(older_than_ms=HOUR_MS)
    assert [(row["state"], row["mark"]) for row in rows.turns(database)] == [("gave_up", None)]


def test_purged_id_is_still_answered_and_still_conflicts(chat: Any, database: Database) -> None:
    answer(chat)
    age(database)
    chat.purge(older_than_ms=HOUR_MS)
    before = rows.dump(database)
    expected = AlreadyAnswered(message_id="m1", seq=1, reply=None, turn=1)
    assert chat.submit("c1", "hello", message_id="m1") == expected
    assert chat.submit("c1", "other", message_id="m1") == Conflict(message_id="m1", seq=1)
    assert rows.dump(database) == before


def test_purge_leaves_what_is_younger(chat: Any, database: Database) -> None:
    answer(chat)
    age(database)
    answer(chat, message_id="m2")
    chat.purge(older_than_ms=HOUR_MS)
    assert [row["payload"] for row in rows.messages(database)] == [None, '"hello"']
    assert [row["reply"] for row in rows.turns(database)] == [None, '"ok"']


def test_purge_leaves_what_is_pending(chat: Any, database: Database) -> None:
    answer(chat)
    chat.submit("c1", "later", message_id="m2", wait_ms=0)
    age(database)
    chat.purge(older_than_ms=HOUR_MS)
    assert [row["payload"] for row in rows.messages(database)] == [None, '"later"']
    chat.handler()(lambda turn: [message.payload for message in turn.messages])
    chat.sweep_once()
    assert chat.status("c1", "m2").reply == ["later"]


def test_purge_drops_old_turns_that_resolved_nothing(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(limits=Limits(backoff_ms=0))
    with suppress(RuntimeError), chat.turn("c1", "hello", message_id="m1"):
        raise RuntimeError("not today")
    answer(chat)
    age(database)
    chat.purge(older_than_ms=HOUR_MS)
    assert [row["state"] for row in rows.turns(database)] == ["done"]


def test_purge_keeps_a_rolled_back_turn_until_a_later_one_is_done(chat: Any, database: Database) -> None:
    """The on_rollback hook sees each at least once: it runs in the next turn, however late that comes."""
    answer(chat)
    chat.begin("c1", "wrong", message_id="m2")
    chat.submit("c1", "right", message_id="m3", policy="rollback", wait_ms=0)
    age(database)
    chat.purge(older_than_ms=HOUR_MS)
    tokens: list[int] = []
    chat.on_rollback()(lambda turn, rolled_back: tokens.extend(rolled_back))
    chat.handler()(lambda turn: "ok")
    chat.sweep_once()
    assert (tokens, chat.status("c1", "m3").reply) == ([2], "ok")
    age(database)
    chat.purge(older_than_ms=HOUR_MS)
    assert {row["state"] for row in rows.turns(database)} == {"done"}


def test_purge_forgets_dead_messages_and_keeps_their_reason(strict: Any, database: Database) -> None:
    die(strict)
    age(database)
    strict.purge(older_than_ms=HOUR_MS)
    assert [row["payload"] for row in rows.messages(database)] == [None]
    assert strict.status("c1", "m1") == Dead(message_id="m1", seq=1, reason="RuntimeError")


def test_purge_drops_all_of_a_deleted_thread_but_its_tombstone(chat: Any, database: Database) -> None:
    answer(chat)
    chat.delete("c1")
    age(database)
    chat.purge(older_than_ms=HOUR_MS)
    assert (rows.messages(database), rows.turns(database)) == ([], [])
    assert rows.thread_row(database)["status"] == "deleted"
    assert isinstance(chat.submit("c1", "hello", message_id="m1"), Gone)


def test_purge_drops_earlier_lives_and_keeps_the_living_one(chat: Any, database: Database) -> None:
    answer(chat)
    chat.delete("c1")
    with chat.turn("c1", "again", message_id="m1", recreate=True) as turn:
        turn.finish("ok")
    age(database)
    chat.purge(older_than_ms=HOUR_MS)
    assert [(row["incarnation"], row["message_id"]) for row in rows.messages(database)] == [(2, "m1")]
    assert [row["incarnation"] for row in rows.turns(database)] == [2]


def test_purge_reaches_messages_that_never_had_a_turn(
    chat: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatlock.admin.PURGE_BATCH", 2)
    for thread in ("a cancelled", "b waits", "c deleted", "d waits", "e deleted"):
        chat.submit(thread, "secret", message_id="m1", wait_ms=0)
    chat.cancel("a cancelled", "m1")
    for thread in ("c deleted", "e deleted"):
        chat.delete(thread)
    age(database)
    assert chat.purge(older_than_ms=HOUR_MS) == 3
    left = {row["thread_id"]: row["payload"] for row in rows.table(database, "chatlock_messages")}
    assert left == {"a cancelled": None, "b waits": '"secret"', "d waits": '"secret"'}
    assert chat.purge(older_than_ms=HOUR_MS) == 0


def test_purge_after_purge_reaches_what_was_resolved_meanwhile(chat: Any, database: Database) -> None:
    """The end of the thread's last turn was looked at already: no turn leads to what came after."""
    answer(chat)
    chat.submit("c1", "secret", message_id="m2", wait_ms=0)
    age(database)
    chat.purge(older_than_ms=HOUR_MS)
    chat.cancel("c1", "m2")
    assert chat.purge(older_than_ms=HOUR_MS) == 1
    assert [row["payload"] for row in rows.messages(database)] == [None, None]
    chat.delete("c1")
    assert chat.purge(older_than_ms=HOUR_MS) > 0
    assert rows.messages(database) == []


def test_purge_forgets_the_reply_that_was_sent(chat: Any, database: Database) -> None:
    chat.deliver()(lambda delivery: None)
    answer(chat)
    age(database)
    chat.purge(older_than_ms=HOUR_MS)
    assert [row["payload"] for row in rows.table(database, "chatlock_intents")] == ['"ok"']  # it is still to be sent
    ended = "UPDATE chatlock_intents SET state = 'sent', ended_at = "
    rows.execute(database, f"{ended}{now(database)}")
    assert chat.purge(older_than_ms=HOUR_MS) == 0
    rows.execute(database, f"{ended}1")
    assert chat.purge(older_than_ms=HOUR_MS) == 1
    assert [row["payload"] for row in rows.table(database, "chatlock_intents")] == [None]


def test_purge_of_a_thread_that_is_not_there_changes_nothing(chat: Any) -> None:
    assert chat._executor.transaction("purge", lambda c: purge_thread(c, Key("t", "never"), HOUR_MS)) == 0


def test_purge_works_in_bounded_batches(chat: Any, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatlock.admin.PURGE_BATCH", 2)
    for n in range(5):
        answer(chat, f"c{n}")
    age(database)
    seen: list[str] = []
    chat._executor.points = seen.append
    assert chat.purge(older_than_ms=HOUR_MS) == 10
    assert seen.count("purge.batch.begin") >= 3
    assert seen.count("purge.commit") == 5
    assert chat.purge(older_than_ms=HOUR_MS) == 0


def test_purge_of_more_ends_in_one_millisecond_than_a_batch_leaves_none(
    chat: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatlock.admin.PURGE_BATCH", 2)
    for n in range(5):
        answer(chat, f"c{n}")
    age(database)
    rows.execute(database, "UPDATE chatlock_turns SET ended_at = 1000")
    chat.purge(older_than_ms=HOUR_MS)
    assert {row["payload"] for row in rows.table(database, "chatlock_messages")} == {None}


@pytest.mark.parametrize("older_than_ms", [0, -1, 1.5, None, True])
def test_purge_of_a_bad_age_is_refused(chat: Any, database: Database, older_than_ms: Any) -> None:
    answer(chat)
    before = rows.dump(database)
    with pytest.raises(InvalidInput, match="older_than_ms"):
        chat.purge(older_than_ms=older_than_ms)
    assert rows.dump(database) == before
