"""What a new message does to the running turn: steer, interrupt, rollback; and what then returns."""

from __future__ import annotations

from typing import Any

import pytest

from chatlock import AlreadyAnswered, ClaimLost, Interrupt, Limits, Queued, Superseded
from tests.conformance import rows
from tests.conformance.conftest import BOTH, NewChat, Start
from tests.conformance.messages import payloads, stored
from tests.conformance.turns import beat, end_by
from tests.support.databases import Database
from tests.support.waiting import SECONDS_MAX, until

pytestmark = BOTH


# -- steer --
def test_steered_turn_is_told_and_confirms_only_when_it_commits(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        assert not turn.waiting
        stored(chat, "m2", policy="steer")
        assert turn.waiting
        assert [m.payload for m in turn.fetch()] == ["m2"]
        assert not turn.waiting
        assert rows.dispositions(database) == ["pending", "pending"]
        turn.finish("both")
    assert rows.dispositions(database) == ["answered", "answered"]


def test_turn_is_told_by_its_heartbeat_of_what_another_process_sends(new_chat: NewChat) -> None:
    chat, other = new_chat(), new_chat()
    with chat.turn("c1", "m1") as turn:
        stored(other, "m2", policy="steer")
        stored(other, "m3", policy="interrupt")
        assert not turn.waiting
        assert not turn.cancelled
        chat._flows.heart.soon(turn.claim_id)
        until(lambda: turn.waiting and turn.cancelled)
        assert turn.release()


def test_turn_is_not_told_of_what_was_not_sent_to_it(chat: Any) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2")
        stored(chat, "m3", policy="latest")
        assert not turn.waiting
        assert beat(chat, turn)[1:] == (False, 0)
        turn.finish("one")


def test_steered_message_that_is_gone_is_told_of_once(chat: Any) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2", policy="steer")
        chat.cancel("c1", "m2")
        assert turn.waiting
        assert turn.fetch() == []
        assert not turn.waiting
        turn.finish("one")


def test_turn_that_has_fetched_as_often_as_it_may_is_told_no_more(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(mid_fetches_max=1))
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2", policy="steer")
        assert len(turn.fetch()) == 1
        stored(chat, "m3", policy="steer")
        assert not turn.waiting
        turn.finish("both")


def test_steer_without_a_turn_is_enqueue(chat: Any) -> None:
    chat.handler()(payloads)
    assert chat.submit("c1", "m1", policy="steer").reply == ["m1"]


# -- what returns when its turn ends without an answer --
@pytest.mark.parametrize("how", ["release", "fail", "die", "force"])
def test_steered_and_coalesced_messages_return_in_order_and_are_answered_once(
    how: str, chat: Any, database: Database
) -> None:
    stored(chat, "m1", "m2")
    turn = chat.begin("c1", "m3", message_id="m3")
    stored(chat, "m4", policy="steer")
    assert [m.payload for m in [*turn.messages, *turn.fetch()]][-1] == "m4"
    stored(chat, "m5")
    end_by(how, chat, turn, database)
    assert rows.dispositions(database) == ["pending"] * 5
    answered: list[Any] = []
    chat.handler()(lambda turn: answered.extend(payloads(turn)))
    for _ in range(2):  # after a charge the oldest comes alone
        chat.sweep_once()
    assert answered == ["m1", "m2", "m3", "m4", "m5"]
    assert rows.dispositions(database) == ["answered"] * 5
    if how in ("die", "force"):
        with pytest.raises(ClaimLost):
            turn.finish("late")


# -- interrupt --
def test_interrupted_turn_hands_its_messages_to_the_next_one_uncharged(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1", message_id="m1") as turn:
        (told,) = stored(chat, "m2", policy="interrupt")
        assert told == Queued(message_id="m2", seq=2, position=1)
        assert turn.cancelled
        assert beat(chat, turn).cancelled
        turn.release()
    row = rows.thread_row(database)
    assert (row["attempts"], row["stalls"], row["not_before"], row["cancel_token"]) == (0, 0, 0, None)
    chat.handler()(payloads)
    assert chat.submit("c1", "m3").reply == ["m1", "m2", "m3"]


def test_exception_of_a_turn_that_was_asked_to_stop_is_not_charged(chat: Any, database: Database) -> None:
    @chat.handler()
    def stop(turn: Any) -> None:
        stored(chat, "m2", policy="interrupt")
        raise RuntimeError

    chat.submit("c1", "m1", wait_ms=0)
    assert rows.thread_row(database)["attempts"] == 0
    assert [(row["state"], row["error"]) for row in rows.turns(database)] == [("released", "stopped")]


def test_turn_that_finishes_anyway_is_answered(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1", message_id="m1") as turn:
        stored(chat, "m2", policy="interrupt")
        turn.finish("one")
    assert isinstance(chat.status("c1", "m1"), AlreadyAnswered)
    assert rows.dispositions(database) == ["answered", "pending"]


def test_interrupt_never_reaches_the_next_turn(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2", policy="interrupt")
        turn.release()
    with chat.turn("c1", "m3") as later:
        assert not later.cancelled
        assert not beat(chat, later).cancelled
        rows.execute(database, f"UPDATE chatlock_threads SET cancel_token = {later.token - 1}, cancel_until = 1")
        assert not beat(chat, later).cancelled
        chat._sweep.reclaim_stale()
        later.finish("all")


def test_turn_is_released_by_force_once_its_grace_is_over(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "m1", message_id="m1")
    stored(chat, "m2", policy=Interrupt(grace_ms=600_000))
    chat._sweep.reclaim_stale()
    assert rows.thread_row(database)["status"] == "running"
    rows.execute(database, "UPDATE chatlock_threads SET cancel_until = 1")
    chat._sweep.reclaim_stale()
    row = rows.thread_row(database)
    assert [row[name] for name in ("status", "token", "attempts", "stalls")] == ["idle", turn.token + 1, 0, 0]
    assert [(t["state"], t["error"]) for t in rows.turns(database)] == [("released", "grace over")]
    with pytest.raises(ClaimLost):
        turn.finish("late")
    chat.handler()(payloads)
    assert chat.submit("c1", "m3").reply == ["m1", "m2", "m3"]


def test_grace_runs_from_the_first_interrupt_of_a_turn(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "m1")
    stored(chat, "m2", policy=Interrupt(grace_ms=60_000))
    before = rows.thread_row(database)
    stored(chat, "m3", policy=Interrupt(grace_ms=600_000))
    after = rows.thread_row(database)
    assert [after[n] for n in ("cancel_until", "interrupts")] == [before[n] for n in ("cancel_until", "interrupts")]
    turn.release()


def test_message_is_interrupted_a_few_times_and_then_left_to_its_turn(chat: Any, database: Database) -> None:
    policy = Interrupt(per_head_max=2)
    for name in ("m1", "m2"):
        with chat.turn("c1", name) as turn:
            stored(chat, f"{name}-more", policy=policy)
            assert turn.cancelled
            turn.release()
    with chat.turn("c1", "m3") as turn:
        stored(chat, "m3-more", policy=policy)
        assert not turn.cancelled
        turn.finish("all at last")
    with chat.turn("c1", "m4") as turn:  # another oldest message
        stored(chat, "m4-more", policy=policy)
        assert turn.cancelled
        turn.release()
    assert rows.thread_row(database)["interrupts"] == 1


def test_message_that_is_dropped_stops_nobody(chat: Any) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2")
        for policy in ("interrupt", "rollback"):
            assert isinstance(stored(chat, policy, policy=policy, pending_max=1, overflow="drop_newest")[0], Superseded)
        assert not turn.cancelled
        turn.finish("one")


# -- rollback --
def test_rolled_back_turn_ends_and_what_it_fetched_is_superseded(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "m1", message_id="m1")
    stored(chat, "m2")
    assert len(turn.fetch()) == 1
    stored(chat, "m3")
    (told,) = stored(chat, "m4", policy="rollback")
    assert told == Queued(message_id="m4", seq=4, position=1)
    assert rows.dispositions(database) == ["superseded", "superseded", "pending", "pending"]
    assert chat.status("c1", "m1") == Superseded(message_id="m1", seq=1, by=4)
    row = rows.thread_row(database)
    assert [row[name] for name in ("status", "token", "done_seq", "holes")] == ["idle", turn.token + 1, 2, 0]
    assert len(rows.table(database, "chatlock_due")) == 1
    with pytest.raises(ClaimLost):
        turn.finish("late")
    chat.handler()(payloads)
    assert chat.submit("c1", "m5").reply == ["m3", "m4", "m5"]


def test_rolled_back_turn_is_told_by_its_own_heartbeat(chat: Any) -> None:
    turn = chat.begin("c1", "m1")
    stored(chat, "m2", policy="rollback")
    until(lambda: turn.lost)
    assert turn.cancelled


def test_turn_that_has_fetched_nothing_loses_no_message(chat: Any, database: Database) -> None:
    with pytest.raises(RuntimeError), chat.turn("c1", "m1"):
        raise RuntimeError
    rows.pass_backoff(database)
    granted = chat._sweep.claim_due(["default"], 1)
    assert granted[0].messages == ()
    stored(chat, "m2", policy="rollback")
    assert rows.dispositions(database) == ["pending", "pending"]
    assert rows.thread_row(database)["attempts"] == 1


def test_rollback_passes_over_what_was_cancelled_in_its_range(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "m1")
    stored(chat, "m2", "m3")
    chat.cancel("c1", "m2")
    assert [m.payload for m in turn.fetch()] == ["m3"]
    stored(chat, "m4", policy="rollback")
    assert rows.dispositions(database) == ["superseded", "cancelled", "superseded", "pending"]
    assert [rows.thread_row(database)[name] for name in ("done_seq", "holes")] == [3, 0]


def test_waiter_of_a_rolled_back_message_is_told_so(chat: Any, start: Start) -> None:
    turn = chat.begin("c1", "m1", message_id="m1")
    waiting = start(lambda: chat.submit("c1", "m1", message_id="m1", wait_ms=None))
    stored(chat, "m2", policy="rollback")
    assert waiting.result(SECONDS_MAX) == Superseded(message_id="m1", seq=1, by=2)
    assert turn.token == 1


def test_hook_runs_before_the_handler_of_the_next_turn_until_one_is_done(chat: Any, database: Database) -> None:
    ran: list[Any] = []
    chat.on_rollback()(lambda turn, tokens: ran.append(("undo", turn.token, tokens)))
    for name in ("m1", "m2"):
        chat.begin("c1", name)
        stored(chat, f"{name}-instead", policy="rollback")

    @chat.handler()
    def answer(turn: Any) -> Any:
        ran.append(("answer", turn.token))
        if turn.token == 5:
            raise RuntimeError
        return "done"

    for _ in range(2):
        chat.sweep_once()
        rows.pass_backoff(database)
    again = [("undo", 5, [1, 3]), ("answer", 5), ("undo", 6, [1, 3]), ("answer", 6)]
    assert ran == [("undo", 3, [1]), *again]
    chat.submit("c1", "m5")
    assert ran[5:] == [("answer", 7)]


def test_hook_also_runs_where_the_caller_runs_the_turn(chat: Any) -> None:
    ran: list[Any] = []
    chat.on_rollback()(lambda turn, tokens: ran.append(tokens))
    chat.begin("c1", "m1")
    stored(chat, "m2", policy="rollback")
    with chat.turn("c1", "m3") as turn:
        assert ran == [[1]]
        turn.finish("all")


def test_hook_that_fails_fails_its_turn(chat: Any, database: Database) -> None:
    @chat.on_rollback()
    def undo(turn: Any, tokens: Any) -> None:
        raise RuntimeError

    chat.handler()(payloads)
    chat.begin("c1", "m1")
    stored(chat, "m2", policy="rollback")
    chat.sweep_once()
    assert [row["state"] for row in rows.turns(database)] == ["released", "failed"]
    assert rows.dispositions(database) == ["superseded", "pending"]
