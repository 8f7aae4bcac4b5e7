"""What belongs to one adapter: the turn around a request, the extras, the documented answers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from tests.frameworks.conftest import row_of
from tests.support import ROOT

if TYPE_CHECKING:
    import httpx

    from tests.frameworks.served import Agent
    from tests.support.databases import Database

MIDDLEWARE = ROOT / "chatlock" / "middleware"
NEEDS = re.compile(r'framework\("([\w.]+)", "(\w+)"\)')
ADAPTERS = {
    path.stem: needed.groups() for path in sorted(MIDDLEWARE.glob("*.py")) if (needed := NEEDS.search(path.read_text()))
}


@pytest.mark.parametrize("base", ["", "/starlette"], ids=["fastapi", "starlette"])
class TestAttached:
    def test_turn_is_finished_by_what_streams_its_reply(self, http: httpx.Client, base: str, thread: str) -> None:
        for body in ("x", "y"):
            assert http.post(f"{base}/attached/{thread}", json=body).text == "begun\nended\n"

    def test_caller_without_a_turn_is_told_why(self, http: httpx.Client, base: str, thread: str) -> None:
        url, headers = f"{base}/attached/{thread}", {"Idempotency-Key": "k"}
        http.post(url, json="x", headers=headers)
        again = http.post(url, json="x", headers=headers)
        assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
        assert again.json()["reply"] == "attached"
        assert http.post(url, json="y", headers=headers).status_code == 422

    def test_message_that_waits_is_nowhere_to_be_asked_for(
        self, http: httpx.Client, agent: Agent, base: str, thread: str
    ) -> None:
        gate = agent.hold(thread)
        http.post(f"/threads/{thread}/messages", json="x", headers={"Prefer": "respond-async"})
        gate.wait_entered()
        told = http.post(f"{base}/attached/{thread}", json="y", headers={"Prefer": "respond-async"})
        assert (told.status_code, told.headers.get("location")) == (202, None)
        gate.open()

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Idempotency-Key": ""}, 400),
            ({"Content-Type": "text/plain"}, 415),
            ({"If-Match": "*"}, 400),
            ({"If-Match": '"1-9"'}, 412),
            ({"X-User": "a" * 300}, 400),
        ],
    )
    def test_wrong_request_stores_nothing(
        self, http: httpx.Client, served: Database, base: str, thread: str, headers: dict[str, str], status: int
    ) -> None:
        answer = http.post(f"{base}/attached/{thread}", json="x", headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
        assert row_of(served, thread, "last_seq") == ()


def test_request_without_a_key_passes_by(http: httpx.Client) -> None:
    assert http.post("/starlette/elsewhere").status_code == 404


def test_unknown_paths_and_methods_are_problems(http: httpx.Client) -> None:
    for method, path, status in (
        ("GET", "/asgi/threads/t", 404),
        ("GET", "/asgi/threads/t/socket", 404),
        ("PUT", "/asgi/threads/t/messages/m", 405),
        ("GET", "/asgi/threads/t/messages", 405),
    ):
        answer = http.request(method, path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


@pytest.mark.parametrize("name", ADAPTERS)
def test_missing_framework_names_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, extra = ADAPTERS[name]
    adapter = f"chatlock.middleware.{name}"
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, adapter, raising=False)
    needed = rf"needs {module.partition('.')[0]}[.\w]*: install chatlock with its extra '{extra}'"
    with pytest.raises(ImportError, match=needed):
        import_module(adapter)


def test_extras_that_errors_name_exist() -> None:
    extras = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1]
    assert "fastapi" in ADAPTERS
    for _, extra in ADAPTERS.values():
        assert f"\n{extra} = [" in extras


def test_chatlock_and_pure_asgi_import_no_framework() -> None:
    wanted = {
        "fastapi",
        "starlette",
        "redis",
        "rq",
        "slack_bolt",
        "aiogram",
        "telegram",
        "agents",
        "openai",
        "langgraph",
        "langchain_core",
        "opentelemetry",
    }
    code = (
        f"import chatlock, chatlock.middleware.asgi, sys, json;print(json.dumps(sorted({wanted} & set(sys.modules))))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == []
