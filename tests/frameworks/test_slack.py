"""Slack Bolt, sync and async: signed requests, dispatched in process, and a server that takes what the bot posts."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from slack_bolt import App, BoltRequest
from slack_bolt.async_app import AsyncApp, AsyncBoltRequest
from slack_bolt.authorization import AuthorizeResult
from slack_sdk import WebClient
from slack_sdk.signature import SignatureVerifier

from chatlock import AsyncChatlock, Cancelled, Chatlock, Delivery, InvalidInput, Key, Limits, NotFound, Queued, Unknown
from chatlock.middleware import inbox as shared
from chatlock.middleware.slack import Place, inbox
from examples.slack_bot import __main__ as example
from tests.support import ROOT
from tests.support.databases import Database
from tests.support.pages import Block, blocks_of
from tests.support.waiting import Gate, until

SECRET = "signing-secret"
CHANNEL = "C1"


class Posted:
    """A stand-in for Slack's Web API: keeps what the real client sends."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        posted = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(b'{"ok": true}')

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    @property
    def replies(self) -> list[tuple[str | None, str]]:
        return [(message.get("thread_ts"), message["text"]) for message in self.messages]


@pytest.fixture
def posted() -> Iterator[Posted]:
    made = Posted()
    serving = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    serving.start()
    yield made
    made.server.shutdown()
    serving.join()
    made.server.server_close()


class Bot:
    """An existing app with one line added, its agent, and what its own listener still hears."""

    def __init__(self, app: Any, chat: Any, posted: Posted, **options: Any) -> None:
        self.app, self.chat = app, chat
        self.turns: list[list[str]] = []
        self.heard: list[str] = []
        self.gate: Gate | None = None
        client = WebClient(token="xoxb-1", base_url=posted.url)

        @chat.handler()
        def answer(turn: Any) -> str:
            texts = [message.payload["text"] for message in turn.messages]
            self.turns.append(texts)
            if self.gate is not None:
                self.gate.hold()
            return "re: " + ", ".join(texts)

        @chat.deliver()
        def send(delivery: Delivery) -> None:
            client.chat_postMessage(**Place.of(delivery).target, text=delivery.reply)

        app.use(inbox(chat, **options))
        if isinstance(app, AsyncApp):

            @app.event("message")
            async def listen_async(event: dict[str, Any]) -> None:
                self.heard.append(event["ts"])
        else:

            @app.event("message")
            def listen(event: dict[str, Any]) -> None:
                self.heard.append(event["ts"])

    async def post(self, event: dict[str, Any], secret: str = SECRET, team: str = "T1", **more: str) -> int:
        """The status that Slack sees."""
        body = json.dumps({"type": "event_callback", "team_id": team, "event_id": "Ev1", "event": event})
        now = str(int(time.time()))
        signature = str(SignatureVerifier(secret).generate_signature(timestamp=now, body=body))
        headers = {"X-Slack-Signature": signature, "X-Slack-Request-Timestamp": now, **more}
        headers["Content-Type"] = "application/json"
        if isinstance(self.app, AsyncApp):
            return (await self.app.async_dispatch(AsyncBoltRequest(body=body, headers=headers))).status
        return (await asyncio.to_thread(self.app.dispatch, BoltRequest(body=body, headers=headers))).status

    async def status(self, thread: str, ts: str) -> Any:
        found = self.chat.status(thread, ts)
        return await found if isinstance(self.chat, AsyncChatlock) else found


def authorized(enterprise_id: str | None, team_id: str) -> AuthorizeResult:
    return AuthorizeResult(
        enterprise_id=enterprise_id, team_id=team_id, bot_token="xoxb-1", bot_id="B1", bot_user_id="UBOT"
    )


