"""What submit tells and stores, over the hot and the locked path, in both clients."""

from __future__ import annotations

from typing import Any

import pytest

from chatlock import (
    AlreadyAnswered,
    Answered,
    Busy,
    Cancelled,
    Conflict,
    Dead,
    Gone,
    Limits,
    MissingTenant,
    NotFound,
    Parked,
    Queued,
    Refused,
    Unknown,
)
from chatlock.errors import StoreUnavailable
from tests.conformance import rows
from tests.conformance.conftest import NewChat, Start
from tests.support.databases import Database
from tests.support.waiting import SECONDS_MAX, Gate

pytestmark = pytest.mark.usefixtures("way")


def echo(turn: Any) -> Any:
    return {"echo": [message.payload for message in turn.messages]}


def wrong(turn: Any) -> Any:
    raise RuntimeError("not today")


@pytest.fixture
def answering(chat: Any) -> Any:
    """A client whose handler echoes the payloads that it was given."""
    chat.handler()(echo)
    return chat


def test_submit_that_runs_the_turn_is_answered(answering: Any) -> None:
    outcome = answering.submit("c1", "hello", message_id="m1")
    assert outcome == Answered(message_id="m1", seq=1, reply={"echo": ["hello"]}, turn=1)


def test_each_message_of_a_thread_gets_the_next_seq_and_token(answering: Any) -> None:
    outcomes = [answering.submit("c1", n) for n in range(3)]
    assert [(o.seq, o.turn) for o in outcomes] == [(1, 1), (2, 2), (3, 3)]


def test_message_without_an_id_gets_a_new_one_in_its_outcome(answering: Any) -> None:
    first, second = answering.submit("c1", "a"), answering.submit("c1", "a")
    assert first.message_id != second.message_id
    assert answering.status("c1", first.message_id).reply == first.reply


def test_resubmission_replays_the_reply_and_runs_nothing(answering: Any, database: Database) -> None:
    first = answering.submit("c1", "hello", message_id="m1")
    before = rows.dump(database)
    again = answering.submit("c1", "hello", message_id="m1")
    assert again == AlreadyAnswered(message_id="m1", seq=1, reply=first.reply, turn=first.turn)
    assert rows.dump(database) == before


def test_resubmission_with_reordered_keys_is_the_same_message(answering: Any) -> None:
    answering.submit("c1", {"a": 1, "b": {"c": 2, "d": 3}}, message_id="m1")
    assert isinstance(answering.submit("c1", {"b": {"d": 3, "c": 2}, "a": 1}, message_id="m1"), AlreadyAnswered)


def test_same_id_with_another_payload_is_a_conflict_and_writes_nothing(answering: Any, database: Database) -> None:
    answering.submit("c1", "hello", message_id="m1")
    before = rows.dump(database)
    assert answering.submit("c1", "other", message_id="m1") == Conflict(message_id="m1", seq=1)
    assert rows.dump(database) == before


def test_same_id_with_another_payload_is_a_conflict_while_pending(chat: Any, database: Database) -> None:
    chat.submit("c1", "hello", message_id="m1", wait_ms=0)
    before = rows.dump(database)
    assert chat.submit("c1", "other", message_id="m1", wait_ms=0) == Conflict(message_id="m1", seq=1)
    assert rows.dump(database) == before


def test_same_id_in_two_threads_is_two_messages(answering: Any) -> None:
    outcomes = [answering.submit(thread, "hello", message_id="m1") for thread in ("c1", "c2")]
    assert outcomes == [Answered(message_id="m1", seq=1, reply={"echo": ["hello"]}, turn=1)] * 2


def test_message_without_a_handler_is_queued_and_due(chat: Any, database: Database) -> None:
    assert chat.submit("c1", "hello", message_id="m1", wait_ms=0) == Queued(message_id="m1", seq=1, position=0)
    (message,) = rows.messages(database)
    (due,) = rows.table(database, "chatlock_due")
    assert (due["thread_id"], due["due_at"]) == ("c1", message["received_at"])  # its place among those that wait


