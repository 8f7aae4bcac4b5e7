"""The chat example as its reader runs it, and the plain script."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

import examples.plain_script
from chatlock import Closed
from examples.fastapi_chat.agent import Booking, Said
from examples.fastapi_chat.app import PAGE, application
from examples.fastapi_chat.check import check
from examples.fastapi_chat.serving import serving
from tests.frameworks.driver import Exchange
from tests.support import ROOT
from tests.support.databases import Database
from tests.support.pages import Block, blocks_of

POSTED_TO = {1: "/chats/threads/t/messages", 2: "/chats/threads/t/messages", 3: "/threads/t"}
HTTP_PAGE = blocks_of(ROOT / "docs" / "http.md")
LEDGER = re.compile(r"ledger: (\d+) messages, (\d+) answered in (\d+) turns, 0 lost, 0 answered twice")


@pytest.fixture(scope="module")
def chat(served: Database) -> Iterator[tuple[FastAPI, str]]:
    with serving(application(served.url, think_s=0.2)) as running:
        yield running


def test_page_and_its_parts_are_served_under_its_own_policy(chat: tuple[FastAPI, str]) -> None:
    with httpx.Client(base_url=chat[1]) as http:
        page = http.get("/")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert re.search(r"visitor=[\w-]{20,}; HttpOnly", page.headers["set-cookie"])
        parts = re.findall(r'(?:href|src)="(/[^"]+)"', page.text)
        assert {http.get(part).status_code for part in parts} == {200}
        assert len(parts) == len(list(PAGE.iterdir())) - 1
        assert not re.search(r"https?://", "".join(path.read_text() for path in PAGE.iterdir()))
        assert http.get("/page/..%2fapp.py").status_code == 404


def test_check_ends_with_every_message_answered_once(
    chat: tuple[FastAPI, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert asyncio.run(check(*chat)) == 0
    output = capsys.readouterr().out
    last = LEDGER.fullmatch(output.splitlines()[-1])
    assert last, output
    messages, answered, turns = map(int, last.groups())
    assert messages == answered > turns
    without = output.split("with chatlock:")[0]
    for harm in ("answered twice", "never answered", "overlapped another", "missing from histories"):
        assert re.search(rf"[1-9]\d*  \D*{harm}", without), output


def test_check_fails_where_a_message_has_no_answer(
    chat: tuple[FastAPI, str], capsys: pytest.CaptureFixture[str]
) -> None:
    chat[0].state.with_["ann", "t"].hear(Said("m", "hello"))
    assert asyncio.run(check(*chat)) == 1
    assert "1 lost" in capsys.readouterr().out.splitlines()[-1]


def test_agent_understands_what_the_page_sends() -> None:
    booking = Booking()
    for text in ("A table for two tonight, please", "sorry, three of us", "at 8, on the terrace if you can"):
        booking = booking.changed_by(text)
    assert str(booking) == "for 3 at 8 on the terrace"


@pytest.mark.parametrize("block", HTTP_PAGE, ids=[f"block {block.number}" for block in HTTP_PAGE])
def test_application_of_the_http_page_answers_on_a_new_database(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = block.run()["app"]

    async def play() -> Exchange:
        async with app.router.lifespan_context(app):
            exchange = Exchange(app, POSTED_TO[block.number])
            exchange.scope["headers"].append((b"x-user", b"ann"))
            await exchange.run()
            return exchange

    exchange = asyncio.run(play())
    assert (exchange.status, exchange.body[:1]) in ((200, b"{"), (200, b"H")), exchange.body


def test_test_of_the_embedding_page_passes_more_than_once(chatlock_url: str) -> None:
    (block,) = [found for found in blocks_of(ROOT / "docs" / "embedding.md") if "chatlock_url" in found.code]
    names = block.run()
    for _ in range(2):
        names["test_message_is_answered"](chatlock_url)
    app = names["application"](chatlock_url)
    with names["TestClient"](app):
        pass
    with pytest.raises(Closed, match="make a new one for each start"):
        names["TestClient"](app).__enter__()


def test_plain_script_answers_three_messages_in_two_turns(capsys: pytest.CaptureFixture[str]) -> None:
    examples.plain_script.main()
    lines = capsys.readouterr().out.splitlines()
    assert sum("sends the reply" in line for line in lines) == 2
    assert lines[-1] == "m1 was answered by turn 1: nothing to send"
