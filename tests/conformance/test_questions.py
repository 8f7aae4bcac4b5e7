"""Waiting for a human: a turn ends with a question, the thread is free, and the question is answered once."""

from __future__ import annotations

from typing import Any

import pytest

from chatlock import (
    AlreadyAnswered,
    Answered,
    Cancelled,
    ClaimLost,
    Conflict,
    Debounce,
    Gone,
    InvalidInput,
    NotFound,
    Parked,
    Queued,
    Refused,
    Superseded,
)
from tests.conformance import rows
from tests.conformance.conftest import BOTH, NewChat, Start
from tests.support.databases import Database
from tests.support.waiting import SECONDS_MAX

pytestmark = BOTH


def seen(turn: Any) -> list[Any]:
    """What the turn holds: payloads, and for an answer the question that it answers too."""
    return [m.payload if m.answers is None else (m.answers, m.payload) for m in turn.messages]


def ask(chat: Any, awaiting: str = "hold", payload: Any = "m1") -> str:
    """A turn of thread c1 that ends with a question."""
    with chat.turn("c1", payload) as turn:
        return str(turn.suspend("go on?", awaiting=awaiting))


def stored(chat: Any, *names: str, **options: Any) -> list[Any]:
    return [chat.submit("c1", name, message_id=name, wait_ms=0, **options) for name in names]


def listed(question: str, decision: Any) -> list[Any]:
    """An answer as JSON has it."""
    return [question, decision]


