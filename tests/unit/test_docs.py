"""What the documents say holds: their code runs, their links lead somewhere, figures are ours."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import bindparam, select

import chatlock
from chatlock import schema
from chatlock.protocol import Limits
from examples.demo.arrivals import follow_ups, recorded, share_within
from tests.support import ROOT
from tests.support.pages import Block, blocks_of
from tools import docs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.databases import Database

PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "examples/data/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAGE_IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
LONGEST_EXAMPLE = 21


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
(FASTAPI,) = [block for block in BLOCKS if block.note == "example"]


def noted(note: str) -> Any:
    chosen = [block for block in BLOCKS if block.note == note]
    assert chosen, f"no python block with the note {note!r}"
    return pytest.mark.parametrize("block", chosen, ids=[f"{b.page}-{b.number}" for b in chosen])


def test_every_fence_is_a_block_that_these_tests_know() -> None:
    fences = sum(page.read_text().count("```python") for page in PAGES)
    assert len(BLOCKS) == fences
    assert {block.note for block in BLOCKS} == {"", "example", "database", "framework"}


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if not block.note}))
def test_the_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in BLOCKS:
        if (block.page, block.note) == (page, ""):
            block.run()


@noted("database")
def test_the_code_runs_on_postgresql(block: Block, pg_database: Database) -> None:
    address = pg_database.url.split("://")[1]
    block.run(**{"://localhost/app": f"://{address}"})


def test_the_first_example_is_short_and_typed(tmp_path: Path) -> None:
    assert blocks_of(ROOT / "README.md")[0] == FASTAPI
    lines = [line for line in FASTAPI.code.splitlines() if line.strip()]
    assert len(lines) <= LONGEST_EXAMPLE
    (tmp_path / "app.py").write_text(FASTAPI.code)
    cache = str(ROOT / ".mypy_cache" / "docs")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, "app.py"]
    checked = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


async def post(app: Any, path: str, query: str) -> tuple[int, Any]:
    """One request to an ASGI application."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "query_string": query.encode(),
        "headers": [],
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(body)


def test_the_first_example_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = FASTAPI.run(**{"(3)": "(0)"})["app"]

    async def serve() -> None:
        async with app.router.lifespan_context(app):
            status, first = await post(app, "/threads/t1/messages/m1", "text=hello")
            assert (status, first["outcome"], first["reply"]) == (200, "Answered", "You said: hello")
            again = await post(app, "/threads/t1/messages/m1", "text=hello")
            assert again == (200, first | {"outcome": "AlreadyAnswered"})
            status, refused = await post(app, "/threads/t1/messages/m1", "text=other")
            assert (status, refused["outcome"]) == (200, "Conflict")

    asyncio.run(serve())


@pytest.mark.parametrize("agent", ["default", "writer"])
def test_handler_that_is_stopped_has_ended_its_work_before_the_next_turn(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [b for b in blocks_of(ROOT / "docs" / "policies.md") if "until_cancelled" in b.code]
    names, log, release = block.run(), [], chatlock.AsyncTurn.release

    async def released(turn: chatlock.AsyncTurn) -> bool:
        log.append("release")
        return await release(turn)

    monkeypatch.setattr(chatlock.AsyncTurn, "release", released)

    async def interrupt() -> None:
        began = asyncio.Event()

        async def work(messages: Any) -> str:
            log.append("begin")
            try:
                began.set()
                if len(messages) == 1:
                    await asyncio.Event().wait()
            finally:
                await asyncio.to_thread(int)  # it closes something
                log.append("end")
            return f"{len(messages)} answered"

        async def chunks(messages: Any) -> AsyncIterator[str]:
            yield await work(messages)

        names.update(ask_the_model=work, chunks_of_the_model=chunks)
        async with names["chat"] as chat:
            await chat.setup()
            first = asyncio.ensure_future(chat.submit("t", "a", message_id="a", agent=agent))
            await began.wait()
            second = await chat.submit("t", "b", agent=agent)
            assert {second.reply, (await first).reply} == {"2 answered"}
        assert log == ["begin", "end", "release", "begin", "end"]

    asyncio.run(interrupt())


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for match in LINK.finditer(page.read_text()):
        path, _, anchor = match["target"].partition("#")
        if path.startswith(("http://", "https://")):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), match["target"]
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), match["target"]


