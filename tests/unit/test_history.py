"""The checker refuses every corrupted history for its own reason, and no sound one."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from chatlock import Chatlock, Turn
from chatlock.inputs import Key
from chatlock.testing import History, check
from chatlock.testing.checker import CHECKS
from chatlock.testing.history import Event
from tests.support.databases import Database

TRIES = 3
T, GONE, STOPPED = Key("acme", "t"), Key("acme", "gone"), Key("acme", "stopped")


class Story:
    """Events as clients and workers note them, in few words."""

    def __init__(self) -> None:
        clock = count()
        self.history = History(name="c", now=lambda: next(clock))
        self.events = self.history.events

    def asked(self, message_id: str, what: str = "submit", key: Key = T, payload: object = "hi") -> str:
        return self.history.asked(key, what, message_id, payload if what == "submit" else None)

    def told(self, call: str, message_id: str, outcome: str, key: Key = T, **fields: Any) -> None:
        self.history.note("told", key, call=call, message_id=message_id, outcome=outcome, **fields)

    def note(self, event: str, token: int, key: Key = T, **fields: Any) -> None:
        self.history.note(event, key, token=token, **fields)

    def row(self, event: str, key: Key = T, **fields: Any) -> None:
        self.history.note(event, key, incarnation=1, **fields)


def stopped_twice(s: Story) -> None:
    """s11 and s12 are cancelled with their turn; another turn finishes with s13 although it is asked to stop."""
    s.note("began", 21, STOPPED, messages=[[11, "s11"]], call=s.asked("s11", key=STOPPED))
    s.told(s.asked("s12", key=STOPPED), "s12", "Queued", key=STOPPED, seq=12)
    s.note("stopping", 21, STOPPED, queued="cancel")
    s.note("stopped", 21, STOPPED, queued="cancel", held=["s11"], waiting=["s12"])
    s.note("over", 21, STOPPED, why="stopped")
    s.note("began", 22, STOPPED, messages=[[13, "s13"]], call=s.asked("s13", key=STOPPED))
    s.note("stopping", 22, STOPPED, queued="cancel")
    s.note("stopped", 22, STOPPED, queued="cancel", held=["s13"], waiting=[])
    s.note("finishing", 22, STOPPED, upto=13, reply="r22")
    s.note("finished", 22, STOPPED)


def sound() -> list[Event]:
    """m1 and m2 are answered together, m3 after a reclaim, m4 is cancelled, m5 dies, m6 is refused."""
    s = Story()
    c1 = s.asked("m1")
    s.note("began", 1, messages=[[1, "m1"]], call=c1)
    c2 = s.asked("m2")
    s.told(c2, "m2", "Queued", seq=2)
    s.note("effecting", 1, effect="mail")
    s.note("effected", 1, effect="mail")
    s.note("fetched", 1, messages=[[2, "m2"]])
    s.note("finishing", 1, upto=2, reply="r1")
    s.note("finished", 1)
    s.told(c1, "m1", "Answered", seq=1, turn=1, reply="r1")
    s.told(s.asked("m2"), "m2", "AlreadyAnswered", seq=2, turn=1, reply="r1")
    s.told(s.asked("m1", payload="other"), "m1", "Conflict", seq=1)
    c3 = s.asked("m3")
    s.note("began", 2, messages=[[3, "m3"]], call=c3)
    s.told(s.asked("m6"), "m6", "Busy")
    s.note("over", 2, why="lost")
    s.note("began", 4, messages=[[3, "m3"]], call=s.history.asked(T, "sweep"))
    s.note("finishing", 4, upto=3, reply="r4")
    s.note("finished", 4)
    s.told(c3, "m3", "AlreadyAnswered", seq=3, turn=4, reply="r4")
    s.told(s.asked("m4"), "m4", "Queued", seq=4)
    s.told(s.asked("m4", "cancel"), "m4", "Cancelled", seq=4)
    s.told(s.asked("m9", "status"), "m9", "NotFound")
    c5 = s.asked("m5")
    for token in (5, 6, 7):
        s.note("began", token, messages=[[5, "m5"]], call=c5)
        s.note("over", token, why="failed")
    s.told(c5, "m5", "Dead", seq=5)
    s.told(s.asked("n1", key=GONE), "n1", "Queued", key=GONE, seq=1)
    s.asked("n1", "delete", key=GONE)
    s.told(s.asked("n2", key=GONE), "n2", "Gone", key=GONE)
    stopped_twice(s)
    for seq, disposition, turn in ((1, "answered", 1), (2, "answered", 1), (3, "answered", 4), (5, "dead", 7)):
        s.row("message", seq=seq, message_id=f"m{seq}", disposition=disposition, turn=turn)
    s.row("message", seq=4, message_id="m4", disposition="cancelled")
    for seq, disposition, by in ((11, "cancelled", None), (12, "cancelled", None), (13, "answered", 22)):
        s.row("message", STOPPED, seq=seq, message_id=f"s{seq}", disposition=disposition, turn=by)
    s.row("turn", STOPPED, token=21, from_seq=10, state="released")
    s.row("turn", STOPPED, token=22, from_seq=12, to_seq=13, state="done", reply="r22")
    s.row("thread", STOPPED, token=22, status="idle", done_seq=13, last_seq=13)
    s.row("message", GONE, seq=1, message_id="n1", disposition="deleted")
    s.row("turn", token=1, from_seq=0, to_seq=2, state="done", reply="r1")
    s.row("turn", token=2, from_seq=2, state="reclaimed")
    s.row("turn", token=4, from_seq=2, to_seq=3, state="done", reply="r4")
    s.row("turn", token=5, from_seq=4, state="failed")
    s.row("turn", token=6, from_seq=4, state="failed")
    s.row("turn", token=7, from_seq=4, to_seq=5, state="gave_up")
    s.row("thread", token=7, status="idle", done_seq=5, last_seq=5)
    s.row("thread", GONE, token=1, status="deleted", done_seq=0, last_seq=1)
    s.history.note("drained", Key("", ""))
    return s.events


def find(events: list[Event], event: str, **fields: Any) -> Event:
    """The one event that has these fields."""
    (found,) = [e for e in events if e["event"] == event and e | fields == e]
    return found


def moved(events: list[Event], event: Event, *, after: Event) -> None:
    """Puts an event behind another one."""
    events.remove(event)
    events.insert(events.index(after) + 1, event)


def without_tables(events: list[Event]) -> None:
    """As of a run whose tables nobody noted."""
    del events[events.index(find(events, "message", seq=1, thread="t")) :]


Corrupt = Callable[[list[Event]], object]
corruptions: list[tuple[str, Corrupt]] = []


def breaks(name: str) -> Callable[[Corrupt], Corrupt]:
    """Registers a corruption, and the check that must refuse it."""

    def register(corrupt: Corrupt) -> Corrupt:
        corruptions.append((name, corrupt))
        return corrupt

    return register


# -- tokens ----------------------------------------------------------------------------
@breaks("tokens_rise")
def token_begins_two_turns(events: list[Event]) -> None:
    events.insert(2, dict(find(events, "began", token=1)))


@breaks("tokens_rise")
def later_claim_has_a_lower_token(events: list[Event]) -> None:
    at = events.index(find(events, "began", token=4)) + 1
    asked = {**find(events, "asked", what="sweep"), "call": "c-99"}
    events[at:at] = [asked, {**find(events, "began", token=4), "token": 3, "messages": [], "call": "c-99"}]


@breaks("tokens_rise")
def turn_is_above_its_thread(events: list[Event]) -> None:
    find(events, "thread", thread="t")["token"] = 6


@breaks("tokens_rise")
def later_token_is_of_an_earlier_life(events: list[Event]) -> None:
    find(events, "turn", token=2)["incarnation"] = 2


@breaks("tokens_rise")
def reclaim_passes_no_token_over(events: list[Event]) -> None:
    find(events, "turn", token=5)["state"] = "reclaimed"


@breaks("tokens_rise")
def reclaim_leaves_its_token_to_the_thread(events: list[Event]) -> None:
    events.append(find(events, "turn", token=2) | {"thread": "gone", "token": 1, "from_seq": 0})


# -- ranges ----------------------------------------------------------------------------
@breaks("ranges_tile")
def ranges_overlap(events: list[Event]) -> None:
    find(events, "turn", token=4)["from_seq"] = 1


@breaks("ranges_tile")
def range_is_empty(events: list[Event]) -> None:
    events.append(find(events, "turn", token=4) | {"thread": "gone", "token": 1, "from_seq": 0, "to_seq": 0})


@breaks("ranges_tile")
def answered_outside_its_turns_range(events: list[Event]) -> None:
    find(events, "turn", token=1)["to_seq"] = 1


@breaks("ranges_tile")
def dead_outside_its_turns_range(events: list[Event]) -> None:
    find(events, "turn", token=7)["state"] = "failed"


@breaks("ranges_tile")
def pending_below_a_resolved_range(events: list[Event]) -> None:
    events[:] = [e for e in events if e["event"] != "drained"]
    events.remove(find(events, "told", outcome="Cancelled"))
    find(events, "message", seq=4)["disposition"] = "pending"


# -- what a turn had received ----------------------------------------------------------------------------
@breaks("answered_was_received")
def answered_without_a_fetch(events: list[Event]) -> None:
    events.remove(find(events, "fetched", token=1))


@breaks("answered_was_received")
def answered_by_a_fetch_after_the_finish_began(events: list[Event]) -> None:
    moved(events, find(events, "fetched", token=1), after=find(events, "finishing", token=1))


@breaks("answered_was_received")
def answered_above_upto(events: list[Event]) -> None:
    find(events, "finishing", token=1)["upto"] = 1


@breaks("answered_was_received")
def answered_by_a_turn_that_never_finished(events: list[Event]) -> None:
    events.remove(find(events, "finishing", token=4))


@breaks("answered_was_received")
def answered_under_another_id(events: list[Event]) -> None:
    find(events, "began", token=4)["messages"] = [[3, "m4"]]


# -- one answer ----------------------------------------------------------------------------
@breaks("answered_once")
def two_calls_are_told_answered(events: list[Event]) -> None:
    told = find(events, "told", outcome="Answered")
    events.insert(events.index(told), told | {"call": "c-99"})
    del find(events, "began", token=1)["call"]


@breaks("answered_once")
def two_turns_finish_one_message(events: list[Event]) -> None:
    find(events, "fetched", token=1)["messages"].append([3, "m3"])
    find(events, "finishing", token=1)["upto"] = 3


@breaks("answered_once")
def one_id_is_told_answered_by_two_turns(events: list[Event]) -> None:
    without_tables(events)
    events.append(find(events, "told", outcome="Answered") | {"turn": 4, "call": "c-99", "reply": "r4"})


# -- stored ----------------------------------------------------------------------------
@breaks("stored_once")
def one_id_is_stored_twice(events: list[Event]) -> None:
    events.append(find(events, "message", seq=4) | {"seq": 6})


@breaks("stored_once")
def one_seq_is_given_twice(events: list[Event]) -> None:
    events.append(find(events, "message", seq=4) | {"message_id": "m7", "disposition": "superseded"})


@breaks("stored_once")
def accepted_message_is_lost(events: list[Event]) -> None:
    events.remove(find(events, "message", message_id="n1"))


@breaks("stored_once")
def accepted_under_another_seq(events: list[Event]) -> None:
    find(events, "told", message_id="m4", outcome="Queued")["seq"] = 3


@breaks("stored_once")
def refused_message_is_stored(events: list[Event]) -> None:
    events.append(find(events, "message", seq=4) | {"message_id": "m6", "seq": 6, "disposition": "superseded"})


# -- fencing ----------------------------------------------------------------------------
def stale_effect(events: list[Event], token: int, after: Event) -> None:
    """The turn's effect is begun and accepted after that event."""
    at = events.index(after) + 1
    effect = {**find(events, "effecting", token=1), "token": token, "effect": "late"}
    events[at:at] = [effect, {**effect, "event": "effected"}]


