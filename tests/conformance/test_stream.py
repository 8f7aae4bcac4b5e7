"""stream: the chunks of a handler that runs here, else the stored reply as one event, and the outcome last."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from chatlock import AlreadyAnswered, Answered, Busy, Conflict, Dead, Event, InvalidInput, Limits, NotFound
from tests.conformance import rows
from tests.conformance.conftest import BOTH, NewChat, Start
from tests.support.databases import Database
from tests.support.waiting import SECONDS_MAX, Gate, until

pytestmark = BOTH


async def speak(turn: Any) -> AsyncIterator[str]:
    for word in ("good ", "morning"):
        yield word


class Held:
    """A handler that yields a chunk, is held, and yields another."""

    def __init__(self) -> None:
        self.gate, self.closed = Gate(), False

    async def __call__(self, turn: Any) -> AsyncIterator[str]:
        try:
            yield "good "
            await self.gate.hold_async()
            yield "morning"
        finally:
            self.closed = True


def kinds(events: Any) -> list[tuple[str, Any]]:
    return [(event.kind, event.data) for event in events]


def test_chunks_come_one_by_one_and_the_outcome_last(chat: Any) -> None:
    chat.handler()(speak)
    events = list(chat.stream("c1", "hello", message_id="m1"))
    outcome = Answered(message_id="m1", seq=1, reply="good morning", turn=1)
    assert events == [
        Event("1-1-1", "chunk", "good "),
        Event("1-1-2", "chunk", "morning"),
        Event("m1-outcome", "outcome", outcome),
    ]
    assert chat.status("c1", "m1").reply == "good morning"


def test_following_a_message_that_is_not_there_ends_at_once(chat: Any) -> None:
    assert kinds(chat.follow("c1", "m1", wait_ms=None)) == [("outcome", NotFound(message_id="m1"))]
    chat.submit("c1", "hello", message_id="m1", wait_ms=0)
    assert kinds(chat.follow("c1", "m2", wait_ms=None)) == [("outcome", NotFound(message_id="m2"))]


def test_chunk_comes_before_the_turn_has_ended(chat: Any) -> None:
    held = Held()
    chat.handler()(held)
    events = chat.stream("c1", "hello")
    assert next(events).data == "good "
    held.gate.open()
    assert kinds(events)[0] == ("chunk", "morning")


def test_chunks_that_are_no_text_are_a_list(chat: Any) -> None:
    async def count(turn: Any) -> AsyncIterator[Any]:
        yield 1
        yield {"two": 2}

    chat.handler()(count)
    assert list(chat.stream("c1", "hello"))[-1].data.reply == [1, {"two": 2}]


def test_handler_that_does_not_stream_gives_its_reply_as_one_event(chat: Any) -> None:
    chat.handler()(lambda turn: {"text": "ok"})
    assert [event.kind for event in chat.stream("c1", "hello")] == ["reply", "outcome"]
    first = next(iter(chat.stream("c1", "more", message_id="m2")))
    assert first == Event("m2-reply", "reply", {"text": "ok"})


def test_resubmission_replays_the_stored_reply_as_one_event(chat: Any) -> None:
    chat.handler()(speak)
    list(chat.stream("c1", "hello", message_id="m1"))
    outcome = AlreadyAnswered(message_id="m1", seq=1, reply="good morning", turn=1)
    assert kinds(chat.stream("c1", "hello", message_id="m1")) == [("reply", "good morning"), ("outcome", outcome)]


def test_late_listener_gets_the_chunks_from_the_first_one(chat: Any, start: Start) -> None:
    held = Held()
    chat.handler()(held)
    first = start(lambda: list(chat.stream("c1", "hello", message_id="m1")))
    held.gate.wait_entered()
    events = chat.stream("c1", "hello", message_id="m1")
    assert next(events).data == "good "
    held.gate.open()
    assert kinds(events)[0] == ("chunk", "morning")
    assert [event.kind for event in first.result(SECONDS_MAX)] == ["chunk", "chunk", "outcome"]


def test_another_client_gets_the_reply_as_one_event(new_chat: NewChat, start: Start) -> None:
    here, there = new_chat(), new_chat()
    held = Held()
    here.handler()(held)
    first = start(lambda: list(here.stream("c1", "hello", message_id="m1")))
    held.gate.wait_entered()
    second = start(lambda: list(there.stream("c1", "hello", message_id="m1")))
    until(lambda: len(there._flows.waiters) == 1)
    held.gate.open()
    assert [event.kind for event in second.result(SECONDS_MAX)] == ["reply", "outcome"]
    assert first.result(SECONDS_MAX)[-1].data.reply == "good morning"


@pytest.mark.parametrize("told", [Busy, Conflict])
def test_message_that_gets_no_turn_is_one_outcome(chat: Any, told: type) -> None:
    with chat.turn("c1", "hello", message_id="m1") as turn:
        options: dict[str, Any] = {"policy": "reject"} if told is Busy else {"message_id": "m1"}
        (event,) = chat.stream("c1", "other", **options)
        assert (event.kind, type(event.data)) == ("outcome", told)
        turn.finish("ok")


def test_stream_that_fails_is_retried_under_another_token(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(backoff_ms=1))

    async def fails_once(turn: Any) -> AsyncIterator[str]:
        yield f"try {turn.token}"
        if turn.token == 1:
            raise RuntimeError("not today")

    chat.handler()(fails_once)
    events = list(chat.stream("c1", "hello"))
    assert [event.id for event in events[:-1]] == ["1-1-1", "1-2-1"]
    assert events[-1].data.reply == "try 2"


def test_reply_takes_the_place_of_what_an_earlier_turn_broke_off(new_chat: NewChat, start: Start) -> None:
    here, there = new_chat(limits=Limits(backoff_ms=1)), new_chat()

    async def breaks_off(turn: Any) -> AsyncIterator[str]:
        yield "half "
        raise RuntimeError("not today")

    there.submit("c1", "hello", message_id="m1", wait_ms=0)
    heard = start(lambda: list(here.follow("c1", "m1", wait_ms=None)))
    until(lambda: len(here._flows.waiters) == 1)
    here.handler()(breaks_off)
    here.sweep_once()
    there.handler()(lambda turn: "whole")
    until(lambda: there.sweep_once().turns)
    events = heard.result(SECONDS_MAX)
    assert kinds(events)[:-1] == [("chunk", "half "), ("reply", "whole")]
    assert events[-1].data.reply == "whole"


def test_stream_whose_attempts_are_used_up_ends_with_dead(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(attempts_max=1))

    async def fails(turn: Any) -> AsyncIterator[str]:
        yield "first"
        raise RuntimeError("not today")

    chat.handler()(fails)
    events = list(chat.stream("c1", "hello"))
    assert [event.kind for event in events] == ["chunk", "outcome"]
    assert isinstance(events[-1].data, Dead)


def test_left_stream_runs_on_in_sync_code_and_is_handed_back_in_async_code(
    chat: Any, world: str, database: Database
) -> None:
    held = Held()
    chat.handler()(held)
    events = chat.stream("c1", "hello", message_id="m1")
    assert next(events).data == "good "
    events.close()
    if world == "sync":
        held.gate.open()
        assert until(lambda: getattr(chat.status("c1", "m1"), "reply", None)) == "good morning"
    else:
        assert [(row["state"], row["error"]) for row in rows.turns(database)] == [("released", None)]
    assert held.closed


def test_nobody_listens_once_a_stream_has_ended(chat: Any) -> None:
    chat.handler()(speak)
    list(chat.stream("c1", "hello"))
    assert (chat._flows.feeds._listeners, chat._flows.feeds._feeds) == ({}, {})


def test_bad_input_is_raised_and_nothing_is_written(chat: Any, database: Database) -> None:
    before = rows.dump(database)
    with pytest.raises(InvalidInput):
        list(chat.stream("", "hello"))
    assert rows.dump(database) == before


def test_generator_that_is_broken_off_is_closed(new_chat: NewChat) -> None:
    chat = new_chat(limits=Limits(attempts_max=1))
    closed: list[bool] = []

    async def ends_its_turn(turn: Any) -> AsyncIterator[Any]:
        try:
            yield object()
        finally:
            closed.append(True)

    chat.handler()(ends_its_turn)
    (event,) = chat.stream("c1", "hello")  # nobody hears what no reply may hold
    assert isinstance(event.data, Dead)
    assert closed == [True]