def test_the_figures_of_the_readme_are_measured() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    logs = recorded()
    shares = [share_within(follow_ups(log), 30) for log in logs.values()]

    assert f"{sum(map(len, logs.values())):,} messages" in readme
    assert f"**{int(min(shares))} to {int(max(shares))} %** of a person's messages" in readme


def test_the_limits_in_the_documents_are_those_of_the_protocol() -> None:
    limits = Limits()
    text = " ".join((ROOT / "docs" / "recovery.md").read_text().split())
    to_next_turn_ms = limits.lease_ms + 2 * limits.sweep_ms + limits.backoff_ms

    assert to_next_turn_ms <= 15_000
    for said in (
        f"beats every {limits.beat_ms // 1000} s",
        f"extends each claim's **lease** by {limits.lease_ms // 1000} s",
        f"2 beats and 1 s ({(2 * limits.beat_ms + 1000) // 1000} s) apart",
        f"{limits.window_margin} times the longest run",
        f"in the last {limits.window_days} days",
        f"at least {limits.window_floor_ms // 60_000} minute",
        f"at most {limits.window_cap_ms // 3_600_000} hours",
        f"{limits.window_default_ms // 60_000} minutes until {limits.window_runs_min} runs",
        f"backoff: {limits.backoff_ms // 1000} s, doubling, at most {limits.backoff_max_ms // 1000} s",
        f"**{limits.attempts_max} attempts**",
        f"**{limits.stalls_max} stalls**",
    ):
        assert said in text, said


def test_the_options_in_the_documents_are_those_of_a_client() -> None:
    text = (ROOT / "docs" / "embedding.md").read_text()
    rows = text.split("| option of a client | |\n| --- | --- |\n")[1].split("\n\n")[0]
    named = {n for row in rows.splitlines() for n in re.findall(r"`(\w+)", row.split("|")[1])}

    assert named == set(chatlock.ClientOptions.__annotations__)


def test_the_changelog_names_what_exists() -> None:
    entries = (ROOT / "CHANGELOG.md").read_text()
    for first, classes in (
        ("- `Chatlock` and", (chatlock.Chatlock, chatlock.AsyncChatlock)),
        ("- `Turn` and", (chatlock.Turn, chatlock.AsyncTurn)),
        ("- Outcomes as", (chatlock,)),
    ):
        entry = entries.split(first)[1].split(":", 1)[1].split("\n- ")[0]
        names = re.findall(r"`(\w+)`", entry)
        assert len(names) > 5
        for name in names:
            assert all(hasattr(owner, name) for owner in classes), name


def test_generated_documents_are_in_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main(["--check"]) == 0, capsys.readouterr().out


def test_a_generated_document_out_of_step_is_shown(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(docs, "DOCS", tmp_path)
    docs.write({tmp_path / "state-machine.md": "old\n", tmp_path / "sql" / "gone.sqlite.sql": "x\n"})

    found = docs.differences({tmp_path / "state-machine.md": "new\n"})
    assert {"-old", "+new", "-x"} <= set(found)

    docs.write({tmp_path / "state-machine.md": "new\n"})
    assert docs.differences({tmp_path / "state-machine.md": "new\n"}) == []


def test_a_statement_without_the_tenant_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, due = schema.threads, schema.due
    monkeypatch.setattr(docs, "OVER_ALL_TENANTS", {"named": "not needed"})
    joined = select(threads.c.token).join(due, due.c.tenant == threads.c.tenant)
    of_tenant = joined.where(threads.c.tenant == bindparam("b_tenant"))

    assert docs.tenant_faults([("forgotten", joined), ("named", of_tenant)]) == [
        "forgotten does not name the tenant",
        "named is listed in OVER_ALL_TENANTS, but names the tenant or is gone",
    ]
