"""What a turn can do with its messages: fetch and finish, over the hot and the locked path, in both clients."""

from __future__ import annotations

from typing import Any

import pytest

from chatlock import AlreadyAnswered, Answered, ClaimLost, InvalidInput, Limits, Queued
from tests.conformance import rows
from tests.conformance.conftest import NewChat
from tests.support.databases import Database

pytestmark = pytest.mark.usefixtures("way")


def queue(chat: Any, *payloads: object, thread: str = "c1") -> None:
    for payload in payloads:
        chat.submit(thread, payload, message_id=f"m{payload}", wait_ms=0)


def payloads(messages: Any) -> list[Any]:
    return [message.payload for message in messages]


# -- fetch -------------------------------------------------------------------------------------------------------------
def test_turn_starts_with_everything_that_is_pending_in_order(chat: Any) -> None:
    queue(chat, 1, 2)
    with chat.turn("c1", 3) as turn:
        assert payloads(turn.messages) == [1, 2, 3]
        turn.finish("ok")


def test_message_tells_its_seq_id_payload_and_time(chat: Any, database: Database) -> None:
    with chat.turn("c1", {"text": "hi"}, message_id="m1") as turn:
        (message,) = turn.messages
        (row,) = rows.messages(database)
        assert (message.seq, message.message_id, message.payload) == (1, "m1", {"text": "hi"})
        assert (message.received_at, message.redrive_of) == (row["received_at"], None)
        turn.finish("ok")


def test_fetch_takes_what_arrived_in_the_turn(chat: Any) -> None:
    with chat.turn("c1", 1) as turn:
        assert turn.fetch() == []
        queue(chat, 2, 3)
        assert payloads(turn.fetch()) == [2, 3]
        assert turn.fetch() == []
        assert payloads(turn.messages) == [1, 2, 3]
        turn.finish("all")
    assert chat.status("c1", "m3") == AlreadyAnswered(message_id="m3", seq=3, reply="all", turn=1)


def test_fetch_takes_at_most_mid_fetches_max_times(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(mid_fetches_max=2))
    with chat.turn("c1", 0) as turn:
        for n in (1, 2, 3):
            queue(chat, n)
            turn.fetch()
        assert payloads(turn.messages) == [0, 1, 2]
        turn.finish("ok")
    assert isinstance(chat.status("c1", "m3"), Queued)


def test_turn_fetches_in_mid_turn_twenty_times_by_default(chat: Any) -> None:
    with chat.turn("c1", 0) as turn:
        assert [turn.fetch() for _ in range(20)] == [[]] * 20
        queue(chat, 1)
        assert turn.fetch() == []
        turn.finish("ok")


def test_turn_holds_at_most_a_batch(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(batch_max=2))
    queue(chat, 1, 2)
    with chat.turn("c1", 3) as turn:
        assert payloads(turn.messages) == [1, 2]
        assert turn.fetch() == []
        turn.finish("ok")
    with chat.turn("c1", 4) as turn:
        assert payloads(turn.messages) == [3, 4]
        turn.finish("ok")


def test_fetch_passes_over_a_cancelled_message(chat: Any) -> None:
    with chat.turn("c1", 1) as turn:
        queue(chat, 2, 3)
        chat.cancel("c1", "m2")
        assert payloads(turn.fetch()) == [3]
        turn.finish("ok")


def test_turn_starts_without_the_cancelled_messages_between(chat: Any, database: Database) -> None:
    queue(chat, 1, 2)
    chat.cancel("c1", "m2")
    with chat.turn("c1", 3) as turn:
        assert payloads(turn.messages) == [1, 3]
        turn.finish("ok")
    assert rows.dispositions(database) == ["answered", "cancelled", "answered"]
    assert rows.thread_row(database)["holes"] == 0


# -- finish ------------------------------------------------------------------------------------------------------------
def test_finish_moves_over_the_cancelled_messages_behind(chat: Any, database: Database) -> None:
    with chat.turn("c1", 1) as turn:
        queue(chat, 2, 3)
        chat.cancel("c1", "m2")
        turn.finish("ok")
    assert (rows.thread_row(database)["done_seq"], rows.thread_row(database)["holes"]) == (2, 0)


def test_finish_answers_exactly_what_the_turn_fetched(chat: Any, database: Database) -> None:
    with chat.turn("c1", 1) as turn:
        queue(chat, 2)
        turn.finish("ok")
    assert rows.dispositions(database) == ["answered", "pending"]
    assert [row["thread_id"] for row in rows.table(database, "chatlock_due")] == ["c1"]


def test_finish_up_to_a_message_leaves_the_rest_pending(chat: Any, database: Database) -> None:
    queue(chat, 1, 2)
    with chat.turn("c1", 3) as turn:
        turn.finish("the first two", upto=2)
    assert rows.dispositions(database) == ["answered", "answered", "pending"]
    with chat.turn("c1", 4) as turn:
        assert payloads(turn.messages) == [3, 4]
        turn.finish("the rest")
    assert [(row["from_seq"], row["to_seq"]) for row in rows.turns(database)] == [(0, 2), (2, 4)]


@pytest.mark.parametrize("upto", [0, 2, 4, -1])
def test_finish_up_to_a_message_that_was_not_fetched_is_refused(chat: Any, database: Database, upto: int) -> None:
    queue(chat, 1, 2)
    chat.cancel("c1", "m2")
    with chat.turn("c1", 3) as turn:
        queue(chat, 4)
        before = rows.dump(database)
        with pytest.raises(InvalidInput, match="upto") as refused:
            turn.finish("no", upto=upto)
        assert refused.value.reason == "bad_upto"
        assert rows.dump(database) == before
        turn.finish("ok")


def test_finish_ends_the_turn_and_stores_its_reply(chat: Any, database: Database) -> None:
    with chat.turn("c1", 1, message_id="m1") as turn:
        turn.finish({"text": "hi", "parts": [1, None, True]})
    (row,) = rows.turns(database)
    assert (row["state"], row["from_seq"], row["to_seq"], row["error"]) == ("done", 0, 1, None)
    assert row["reply"] == '{"parts":[1,null,true],"text":"hi"}'
    assert row["ended_at"] >= row["started_at"]
    thread = rows.thread_row(database)
    assert (thread["status"], thread["done_seq"], thread["claim_id"]) == ("idle", 1, None)
    assert chat.status("c1", "m1").reply == {"text": "hi", "parts": [1, None, True]}


def test_reply_may_be_null(chat: Any) -> None:
    with chat.turn("c1", 1, message_id="m1") as turn:
        turn.finish()
    assert chat.status("c1", "m1") == AlreadyAnswered(message_id="m1", seq=1, reply=None, turn=1)


def test_finish_twice_is_refused(chat: Any, database: Database) -> None:
    with chat.turn("c1", 1) as turn:
        turn.finish("once")
        before = rows.dump(database)
        for call in (lambda: turn.finish("twice"), turn.fetch, lambda: turn.fail("late"), lambda: turn.mark("late")):
            with pytest.raises(InvalidInput) as refused:
                call()
            assert refused.value.reason == "turn_ended"
        assert turn.release() is False
        assert rows.dump(database) == before


def test_reply_that_is_refused_leaves_the_turn_open(chat: Any, database: Database) -> None:
    with chat.turn("c1", 1) as turn:
        before = rows.dump(database)
        for reply in ("x" * 1024 * 1024, float("nan"), object()):
            with pytest.raises(InvalidInput):
                turn.finish(reply)
        assert rows.dump(database) == before
        turn.finish("ok")


def test_finish_clears_what_was_charged(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(limits=Limits(backoff_ms=0))
    with pytest.raises(RuntimeError), chat.turn("c1", 1, message_id="m1"):
        raise RuntimeError("not today")
    assert rows.thread_row(database)["attempts"] == 1
    with chat.turn("c1", 1, message_id="m1") as turn:
        turn.finish("ok")
    row = rows.thread_row(database)
    assert (row["attempts"], row["stalls"], row["not_before"]) == (0, 0, 0)


def test_finish_after_the_claim_was_taken_is_refused_and_writes_nothing_but_its_late_end(
    chat: Any, database: Database
) -> None:
    turn = chat.begin("c1", 1)
    assert chat.free("c1", turn=turn.token, force=True).done
    before = rows.dump(database)
    with pytest.raises(ClaimLost):
        turn.finish("too late")
    assert rows.dump(database) == before
    assert turn.lost


# -- the message that the call is about --------------------------------------------------------------------------------
def test_submit_whose_turn_finished_before_its_message_waits_on_for_it(chat: Any) -> None:
    queue(chat, 1)
    chat.handler()(lambda turn: turn.finish(turn.messages[0].payload, upto=turn.messages[0].seq))
    assert chat.submit("c1", 2, message_id="m2") == Answered(message_id="m2", seq=2, reply=2, turn=2)


def test_return_value_of_a_handler_is_the_reply_unless_it_finished(chat: Any) -> None:
    def handler(turn: Any) -> str:
        if turn.key.thread == "c2":
            turn.finish("finished")
        return "returned"

    chat.handler()(handler)
    assert chat.submit("c1", 1).reply == "returned"
    assert chat.submit("c2", 1).reply == "finished"
