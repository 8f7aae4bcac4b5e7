"""A caller stops the running turn: what it is told, when it ends, and what becomes of the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chatlock import AlreadyAnswered, Answered, Cancelled, Interrupt, InvalidInput, Parked
from tests.conformance import rows
from tests.conformance.conftest import BOTH, NewChat, Start
from tests.conformance.messages import payloads, stored
from tests.conformance.turns import end_by
from tests.support.databases import Database
from tests.support.waiting import SECONDS_MAX

pytestmark = BOTH


ENDS: dict[str, Callable[[Any, Any, Database], None]] = {
    "released": lambda chat, turn, database: end_by("release", chat, turn, database),
    "failed": lambda chat, turn, database: end_by("fail", chat, turn, database),
    "forced": lambda chat, turn, database: end_by("force", chat, turn, database),
    "reclaimed": lambda chat, turn, database: end_by("die", chat, turn, database),
    "finished": lambda chat, turn, database: turn.finish("anyway"),
    "part": lambda chat, turn, database: turn.finish("anyway", upto=1),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("queued", ["keep", "cancel", "park"])
def test_stopped_turn_leaves_its_messages_as_the_receipt_says(
    queued: Any, how: str, chat: Any, database: Database
) -> None:
    stored(chat, "m1")
    turn = chat.begin("c1", "m2", message_id="m2")
    stored(chat, "m3")
    receipt = chat.cancel("c1", turn=turn.token, queued=queued)
    assert (receipt.done, receipt.reason, receipt.state) == (True, "asked", "running")
    assert (receipt.turn, receipt.queued) == (turn.token, queued)
    assert (receipt.held, receipt.waiting) == (("m1", "m2"), ("m3",))
    assert turn.cancelled
    stored(chat, "m4")  # after the stop
    ENDS[how](chat, turn, database)
    rest = "cancelled" if queued == "cancel" else "pending"
    first = "answered" if how in ("finished", "part") else rest
    second = "answered" if how == "finished" else rest
    assert rows.dispositions(database) == [first, second, rest, "pending"]
    row = rows.thread_row(database)
    assert row["status"] == ("parked" if queued == "park" else "idle")
    assert [row[name] for name in ("cancel_token", "cancel_until", "cancel_queued", "cancel_upto")] == [None] * 4
    if queued == "park":
        assert isinstance(chat.status("c1", "m4"), Parked)
        assert chat.resume("c1").done
    chat.handler()(payloads)
    rows.pass_backoff(database)
    for _ in range(2):
        chat.sweep_once()
    assert all(isinstance(chat.status("c1", f"m{n}"), AlreadyAnswered | Cancelled) for n in range(1, 5))


def test_late_stop_touches_nothing(chat: Any, database: Database) -> None:
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2")
        turn.finish("one")
    before = rows.dump(database)
    for thread, token, reason in (("c1", turn.token, "not_running"), ("new", 1, "not_running")):
        receipt = chat.cancel(thread, turn=token, queued="cancel")
        assert (receipt.done, receipt.reason, receipt.held, receipt.waiting) == (False, reason, (), ())
    assert rows.dump(database) == before
    with chat.turn("c1", "m3") as later:
        before = rows.dump(database)
        assert chat.cancel("c1", turn=turn.token, queued="cancel").reason == "other_turn"
        assert rows.dump(database) == before
        assert not later.cancelled
        later.finish("all")


def test_stop_repeated_shortens_the_grace_and_never_lengthens_it(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "m1")

    def until_after(grace_ms: int) -> int:
        chat.cancel("c1", turn=turn.token, grace_ms=grace_ms)
        return int(rows.thread_row(database)["cancel_until"])

    first = until_after(60_000)
    assert until_after(600_000) == first
    assert until_after(1) < first
    turn.release()


def test_interrupt_leaves_what_a_stop_has_said_of_the_queue(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "m1")
    chat.cancel("c1", turn=turn.token, queued="cancel")
    stored(chat, "m2", policy="interrupt")
    turn.release()
    assert rows.dispositions(database) == ["cancelled", "pending"]
    assert rows.thread_row(database)["interrupts"] == 0


def test_park_of_a_turn_that_is_stopped_parks_at_once(chat: Any, database: Database) -> None:
    turn = chat.begin("c1", "m1")
    chat.cancel("c1", turn=turn.token, queued="park")
    assert chat.park("c1", turn=turn.token).done
    assert rows.thread_row(database)["status"] == "parked"


def test_stopped_turn_does_not_hand_off_to_what_it_parks(chat: Any, database: Database) -> None:
    @chat.handler()
    def answer(turn: Any) -> str:
        chat.cancel("c1", turn=turn.token, queued="park")
        stored(chat, "m2")
        return "one"

    stored(chat, "m1")
    chat.sweep_once()
    assert rows.dispositions(database) == ["answered", "pending"]
    assert rows.thread_row(database)["status"] == "parked"


def test_task_that_waits_for_the_stop_is_woken(new_chat: NewChat, start: Start) -> None:
    chat = new_chat()
    turn = chat.begin("c1", "m1")
    if not hasattr(turn, "until_cancelled"):
        assert turn.release()
        return
    waiting = start(turn.until_cancelled)
    chat.cancel("c1", turn=turn.token)
    waiting.result(SECONDS_MAX)
    turn.until_cancelled()
    assert turn.release()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"message_id": "m1", "turn": 1},
        {"turn": -1},
        {"turn": 1, "queued": "drop"},
        {"turn": 1, "grace_ms": 0},
    ],
    ids=str,
)
def test_wrong_stop_is_told(chat: Any, arguments: Any) -> None:
    with pytest.raises(InvalidInput):
        chat.cancel("c1", **arguments)


@pytest.mark.parametrize("policy", [Interrupt(grace_ms=0), Interrupt(per_head_max=0)], ids=str)
def test_wrong_bounds_are_told(chat: Any, policy: Any) -> None:
    with pytest.raises(InvalidInput):
        chat.submit("c1", "m1", policy=policy)


def test_policies_that_touch_a_turn_are_enqueue_without_one(chat: Any) -> None:
    chat.handler()(payloads)
    for name in ("steer", "interrupt", "rollback"):
        assert isinstance(chat.submit("c1", name, policy=name), Answered)
