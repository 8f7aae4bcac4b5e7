"""The conformance suite's fixtures: one database per file and kind, emptied after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL

from chatlock import Chatlock
from chatlock.dialects import make_engine
from chatlock.executor import Executor
from chatlock.ops.verify import Breach, verify
from tests.conformance.bridge import Bridge
from tests.conformance.rows import TABLES, plain, table
from tests.support import LONG
from tests.support.databases import KINDS, Database, Templates
from tests.support.pooler import Pooler

BOTH = [
    pytest.mark.usefixtures("world", "database"),
    pytest.mark.parametrize(("world", "database"), [("sync", "sqlite"), ("async", "postgresql")], indirect=True),
]
"""For what is written once and runs in both clients and on both databases: each is met, not every pair of them."""

POOLED = ("test_submit", "test_position", "test_turn")
"""What `make test` plays through a transaction pooler as well, in the sync client: `make test-long` plays all."""

NewChat = Callable[..., Any]
Start = Callable[[Callable[[], Any]], "Future[Any]"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out what is played through the pooler in the long run only."""
    items[:] = [item for item in items if LONG or not _in_long_run_only(item)]


def _in_long_run_only(item: pytest.Item) -> bool:
    params = getattr(getattr(item, "callspec", None), "params", {})
    in_both = item.path.stem in POOLED and "async" not in str(params.get("way"))
    return params.get("database") == "pooled" and not in_both


class Shelf:
    """The databases of one test file, made at their first use and lent to one test after another."""

    def __init__(self, templates: Templates, directory: Path) -> None:
        self._templates, self._directory = templates, directory
        self._made: dict[str, tuple[Database, list[dict[str, Any]]]] = {}
        self._checkers: dict[str, Executor] = {}
        self._pooler: Pooler | None = None

    def lend(self, kind: str) -> Iterator[Database]:
        if kind == "pooled":
            for lent in self.lend("postgresql"):
                self._pooler = self._pooler or Pooler(lent.url)
                lent.url = self._pooler.url_of(lent.url)
                yield lent
            return
        if kind not in self._made:
            own = self._templates
            made = own.sqlite(self._directory / "shared.db") if kind == "sqlite" else own.postgresql()
            self._made[kind] = (made, table(made, "chatlock_meta"))
        made, meta = self._made[kind]
        lent = Database(made.kind, made.url, lambda: _empty(made, meta))
        vars(lent)["plain"] = plain(made)
        yield lent
        lent.dispose()

    def breaches(self, database: Database) -> tuple[Breach, ...]:
        """What verify finds."""
        if database.kind not in self._checkers:
            self._checkers[database.kind] = Executor(self._made[database.kind][0].url, pool_size=1, pooler=None)
        return self._checkers[database.kind].snapshot("verify", lambda c: verify(c, None)).breaches

    def dispose(self) -> None:
        for checker in self._checkers.values():
            checker.close()
        for made, _ in self._made.values():
            made.dispose()
        if self._pooler is not None:
            self._pooler.close()

    def is_pooled(self, url: URL) -> bool:
        """Whether it leads through the pooler."""
        return self._pooler is not None and url.port == self._pooler.port


def _empty(database: Database, meta: list[dict[str, Any]]) -> None:
    rows = ", ".join(f"('{row['name']}', {row['value']})" for row in meta)
    script = [f"DELETE FROM {name}" for name in TABLES] + [f"INSERT INTO chatlock_meta(name, value) VALUES {rows}"]
    if database.kind == "sqlite":
        plain(database).executescript(";".join(["BEGIN IMMEDIATE", *script, "COMMIT"]))
    else:
        plain(database).execute(";".join(["SET lock_timeout = '10s'", *script]))


@pytest.fixture(scope="module")
def shelf(templates: Templates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    """This file's databases."""
    made = Shelf(templates, tmp_path_factory.mktemp("databases"))
    yield made
    made.dispose()


@pytest.fixture(params=[*KINDS, "pooled"])
def database(request: pytest.FixtureRequest, shelf: Shelf) -> Iterator[Database]:
    """A database with chatlock's schema and no rows: the test runs on both kinds."""
    yield from shelf.lend(request.param)


_compiled: dict[str, tuple[Any, dict[Any, Any]]] = {}


@pytest.fixture(autouse=True)
def _compile_once(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Statements are compiled once per process instead of once per client, which is most of what a client costs.

    SQLAlchemy looks them up by the dialect object, so the engines of a kind share that too.  Every client is told of a
    pooler in between.
    """

    def make(url: URL, **options: Any) -> Any:
        if "shelf" in request.fixturenames and request.getfixturevalue("shelf").is_pooled(url):
            options["pooler"] = "transaction"
        engine = make_engine(url, **options)
        engine.dialect, cache = _compiled.setdefault(engine.dialect.name, (engine.dialect, {}))
        engine.update_execution_options(compiled_cache=cache)
        return engine

    monkeypatch.setattr("chatlock.executor.make_engine", make)


@pytest.fixture(autouse=True)
def _frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for another client looks every 50 ms instead of every second."""
    monkeypatch.setattr("chatlock.wake.waiters.LOOK_EVERY_S", 0.05)


@pytest.fixture(params=["sync", "async"])
def world(request: pytest.FixtureRequest) -> str:
    """Which client: Chatlock, or AsyncChatlock on a loop of its own."""
    return str(request.param)


@pytest.fixture(params=["sync-hot", "sync-locked", "async-hot"])
def way(request: pytest.FixtureRequest) -> str:
    """Which client, and whether the uncontended case takes the hot statements or has to take the locked operations."""
    return str(request.param)


@pytest.fixture
def new_chat(database: Database, shelf: Shelf, request: pytest.FixtureRequest) -> Iterator[NewChat]:
    """Makes clients of the test's way or world (else sync and hot) on its database, for tenant "t", without a poller.

    At the end each client is closed, and every invariant must hold.
    """
    given = {name for name in ("way", "world") if name in request.fixturenames}
    way = request.getfixturevalue(given.pop()) if given else "sync"
    opened: list[Any] = []

    def make(**options: Any) -> Any:
        options = {"tenant": "t", "poller": False} | options
        chat: Any = Chatlock(database.url, **options) if "sync" in way.split("-") else Bridge(database.url, **options)
        opened.append(chat)
        if "locked" in way:
            chat._executor.hot = lambda name, op: None
        return chat

    yield make
    for chat in opened:
        chat.close()
    assert shelf.breaches(database) == ()


@pytest.fixture
def chat(new_chat: NewChat) -> Any:
    """A client with default options."""
    return new_chat()


@pytest.fixture
def start() -> Iterator[Start]:
    """Runs a call in an OS thread of its own, which on a Bridge is a task of its own."""
    with ThreadPoolExecutor(32, thread_name_prefix="test") as pool:
        yield pool.submit
