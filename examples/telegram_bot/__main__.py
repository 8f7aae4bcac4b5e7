"""python -m examples.telegram_bot

An aiogram bot with one line added.  Telegram is played offline, by updates as its webhook brings them: Ann double
texts, corrects what still waits, and Telegram sends her first message again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from aiogram import Bot, Dispatcher
from aiogram.client.session.base import BaseSession

from chatlock import AsyncChatlock, Delivery
from chatlock.middleware.aiogram import Place, inbox
from examples.agents_ledger import Clerk, Said, exit_code_of, ledger_of

THREAD = Place(42, 7).thread
ANN = {"id": 7, "is_bot": False, "first_name": "Ann"}
FIRST, SECOND, CORRECTED = (
    Said(THREAD, "1", "A table for two"),
    Said(THREAD, "2", "sorry, tree"),
    Said(THREAD, "2:1", "sorry, three"),
)
ANSWERED = [FIRST, CORRECTED]


class Offline(BaseSession):
    """Telegram's side of a request: prints what is sent."""

    async def make_request(self, bot: Bot, method: Any, *_: Any, **__: Any) -> Any:
        """Answers sendMessage."""
        print(f"{method.__api_method__} to {method.chat_id}: {method.text!r}")
        sent = {"message_id": 9, "date": 1, "chat": {"id": method.chat_id, "type": "private"}, "text": method.text}
        return self.check_response(bot, method, 200, json.dumps({"ok": True, "result": sent})).result

    async def close(self) -> None:
        """Nothing is open."""

    async def stream_content(self, *_: Any, **__: Any) -> AsyncGenerator[bytes, None]:
        """No file is asked for."""
        yield b""


async def deliver(dispatcher: Dispatcher, bot: Bot, update_id: int, said: Said, *, edited: bool = False) -> None:
    """One update."""
    kind, more = ("edited_message", {"edit_date": 2}) if edited else ("message", {})
    chat = {"id": 7, "type": "private", "first_name": "Ann"}
    number = int(said.message_id.split(":")[0])
    message = {"message_id": number, "date": 1, "chat": chat, "from": ANN, "text": said.text, **more}
    await dispatcher.feed_webhook_update(bot, {"update_id": update_id, kind: message})
    print(f"{kind} {number} {said.text!r}: stored")


async def serve(folder: Path) -> bool:
    """Everything arrives; then the ledger is made."""
    async with AsyncChatlock(f"sqlite:///{folder / 'chat.db'}", tenant="acme") as chat:
        await chat.setup()
        bot, dispatcher = Bot("42:TOKEN", session=Offline()), Dispatcher()
        agent = Clerk(len(ANSWERED))
        chat.handler()(agent.answer)

        @chat.deliver()
        async def send(delivery: Delivery) -> None:
            """How a reply reaches Ann."""
            await bot.send_message(**Place.of(delivery).target, text=delivery.reply)
            agent.has_sent(delivery)

        dispatcher.update.outer_middleware(inbox(chat))
        await deliver(dispatcher, bot, 1, FIRST)
        await deliver(dispatcher, bot, 2, SECOND)
        await deliver(dispatcher, bot, 3, CORRECTED, edited=True)
        await deliver(dispatcher, bot, 1, FIRST)
        await asyncio.wait_for(agent.all_sent.wait(), 60)
        return await ledger_of(chat, ANSWERED, {THREAD: agent.remembers})


def main() -> int:
    """0 if the ledger is clean."""
    return exit_code_of(serve)


if __name__ == "__main__":
    sys.exit(main())
