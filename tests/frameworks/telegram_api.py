"""Telegram's side of a bot, offline, and an existing bot of each framework with one line added."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aiogram
from aiogram.client.session.base import BaseSession
from telegram import Update
from telegram.ext import Application, MessageHandler, filters
from telegram.request import BaseRequest, RequestData

from chatlock import AsyncChatlock
from chatlock.middleware import aiogram as aiogram_adapter
from chatlock.middleware import telegram as telegram_adapter

BOT = {"id": 42, "is_bot": True, "first_name": "bot", "username": "the_bot"}
TOKEN = "42:TOKEN"
ANN, BEN = ({"id": number, "is_bot": False, "first_name": name} for number, name in ((7, "Ann"), (8, "Ben")))
PRIVATE = {"id": 7, "type": "private", "first_name": "Ann"}
TELEGRAM = {"id": 777000, "is_bot": False, "first_name": "Telegram"}
CHANNEL = {"id": -200, "type": "supergroup", "title": "direct messages", "is_direct_messages": True}
GROUP = {"id": -100, "type": "supergroup", "title": "all", "is_forum": True}

_updates = count(1)


def said(number: int, text: str | None = "hello", *, kind: str = "message", **more: Any) -> dict[str, Any]:
    """An update with a message of Ann to the bot, unless told otherwise."""
    message = {"message_id": number, "date": 1, "chat": PRIVATE, "from": ANN, **more}
    return {"update_id": next(_updates), kind: message if text is None else {**message, "text": text}}


class Telegram:
    """The Bot API: updates that wait for polling, and the messages that the bot has sent."""

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self.offsets: list[int] = []

    async def answer(self, method: str, given: dict[str, Any]) -> Any:
        match method.lower():
            case "getme":
                return BOT
            case "getupdates":
                self.offsets.append(int(given.get("offset") or 0))
                await asyncio.sleep(0.005)  # bounded poll
                return [update for update in self.updates if update["update_id"] >= self.offsets[-1]]
            case "sendmessage":
                self.sent.append({name: value for name, value in given.items() if value is not None})
                return {"message_id": 1, "date": 1, "chat": {"id": given["chat_id"], "type": "private"}}
        return True


class AiogramSession(BaseSession):
    def __init__(self, api: Telegram) -> None:
        super().__init__()
        self.telegram = api

    async def make_request(self, bot: aiogram.Bot, method: Any, *_: Any, **__: Any) -> Any:
        answer = await self.telegram.answer(method.__api_method__, method.model_dump(exclude_unset=True))
        return self.check_response(bot, method, 200, json.dumps({"ok": True, "result": answer})).result

    async def close(self) -> None: ...

    async def stream_content(self, *_: Any, **__: Any) -> AsyncGenerator[bytes, None]:
        yield b""


class OfflineRequest(BaseRequest):
    def __init__(self, api: Telegram) -> None:
        self.telegram = api

    @property
    def read_timeout(self) -> float | None:
        return 1

    async def initialize(self) -> None: ...

    async def shutdown(self) -> None: ...

    async def do_request(
        self, url: str, method: str, request_data: RequestData | None = None, *_: Any, **__: Any
    ) -> tuple[int, bytes]:
        given = request_data.parameters if request_data else {}
        answer = await self.telegram.answer(url.rsplit("/", 1)[1], given)
        return 200, json.dumps({"ok": True, "result": answer}).encode()


class AiogramBot:
    """A dispatcher with handlers of its own, of which one swallows every error."""

    adapter: Any = aiogram_adapter

    def __init__(self, chat: AsyncChatlock, api: Telegram, **options: Any) -> None:
        self.bot, self.dispatcher = aiogram.Bot(TOKEN, session=AiogramSession(api)), aiogram.Dispatcher()
        self.heard: list[int] = []
        self.dispatcher.update.outer_middleware(aiogram_adapter.inbox(chat, **options))
        for observer in ("message", "edited_message", "business_message", "error"):
            self.dispatcher.observers[observer].register(self._hear)

    async def _hear(self, event: Any) -> None:
        self.heard.append(getattr(event, "message_id", 0))

    async def send(self, place: Any, text: str) -> None:
        await self.bot.send_message(**place.target, text=text)

    async def feed(self, update: dict[str, Any]) -> None:
        """What the webhook awaits before it answers."""
        await self.dispatcher.feed_webhook_update(self.bot, update)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    @asynccontextmanager
    async def polling(self) -> AsyncIterator[None]:
        task = asyncio.create_task(
            self.dispatcher.start_polling(self.bot, handle_as_tasks=False, handle_signals=False, polling_timeout=1)
        )
        yield
        await self.dispatcher.stop_polling()
        await task


class PtbBot:
    """An application with a handler of its own."""

    adapter: Any = telegram_adapter

    def __init__(self, chat: AsyncChatlock, api: Telegram, **options: Any) -> None:
        builder = Application.builder().token(TOKEN).request(OfflineRequest(api))
        builder = builder.get_updates_request(OfflineRequest(api))
        self.application: Any = builder.update_queue(telegram_adapter.inbox(chat, **options)).build()
        self.heard: list[int] = []
        self.application.add_handler(MessageHandler(filters.ALL, self._hear))

    async def _hear(self, update: Update, _: Any) -> None:
        assert update.effective_message is not None
        self.heard.append(update.effective_message.message_id)

    async def send(self, place: Any, text: str) -> None:
        await self.application.bot.send_message(**place.target, text=text)

    async def feed(self, update: dict[str, Any]) -> None:
        """What the webhook awaits before it answers."""
        await self.application.update_queue.put(Update.de_json(update, self.application.bot))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.application:
            await self.application.start()
            yield
            await self.application.stop()

    @asynccontextmanager
    async def polling(self) -> AsyncIterator[None]:
        async with self.running():
            await self.application.updater.start_polling(poll_interval=0.01, timeout=1)
            yield
            await self.application.updater.stop()


BOTS = {"aiogram": AiogramBot, "telegram": PtbBot}
