"""aiogram and python-telegram-bot, over a session and a request class that stay offline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiogram import Bot, Dispatcher
from aiogram.dispatcher.event.bases import CancelHandler
from aiogram.webhook.aiohttp_server import SimpleRequestHandler
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from telegram.error import NetworkError

from chatlock import AsyncChatlock, AsyncTurn, Chatlock, Delivery, InvalidInput, Key, Limits, NotFound, Queued
from chatlock.middleware import aiogram as adapter
from examples.telegram_bot import __main__ as example
from tests.frameworks.telegram_api import (
    ANN,
    BEN,
    BOT,
    BOTS,
    CHANNEL,
    GROUP,
    TELEGRAM,
    TOKEN,
    AiogramSession,
    Telegram,
    said,
)
from tests.support import ROOT
from tests.support.databases import Database
from tests.support.pages import Block, blocks_of
from tests.support.waiting import Gate, until

NOT_STORED = (CancelHandler, NetworkError)
MINE = "telegram:42:7::"


class Scene:
    """A bot of a framework, its agent, and Telegram's side of it."""

    def __init__(self, framework: str, chat: AsyncChatlock, **options: Any) -> None:
        self.chat, self.api = chat, Telegram()
        self.turns: list[list[str]] = []
        self.gate: Gate | None = None
        self.bot: Any = BOTS[framework](chat, self.api, **options)

        @chat.handler()
        async def answer(turn: AsyncTurn) -> str:
            texts = [message.payload["text"] for message in turn.messages]
            self.turns.append(texts)
            if self.gate is not None:
                await self.gate.hold_async()
            return "re: " + ", ".join(texts)

        @chat.deliver()
        async def send(delivery: Delivery) -> None:
            await self.bot.send(self.bot.adapter.Place.of(delivery), delivery.reply)

    async def held(self, update: dict[str, Any]) -> Gate:
        """A turn that runs until the gate is opened."""
        self.gate = gate = Gate()
        await self.bot.feed(update)
        await asyncio.to_thread(gate.wait_entered)
        return gate


@asynccontextmanager
async def serving(framework: str, url: str, **options: Any) -> AsyncIterator[Scene]:
    async with AsyncChatlock(url, tenant="acme", limits=Limits(sweep_ms=20)) as chat:
        scene = Scene(framework, chat, **options)
        async with scene.bot.running():
            yield scene


async def eventually(predicate: Any) -> None:
    await asyncio.to_thread(until, predicate)


@pytest.fixture(params=BOTS)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_message_is_stored_first_and_answered_once(framework: str, sqlite_database: Database) -> None:
    async def play() -> None:
        async with serving(framework, sqlite_database.url) as scene:
            first = said(1, "one")
            gate = await scene.held(first)
            stored = await scene.chat.status(MINE, "1")  # the webhook has answered while the turn runs
            assert isinstance(stored, Queued)
            assert stored.position == 0
            for update in (first, said(1, "one"), said(2, "two"), first):
                await scene.bot.feed(update)
            gate.open()
            await eventually(lambda: len(scene.api.sent) == 2)
            assert scene.turns == [["one"], ["two"]]
            assert [(sent["chat_id"], sent["text"]) for sent in scene.api.sent] == [(7, "re: one"), (7, "re: two")]
            assert scene.bot.heard == []

    asyncio.run(play())


def test_a_chat_never_waits_behind_the_messages_of_another(framework: str, sqlite_database: Database) -> None:
    async def play() -> None:
        async with serving(framework, sqlite_database.url) as scene:
            gate = await scene.held(said(1, "one"))
            scene.gate = None
            for number in (2, 3):
                await scene.bot.feed(said(number, "behind it"))
            await scene.bot.feed(said(4, "elsewhere", chat=GROUP))
            await eventually(lambda: scene.api.sent)
            assert [sent["chat_id"] for sent in scene.api.sent] == [-100]
            gate.open()
            await eventually(lambda: len(scene.api.sent) == 3)

    asyncio.run(play())


