"""The FastAPI adapter against a real server: answers, idempotency, events, clients that go away, tenants."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from chatlock import Chatlock
from tests.frameworks.served import Agent, serving
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.databases import Database

MESSAGES = "/threads/t/messages"


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def http(sqlite_database: Database, agent: Agent) -> Iterator[httpx.Client]:
    """On SQLite: the adapter knows no SQL; what differs by database is tested below it."""
    with serving(sqlite_database.url, agent) as client:
        yield client


def post(http: httpx.Client, payload: Any = "hello", key: str | None = None, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if key is not None:
        named["Idempotency-Key"] = key
    return http.post(MESSAGES, json=payload, headers=named)


def status_of(database: Database, thread: str = "t") -> str:
    row = database.connect().execute(f"SELECT status FROM chatlock_threads WHERE thread_id = '{thread}'").fetchone()
    return row[0] if row else "absent"


def test_message_is_answered(http: httpx.Client) -> None:
    answer = post(http, key="k")
    assert answer.status_code == 200
    assert answer.json()["outcome"] == "answered"
    assert answer.json()["reply"] == "one two"
    assert http.get(answer.headers["content-location"]).json()["reply"] == "one two"


@pytest.mark.parametrize("again", ["k", '"k"'])
def test_repeated_key_gets_the_stored_answer(http: httpx.Client, agent: Agent, again: str) -> None:
    first = post(http, key="k")
    second = post(http, key=again)
    assert second.status_code == 200
    assert second.headers["idempotency-replayed"] == "true"
    assert second.json()["reply"] == first.json()["reply"]
    assert agent.runs == 1


def test_key_used_with_another_payload_is_refused(http: httpx.Client) -> None:
    post(http, "one", key="k")
    answer = post(http, "two", key="k")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:chatlock:problem:idempotency-key-reused"


def test_accepted_message_is_stored_before_it_is_told(http: httpx.Client, agent: Agent) -> None:
    agent.open.clear()
    answer = post(http, key="k", Prefer="respond-async")
    assert answer.status_code == 202
    assert int(answer.headers["retry-after"]) > 0
    where = answer.headers["location"]
    assert http.get(where).json()["outcome"] == "queued"
    agent.open.set()
    until(lambda: http.get(where).json()["outcome"] == "already_answered", what="the answer")
    assert agent.runs == 1


def test_wait_that_is_over_leaves_the_turn_running(http: httpx.Client, agent: Agent) -> None:
    agent.open.clear()
    answer = post(http, key="k", Prefer="wait=0")
    assert answer.status_code == 202
    agent.open.set()
    assert post(http, key="k").json()["reply"] == "one two"
    assert agent.runs == 1


def test_events_are_streamed_and_kept(http: httpx.Client, agent: Agent) -> None:
    agent.open.clear()
    data = []
    with http.stream("POST", MESSAGES, json="x", headers={"Accept": "text/event-stream", "Idempotency-Key": "k"}) as r:
        for line in r.iter_lines():
            if line.startswith("data: "):
                data.append(json.loads(line.removeprefix("data: ")))
                agent.open.set()
    assert data[:2] == ["one ", "two"]
    assert data[2]["reply"] == "one two"
    later = http.get(f"{MESSAGES}/k/events").text
    assert 'event: reply\ndata: "one two"' in later


def test_events_go_on_after_the_last_one_seen(http: httpx.Client, agent: Agent) -> None:
    agent.open.clear()
    post(http, key="k", Prefer="respond-async")
    assert agent.entered.wait(60)
    with http.stream("GET", f"{MESSAGES}/k/events", headers={"Last-Event-ID": "1-1-1"}) as response:
        agent.open.set()
        text = response.read().decode()
    assert '"one "' not in text
    assert '"two"' in text


def test_client_that_goes_away_does_not_stop_its_turn(http: httpx.Client, agent: Agent) -> None:
    agent.open.clear()
    with http.stream("POST", MESSAGES, json="x", headers={"Accept": "text/event-stream", "Idempotency-Key": "k"}):
        assert agent.entered.wait(60)
    agent.open.set()
    until(lambda: http.get(f"{MESSAGES}/k").json()["outcome"] == "already_answered", what="the answer")
    assert agent.runs == 1


def test_attached_turn_is_finished_by_its_stream(http: httpx.Client) -> None:
    assert http.post("/attached/a", json="x").text == "begun\nended\n"
    assert http.post("/attached/a", json="y").text == "begun\nended\n"


def test_client_that_goes_away_releases_an_attached_turn(
    http: httpx.Client, agent: Agent, sqlite_database: Database
) -> None:
    agent.open.clear()
    with http.stream("POST", "/attached/a", json="x") as response:
        next(response.iter_lines())
        assert agent.entered.wait(60)
        assert status_of(sqlite_database, "a") == "running"
    agent.open.set()
    until(lambda: status_of(sqlite_database, "a") == "idle", what="the release")
    attempts = sqlite_database.connect().execute("SELECT attempts, stalls FROM chatlock_threads").fetchone()
    assert tuple(attempts) == (0, 0)


def test_dependency_tells_why_it_has_no_turn(http: httpx.Client) -> None:
    http.post("/attached/a", json="x", headers={"Idempotency-Key": "k"})
    answer = http.post("/attached/a", json="x", headers={"Idempotency-Key": "k"})
    assert answer.status_code == 200
    assert answer.headers["idempotency-replayed"] == "true"
    assert answer.json()["reply"] == "attached"


def test_other_tenant_sees_what_never_existed(http: httpx.Client) -> None:
    post(http, key="k")
    for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel")):
        theirs = http.request(method, f"{MESSAGES}/k{path}", headers={"X-User": "bob"})
        absent = http.request(method, f"{MESSAGES}/nothing{path}", headers={"X-User": "bob"})
        assert theirs.status_code == 404
        assert theirs.content == absent.content
        assert http.request(method, f"{MESSAGES}/k{path}").status_code == 200
    assert post(http, "bob's own", key="k", X_User="bob").json()["outcome"] == "answered"


def test_pending_message_is_cancelled(http: httpx.Client, agent: Agent) -> None:
    agent.open.clear()
    post(http, key="one", Prefer="respond-async")
    assert agent.entered.wait(60)
    post(http, key="two", Prefer="respond-async")
    assert http.post(f"{MESSAGES}/two/cancel").json()["outcome"] == "cancelled"
    in_turn = http.post(f"{MESSAGES}/one/cancel")
    assert in_turn.status_code == 409
    assert in_turn.json()["type"] == "urn:chatlock:problem:in-turn"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{bad", 400),
        (b"NaN", 400),
        (b"", 400),
        (b'"' + b"a" * 300_000 + b'"', 413),
        (b'"' + b"a" * 600_000 + b'"', 413),
        (b"[" * 100 + b"]" * 100, 400),
        (b"[" * 200_000, 400),
        (b'"\\u0000"', 400),
        (b'"\\ud83d"', 400),
        (b"9007199254740993", 400),
        (b"\xff\xfe", 400),
    ],
)
def test_malformed_body_is_a_problem_and_stores_nothing(
    http: httpx.Client, sqlite_database: Database, content: bytes, status: int
) -> None:
    answer = http.post(MESSAGES, content=content)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert sqlite_database.connect().execute("SELECT count(*) FROM chatlock_messages").fetchone()[0] == 0


@pytest.mark.parametrize("key", ["", "two words", '"open', "k" * 300, '"a", "b"', "tab\tkey"])
def test_malformed_key_is_refused(http: httpx.Client, key: str) -> None:
    assert post(http, key=key).status_code == 400


def test_deleted_thread_is_gone(http: httpx.Client, sqlite_database: Database) -> None:
    post(http, key="k")
    with Chatlock(sqlite_database.url, tenant="ann", poller=False) as chat:
        chat.delete("t")
    assert post(http, key="k2").status_code == 410


def test_every_answer_is_documented(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert set(paths["/threads/{thread}/messages"]["post"]["responses"]) >= {"200", "400", "409", "413", "422", "503"}


def test_missing_framework_names_its_extra() -> None:
    code = "import sys; sys.modules['fastapi'] = None\nimport chatlock.middleware.fastapi"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'chatlock[fastapi]'" in ended.stderr


def test_chatlock_alone_imports_no_framework() -> None:
    frameworks = "{'fastapi', 'starlette', 'redis', 'rq', 'agents', 'openai', 'langgraph', 'langchain_core'}"
    code = f"import chatlock, sys, json; print(json.dumps(sorted({frameworks} & set(sys.modules))))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == []
