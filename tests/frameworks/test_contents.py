"""What agent frameworks are told of a payload: what bots' inboxes store has a text, and what has none is refused."""

from __future__ import annotations

from typing import Any

import pytest

from chatlock import InvalidInput, Message
from chatlock.middleware import langgraph_messages, openai_agents

PARTS = [{"type": "input_text", "text": "hi"}]


def told(payload: Any) -> list[Any]:
    messages = [Message(1, "m1", payload, 0)]
    given = (openai_agents.user_messages(messages), langgraph_messages.user_messages(messages)["messages"])
    return [item["content"] for items in given for item in items]


@pytest.mark.parametrize(
    ("payload", "content"), [("hi", "hi"), ({"text": "hi", "user": 5}, "hi"), ({"text": ""}, ""), (PARTS, PARTS)]
)
def test_model_is_told_the_text(payload: Any, content: Any) -> None:
    assert told(payload) == [content, content]


@pytest.mark.parametrize("payload", [None, 5, {"image": "x"}, {"text": 5}])
def test_payload_without_a_text_is_refused_by_name(payload: Any) -> None:
    for module in (openai_agents, langgraph_messages):
        with pytest.raises(InvalidInput, match="to_input"):
            module.user_messages([Message(1, "m1", payload, 0)])
