"""Who chooses a policy and a limit, and what is no choice."""

from __future__ import annotations

from typing import Any

import pytest

from chatlock import Busy, Debounce, InvalidInput, Queued, Superseded
from tests.conformance import rows
from tests.conformance.conftest import NewChat
from tests.conformance.messages import payloads, stored
from tests.support.databases import Database

pytestmark = pytest.mark.usefixtures("world")


def test_call_goes_before_handler_and_handler_before_client(new_chat: NewChat) -> None:
    chat = new_chat(policy="reject")
    chat.handler("patient", policy="enqueue")(payloads)
    with chat.turn("c1", "m1") as turn:
        assert isinstance(stored(chat, "m2")[0], Busy)
        assert isinstance(stored(chat, "m3", agent="patient")[0], Queued)
        assert isinstance(stored(chat, "m4", agent="patient", policy="reject")[0], Busy)
        turn.finish("one")


def test_policy_may_be_chosen_from_the_payload(new_chat: NewChat) -> None:
    chat = new_chat(policy=lambda payload: "latest" if payload == "stop" else "enqueue")
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2")
        chat.submit("c1", "stop", message_id="m3", wait_ms=0)
        assert chat.status("c1", "m2") == Superseded(message_id="m2", seq=2, by=3)
        turn.finish("one")


def test_limit_of_the_handler_goes_before_the_clients(new_chat: NewChat) -> None:
    chat = new_chat(pending_max=1, overflow="drop_newest")
    chat.handler("wide", pending_max=3)(payloads)
    with chat.turn("c1", "m1") as turn:
        stored(chat, "m2")
        assert isinstance(stored(chat, "m3")[0], Superseded)
        told = stored(chat, "m4", "m5", "m6", agent="wide")
        assert [type(outcome) for outcome in told] == [Queued, Queued, Superseded]
        turn.finish("one")


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "newest"},
        {"policy": Debounce(quiet_ms=0)},
        {"policy": Debounce(max_wait_ms=0)},
        {"overflow": "block"},
        {"pending_max": 0},
        {"pending_max": True},
        {"expire_ms": 0},
        {"if_turn": -1},
        {"if_turn": 1, "if_idle": True},
        {"if_turn": 1, "recreate": True},
    ],
    ids=str,
)
def test_wrong_option_is_told_before_anything_is_written(chat: Any, database: Database, options: Any) -> None:
    before = rows.dump(database)
    with pytest.raises(InvalidInput):
        chat.submit("c1", "m1", **options)
    assert rows.dump(database) == before


def test_wrong_choice_of_a_function_is_told(new_chat: NewChat) -> None:
    chat = new_chat(policy=lambda payload: "newest")
    with pytest.raises(InvalidInput):
        chat.submit("c1", "m1")