@breaks("fenced_after_reclaim")
def effect_after_the_claim_was_lost(events: list[Event]) -> None:
    stale_effect(events, 2, find(events, "over", token=2))


@breaks("fenced_after_reclaim")
def effect_after_a_newer_turn_began(events: list[Event]) -> None:
    events.remove(find(events, "over", token=2))
    stale_effect(events, 2, find(events, "began", token=4))


@breaks("fenced_after_reclaim")
def effect_after_the_finish(events: list[Event]) -> None:
    stale_effect(events, 1, find(events, "finished", token=1))


@breaks("fenced_after_reclaim")
def finish_after_the_claim_was_lost(events: list[Event]) -> None:
    events.insert(events.index(find(events, "finishing", token=4)), find(events, "over", token=2) | {"token": 4})


@breaks("fenced_after_reclaim")
def finish_after_a_newer_turn_began(events: list[Event]) -> None:
    moved(events, find(events, "began", token=5), after=find(events, "began", token=4))


# -- stops ----------------------------------------------------------------------------
@breaks("stop_was_kept")
def finish_of_a_stopped_turn_that_ended_unanswered(events: list[Event]) -> None:
    over = find(events, "over", token=21)
    events.insert(events.index(over), {**over, "event": "finished"})


@breaks("stop_was_kept")
def message_behind_a_stopped_turn_is_not_cancelled(events: list[Event]) -> None:
    find(events, "message", seq=12)["disposition"] = "superseded"


