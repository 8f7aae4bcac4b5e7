"""Hand-off: finish and the next claim in one transaction, at most so many in a row; only loops do it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from chatlock import AlreadyAnswered, Answered, Chatlock, Limits, Queued
from tests.conformance import rows
from tests.conformance.conftest import BOTH, NewChat
from tests.support.databases import Database

pytestmark = BOTH


class Chatty:
    """A handler in whose turns the user goes on writing, until `messages` are stored."""

    def __init__(self, submit: Any, messages: int) -> None:
        self._submit, self._left = submit, messages
        self.turns: list[Any] = []

    def __call__(self, turn: Any) -> Any:
        self.turns.append(turn)
        if self._left:
            self._left -= 1
            self._submit(f"m{len(self.turns) + 1}")
        return [message.payload for message in turn.messages]


@pytest.fixture
def writer(database: Database) -> Iterator[Any]:
    """Submits to c1 from another client, as a user does: an OS thread may call it, on a loop or off it."""
    with Chatlock(database.url, tenant="t", poller=False) as other:
        yield lambda message_id: other.submit("c1", message_id, message_id=message_id, wait_ms=0)


def test_messages_that_came_in_the_turn_get_the_next_one_at_once(chat: Any, writer: Any, database: Database) -> None:
    chatty = Chatty(writer, 2)
    writer("m1")
    chat.handler()(chatty)
    assert chat.sweep_once().turns == 1
    assert [(row["token"], row["state"], row["from_seq"], row["to_seq"]) for row in rows.turns(database)] == [
        (1, "done", 0, 1),
        (2, "done", 1, 2),
        (3, "done", 2, 3),
    ]
    assert len({row["claim_id"] for row in rows.turns(database)}) == 3
    assert chat.status("c1", "m3") == AlreadyAnswered(message_id="m3", seq=3, reply=["m3"], turn=3)


def test_hand_off_is_one_transaction(chat: Any, writer: Any) -> None:
    writer("m1")
    chat.handler()(Chatty(writer, 1))
    seen: list[str] = []
    chat._executor.points = seen.append
    chat.sweep_once()
    assert seen.count("finish.commit") == 2
    assert seen.count("claim_due.commit") == 1
    assert not any(point.startswith(("claim.", "fetch.")) for point in seen)


def test_hand_offs_in_a_row_are_bounded_and_the_rest_is_due(new_chat: NewChat, writer: Any, database: Database) -> None:
    chat = new_chat(limits=Limits(hand_offs_max=2))
    chatty = Chatty(writer, 5)
    writer("m1")
    chat.handler()(chatty)
    assert chat.sweep_once().turns == 1
    assert len(chatty.turns) == 3
    assert rows.thread_row(database)["status"] == "idle"
    assert isinstance(chat.status("c1", "m4"), Queued)
    assert [row["thread_id"] for row in rows.table(database, "chatlock_due")] == ["c1"]
    assert chat.sweep_once().turns == 1
    assert len(chatty.turns) == 6


def test_twenty_hand_offs_in_a_row_are_the_default(chat: Any, writer: Any) -> None:
    chatty = Chatty(writer, 25)
    writer("m1")
    chat.handler()(chatty)
    chat.sweep_once()
    assert len(chatty.turns) == 21


def test_nothing_left_is_no_hand_off(chat: Any, writer: Any, database: Database) -> None:
    writer("m1")
    chat.handler()(Chatty(writer, 0))
    chat.sweep_once()
    assert len(rows.turns(database)) == 1
    assert rows.thread_row(database)["status"] == "idle"
    assert rows.table(database, "chatlock_due") == []


def test_failed_turn_is_no_hand_off(chat: Any, writer: Any, database: Database) -> None:
    writer("m1")

    def fails(turn: Any) -> Any:
        writer("m2")
        raise RuntimeError("not today")

    chat.handler()(fails)
    chat.sweep_once()
    assert [row["state"] for row in rows.turns(database)] == ["failed"]


def test_submit_answers_its_own_message_and_hands_off_to_nobody(chat: Any, writer: Any, database: Database) -> None:
    chatty = Chatty(writer, 1)
    chat.handler()(chatty)
    outcome = chat.submit("c1", "m1", message_id="m1")
    assert outcome == Answered(message_id="m1", seq=1, reply=["m1"], turn=1)
    assert len(chatty.turns) == 1
    assert rows.dispositions(database) == ["answered", "pending"]
    assert len(rows.table(database, "chatlock_due")) == 1


def test_handed_off_turn_of_an_agent_without_a_handler_here_is_left_due(
    chat: Any, writer: Any, database: Database
) -> None:
    writer("m1")

    def asks_another(turn: Any) -> str:
        with Chatlock(database.url, tenant="t", poller=False) as other:
            other.submit("c1", "m2", message_id="m2", agent="other", wait_ms=0)
        return "ok"

    chat.handler()(asks_another)
    chat.sweep_once()
    row = rows.thread_row(database)
    assert (row["status"], row["agent"], row["attempts"]) == ("idle", "other", 0)
    assert isinstance(chat.status("c1", "m2"), Queued)
    assert len(rows.table(database, "chatlock_due")) == 1