@asynccontextmanager
async def serving(
    kind: str, url: str, posted: Posted, tenant: str | None = "acme", **options: Any
) -> AsyncIterator[Bot]:
    limits = Limits(sweep_ms=20)
    if kind == "sync":
        with Chatlock(url, tenant=tenant, limits=limits) as chat:
            yield Bot(App(signing_secret=SECRET, authorize=authorized), chat, posted, **options)
        return

    async def authorize(enterprise_id: str | None, team_id: str) -> AuthorizeResult:
        return authorized(enterprise_id, team_id)

    async with AsyncChatlock(url, tenant=tenant, limits=limits) as chat:
        yield Bot(AsyncApp(signing_secret=SECRET, authorize=authorize), chat, posted, **options)


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def said(ts: str, text: str = "hello", kind: str = "message", **more: Any) -> dict[str, Any]:
    """A person's message in a direct conversation, unless told otherwise."""
    where = {"channel": "D1", "channel_type": "im"} if kind == "message" else {"channel": CHANNEL}
    return {"type": kind, "user": "U1", "text": text, "ts": ts, "event_ts": ts, **where, **more}


def edited(ts: str, text: str, at: str, before: str = "") -> dict[str, Any]:
    message = {"type": "message", "user": "U1", "text": text, "ts": ts, "edited": {"user": "U1", "ts": at}}
    previous = {"type": "message", "user": "U1", "text": before, "ts": ts}
    return said(at, subtype="message_changed", message=message, previous_message=previous)


def deleted(ts: str, at: str, **more: Any) -> dict[str, Any]:
    previous = {"type": "message", "user": "U1", "text": "hello", "ts": ts, **more}
    return said(at, subtype="message_deleted", deleted_ts=ts, previous_message=previous)


def emptied(ts: str, at: str) -> dict[str, Any]:
    """The deletion of a message that has replies."""
    place = {"subtype": "tombstone", "user": "USLACKBOT", "text": "deleted", "ts": ts, "thread_ts": ts}
    return {**deleted(ts, at, thread_ts=ts), "subtype": "message_changed", "message": place}


async def eventually(predicate: Any) -> None:
    await asyncio.to_thread(until, predicate)


async def held(bot: Bot, event: dict[str, Any]) -> Gate:
    """A turn that runs until the gate is opened."""
    bot.gate = gate = Gate()
    assert await bot.post(event) == 200
    await asyncio.to_thread(gate.wait_entered)
    return gate


async def accepted(bot: Bot, event: dict[str, Any]) -> None:
    for _ in range(2000):
        if await bot.post(event) == 200:
            return
        await asyncio.sleep(0.005)  # bounded poll
    raise AssertionError("it was never accepted")


def test_mention_is_one_message_over_kinds_and_retries(kind: str, sqlite_database: Database, posted: Posted) -> None:
    async def scene() -> None:
        async with serving(kind, sqlite_database.url, posted, accepts=lambda event: True) as bot:
            mention = said("1.1", "<@UBOT> hi", "app_mention", client_msg_id="c1")
            gate = await held(bot, mention)
            stored = await bot.status("slack:T1:C1:1.1", "1.1")  # Slack has its 200 while the turn runs
            assert isinstance(stored, Queued)
            assert stored.position == 0
            twin = said("1.1", "<@UBOT> hi", channel=CHANNEL, channel_type="channel", client_msg_id="c1")
            for again in (twin, mention, twin):
                assert await bot.post(again, **{"X-Slack-Retry-Num": "1", "X-Slack-Retry-Reason": "timeout"}) == 200
            assert await bot.post(said("1.2", "more", "app_mention", thread_ts="1.1")) == 200
            gate.open()
            await eventually(lambda: len(posted.messages) == 2)
            assert bot.turns == [["<@UBOT> hi"], ["more"]]
            assert posted.replies == [("1.1", "re: <@UBOT> hi"), ("1.1", "re: more")]
            assert {message["channel"] for message in posted.messages} == {CHANNEL}
            assert bot.heard == []

    asyncio.run(scene())