def test_resubmission_of_a_pending_message_runs_it(chat: Any) -> None:
    chat.submit("c1", "hello", message_id="m1", wait_ms=0)
    chat.handler()(echo)
    assert isinstance(chat.submit("c1", "hello", message_id="m1"), Answered)


def test_turn_over_a_queue_answers_all_of_it(chat: Any) -> None:
    chat.submit("c1", 1, message_id="m1", wait_ms=0)
    chat.handler()(echo)
    assert chat.submit("c1", 2, message_id="m2").reply == {"echo": [1, 2]}
    assert isinstance(chat.status("c1", "m1"), AlreadyAnswered)


def test_rejected_message_is_busy_while_a_turn_runs_and_not_stored(chat: Any, database: Database) -> None:
    with chat.turn("c1", "hello") as turn:
        before = rows.dump(database)
        outcome = chat.submit("c1", "again", message_id="m2", policy="reject")
        assert isinstance(outcome, Busy)
        assert (outcome.seq, outcome.holder) == (None, chat._flows.store.owner)
        assert outcome.since_ms >= 0
        assert rows.dump(database) == before
        assert chat.status("c1", "m2") == NotFound(message_id="m2")
        turn.finish("ok")


def test_rejected_message_is_busy_while_messages_are_pending(chat: Any, database: Database) -> None:
    chat.submit("c1", "hello", wait_ms=0)
    before = rows.dump(database)
    assert chat.submit("c1", "again", message_id="m2", policy="reject") == Busy(
        message_id="m2", holder=None, since_ms=None, position=1
    )
    assert rows.dump(database) == before


def test_policy_reject_stores_in_a_free_thread(answering: Any) -> None:
    assert isinstance(answering.submit("c1", "hello", policy="reject"), Answered)


def test_policy_reject_tells_a_known_message_its_state(answering: Any, database: Database) -> None:
    answering.submit("c1", "hello", message_id="m1")
    with answering.turn("c1", "more") as turn:
        assert isinstance(answering.submit("c1", "hello", message_id="m1", policy="reject"), AlreadyAnswered)
        turn.finish("ok")


def test_policy_of_the_client_is_the_default_of_the_call(new_chat: NewChat) -> None:
    chat = new_chat(policy="reject")
    with chat.turn("c1", "hello") as turn:
        assert isinstance(chat.submit("c1", "again"), Busy)
        assert isinstance(chat.submit("c1", "again", policy="enqueue", wait_ms=0), Queued)
        turn.finish("ok")


def test_cancelled_message_is_cancelled_for_everyone(chat: Any) -> None:
    chat.submit("c1", "hello", message_id="m1", wait_ms=0)
    expected = Cancelled(message_id="m1", seq=1)
    assert chat.cancel("c1", "m1") == expected
    assert chat.status("c1", "m1") == expected
    assert chat.submit("c1", "hello", message_id="m1") == expected


def test_message_in_a_turn_cannot_be_cancelled(chat: Any, database: Database) -> None:
    with chat.turn("c1", "hello", message_id="m1") as turn:
        before = rows.dump(database)
        assert chat.cancel("c1", "m1") == Refused(message_id="m1", seq=1, reason="in_turn", state="running")
        assert rows.dump(database) == before
        turn.finish("ok")


def test_message_behind_a_turn_can_be_cancelled(chat: Any, database: Database) -> None:
    with chat.turn("c1", "hello") as turn:
        chat.submit("c1", "oops", message_id="m2", wait_ms=0)
        assert isinstance(chat.cancel("c1", "m2"), Cancelled)
        assert turn.fetch() == []
        turn.finish("ok")
    row = rows.thread_row(database)
    assert (row["done_seq"], row["last_seq"], row["holes"]) == (2, 2, 0)


