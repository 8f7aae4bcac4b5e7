"""The OpenAI Agents SDK: conversations that the provider keeps, and what a reader can run."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from agents import Agent, OpenAIConversationsSession, SQLiteSession
from agents.memory import OpenAIResponsesCompactionSession
from agents.testing import ScriptedModel
from openai import AsyncOpenAI

from chatlock import Chatlock, InvalidInput
from chatlock.middleware import MissingExtra
from chatlock.middleware.openai_agents import TurnSession, conversation_session, run_turn
from examples.openai_agents import __main__ as example
from tests.frameworks.with_openai_agents.sdk import says, scene
from tests.support import ROOT
from tests.support.pages import Block, blocks_of


# -- conversations that the provider keeps -----------------------------------------------------------------------------
class Provider:
    """The conversations API of OpenAI, behind the real client."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.items: list[Any] = []
        self.client = AsyncOpenAI(
            api_key="none", max_retries=0, http_client=httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/conversations"):
            self.created.append(request.headers["idempotency-key"])
            made = {"id": f"conv_{len(self.created)}", "created_at": 0, "metadata": {}, "object": "conversation"}
            return httpx.Response(200, json=made)
        if request.method == "POST":
            self.items += json.loads(request.content)["items"]
        return httpx.Response(
            200, json={"object": "list", "data": [], "has_more": False, "first_id": "", "last_id": ""}
        )


def test_one_conversation_is_made_for_a_thread_however_many_workers_serve_it(sqlite_url: str, tenant: str) -> None:
    async def two_workers() -> None:
        provider = Provider()
        found = []
        for text in ("q1", "q2"):
            async with scene(sqlite_url, tenant) as (chat, _), chat.turn("t", text) as turn:
                session = await conversation_session(turn, provider.client)
                found.append(session.session_id)
                await turn.finish()
        assert found == ["conv_1", "conv_1"]
        assert len(provider.created) == 1
        await provider.client.close()

    asyncio.run(two_workers())


def test_sessions_that_the_sdk_treats_apart_are_used_as_they_are(sqlite_url: str, tenant: str, tmp_path: Path) -> None:
    async def apart() -> None:
        provider = Provider()
        async with scene(sqlite_url, tenant) as (chat, _), chat.turn("t", "q") as turn:
            session = await conversation_session(turn, provider.client)
            assert isinstance(session, OpenAIConversationsSession)
            inner = SQLiteSession("t", tmp_path / "history.db")
            compacting = OpenAIResponsesCompactionSession("t", underlying_session=inner, client=provider.client)
            for kept in (session, compacting):
                with pytest.raises(InvalidInput, match="as it is"):
                    TurnSession(turn, kept)
            await run_turn(turn, Agent(name="a", model=ScriptedModel([says("answer")])), session)
            inner.close()
        assert [item.get("role") for item in provider.items] == ["user", "assistant"]
        assert all("id" not in item for item in provider.items)
        await provider.client.close()

    asyncio.run(apart())


def test_missing_framework_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agents", None)
    with pytest.raises(MissingExtra, match="its extra 'openai-agents'"):
        runpy.run_path(str(ROOT / "chatlock" / "middleware" / "openai_agents.py"))


# -- what a reader can run ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", blocks_of(ROOT / "docs" / "openai-agents.md"), ids=lambda block: str(block.number))
def test_code_of_the_page_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Chatlock("sqlite:///chat.db").setup()
    block.run()


def test_example_ends_with_a_clean_ledger(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "THINK_S", 0.05)
    assert example.main() == 0
    printed = capsys.readouterr().out
    assert "bob, turn 1: lost its claim; nothing of its run is kept" in printed
    assert printed.splitlines()[-1].startswith("ledger: 4 messages, 4 answered in ")
