"""What a model is told of a message."""

from __future__ import annotations

from typing import Any

from chatlock import InvalidInput, Message


def content_of(message: Message) -> Any:
    """The payload, if it is a text or a list of content parts; of a dict, as bots' inboxes store it, its "text".

    Raises InvalidInput for another payload.
    """
    payload = message.payload
    content = payload.get("text") if isinstance(payload, dict) else payload
    if not isinstance(content, str | list):
        raise InvalidInput(
            "bad_payload", "the payload is no text, no list of content parts and no dict with a text: give to_input"
        )
    return content
