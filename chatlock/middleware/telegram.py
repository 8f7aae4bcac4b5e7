"""python-telegram-bot: messages are stored before Telegram hears that they have arrived, and answered by turns.

    application = Application.builder().token(TOKEN).update_queue(inbox(chat)).build()

    @chat.deliver()
    async def send(delivery: Delivery) -> None:
        await application.bot.send_message(**Place.of(delivery).target, text=delivery.reply)

A thread of ours is a chat, or a topic of it, as one bot sees it.  The update queue is where polling and the webhook
hand over an update before they confirm it; a handler would run after that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Unpack

from chatlock import AsyncChatlock, ChatlockError, SubmitOptions
from chatlock.middleware import framework
from chatlock.middleware.inbox import AsyncInbox
from chatlock.middleware.telegram_updates import Accepts, Place, addressed, inbound_of

__all__ = ["InboxQueue", "Place", "addressed", "inbox"]

telegram: Any = framework("telegram", "telegram")
NetworkError: Any = framework("telegram.error", "telegram").NetworkError

BATCH_MAX = 100
"""How many updates a round of polling brings at most."""


def inbox(chat: AsyncChatlock, *, accepts: Accepts = addressed, **options: Unpack[SubmitOptions]) -> InboxQueue:
    """The update queue for the builder: stores the messages of people that `accepts(message)` holds for, and edits.

    What it has stored goes to no handler of the application: the handler of `chat` answers it.  Everything else is
    queued for them.  A message that cannot be stored now fails the webhook's request, or the round of polling, and
    Telegram sends it again.  The payload: text, user and message_id, and edited in an edit, which takes the place of a
    message that no turn has yet.

    Args:
        chat: The client.
        accepts: accepts(message) says which messages are for the agent.
        options: See SubmitOptions; all but message_id and wait_ms.
    """
    return InboxQueue(AsyncInbox(chat, options), accepts)


class InboxQueue(asyncio.Queue[object]):
    """An application's update queue that keeps what the inbox has stored.

    Args:
        stored: Where messages are stored.
        accepts: accepts(message) says which messages are for the agent.
    """

    def __init__(self, stored: AsyncInbox, accepts: Accepts) -> None:
        super().__init__()
        self._stored, self._accepts = stored, accepts
        self._queued: deque[int] = deque(maxlen=BATCH_MAX)
        self._repeated: frozenset[int] = frozenset()

    async def put(self, item: object) -> None:
        """Stores the update, or queues it.  Raises NetworkError, after which polling asks for it once more."""
        if isinstance(item, telegram.Update):
            if item.update_id in self._repeated or await self._take(item):
                return
            self._queued.append(item.update_id)
        await super().put(item)

    async def _take(self, update: Any) -> bool:
        message = inbound_of(update, update.get_bot().id, self._accepts)
        try:
            return message is not None and await self._stored.take(message)
        except ChatlockError as error:
            self._repeated = frozenset(self._queued)  # what was queued before it in its round comes again with it
            raise NetworkError("the message could not be stored") from error