def test_edit_replaces_a_message_that_waits_and_no_other(kind: str, sqlite_database: Database, posted: Posted) -> None:
    async def scene() -> None:
        async with serving(kind, sqlite_database.url, posted) as bot:
            gate = await held(bot, said("1.1", "one"))
            assert await bot.post(said("1.2", "two")) == 200
            first, second = edited("1.2", "two!", "1.3", "two"), edited("1.2", "two!!", "1.4", "two!")
            for edit in (first, first, second, first):
                assert await bot.post(edit) == 200
            assert await bot.post(edited("1.1", "too late", "1.5", "one")) == 200
            preview = edited("1.2", "two!!", "1.6", "two!!")
            for other in (preview, edited("9.9", "of a message that was never stored", "1.7")):
                assert await bot.post(other) == 200
            gate.open()
            await eventually(lambda: len(posted.messages) == 2 and len(bot.heard) == 2)
            assert bot.turns == [["one"], ["two!!"]]
            assert posted.replies == [(None, "re: one"), (None, "re: two!!")]
            assert sorted(bot.heard) == ["1.6", "1.7"]

    asyncio.run(scene())


def test_deletion_cancels_a_message_that_waits_and_no_other(
    kind: str, sqlite_database: Database, posted: Posted
) -> None:
    async def scene() -> None:
        async with serving(kind, sqlite_database.url, posted) as bot:
            gate = await held(bot, said("1.1", "one"))
            for waiting in (
                said("1.2", "two"),
                said("1.3", "three"),
                edited("1.3", "three!", "1.4"),
                said("1.5", "four"),
                said("1.6", "five"),
            ):
                assert await bot.post(waiting) == 200
            for ts in ("1.2", "1.3", "1.3", "1.1"):  # the last is in the turn
                assert await bot.post(deleted(ts, "2.1")) == 200
            assert await bot.post(emptied("1.6", "2.1")) == 200
            assert bot.heard == []
            for others in (deleted("9.9", "2.2"), deleted("1.5", "2.3", bot_id="B9")):
                assert await bot.post(others) == 200
            assert isinstance(await bot.status("slack:T1:D1:", "1.5"), Queued)
            gate.open()
            await eventually(lambda: len(posted.messages) == 2 and len(bot.heard) >= 2)
            assert bot.turns == [["one"], ["four"]]
            assert sorted(bot.heard) == ["2.2", "2.3"]
            for message_id in ("1.2", "1.3:1", "1.6"):
                assert isinstance(await bot.status("slack:T1:D1:", message_id), Cancelled)

    asyncio.run(scene())


def test_what_is_not_for_the_agent_goes_to_the_app(kind: str, sqlite_database: Database, posted: Posted) -> None:
    async def scene() -> None:
        async with serving(kind, sqlite_database.url, posted) as bot:
            others = [
                said("1.1", channel=CHANNEL, channel_type="channel"),
                said("1.2", bot_id="B9"),
                said("1.3", subtype="bot_message"),
                said("1.4", subtype="channel_join"),
            ]
            for event in others:
                assert await bot.post(event) == 200
            await eventually(lambda: len(bot.heard) == len(others) or bot.turns)
            assert await bot.post(said("1.5", user="UBOT")) == 200
            assert await bot.post(said("1.6"), secret="forged") == 401
            assert await bot.post(said("1.7", "hi")) == 200
            await eventually(lambda: posted.messages)
            assert bot.turns == [["hi"]]
            assert "1.5" not in bot.heard

    asyncio.run(scene())


