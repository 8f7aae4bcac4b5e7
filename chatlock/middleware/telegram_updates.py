"""What the two adapters for Telegram share: which thread an update belongs to, and what of it is stored."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from chatlock import Delivery, InvalidInput
from chatlock.errors import place_of
from chatlock.middleware.inbox import Inbound

log = logging.getLogger("chatlock")

Accepts: TypeAlias = Callable[[Any], bool]

PREFIX = "telegram"


@dataclass(frozen=True)
class Place:
    """Where a thread is."""

    bot: int
    """The id of the bot."""
    chat_id: int
    """The chat."""
    topic: int | None = None
    """The topic of a forum; None: the chat has none."""
    business_connection_id: str | None = None
    """The account that the bot answers for; None: its own."""
    direct_topic: int | None = None
    """Whose direct messages to a channel these are; None: the chat is not for those."""

    @classmethod
    def of(cls, delivery: Delivery) -> Self:
        """Where to send the reply.  Raises InvalidInput for a thread that is not one of Telegram's.

        Args:
            delivery: What the function registered with deliver is called with.
        """
        match delivery.key.thread.split(":"):
            case [prefix, bot, chat_id, topic, business, *direct] if prefix == PREFIX and len(direct) <= 1:
                of_topic, of_direct = int(topic) if topic else None, int(direct[0]) if direct else None
                return cls(int(bot), int(chat_id), of_topic, business or None, of_direct)
        raise InvalidInput("not_telegram", "this thread is not one of Telegram's")

    @classmethod
    def at(cls, message: Any, bot: int) -> Self:
        """Where a person's message is, so that an app's own handler of a command or a button finds its thread.

        Args:
            message: The framework's message.
            bot: The id of the bot: `bot.id`.
        """
        topic = message.message_thread_id if message.is_topic_message else None  # elsewhere it names a chain of replies
        direct = message.direct_messages_topic
        direct_topic = None if direct is None else direct.topic_id
        return cls(bot, message.chat.id, topic, message.business_connection_id, direct_topic)

    @property
    def target(self) -> dict[str, Any]:
        """The arguments of send_message that name the place."""
        named: dict[str, Any] = {"message_thread_id": self.topic, "direct_messages_topic_id": self.direct_topic}
        named["business_connection_id"] = self.business_connection_id
        return {"chat_id": self.chat_id, **{name: value for name, value in named.items() if value is not None}}

    @property
    def thread(self) -> str:
        """The name of the thread."""
        direct = "" if self.direct_topic is None else f":{self.direct_topic}"
        return f"{PREFIX}:{self.bot}:{self.chat_id}:{self.topic or ''}:{self.business_connection_id or ''}{direct}"


def addressed(message: Any) -> bool:
    """Whether a message is for the agent: no command, and not one of the account that the bot answers for.

    Args:
        message: The framework's message.
    """
    if message.business_connection_id is not None and message.from_user.id != message.chat.id:
        return False
    return not text_of(message).startswith("/")


def text_of(message: Any) -> str:
    """The text of a message, or of what is sent with a picture or a file."""
    return message.text or message.caption or ""


def inbound_of(update: Any, bot: int, accepts: Accepts) -> Inbound | None:
    """A person's message with a text, or the edit of one; None for what is not for the agent."""
    edited = update.edited_message or update.edited_business_message
    message = update.message or update.business_message or edited
    if message is None or not _by_person(message) or not text_of(message) or not _accepted(message, accepts):
        return None
    payload = {"text": text_of(message), "user": message.from_user.id, "message_id": message.message_id}
    if edited:
        payload["edited"] = _seconds(message.edit_date)
    return Inbound(Place.at(message, bot).thread, str(message.message_id), payload, edited=bool(edited))


def _accepted(message: Any, accepts: Accepts) -> bool:
    """Of a fault in accepts python-telegram-bot's polling would end, and begin with the same message ever again."""
    try:
        return accepts(message)
    except Exception as error:  # noqa: BLE001  the application's own
        log.error("inbox.accepts_failed: %s", place_of(error, accepts), extra={"error": type(error).__name__})
        return False


def _by_person(message: Any) -> bool:
    """Telegram itself, which is no bot, forwards a channel's posts to the group that discusses them."""
    return message.from_user is not None and not message.from_user.is_bot and not message.is_automatic_forward


def _seconds(date: Any) -> Any:
    return int(date.timestamp()) if hasattr(date, "timestamp") else date