# -- suspend --
def test_question_ends_the_turn_and_frees_the_thread(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1", message_id="m1") as turn:
        expected = turn.step_key("question:1")
        question = turn.suspend({"ask": "go on?"})
        with pytest.raises(InvalidInput):
            turn.finish("too late")
    assert question == expected
    (ended,) = rows.turns(database)
    assert (ended["state"], ended["reply"], ended["question"]) == ("done", '{"ask":"go on?"}', question)
    row = rows.thread_row(database)
    assert (row["status"], row["claim_id"], row["awaiting"], row["awaiting_rule"]) == ("idle", None, question, "hold")
    told = AlreadyAnswered(message_id="m1", seq=1, reply={"ask": "go on?"}, turn=ended["token"], question=question)
    assert chat.status("c1", "m1") == told
    assert rows.table(database, "chatlock_due") == []


def test_reply_that_asks_says_so(chat: Any) -> None:
    questions: list[str] = []
    chat.handler()(lambda turn: questions.append(turn.suspend("go on?")) if seen(turn) == ["m1"] else "done")
    first = chat.submit("c1", "m1")
    assert isinstance(first, Answered)
    assert (first.reply, first.question) == ("go on?", questions[0])
    assert chat.answer("c1", questions[0], "yes").question is None


def test_turn_that_lost_its_claim_asks_nothing(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "m1")
    chat.free("c1", turn=turn.token, force=True)
    with pytest.raises(ClaimLost):
        turn.suspend("go on?")
    assert rows.thread_row(database)["awaiting"] is None
    assert [(ended["state"], ended["question"]) for ended in rows.turns(database)] == [("released", None)]


def test_retried_turn_asks_under_the_same_id(chat: Any) -> None:
    keys = []
    for _ in range(2):
        turn = chat.begin("c1", "m1", message_id="m1")
        keys.append(turn.step_key("question:1"))
        turn.release()
    assert ask(chat) == keys[0] == keys[1]


def test_unknown_rule_is_told_before_anything_is_written(chat: Any) -> None:
    with chat.turn("c1", "m1") as turn:
        with pytest.raises(InvalidInput, match="hold, run, cancel"):
            turn.suspend("go on?", awaiting="later")
        turn.finish("done")


# -- answer --
def test_answer_is_a_message_that_says_what_it_answers(chat: Any, database: Database) -> None:
    chat.handler()(seen)
    question = ask(chat)
    told = chat.answer("c1", question, {"go": True})
    assert isinstance(told, Answered)
    assert (told.message_id, told.reply) == (question, [listed(question, {"go": True})])
    assert rows.thread_row(database)["awaiting"] is None


def test_answer_that_does_not_claim_is_due(chat: Any) -> None:
    question = ask(chat)
    assert isinstance(chat.answer("c1", question, "yes", wait_ms=0), Queued)
    chat.handler()(seen)
    assert chat.sweep_once().turns == 1
    assert chat.status("c1", question).reply == [listed(question, "yes")]


def test_answer_goes_to_the_agent_that_asked(chat: Any) -> None:
    chat.handler("booking")(lambda turn: turn.agent if turn.messages[0].answers else turn.suspend("when?"))
    first = chat.submit("c1", "m1", agent="booking")
    assert chat.answer("c1", first.question, "today").reply == "booking"


def test_decision_is_taken_once(chat: Any, database: Database) -> None:
    chat.handler()(seen)
    question = ask(chat)
    first = chat.answer("c1", question, "yes")
    before = rows.dump(database)
    again = AlreadyAnswered(message_id=question, seq=2, reply=first.reply, turn=first.turn)
    assert chat.answer("c1", question, "yes") == again
    assert chat.answer("c1", question, "no") == Conflict(message_id=question, seq=2)
    assert rows.dump(database) == before


def test_answer_to_no_open_question_is_refused(chat: Any, database: Database) -> None:
    assert chat.answer("c1", "q0", "yes") == Refused(message_id="q0", reason="not_awaiting", state="absent")
    assert rows.table(database, "chatlock_threads") == []
    stored(chat, "m1")
    before = rows.dump(database)
    assert chat.answer("c1", "q0", "yes") == Refused(message_id="q0", reason="not_awaiting", state="idle")
    assert rows.dump(database) == before
    ask(chat)
    before = rows.dump(database)
    assert chat.answer("c1", "q0", "yes") == Refused(message_id="q0", reason="other_question", state="idle")
    assert rows.dump(database) == before


def test_precondition_alone_answers_nothing(chat: Any, database: Database) -> None:
    question = ask(chat)
    assert chat.submit("c1", "m2", message_id="m2", if_awaiting="q0", wait_ms=0).reason == "other_question"
    assert isinstance(chat.submit("c1", "m2", message_id="m2", if_awaiting=question, wait_ms=0), Queued)
    assert rows.thread_row(database)["awaiting"] == question


def test_message_that_only_has_the_questions_id_is_no_answer(chat: Any, database: Database) -> None:
    question = ask(chat)
    before = rows.dump(database)
    refused = Refused(message_id=question, reason="open_question", state="idle")
    assert chat.submit("c1", "yes", message_id=question) == refused
    assert rows.dump(database) == before


def test_question_whose_id_is_taken_is_not_asked(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "m1")
    stored(chat, turn.step_key("question:1"))
    with pytest.raises(InvalidInput, match="id of this question"):
        turn.suspend("go on?")
    turn.finish("done")
    assert rows.thread_row(database)["awaiting"] is None


def test_answer_is_taken_whatever_the_client_does_with_messages(new_chat: NewChat) -> None:
    chat = new_chat(policy="reject", pending_max=1)
    question = ask(chat)
    assert isinstance(stored(chat, "m2")[0], Queued)
    chat.handler()(seen)
    assert chat.answer("c1", question, "yes").reply == ["m2", listed(question, "yes")]


@pytest.mark.parametrize("policy", ["latest", Debounce(quiet_ms=600_000, max_wait_ms=600_000)], ids=type)
def test_answer_under_another_policy_drops_nothing_and_is_not_put_off(chat: Any, policy: Any) -> None:
    question = ask(chat)
    stored(chat, "m2")
    chat.handler()(seen)
    told = chat.submit("c1", "yes", message_id=question, if_awaiting=question, policy=policy, wait_ms=0)
    assert told.reply == ["m2", listed(question, "yes")]


def test_failed_turn_keeps_the_decision(chat: Any, database: Database) -> None:
    question = ask(chat)
    turn = chat.begin("c1", "yes", message_id=question, if_awaiting=question)
    assert seen(turn) == [(question, "yes")]
    turn.fail("no")
    assert rows.thread_row(database)["awaiting"] is None
    rows.pass_backoff(database)
    chat.handler()(seen)
    assert chat.answer("c1", question, "yes").reply == [listed(question, "yes")]


def test_dead_answer_that_is_sent_again_still_says_what_it_answers(new_chat: NewChat, database: Database) -> None:
    chat = new_chat()
    question = ask(chat)
    chat.answer("c1", question, "yes", wait_ms=0)
    rows.execute(database, "UPDATE chatlock_threads SET attempts = 4")
    turn = chat.begin("c1", "yes", message_id=question)
    turn.fail("no")
    chat.redrive("c1", question)
    with chat.turn("c1", "m3") as turn:
        assert seen(turn) == [(question, "yes"), "m3"]
        turn.finish("done")


def test_turn_may_ask_again(chat: Any) -> None:
    first = ask(chat)
    with chat.turn("c1", "yes", message_id=first, if_awaiting=first) as turn:
        second = turn.suspend("sure?")
    assert first != second
    assert chat.answer("c1", first, "no").seq == 2
    chat.handler()(seen)
    assert chat.answer("c1", second, "sure").reply == [listed(second, "sure")]


# -- what new messages do meanwhile --
def test_held_messages_wait_for_the_answer(chat: Any, database: Database, start: Start) -> None:
    ran: list[Any] = []
    chat.handler()(lambda turn: ran.append(seen(turn)))
    question = ask(chat)
    assert [told.position for told in stored(chat, "m2", "m3")] == [0, 1]
    waiting = start(lambda: chat.submit("c1", "m2", message_id="m2", wait_ms=None))
    chat.sweep_once()
    assert (ran, rows.table(database, "chatlock_due")) == ([], [])
    chat.answer("c1", question, "yes", wait_ms=0)
    waiting.result(SECONDS_MAX)
    assert ran == [["m2", "m3", (question, "yes")]]


def test_surplus_due_row_of_a_held_thread_is_no_breach_and_is_deleted(chat: Any, database: Database) -> None:
    ran: list[Any] = []
    chat.handler()(lambda turn: ran.append(seen(turn)))
    ask(chat)
    stored(chat, "m2")
    rows.execute(database, "INSERT INTO chatlock_due(tenant, thread_id, due_at, priority) VALUES ('t', 'c1', 1, 20)")
    assert chat.verify().ok
    chat.sweep_once()
    assert (ran, rows.table(database, "chatlock_due")) == ([], [])


def test_message_left_by_the_asking_turn_is_held(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2")
        question = turn.suspend("go on?")
    assert rows.table(database, "chatlock_due") == []
    chat.handler()(seen)
    assert chat.answer("c1", question, "yes").reply == ["m2", listed(question, "yes")]


def test_running_rule_keeps_the_question_open(chat: Any, database: Database) -> None:
    question = ask(chat, "run")
    with chat.turn("c1", "m2") as turn:
        assert seen(turn) == ["m2"]
        assert isinstance(chat.answer("c1", question, "yes", wait_ms=0), Queued)
        assert rows.thread_row(database)["awaiting"] is None
        assert [(m.answers, m.payload) for m in turn.fetch()] == [(question, "yes")]
        turn.finish("both")
    assert isinstance(chat.status("c1", question), AlreadyAnswered)


def test_finished_turn_leaves_the_question_open(chat: Any, database: Database) -> None:
    question = ask(chat, "run")
    chat.handler()(seen)
    assert chat.submit("c1", "m2").reply == ["m2"]
    assert rows.thread_row(database)["awaiting"] == question
    assert chat.answer("c1", question, "yes").reply == [listed(question, "yes")]


def test_new_question_closes_the_one_before(chat: Any, database: Database) -> None:
    first = ask(chat, "run")
    second = ask(chat, "run", payload="m2")
    assert chat.answer("c1", first, "yes").reason == "other_question"
    assert rows.thread_row(database)["awaiting"] == second


def test_cancelling_rule_closes_the_question(chat: Any, database: Database) -> None:
    question = ask(chat, "cancel")
    chat.handler()(seen)
    assert chat.submit("c1", "something else").reply == ["something else"]
    row = rows.thread_row(database)
    assert (row["awaiting"], row["awaiting_rule"]) == (None, None)
    assert chat.answer("c1", question, "yes") == Refused(message_id=question, reason="not_awaiting", state="idle")


def test_refused_message_does_not_close_the_question(chat: Any, database: Database) -> None:
    question = ask(chat, "cancel")
    chat.submit("c1", "m2", if_turn=7, wait_ms=0)
    assert rows.thread_row(database)["awaiting"] == question
    chat.handler()(seen)
    assert chat.answer("c1", question, "yes").reply == [listed(question, "yes")]


# -- what operators do --
def test_cancelled_question_is_closed(chat: Any, database: Database) -> None:
    ran: list[Any] = []
    chat.handler()(lambda turn: ran.append(seen(turn)))
    question = ask(chat)
    stored(chat, "m2")
    assert chat.cancel("c1", "q0") == NotFound(message_id="q0")
    assert chat.cancel("c1", question) == Cancelled(message_id=question)
    assert chat.answer("c1", question, "yes").reason == "not_awaiting"
    chat.sweep_once()
    assert ran == [["m2"]]


def test_parked_thread_takes_the_answer_and_keeps_it(chat: Any) -> None:
    question = ask(chat)
    chat.park("c1")
    assert chat.answer("c1", question, "yes") == Parked(message_id=question, seq=2)
    chat.resume("c1")
    chat.handler()(seen)
    assert chat.answer("c1", question, "yes").reply == [listed(question, "yes")]


def test_resumed_thread_is_still_held(chat: Any, database: Database) -> None:
    ask(chat)
    stored(chat, "m2")
    chat.park("c1")
    chat.resume("c1")
    assert rows.table(database, "chatlock_due") == []


def test_freed_turn_leaves_the_question_open(chat: Any, database: Database) -> None:
    question = ask(chat, "run")
    turn = chat.begin("c1", "m2")
    assert chat.free("c1", turn=turn.token, force=True).done
    assert rows.thread_row(database)["awaiting"] == question


def test_deleted_thread_has_no_question(chat: Any, database: Database) -> None:
    question = ask(chat)
    chat.delete("c1")
    assert chat.answer("c1", question, "yes") == Gone(message_id=question)
    chat.handler()(seen)
    assert chat.submit("c1", "m1", recreate=True).reply == ["m1"]
    assert chat.answer("c1", question, "yes").reason == "not_awaiting"


def test_held_message_can_be_superseded_and_cancelled(chat: Any, database: Database) -> None:
    question = ask(chat)
    stored(chat, "m2", "m3")
    assert chat.cancel("c1", "m2") == Cancelled(message_id="m2", seq=2)
    stored(chat, "m4", policy="latest")
    assert chat.status("c1", "m3") == Superseded(message_id="m3", seq=3, by=4)
    assert rows.table(database, "chatlock_due") == []
    chat.handler()(seen)
    assert chat.answer("c1", question, "yes").reply == ["m4", listed(question, "yes")]
