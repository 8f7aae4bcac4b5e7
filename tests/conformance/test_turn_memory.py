"""What a turn keeps for its retries and successors: marks, sessions, step keys."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from chatlock import ClaimLost, InvalidInput, Limits
from chatlock.inputs import Key
from chatlock.ops.base import Incomplete
from chatlock.ops.claim import claim_due
from tests.conformance import rows
from tests.conformance.conftest import BOTH, NewChat
from tests.support.databases import Database

pytestmark = BOTH


def queue(chat: Any, *payloads: object, thread: str = "c1") -> None:
    for payload in payloads:
        chat.submit(thread, payload, message_id=f"m{payload}", wait_ms=0)


def payloads(messages: Any) -> list[Any]:
    return [message.payload for message in messages]


# -- mark and previous_incomplete --------------------------------------------------------------------------------------
def fail_once(chat: Any, mark: Any = None) -> int:
    """A failed turn over the head of c1, with a mark; its token."""
    with suppress(RuntimeError), chat.turn("c1", 1, message_id="m1") as turn:
        if mark is not None:
            turn.mark(mark)
        raise RuntimeError("not today")
    return int(turn.token)


def test_first_turn_has_no_incomplete_one_before_it(chat: Any) -> None:
    with chat.turn("c1", 1) as turn:
        assert turn.previous_incomplete is None
        turn.finish("ok")
    with chat.turn("c1", 2) as turn:
        assert turn.previous_incomplete is None
        turn.finish("ok")


def test_retry_sees_the_turn_that_failed_and_its_last_mark(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(backoff_ms=0))
    token = fail_once(chat, {"charged": "ch_1", "step": 2})
    with chat.turn("c1", 1, message_id="m1") as turn:
        assert turn.previous_incomplete == Incomplete(token, "failed", {"charged": "ch_1", "step": 2})
        turn.finish("ok")


def test_last_mark_of_a_turn_counts(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(backoff_ms=0))
    with suppress(RuntimeError), chat.turn("c1", 1, message_id="m1") as turn:
        turn.mark("first")
        turn.mark("second")
        raise RuntimeError("not today")
    with chat.turn("c1", 1, message_id="m1") as turn:
        assert turn.previous_incomplete.mark == "second"
        turn.finish("ok")


def test_retry_without_a_mark_sees_none(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(backoff_ms=0))
    token = fail_once(chat)
    with chat.turn("c1", 1, message_id="m1") as turn:
        assert turn.previous_incomplete == Incomplete(token, "failed", None)
        turn.finish("ok")


def test_claim_asked_for_again_is_told_the_same(new_chat: NewChat) -> None:
    """The acknowledgement of the first attempt was lost."""
    chat = new_chat(limits=Limits(backoff_ms=0))
    token = fail_once(chat, "mine")
    request = chat._flows.windows.request("default")
    first, again = (
        chat._executor.transaction("claim_due", lambda c: claim_due(c, Key("t", "c1"), request)) for _ in range(2)
    )
    assert first.claim.previous_incomplete == Incomplete(token, "failed", "mine")
    assert first == again


def test_turn_over_another_head_sees_no_incomplete_one(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(backoff_ms=0))
    fail_once(chat, "mine")
    chat.cancel("c1", "m1")
    with chat.turn("c1", 2) as turn:
        assert turn.previous_incomplete is None
        turn.finish("ok")


def test_turn_is_told_how_earlier_ones_ended_and_nothing_of_another_incarnation(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(backoff_ms=0))
    failed = fail_once(chat)
    with chat.turn("c1", 1, message_id="m1") as done:
        done.finish("ok")
    with chat.turn("c1", 2) as turn:
        tokens = (failed, done.token, turn.token, turn.token + 1)
        assert [turn.state_of(token) for token in tokens] == ["failed", "done", "running", None]
        with pytest.raises(InvalidInput):
            turn.state_of("1")
        turn.finish("ok")
    chat.delete("c1")
    with chat.turn("c1", 1, recreate=True) as turn:
        assert turn.state_of(done.token) is None
        turn.finish("ok")


def test_mark_after_the_claim_was_taken_is_refused(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", 1)
    chat.free("c1", turn=turn.token, force=True)
    before = rows.dump(database)
    with pytest.raises(ClaimLost):
        turn.mark("too late")
    assert rows.dump(database) == before


@pytest.mark.parametrize("value", ["x" * 64 * 1024, float("inf"), {1: "a"}, "\0"])
def test_mark_that_breaks_a_limit_is_refused(chat: Any, database: Database, value: Any) -> None:
    with chat.turn("c1", 1) as turn:
        before = rows.dump(database)
        with pytest.raises(InvalidInput):
            turn.mark(value)
        assert rows.dump(database) == before
        turn.finish("ok")


# -- session -----------------------------------------------------------------------------------------------------------
def test_session_is_created_once_and_kept_for_every_later_turn(chat: Any) -> None:
    made: list[str] = []

    def create(step_key: str) -> str:
        made.append(step_key)
        return f"conversation-{len(made)}"

    with chat.turn("c1", 1) as turn:
        assert turn.session("provider", create) == turn.session("provider", create) == "conversation-1"
        turn.finish("ok")
    with chat.turn("c1", 2) as turn:
        assert turn.session("provider", create) == "conversation-1"
        turn.finish("ok")
    assert len(made) == 1


def test_session_gives_create_the_step_key_of_its_name(chat: Any) -> None:
    with chat.turn("c1", 1) as turn:
        assert turn.session("provider", lambda key: key) == turn.step_key("session:provider")
        turn.finish("ok")


def test_session_names_and_threads_are_apart(chat: Any) -> None:
    for thread, tenant in (("c1", "t"), ("c2", "t"), ("c1", "other")):
        with chat.turn(thread, 1, tenant=tenant) as turn:
            for name in ("a", "b"):
                made = f"{tenant}/{thread}/{name}"
                assert turn.session(name, lambda key, made=made: made) == made
            turn.finish("ok")


def test_session_whose_create_fails_keeps_nothing(chat: Any, database: Database) -> None:
    with chat.turn("c1", 1) as turn:
        with pytest.raises(ZeroDivisionError):
            turn.session("provider", lambda key: str(1 / 0))
        assert rows.table(database, "chatlock_sessions") == []
        assert turn.session("provider", lambda key: "second try") == "second try"
        turn.finish("ok")


@pytest.mark.parametrize("value", ["", None, "a\nb", "x" * 201])
def test_session_whose_value_breaks_a_limit_keeps_nothing(chat: Any, database: Database, value: Any) -> None:
    with chat.turn("c1", 1) as turn:
        with pytest.raises(InvalidInput):
            turn.session("provider", lambda key: value)
        assert rows.table(database, "chatlock_sessions") == []
        turn.finish("ok")


def test_session_of_a_turn_that_lost_its_claim_in_create_keeps_the_takers_value(chat: Any) -> None:
    turn = chat.begin("c1", 1, message_id="m1")

    def create(key: str) -> str:
        return "the loser's"

    chat.free("c1", turn=turn.token, force=True)
    with pytest.raises(ClaimLost):
        turn.session("provider", create)
    with chat.turn("c1", 1, message_id="m1") as taker:
        assert taker.session("provider", lambda key: "the taker's") == "the taker's"
        taker.finish("ok")


def test_session_of_a_deleted_thread_is_forgotten(chat: Any) -> None:
    with chat.turn("c1", 1) as turn:
        turn.session("provider", lambda key: "first life")
        turn.finish("ok")
    chat.delete("c1")
    with chat.turn("c1", 1, recreate=True) as turn:
        assert turn.session("provider", lambda key: "second life") == "second life"
        turn.finish("ok")


# -- step keys ---------------------------------------------------------------------------------------------------------
def test_step_key_is_the_same_over_retries_takeovers_and_larger_batches(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(backoff_ms=0))
    keys = []
    with suppress(RuntimeError), chat.turn("c1", 1, message_id="m1") as turn:
        keys.append(turn.step_key("refund"))
        raise RuntimeError("not today")
    queue(chat, 2)
    turn = chat.begin("c1", 1, message_id="m1")
    keys.append(turn.step_key("refund"))
    chat.free("c1", turn=turn.token, force=True)
    with chat.turn("c1", 3) as turn:
        turn.fetch()
        keys.append(turn.step_key("refund"))
        turn.finish("ok")
    assert len(set(keys)) == 1


def test_step_key_differs_by_name_head_thread_tenant_and_incarnation(chat: Any) -> None:
    keys = []
    for thread, tenant in (("c1", "t"), ("c1", "t"), ("c2", "t"), ("c1", "other")):
        with chat.turn(thread, 1, tenant=tenant) as turn:
            keys += [turn.step_key("refund"), turn.step_key("mail")]
            turn.finish("ok")
    chat.delete("c1")
    with chat.turn("c1", 1, recreate=True) as turn:
        keys += [turn.step_key("refund"), turn.step_key("mail")]
        turn.finish("ok")
    assert len(set(keys)) == len(keys) == 10


def test_step_key_of_a_message_is_the_same_in_every_turn_that_has_it(new_chat: NewChat) -> None:
    """A failed turn of two messages is retried with the first alone: the key of the turn would be another one then."""
    chat = new_chat(limits=Limits(backoff_ms=0))
    queue(chat, 1)
    with suppress(RuntimeError), chat.turn("c1", 2, message_id="m2") as turn:
        both = [turn.step_key("mail", message) for message in turn.messages]
        with pytest.raises(InvalidInput, match="that this turn has"):
            turn.step_key("mail", replace(turn.messages[0], seq=3))
        raise RuntimeError("after the mails")
    alone = []
    for number in (1, 2):
        with chat.turn("c1", number, message_id=f"m{number}") as turn:
            (message,) = turn.messages
            alone.append(turn.step_key("mail", message))
            assert turn.step_key("mail") == alone[-1]
            turn.finish("ok")
    assert alone == both
    assert len(set(both)) == 2
