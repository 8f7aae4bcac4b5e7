"""What goes into a graph with a `messages` channel, and what comes out of it."""

from __future__ import annotations

from typing import Any

from chatlock import Message
from chatlock.middleware.contents import content_of


def user_messages(messages: list[Message]) -> Any:
    """The input of a graph with a `messages` channel: the contents of the payloads as the user's messages."""
    return {"messages": [{"role": "user", "content": content_of(m), "id": m.message_id} for m in messages]}


def last_message(snapshot: Any) -> Any:
    """The content of the last message."""
    return snapshot.values["messages"][-1].content