def test_turn_that_never_fetched_a_cancelled_follower_ends_past_it(chat: Any, database: Database) -> None:
    with chat.turn("c1", "hello") as turn:
        chat.submit("c1", "oops", message_id="m2", wait_ms=0)
        chat.cancel("c1", "m2")
        turn.finish("ok")
    row = rows.thread_row(database)
    assert (row["done_seq"], row["fetched_seq"], row["last_seq"], row["holes"]) == (2, 2, 2, 0)


def test_cancel_of_an_answered_message_tells_its_outcome(answering: Any) -> None:
    answering.submit("c1", "hello", message_id="m1")
    assert isinstance(answering.cancel("c1", "m1"), AlreadyAnswered)


def test_cancel_of_a_message_that_never_was_is_not_found(answering: Any) -> None:
    answering.submit("c1", "hello", message_id="m1")
    assert answering.cancel("c1", "m2") == NotFound(message_id="m2")
    assert answering.cancel("c2", "m1") == NotFound(message_id="m1")


def test_message_whose_attempts_are_used_up_is_dead_with_its_reason(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(attempts_max=1))
    chat.handler()(wrong)
    expected = Dead(message_id="m1", seq=1, reason="RuntimeError")
    assert chat.submit("c1", "hello", message_id="m1") == expected
    assert chat.submit("c1", "hello", message_id="m1") == chat.status("c1", "m1") == expected


def test_message_to_a_parked_thread_is_stored_and_parked(answering: Any) -> None:
    answering.submit("c1", "hello")
    answering.park("c1")
    expected = Parked(message_id="m2", seq=2)
    assert answering.submit("c1", "again", message_id="m2") == expected
    assert answering.submit("c1", "again", message_id="m2") == answering.status("c1", "m2") == expected


def test_message_to_a_deleted_thread_is_gone_and_not_stored(answering: Any, database: Database) -> None:
    answering.submit("c1", "hello", message_id="m1")
    answering.delete("c1")
    before = rows.dump(database)
    assert answering.submit("c1", "again", message_id="m2") == Gone(message_id="m2")
    assert answering.status("c1", "m1") == Gone(message_id="m1", seq=1)
    assert answering.status("c1", "m2") == NotFound(message_id="m2")
    assert rows.dump(database) == before


def test_recreate_starts_the_next_incarnation_under_a_higher_token(answering: Any, database: Database) -> None:
    answering.submit("c1", "hello", message_id="m1")
    answering.delete("c1")
    deleted = rows.thread_row(database)
    outcome = answering.submit("c1", "again", message_id="m1", recreate=True)
    assert (outcome.seq, outcome.reply) == (1, {"echo": ["again"]})
    row = rows.thread_row(database)
    assert row["incarnation"] == deleted["incarnation"] + 1
    assert outcome.turn > deleted["token"] > 1


def test_recreate_of_a_living_thread_is_a_plain_submit(answering: Any, database: Database) -> None:
    assert answering.submit("c1", "hello", recreate=True).seq == 1
    assert answering.submit("c1", "again", recreate=True).seq == 2
    assert rows.thread_row(database)["incarnation"] == 1


def test_message_of_another_tenant_is_not_found(answering: Any, database: Database) -> None:
    answering.submit("c1", "hello", message_id="m1")
    before = rows.dump(database)
    assert answering.status("c1", "m1", tenant="other") == NotFound(message_id="m1")
    assert answering.cancel("c1", "m1", tenant="other") == NotFound(message_id="m1")
    assert answering.redrive("c1", "m1", tenant="other") == NotFound(message_id="m1")
    assert not answering.park("c1", tenant="other").done
    assert not answering.delete("c1", tenant="other").done
    assert rows.dump(database) == before


def test_two_tenants_share_neither_thread_nor_id(answering: Any) -> None:
    mine = answering.submit("c1", "mine", message_id="m1")
    theirs = answering.submit("c1", "theirs", message_id="m1", tenant="other")
    assert (mine.reply, theirs.reply) == ({"echo": ["mine"]}, {"echo": ["theirs"]})
    assert (theirs.seq, theirs.turn) == (1, 1)


