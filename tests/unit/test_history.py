"""The checker refuses every corrupted history for its own reason, and no sound one."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from chatlock import Chatlock, Turn
from chatlock.inputs import Key
from chatlock.testing import History, check
from chatlock.testing.checker import CHECKS
from chatlock.testing.history import Event
from tests.support.databases import Database
from tests.unit.corruptions import Corrupt, asks, corruptions, find, message_of_a_stopped_turn_is_answered_by_the_next
from tests.unit.story import TRIES, Story, sound


def names(events: list[Event]) -> set[str]:
    return {breach.invariant for breach in check(events, attempts_max=TRIES)}


def test_sound_history_is_accepted() -> None:
    assert check(sound(), attempts_max=TRIES) == ()


def test_every_beginning_of_a_sound_history_is_accepted() -> None:
    """Whatever was not noted any more, a process that died refuses nobody."""
    events = sound()
    rows = events.index(find(events, "message", seq=1, thread="t"))
    assert [names(events[:end]) for end in range(rows)] == [set()] * rows


@pytest.mark.parametrize("lost", range(len(sound())))
def test_nothing_but_a_row_or_a_receipt_that_is_missing_refuses_a_sound_history(lost: int) -> None:
    """A note that was lost makes a check miss something; what an answer rests on must be there."""
    events = sound()
    gone = events.pop(lost)
    rests_on = {"began", "fetched", "finishing", "asked", "stopping", "message", "turn", "thread"}
    assert gone["event"] in rests_on or names(events) == set()


@pytest.mark.parametrize(("name", "corrupt"), corruptions, ids=lambda of: of if isinstance(of, str) else of.__name__)
def test_corrupted_history_is_refused_for_its_own_reason(name: str, corrupt: Corrupt) -> None:
    events = copy.deepcopy(sound())
    corrupt(events)
    assert events != sound()
    assert names(events) == {name}


@pytest.mark.parametrize(("what", "message_id"), [("submit", "q"), ("cancel", "q"), ("delete", None)])
def test_question_that_somebody_closes_holds_no_longer(what: str, message_id: str | None) -> None:
    closing = {**find(sound(), "asked", what="cancel"), "what": what, "message_id": message_id}
    for before in (0, 1):
        events = sound()
        events.insert(asks(events, "hold") - before, closing)
        assert "held_until_answered" not in {breach.invariant for breach in check(events)}


def test_last_stop_of_a_turn_says_what_becomes_of_what_it_has() -> None:
    events = sound()
    message_of_a_stopped_turn_is_answered_by_the_next(events)
    stopping = find(events, "stopping", token=21)
    events.insert(events.index(stopping) + 1, stopping | {"queued": "keep"})
    assert check(events, attempts_max=TRIES) == ()


@pytest.mark.parametrize("awaiting", ["run", "cancel"])
def test_question_that_lets_turns_begin_holds_nothing(awaiting: str) -> None:
    events = sound()
    asks(events, awaiting)
    assert check(events, attempts_max=TRIES) == ()


def test_every_check_has_a_corruption() -> None:
    assert {name for name, _ in corruptions} == {kind.name for kind in CHECKS}
    assert len(corruptions) >= 30


def test_breach_names_its_thread() -> None:
    events = sound()
    find(events, "thread", thread="t")["status"] = "running"
    (breach,) = check(events, attempts_max=TRIES)
    assert (breach.tenant, breach.thread, breach.text) == ("acme", "t", "turn 7 runs after the drain")


def long_history(turns: int) -> list[Event]:
    """One thread with that many turns, one after another."""
    s = Story()
    for seq in range(1, turns + 1):
        call = s.asked(f"m{seq}")
        s.note("began", seq, messages=[[seq, f"m{seq}"]], call=call)
        s.note("effecting", seq, effect="e")
        s.note("effected", seq, effect="e")
        s.note("finishing", seq, upto=seq, reply=seq)
        s.note("finished", seq)
        s.told(call, f"m{seq}", "Answered", seq=seq, turn=seq, reply=seq)
        s.row("message", seq=seq, message_id=f"m{seq}", disposition="answered", turn=seq)
        s.row("turn", token=seq, from_seq=seq - 1, to_seq=seq, state="done", reply=seq)
    s.row("thread", token=turns, status="idle", done_seq=turns, last_seq=turns)
    return s.events


def test_checking_takes_time_in_step_with_the_length() -> None:
    """Counted in calls of functions, not in seconds."""

    def calls(events: list[Event]) -> int:
        counted = count()
        sys.setprofile(lambda frame, event, argument: next(counted) if "call" in event else None)
        try:
            assert check(events) == ()
        finally:
            sys.setprofile(None)
        return next(counted)

    assert calls(long_history(400)) < 2.2 * calls(long_history(200))


def test_histories_of_two_processes_are_read_as_one(tmp_path: Path) -> None:
    events = sound()
    for number in (0, 1):
        History(events[number::2]).write(tmp_path / f"{number}.jsonl")
    both = History.read(tmp_path / "1.jsonl", tmp_path / "0.jsonl")
    assert both.events == events
    assert check(both, attempts_max=TRIES) == ()


@pytest.fixture
def chat(database: Database) -> Iterator[Chatlock]:
    with Chatlock(database.url, tenant="acme", poller=False) as made:
        yield made


def test_what_a_client_and_its_turns_note_is_accepted(chat: Chatlock) -> None:
    history = History()
    key = Key("acme", "t")

    @chat.handler()
    def answer(turn: Turn) -> str:
        history.began(turn, call)
        history.effecting(turn, "mark")
        turn.mark("here")
        history.effected(turn, "mark")
        chat.submit("t", "more", message_id="m2")
        history.fetched(turn, turn.fetch())
        history.finishing(turn, "ok")
        return "ok"

    call = history.asked(key, "submit", "m1", "hello")
    history.told(key, call, chat.submit("t", "hello", message_id="m1"))
    history.tables(chat, drained=True)
    assert check(history) == ()
    assert [e["disposition"] for e in history.events if e["event"] == "message"] == ["answered", "answered"]


def test_what_the_tables_lack_is_noticed(chat: Chatlock) -> None:
    history = History()
    key = Key("acme", "t")
    history.told(key, history.asked(key, "submit", "m1"), chat.submit("other", "hello", message_id="m1", wait_ms=0))
    history.tables(chat, drained=True)
    assert {breach.invariant for breach in check(history)} == {"stored_once", "nothing_left"}


@pytest.mark.parametrize(("cancels", "refused"), [(True, set()), (False, {"stop_was_kept"})])
def test_stop_of_a_client_is_judged_by_its_receipt(
    cancels: bool, refused: set[str], sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cancels:
        monkeypatch.setattr("chatlock.ops.unanswered.cancel_stopped", lambda *_: 0)
    history, key = History(), Key("acme", "t")
    with Chatlock(sqlite_database.url, tenant="acme", poller=False) as chat:
        stopped = chat.begin("t", "m1", message_id="m1")
        assert isinstance(stopped, Turn)
        history.stopping(key, stopped.token, "cancel")
        history.stopped(key, chat.cancel("t", turn=stopped.token, queued="cancel"))
        stopped.release()
        with chat.turn("t", "m2", message_id="m2") as turn:
            history.began(turn)
            history.finishing(turn, "ok")
            turn.finish("ok")
        history.tables(chat, drained=True)
    assert {breach.invariant for breach in check(history)} == refused


def test_tables_are_noted_once_although_their_snapshot_was_repeated(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History()
    with Chatlock(sqlite_database.url, tenant="acme", poller=False) as chat:
        chat.submit("t", "hi", message_id="m", wait_ms=0)
        snapshot = chat._executor.snapshot
        monkeypatch.setattr(chat._executor, "snapshot", lambda name, op: snapshot(name, lambda c: (op(c), op(c))[1]))
        history.tables(chat, drained=False)
    assert [event["event"] for event in history.events] == ["message", "thread"]
