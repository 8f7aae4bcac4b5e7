"""Where a message stands in its thread: behind how many, in which turn, in which life."""

from __future__ import annotations

from typing import Any

import pytest

from chatlock import Queued

pytestmark = pytest.mark.usefixtures("way")


def test_position_counts_the_pending_messages_ahead(chat: Any) -> None:
    outcomes = [chat.submit("c1", n, wait_ms=0) for n in range(3)]
    assert [outcome.position for outcome in outcomes] == [0, 1, 2]


def test_position_does_not_count_a_cancelled_message_ahead(chat: Any) -> None:
    for n in (1, 2, 3):
        chat.submit("c1", n, message_id=f"m{n}", wait_ms=0)
    chat.cancel("c1", "m2")
    assert chat.submit("c1", 3, message_id="m3", wait_ms=0).position == 1
    assert chat.submit("c1", 4, wait_ms=0).position == 2


def test_position_does_not_change_by_a_cancelled_message_behind(chat: Any) -> None:
    for n in (1, 2, 3):
        chat.submit("c1", n, message_id=f"m{n}", wait_ms=0)
    chat.cancel("c1", "m3")
    assert chat.submit("c1", 2, message_id="m2", wait_ms=0).position == 1


def test_message_in_the_running_turn_has_position_zero_and_its_turn(chat: Any) -> None:
    with chat.turn("c1", "hello", message_id="m1") as turn:
        told = chat.submit("c1", "hello", message_id="m1", wait_ms=0)
        assert told == chat.status("c1", "m1") == Queued(message_id="m1", seq=1, position=0, turn=turn.token)
        turn.finish("ok")


def test_message_behind_the_running_turn_is_queued_behind_it(chat: Any) -> None:
    with chat.turn("c1", "hello") as turn:
        first, second = (chat.submit("c1", n, wait_ms=0) for n in range(2))
        assert (first.position, second.position) == (1, 2)
        assert (first.turn, second.turn) == (None, None)
        assert [chat.status("c1", told.message_id) for told in (first, second)] == [first, second]
        turn.finish("ok")


def test_place_of_a_message_counts_those_that_wait_before_it(chat: Any) -> None:
    chat.begin("c1", "one").finish("ok")
    with chat.turn("c1", "two") as turn:
        assert chat.submit("c1", "more", message_id="m3", wait_ms=0) == Queued(message_id="m3", seq=3, position=1)
        turn.finish("ok")


def test_outcome_tells_in_which_life_of_the_thread_its_seq_counts(chat: Any) -> None:
    def stored(name: str, payload: str = "hello", **options: Any) -> Any:
        return chat.submit("c1", payload, message_id=name, wait_ms=0, **options)

    chat.begin("c1", "hello").finish("ok")
    chat.delete("c1")
    told = [stored("m1", recreate=True), chat.status("c1", "m1"), stored("m1", "other"), chat.redrive("c1", "m1")]
    told += [stored("m2", pending_max=1, overflow="drop_newest"), stored("m2")]
    told += [chat.edit("c1", "m1", "x", "e1"), chat.edit("c1", "m1", "y", "e1"), chat.cancel("c1", "e1")]
    with chat.turn("c1", "hello", message_id="m3") as turn:
        told += [chat.cancel("c1", "m3"), chat.edit("c1", "m3", "x", "e2")]
        turn.finish("ok")
    chat.park("c1")
    told += [stored("m4"), stored("m4")]
    chat.delete("c1")
    told += [chat.status("c1", "m4")]
    kinds = (
        "Queued Queued Conflict Refused Superseded Superseded Queued Conflict Cancelled Refused Refused Parked Parked"
    )
    assert [type(outcome).__name__ for outcome in told] == [*kinds.split(), "Gone"]
    assert {outcome.incarnation for outcome in told} == {2}
