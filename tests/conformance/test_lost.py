"""What a turn learns of its claim: check, the heartbeat, and the loss that is told once."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from chatlock import ClaimLost, Limits
from tests.conformance import rows
from tests.conformance.conftest import BOTH, NewChat, Start
from tests.support.databases import Database
from tests.support.waiting import until

pytestmark = BOTH


def test_check_passes_while_the_claim_is_held_and_does_no_io(chat: Any) -> None:
    with chat.turn("c1", "hello") as turn:
        chat._executor.points = lambda name: pytest.fail(f"check did {name}")
        turn.check()
        chat._executor.points = None
        turn.finish("ok")


def test_check_raises_once_the_turn_has_ended(chat: Any) -> None:
    with chat.turn("c1", "hello") as turn:
        turn.finish("ok")
        with pytest.raises(ClaimLost, match=r"has ended \(done\)"):
            turn.check()


def test_check_raises_once_the_lease_has_passed_on_this_clock(
    new_chat: NewChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = new_chat(heartbeat=False, limits=Limits(window_default_ms=60_000))
    turn = chat.begin("c1", "hello")
    now = time.monotonic()
    monkeypatch.setattr("chatlock.turn_core.time.monotonic", lambda: now + 59.0)
    turn.check()
    monkeypatch.setattr("chatlock.turn_core.time.monotonic", lambda: now + 60.1)
    with pytest.raises(ClaimLost):
        turn.check()
    monkeypatch.undo()
    turn.release()


def test_heartbeat_extends_the_lease_of_a_running_turn(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(limits=Limits(beat_ms=10))
    turn = chat.begin("c1", "hello")
    claimed = rows.thread_row(database)["expires_at"]
    until(lambda: rows.thread_row(database)["beat"] >= 2)
    assert rows.thread_row(database)["expires_at"] > claimed
    turn.finish("ok")


def test_turn_without_a_heartbeat_has_its_window_as_its_lease(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(heartbeat=False, limits=Limits(beat_ms=1, window_default_ms=90_000))
    turn = chat.begin("c1", "hello")
    row = rows.thread_row(database)
    assert (row["lease_ms"], row["expires_at"]) == (90_000, row["window_ends_at"])
    assert len(chat._flows.heart) == 0
    turn.finish("ok")


def test_turn_whose_os_thread_or_task_ended_is_not_beaten_for(new_chat: NewChat, start: Start) -> None:
    chat = new_chat(limits=Limits(beat_ms=10))
    held: list[Any] = []
    ended = threading.Thread(target=lambda: held.append(chat.begin("c1", "hello")))
    ended.start()
    ended.join()
    if hasattr(chat, "chat"):
        chat.end_tasks()
    until(lambda: len(chat._flows.heart) == 0)
    held[0].release()


def test_lost_claim_is_told_once_in_the_heartbeats_os_thread(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(beat_ms=10))
    turn = chat.begin("c1", "hello")
    told: list[str] = []
    turn.on_lost(lambda: 1 / 0)
    turn.on_lost(lambda: told.append(threading.current_thread().name))
    assert not turn.lost
    chat.free("c1", turn=turn.token, force=True)
    until(lambda: told)
    assert told == ["chatlock-heart"]
    assert turn.lost
    with pytest.raises(ClaimLost):
        turn.check()
    for call in (turn.fetch, lambda: turn.finish("late"), lambda: turn.mark("late")):
        with pytest.raises(ClaimLost):
            call()
    assert told == ["chatlock-heart"]


def test_callback_registered_after_the_loss_runs_at_once(new_chat: NewChat) -> None:
    chat = new_chat(heartbeat=False)
    turn = chat.begin("c1", "hello")
    chat.free("c1", turn=turn.token, force=True)
    with pytest.raises(ClaimLost):
        turn.fetch()
    told: list[int] = []
    turn.on_lost(lambda: told.append(1))
    assert told == [1]


def test_turn_that_ended_is_never_lost(new_chat: NewChat) -> None:
    chat = new_chat(heartbeat=False)
    turn = chat.begin("c1", "hello")
    told: list[int] = []
    turn.on_lost(lambda: told.append(1))
    turn.finish("ok")
    turn._core.set_lost()
    assert not turn.lost
    assert told == []


def test_block_of_a_lost_turn_charges_nothing(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(heartbeat=False)
    with suppress(ClaimLost), chat.turn("c1", "hello", message_id="m1") as turn:
        chat.free("c1", turn=turn.token, force=True)
        turn.finish("late")
    assert [row["state"] for row in rows.turns(database)] == ["released"]
    assert rows.thread_row(database)["attempts"] == 0


def test_close_releases_what_runs_and_tells_its_turn(new_chat: NewChat, database: Database) -> None:
    chat = new_chat()
    turn = chat.begin("c1", "hello")
    chat._close(0)
    assert turn.lost
    assert [row["state"] for row in rows.turns(database)] == ["released"]