def test_edit_replaces_a_message_that_waits_and_no_other(framework: str, sqlite_database: Database) -> None:
    async def play() -> None:
        async with serving(framework, sqlite_database.url) as scene:
            gate = await scene.held(said(1, "one"))
            await scene.bot.feed(said(2, "two"))
            edits = [said(2, f"two{'!' * n}", kind="edited_message", edit_date=1 + n) for n in (1, 2)]
            for update in (edits[0], edits[0], edits[1], edits[0]):
                await scene.bot.feed(update)
            await scene.bot.feed(said(1, "too late", kind="edited_message", edit_date=5))
            await scene.bot.feed(said(9, "never stored", kind="edited_message", edit_date=6))
            gate.open()
            await eventually(lambda: len(scene.api.sent) == 2 and scene.bot.heard)
            assert scene.turns == [["one"], ["two!!"]]
            assert scene.bot.heard == [9]

    asyncio.run(play())


def test_what_is_not_for_the_agent_goes_to_the_app(framework: str, sqlite_database: Database) -> None:
    async def play() -> None:
        async with serving(framework, sqlite_database.url) as scene:
            customer = {**said(5)["message"]["chat"], "id": 8}
            for update in (
                said(1, "/start"),
                said(2, **{"from": BOT}),
                said(3, None, location={"latitude": 1.0, "longitude": 1.0}),
                said(4, kind="business_message", business_connection_id="b1", chat=customer),  # Ann writes to hers
                said(5, chat=GROUP, is_automatic_forward=True, **{"from": TELEGRAM}),
            ):
                await scene.bot.feed(update)
            await eventually(lambda: len(scene.bot.heard) == 5 or scene.turns)
            assert scene.bot.heard == [1, 2, 3, 4, 5]
            await scene.bot.feed(said(6, None, caption="look", location={"latitude": 1.0, "longitude": 1.0}))
            await eventually(lambda: scene.api.sent)
            assert scene.turns == [["look"]]

    asyncio.run(play())


def test_fault_in_accepts_stops_no_polling(framework: str, sqlite_database: Database) -> None:
    def accepts(message: Any) -> bool:
        return bool(message.text.startswith("!"))

    async def play() -> None:
        async with AsyncChatlock(sqlite_database.url, tenant="acme", limits=Limits(sweep_ms=20)) as chat:
            scene = Scene(framework, chat, accepts=accepts)
            scene.api.updates = [
                said(1, None, caption="look", location={"latitude": 1.0, "longitude": 1.0}),
                said(2, "!"),
            ]
            async with scene.bot.polling():
                await eventually(lambda: scene.api.sent)
            assert (scene.turns, scene.bot.heard) == ([["!"]], [1])

    asyncio.run(play())


def test_thread_is_a_chat_or_a_topic_of_it(framework: str, sqlite_database: Database) -> None:
    async def play() -> None:
        async with serving(framework, sqlite_database.url) as scene:
            topic = {"chat": GROUP, "message_thread_id": 5, "is_topic_message": True}
            for update, thread, target in (
                (said(1, "a", chat=GROUP), "telegram:42:-100::", {"chat_id": -100}),
                (said(2, "b", chat=GROUP, **{"from": BEN}), "telegram:42:-100::", {"chat_id": -100}),
                (said(3, "c", chat=GROUP, message_thread_id=2), "telegram:42:-100::", {"chat_id": -100}),
                (said(3, "d", **topic), "telegram:42:-100:5:", {"chat_id": -100, "message_thread_id": 5}),
                (
                    said(3, "e", kind="business_message", business_connection_id="b1"),
                    "telegram:42:7::b1",
                    {"chat_id": 7, "business_connection_id": "b1"},
                ),
                (
                    said(4, "f", chat=CHANNEL, direct_messages_topic={"topic_id": 9, "user": ANN}),
                    "telegram:42:-200:::9",
                    {"chat_id": -200, "direct_messages_topic_id": 9},
                ),
            ):
                number, before = str(next(iter(list(update.values())[1:]))["message_id"]), len(scene.api.sent)
                assert isinstance(await scene.chat.status(thread, number), NotFound)
                await scene.bot.feed(update)
                await eventually(lambda before=before: len(scene.api.sent) > before)
                sent = {name: value for name, value in scene.api.sent[-1].items() if name in (*target, "chat_id")}
                assert sent == target
                assert not isinstance(await scene.chat.status(thread, number), NotFound)
            assert "message_thread_id" not in scene.api.sent[2]

    asyncio.run(play())


