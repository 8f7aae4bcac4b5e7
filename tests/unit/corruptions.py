"""Ways to corrupt the sound history, each for one check of the checker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chatlock.testing.history import Event


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


@breaks("stored_once")
def one_id_is_accepted_with_two_payloads(events: list[Event]) -> None:
    find(events, "told", outcome="Conflict").update(outcome="AlreadyAnswered", turn=1, reply="r1")


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