def test_turn_of_one_tenant_does_not_hold_up_another(answering: Any) -> None:
    with answering.turn("c1", "mine") as turn:
        assert isinstance(answering.submit("c1", "theirs", tenant="other"), Answered)
        turn.finish("ok")


def test_call_without_a_tenant_is_refused_before_anything_is_written(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(tenant=None)
    before = rows.dump(database)
    for call in (
        lambda: chat.submit("c1", "hello"),
        lambda: chat.status("c1", "m1"),
        lambda: chat.cancel("c1", "m1"),
        lambda: chat.park("c1"),
        lambda: chat.delete("c1"),
    ):
        with pytest.raises(MissingTenant):
            call()
    assert rows.dump(database) == before
    chat.handler()(echo)
    assert isinstance(chat.submit("c1", "hello", tenant="t"), Answered)


def test_message_runs_the_handler_of_its_agent(answering: Any) -> None:
    answering.handler("sales")(lambda turn: f"sales: {turn.agent}")
    assert answering.submit("c1", "hello", agent="sales").reply == "sales: sales"
    assert answering.submit("c2", "hello").reply == {"echo": ["hello"]}


def test_message_of_an_agent_without_a_handler_here_only_queues(answering: Any) -> None:
    assert isinstance(answering.submit("c1", "hello", agent="elsewhere", wait_ms=0), Queued)


def test_commit_whose_answer_never_came_is_unknown_and_may_be_asked_again(
    answering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(what: Any, request: Any) -> Any:
        raise StoreUnavailable("the connection was cut", commit_unknown=True)

    with monkeypatch.context() as cut:
        cut.setattr(answering._flows.store, "submit", lost)
        assert answering.submit("c1", "hello", message_id="m1") == Unknown(message_id="m1")
    assert isinstance(answering.submit("c1", "hello", message_id="m1"), Answered)


def test_submit_waits_for_the_running_turn_and_then_runs_its_own(chat: Any, start: Start) -> None:
    gate = Gate()

    def held(turn: Any) -> Any:
        if turn.messages[0].payload == "first":
            gate.hold()
        return echo(turn)

    chat.handler()(held)
    first = start(lambda: chat.submit("c1", "first"))
    gate.wait_entered()
    second = start(lambda: chat.submit("c1", "second"))
    third = start(lambda: chat.submit("c2", "third"))
    assert third.result(SECONDS_MAX).reply == {"echo": ["third"]}
    assert not second.done()
    gate.open()
    assert first.result(SECONDS_MAX).reply == {"echo": ["first"]}
    assert second.result(SECONDS_MAX).reply == {"echo": ["second"]}


def test_of_two_calls_with_one_id_one_is_answered_and_one_already(chat: Any, start: Start) -> None:
    gate, runs = Gate(), []

    def held(turn: Any) -> Any:
        runs.append(turn.token)
        gate.hold()
        return "ok"

    chat.handler()(held)
    first = start(lambda: chat.submit("c1", "hello", message_id="m1"))
    gate.wait_entered()
    second = start(lambda: chat.submit("c1", "hello", message_id="m1"))
    gate.open()
    assert first.result(SECONDS_MAX) == Answered(message_id="m1", seq=1, reply="ok", turn=1)
    assert second.result(SECONDS_MAX) == AlreadyAnswered(message_id="m1", seq=1, reply="ok", turn=1)
    assert runs == [1]


def test_caller_is_told_when_its_message_is_stored_and_before_its_turn(chat: Any) -> None:
    told: list[Any] = []

    @chat.handler()
    def answer(turn: Any) -> int:
        return len(told)

    assert chat.submit("c1", "hello", message_id="m1", on_stored=told.append).reply == 1
    assert (told[0].message_id, told[0].seq) == ("m1", 1)
    chat.submit("c1", "hello", message_id="m1", on_stored=told.append)
    assert isinstance(told[1], AlreadyAnswered)
    chat.submit("c1", "another payload", message_id="m1", on_stored=told.append)
    chat.submit("c1", "precondition", if_turn=7, on_stored=told.append)
    assert len(told) == 2
