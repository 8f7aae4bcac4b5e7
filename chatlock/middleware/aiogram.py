"""aiogram 3: messages are stored before Telegram hears that they have arrived, and answered by turns.

    dp.update.outer_middleware(inbox(chat))

    @chat.deliver()
    async def send(delivery: Delivery) -> None:
        await bot.send_message(**Place.of(delivery).target, text=delivery.reply)

A thread of ours is a chat, or a topic of it, as one bot sees it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Unpack

from chatlock import AsyncChatlock, ChatlockError, Closed, InvalidInput, SubmitOptions
from chatlock.middleware import framework
from chatlock.middleware.inbox import AsyncInbox, Inbound
from chatlock.middleware.telegram_updates import Accepts, Place, addressed, inbound_of

__all__ = ["Place", "addressed", "inbox"]

aiogram: Any = framework("aiogram", "aiogram")
CancelHandler: Any = framework("aiogram.dispatcher.event.bases", "aiogram").CancelHandler

log = logging.getLogger("chatlock")

AGAIN_S = 1.0


def inbox(
    chat: AsyncChatlock, *, accepts: Accepts = addressed, **options: Unpack[SubmitOptions]
) -> Callable[..., Awaitable[Any]]:
    """The outer middleware for dp.update: stores the messages of people that `accepts(message)` holds for, and edits.

    What it has stored goes to no handler of the dispatcher: the handler of `chat` answers it.  Everything else goes on.
    A message that cannot be stored now fails the webhook's request, past the app's error handlers, and Telegram sends
    it again; under polling it is waited for.  The payload: text, user and message_id, and edited in an edit, which
    takes the place of a message that no turn has yet.

    Args:
        chat: The client.
        accepts: accepts(message) says which messages are for the agent.
        options: See SubmitOptions; all but message_id and wait_ms.
    """
    stored = AsyncInbox(chat, options)

    async def chatlock_inbox(
        handler: Callable[[Any, dict[str, Any]], Awaitable[Any]], event: Any, data: dict[str, Any]
    ) -> Any:
        if not isinstance(event, aiogram.types.Update):
            raise InvalidInput("not_an_update", "register the inbox with dp.update.outer_middleware")
        message = inbound_of(event, data["bot"].id, accepts)
        if message is None or not await _take(stored, message, polling="bots" in data):
            return await handler(event, data)
        return None

    return chatlock_inbox


async def _take(stored: AsyncInbox, message: Inbound, *, polling: bool) -> bool:
    while True:
        try:
            return await stored.take(message)
        except ChatlockError as error:
            if not polling or isinstance(error, Closed):
                raise CancelHandler from error  # an error handler that swallows it would have it confirmed
            log.warning("inbox.waits", extra={"error": type(error).__name__})
            await asyncio.sleep(AGAIN_S)  # polling confirms an update whatever is raised
