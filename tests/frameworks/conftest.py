"""One served application and database for the tests of a file; each test has a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import pytest

from tests.frameworks.served import Agent, serving
from tests.support.databases import Database, Templates
from tests.support.waiting import Gate

_numbers = count(1)


class Front:
    """A front end's view of one thread."""

    def __init__(self, http: httpx.Client, base: str, thread: str, agent: Agent) -> None:
        self.http, self.base, self.thread, self._agent = http, base, thread, agent

    @property
    def messages(self) -> str:
        return f"{self.base}/threads/{self.thread}/messages"

    @property
    def runs(self) -> int:
        """How many turns have begun."""
        return self._agent.runs[self.thread]

    def hold(self) -> Gate:
        """The thread's turns wait at a gate."""
        return self._agent.hold(self.thread)

    def post(self, payload: Any = "hello", key: str | None = None, **headers: str) -> httpx.Response:
        return self.http.post(self.messages, json=payload, headers=named(key, headers))

    def events(self, payload: Any = "hello", key: str | None = None, **headers: str) -> Any:
        """A POST that asks for the events: a context manager of its response."""
        asked = named(key, headers) | {"Accept": "text/event-stream"}
        return self.http.stream("POST", self.messages, json=payload, headers=asked)

    def get(self, key: str, of: str = "", **headers: str) -> httpx.Response:
        return self.http.get(f"{self.messages}/{key}{of}", headers=named(None, headers))

    def cancel(self, key: str, **headers: str) -> httpx.Response:
        return self.http.post(f"{self.messages}/{key}/cancel", headers=named(None, headers))


def named(key: str | None, headers: dict[str, str]) -> dict[str, str]:
    found = {name.replace("_", "-"): value for name, value in headers.items()}
    return found if key is None else {**found, "Idempotency-Key": key}


@pytest.fixture(scope="module")
def agent() -> Agent:
    return Agent()


@pytest.fixture(scope="module")
def served(templates: Templates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """On SQLite: the adapters know no SQL; what differs by database is tested below them."""
    database = templates.sqlite(tmp_path_factory.mktemp("served") / "chatlock.db")
    yield database
    database.dispose()


@pytest.fixture(scope="module")
def http(served: Database, agent: Agent) -> Iterator[httpx.Client]:
    with serving(served.url, agent) as client:
        yield client


@pytest.fixture
def thread() -> str:
    return f"t{next(_numbers)}"


@pytest.fixture(params=["", "/asgi"], ids=["fastapi", "asgi"])
def front(request: pytest.FixtureRequest, http: httpx.Client, thread: str, agent: Agent) -> Front:
    """The FastAPI router, and the pure ASGI application."""
    return Front(http, request.param, thread, agent)


def row_of(database: Database, thread: str, columns: str) -> tuple[Any, ...]:
    """Some columns of the thread's row."""
    query = f"SELECT {columns} FROM chatlock_threads WHERE thread_id = '{thread}'"
    return tuple(database.connect().execute(query).fetchone() or ())