def test_thread_is_that_of_slack(kind: str, sqlite_database: Database, posted: Posted) -> None:
    async def scene() -> None:
        async with serving(kind, sqlite_database.url, posted) as bot:
            for event, team, thread in (
                (said("1.1"), "T1", "slack:T1:D1:"),
                (said("1.2"), "T1", "slack:T1:D1:"),
                (said("1.3", thread_ts="1.1"), "T1", "slack:T1:D1:1.1"),
                (said("1.2"), "T2", "slack:T2:D1:"),
                (said("1.4", kind="app_mention"), "T1", "slack:T1:C1:1.4"),
                (said("1.5", kind="app_mention", thread_ts="1.4"), "T1", "slack:T1:C1:1.4"),
            ):
                assert isinstance(await bot.status(thread, event["ts"]), NotFound)
                assert await bot.post(event, team=team) == 200
                assert not isinstance(await bot.status(thread, event["ts"]), NotFound)

    asyncio.run(scene())


def test_slack_sends_again_what_could_not_be_stored(kind: str, tmp_path: Path, posted: Posted) -> None:
    async def scene() -> None:
        path = tmp_path / "later" / "chat.db"
        async with serving(kind, f"sqlite:///{path}", posted) as bot:
            assert await bot.post(said("1.1")) == 500
            path.parent.mkdir()
            await asyncio.to_thread(Chatlock(f"sqlite:///{path}", poller=False).setup)
            assert await bot.post(said("1.1"), **{"X-Slack-Retry-Num": "1"}) == 200
            await eventually(lambda: posted.messages)
            assert bot.turns == [["hello"]]

    asyncio.run(scene())


def test_message_that_may_not_be_stored_is_asked_for_again(
    kind: str, sqlite_database: Database, posted: Posted, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = Unknown(message_id="1.1")
    monkeypatch.setattr(Chatlock, "submit", lambda *_, **__: unknown)
    monkeypatch.setattr(AsyncChatlock, "submit", AsyncMock(return_value=unknown))

    async def scene() -> None:
        async with serving(kind, sqlite_database.url, posted) as bot:
            assert await bot.post(said("1.1")) == 500

    asyncio.run(scene())


def test_more_turns_than_a_process_takes_are_for_later(
    kind: str, sqlite_database: Database, posted: Posted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "TURNS_MAX", 1)

    async def scene() -> None:
        async with serving(kind, sqlite_database.url, posted) as bot:
            gate = await held(bot, said("1.1", "one"))
            elsewhere = said("1.2", "two", "app_mention")
            assert await bot.post(elsewhere) == 500
            gate.open()
            await eventually(lambda: len(posted.messages) == 1)
            await accepted(bot, elsewhere)
            await eventually(lambda: len(posted.messages) == 2)

    asyncio.run(scene())


def test_message_that_never_can_be_stored_is_not_asked_for_again(
    kind: str, sqlite_database: Database, posted: Posted
) -> None:
    async def scene() -> None:
        async with serving(kind, sqlite_database.url, posted) as bot:
            deep: Any = []
            for _ in range(70):
                deep = [deep]
            for more in ({"text": "a\0b"}, {"files": [{"size": 2**60}]}, {"files": deep}):
                assert await bot.post({**said("1.1"), **more}) == 200
            assert isinstance(await bot.status("slack:T1:D1:", "1.1"), NotFound)
        async with serving(kind, sqlite_database.url, posted, tenant=None) as bot:
            assert await bot.post(said("1.1")) == 500  # the application's mistake, and the message is a good one

    asyncio.run(scene())


def test_place_is_read_back_from_the_thread() -> None:
    for place in (Place("T1", "C1", "1.1"), Place("T1", "D1")):
        assert Place.of(Delivery(Key("acme", place.thread), 1, ("1.1",), "reply", "key", 1)) == place
    with pytest.raises(InvalidInput, match="Slack"):
        Place.of(Delivery(Key("acme", "t1"), 1, ("1.1",), "reply", "key", 1))


@pytest.mark.parametrize("block", blocks_of(ROOT / "docs" / "slack.md"), ids=lambda block: str(block.number))
def test_code_of_the_page_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Chatlock("sqlite:///chat.db").setup()
    block.run()


def test_example_ends_with_a_clean_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main() == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("ledger: 3 messages, 3 answered in ")