@breaks("stop_was_kept")
def message_of_a_stopped_turn_is_answered_by_the_next(events: list[Event]) -> None:
    find(events, "began", token=22)["messages"].append([11, "s11"])
    find(events, "message", seq=11).update(disposition="answered", turn=22)
    find(events, "turn", token=22)["from_seq"] = 10


@breaks("stop_was_kept")
def cancelled_and_nobody_asked(events: list[Event]) -> None:
    find(events, "asked", what="cancel")["what"] = "status"


def asks(events: list[Event], awaiting: str) -> int:
    """Turn 1 ended with a question, as it turns out; where the next event stands."""
    finished = find(events, "finished", token=1)
    at = events.index(finished) + 1
    events.insert(at, {**finished, "event": "asking", "question": "q", "awaiting": awaiting})
    return at + 1


@breaks("held_until_answered")
def turn_while_a_question_is_open(events: list[Event]) -> None:
    asks(events, "hold")


# -- outcomes ----------------------------------------------------------------------------
def retold(events: list[Event], told: Event, **fields: Any) -> None:
    """Someone asks for the message once more at the end, and is told this."""
    call = f"c-9{len(events)}"
    asked = {**find(events, "asked", what="cancel"), "call": call, "what": "status", "message_id": told["message_id"]}
    at = events.index(find(events, "message", seq=1, thread="t"))
    events[at:at] = [asked, {**told, "call": call, **fields}]