def test_telegram_sends_again_what_could_not_be_stored(framework: str, tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "later" / "chat.db"
        async with serving(framework, f"sqlite:///{path}") as scene:
            with pytest.raises(NOT_STORED):
                await scene.bot.feed(said(1))
            path.parent.mkdir()
            await scene.chat.setup()
            await scene.bot.feed(said(1))
            await eventually(lambda: scene.api.sent)
            assert (scene.turns, scene.bot.heard) == ([["hello"]], [])

    asyncio.run(play())


def test_polling_confirms_only_what_is_stored(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(adapter, "AGAIN_S", 0.005)

    async def play() -> None:
        path = tmp_path / "later" / "chat.db"
        async with AsyncChatlock(f"sqlite:///{path}", tenant="acme", limits=Limits(sweep_ms=20)) as chat:
            scene = Scene(framework, chat)
            scene.api.updates = [said(1, "/start"), said(2, "one"), said(3, "two")]
            first = scene.api.updates[0]["update_id"]
            async with scene.bot.polling():
                await eventually(lambda: len(scene.api.offsets) > 3 or caplog.messages.count("inbox.waits") > 3)
                assert max(scene.api.offsets) <= first
                path.parent.mkdir()
                await chat.setup()
                await eventually(lambda: max(scene.api.offsets) == first + 3)
                await eventually(lambda: scene.turns and scene.turns[-1][-1] == "two")
            assert [text for turn in scene.turns for text in turn] == ["one", "two"]
            assert scene.bot.heard == [1]  # once, however often its round was asked for

    asyncio.run(play())


def test_webhook_of_aiogram_answers_after_the_message_is_stored(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "later" / "chat.db"
        async with AsyncChatlock(f"sqlite:///{path}", tenant="acme", poller=False) as chat:
            scene, app = Scene("aiogram", chat), web.Application()
            handler = SimpleRequestHandler(scene.bot.dispatcher, scene.bot.bot, handle_in_background=False)
            handler.register(app, path="/hook")
            async with TestClient(TestServer(app)) as http:
                assert (await http.post("/hook", json=said(1))).status == 500
                path.parent.mkdir()
                await chat.setup()
                gate = scene.gate = Gate()
                assert (await http.post("/hook", json=said(1))).status == 200
                assert isinstance(await chat.status(MINE, "1"), Queued)
                gate.open()

    asyncio.run(play())


def test_inbox_is_registered_for_updates() -> None:
    async def play() -> None:
        async with AsyncChatlock("sqlite:///unused.db", tenant="acme") as chat:
            dispatcher = Dispatcher()
            dispatcher.message.outer_middleware(adapter.inbox(chat))
            with pytest.raises(InvalidInput, match=r"dp\.update\.outer_middleware"):
                await dispatcher.feed_raw_update(Bot(TOKEN, session=AiogramSession(Telegram())), said(1))

    asyncio.run(play())


def test_place_is_read_back_from_the_thread() -> None:
    for place in (
        adapter.Place(42, -100, 5),
        adapter.Place(42, ANN["id"], None, "b1"),
        adapter.Place(42, -200, direct_topic=9),
    ):
        assert adapter.Place.of(Delivery(Key("acme", place.thread), 1, ("1",), "reply", "key", 1)) == place
    with pytest.raises(InvalidInput, match="Telegram"):
        adapter.Place.of(Delivery(Key("acme", "slack:T1:D1:"), 1, ("1",), "reply", "key", 1))


@pytest.mark.parametrize("block", blocks_of(ROOT / "docs" / "telegram.md"), ids=lambda block: str(block.number))
def test_code_of_the_page_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Chatlock("sqlite:///chat.db").setup()
    block.run()


def test_example_ends_with_a_clean_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main() == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("ledger: 2 messages, 2 answered in ")
