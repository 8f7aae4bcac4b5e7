"""Slack Bolt: messages to a bot are stored before Slack hears that they have arrived, and answered by turns.

    app.use(inbox(chat))  # App with Chatlock, AsyncApp with AsyncChatlock

    @chat.deliver()
    def send(delivery: Delivery) -> None:
        app.client.chat_postMessage(**Place.of(delivery).target, text=delivery.reply)

A thread of ours is a thread of Slack's; the messages of a direct conversation outside of threads are one thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, Unpack

from chatlock import AsyncChatlock, Chatlock, Delivery, InvalidInput, SubmitOptions
from chatlock.middleware import framework
from chatlock.middleware.inbox import AsyncInbox, Inbound, Inbox

__all__ = ["Place", "addressed", "inbox"]

slack_bolt: Any = framework("slack_bolt", "slack")

Accepts: TypeAlias = Callable[[dict[str, Any]], bool]

PREFIX = "slack"
BY_PEOPLE = frozenset({None, "file_share", "me_message", "thread_broadcast"})
"""The subtypes of messages that a person wrote; the others tell of joins, topics, edits, deletions or bots."""


@dataclass(frozen=True)
class Place:
    """Where a thread is."""

    team: str
    """Whose token to use."""
    channel: str
    """The channel, or the direct conversation."""
    thread_ts: str | None = None
    """The thread in it; None in a direct conversation outside of threads."""

    @classmethod
    def of(cls, delivery: Delivery) -> Self:
        """Where to send the reply.  Raises InvalidInput for a thread that is not one of Slack's.

        Args:
            delivery: What the function registered with deliver is called with.
        """
        match delivery.key.thread.split(":"):
            case [prefix, team, channel, thread_ts] if prefix == PREFIX:
                return cls(team, channel, thread_ts or None)
        raise InvalidInput("not_slack", "this thread is not one of Slack's")

    @property
    def target(self) -> dict[str, str]:
        """The arguments of chat_postMessage that name the place."""
        target = {"channel": self.channel}
        return target if self.thread_ts is None else {**target, "thread_ts": self.thread_ts}

    @property
    def thread(self) -> str:
        """The name of the thread."""
        return f"{PREFIX}:{self.team}:{self.channel}:{self.thread_ts or ''}"


def addressed(event: dict[str, Any]) -> bool:
    """Whether a message is for the bot: it mentions the bot, or is in a direct conversation with it.

    Args:
        event: Slack's event.
    """
    return event["type"] == "app_mention" or event.get("channel_type") == "im"


def inbox(
    chat: Chatlock | AsyncChatlock, *, accepts: Accepts = addressed, **options: Unpack[SubmitOptions]
) -> Callable[..., Any]:
    """The middleware for app.use: stores the messages of people that `accepts(event)` holds for, and their edits, and
    cancels what they delete before a turn has it.

    What it has stored goes to no listener of the app: the handler of `chat` answers it.  Everything else goes on.
    Retries and the two events of one mention are one message.  A message that cannot be stored now is answered 500, and
    Slack sends it again.  The payload: text, user and ts, files if there are any, and edited in an edit, which takes
    the place of a message that no turn has yet.

    Args:
        chat: Chatlock for an App, AsyncChatlock for an AsyncApp.
        accepts: accepts(event) says which messages are for the agent.
        options: See SubmitOptions; all but message_id and wait_ms.
    """
    if isinstance(chat, AsyncChatlock):
        return _async_middleware(AsyncInbox(chat, options), accepts)
    return _middleware(Inbox(chat, options), accepts)


def _middleware(stored: Inbox, accepts: Accepts) -> Callable[..., Any]:
    def chatlock_inbox(body: dict[str, Any], context: Any, next: Callable[[], Any]) -> Any:
        message = _inbound(body, context, accepts)
        if message is not None and stored.take(message):
            return slack_bolt.BoltResponse(status=200)
        return next()

    return chatlock_inbox


def _async_middleware(stored: AsyncInbox, accepts: Accepts) -> Callable[..., Any]:
    async def chatlock_inbox(body: dict[str, Any], context: Any, next: Callable[[], Awaitable[Any]]) -> Any:
        message = _inbound(body, context, accepts)
        if message is not None and await stored.take(message):
            return slack_bolt.BoltResponse(status=200)
        return await next()

    return chatlock_inbox


def _inbound(body: dict[str, Any], context: Any, accepts: Accepts) -> Inbound | None:
    event = body.get("event")
    if body.get("type") != "event_callback" or not isinstance(event, dict):
        return None
    team = context.team_id or context.enterprise_id
    if event["type"] == "message" and event.get("subtype") == "message_changed":
        deleted = event["message"].get("subtype") == "tombstone"  # what has replies stays as an empty place
        return _deletion(event, team) if deleted else _edit(event, team)
    if event["type"] == "message" and event.get("subtype") == "message_deleted":
        return _deletion(event, team)
    if event["type"] not in ("message", "app_mention") or not _by_person(event) or not accepts(event):
        return None
    return Inbound(_place(event, event, team).thread, event["ts"], _payload(event))


def _edit(event: dict[str, Any], team: str) -> Inbound | None:
    """A new text; None for a change that nobody typed, such as a preview of a link that was added."""
    message = event["message"]
    before = event.get("previous_message", {}).get("text")
    if not _by_person(message) or "edited" not in message or message.get("text") == before:
        return None
    payload = {**_payload(message), "edited": message["edited"]["ts"]}
    return Inbound(_place(event, message, team).thread, message["ts"], payload, edited=True)


def _deletion(event: dict[str, Any], team: str) -> Inbound | None:
    message = event.get("previous_message", {})
    if not _by_person(message):
        return None
    return Inbound(_place(event, message, team).thread, message["ts"], None, deleted=True)


def _by_person(message: dict[str, Any]) -> bool:
    return message.get("subtype") in BY_PEOPLE and "bot_id" not in message and "user" in message


def _place(event: dict[str, Any], message: dict[str, Any], team: str) -> Place:
    ts, thread_ts = message["ts"], message.get("thread_ts")
    if event.get("channel_type") == "im":  # a message that has been replied to names itself as its thread
        return Place(team, event["channel"], None if thread_ts == ts else thread_ts)
    return Place(team, event["channel"], thread_ts or ts)


def _payload(message: dict[str, Any]) -> dict[str, Any]:
    """What the two events of one mention have in common."""
    payload = {"text": message.get("text", ""), "user": message["user"], "ts": message["ts"]}
    return {**payload, "files": message["files"]} if message.get("files") else payload