@breaks("outcome_was_true")
def told_cancelled_and_was_answered(events: list[Event]) -> None:
    retold(events, find(events, "told", outcome="Cancelled"), message_id="m3", seq=3)


@breaks("outcome_was_true")
def told_dead_and_was_answered(events: list[Event]) -> None:
    retold(events, find(events, "told", outcome="Dead"), message_id="m3", seq=3)


@breaks("outcome_was_true")
def told_answered_and_was_cancelled(events: list[Event]) -> None:
    retold(events, find(events, "told", message_id="m3"), message_id="m4", seq=4)


@breaks("outcome_was_true")
def told_answered_by_another_turn(events: list[Event]) -> None:
    retold(events, find(events, "told", message_id="m3"), turn=1, reply="r1")


@breaks("outcome_was_true")
def told_queued_after_it_was_told_answered(events: list[Event]) -> None:
    retold(events, find(events, "told", message_id="m2", outcome="Queued"))


@breaks("outcome_was_true")
def told_parked_after_it_was_told_answered(events: list[Event]) -> None:
    retold(events, find(events, "told", message_id="m2", outcome="Queued"), outcome="Parked")


@breaks("outcome_was_true")
def told_gone_in_a_thread_that_nobody_deleted(events: list[Event]) -> None:
    events.remove(find(events, "asked", what="delete"))


@breaks("outcome_was_true")
def told_not_found_after_it_was_accepted(events: list[Event]) -> None:
    retold(events, find(events, "told", outcome="NotFound"), message_id="m2")


@breaks("outcome_was_true")
def told_conflict_of_equal_payloads(events: list[Event]) -> None:
    find(events, "asked", message_id="m1", payload="other")["payload"] = "hi"


@breaks("outcome_was_true")
def told_answered_by_a_call_that_did_not_run_the_turn(events: list[Event]) -> None:
    find(events, "told", outcome="Answered")["call"] = "c-99"


@breaks("outcome_was_true")
def told_another_reply_than_the_stored_one(events: list[Event]) -> None:
    find(events, "turn", token=4)["reply"] = "other"


@breaks("replies_agree")
def told_another_reply_than_the_finished_one(events: list[Event]) -> None:
    find(events, "finishing", token=4)["reply"] = "other"


@breaks("replies_agree")
def two_replies_of_one_turn_are_told(events: list[Event]) -> None:
    without_tables(events)
    find(events, "told", outcome="AlreadyAnswered", message_id="m2")["reply"] = "other"


# -- order, tries, rest ----------------------------------------------------------------------------
@breaks("submits_in_order")
def later_submit_stands_in_front(events: list[Event]) -> None:
    another = {"message_id": "m7", "seq": 6, "call": "c-99"}
    told = find(events, "told", outcome="Cancelled") | another | {"outcome": "Superseded"}
    asked = find(events, "asked", what="cancel") | {"message_id": "m7", "what": "submit", "call": "c-99"}
    events[0:0] = [asked, told]
    events.append(find(events, "message", seq=4) | {"message_id": "m7", "seq": 6, "disposition": "superseded"})


@breaks("dead_was_tried")
def dead_after_too_few_tries(events: list[Event]) -> None:
    find(events, "turn", token=6)["state"] = "released"


@breaks("nothing_left")
def pending_after_the_drain(events: list[Event]) -> None:
    events.append(find(events, "message", seq=4) | {"seq": 6, "message_id": "m7", "disposition": "pending"})


@breaks("nothing_left")
def running_after_the_drain(events: list[Event]) -> None:
    find(events, "thread", thread="t")["status"] = "running"


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
