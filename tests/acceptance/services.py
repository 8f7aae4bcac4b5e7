"""Pollers and workers as processes of their own, and what a test sees of them."""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chatlock import Chatlock, Outcome
from chatlock.service import Service
from chatlock.settings import Settings
from tests.acceptance.cases.support import TENANT, Journal, thread_row, until
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.databases import Database

CHAT_MODULE = "tests.acceptance.served"
CHAT = f"{CHAT_MODULE}:chat"
ADDRESS = re.compile(r"address=(http://\S+)")


@dataclass
class Served:
    """One database, the application's directory, and the processes that serve it."""

    database: Database
    directory: Path
    keep: Callable[[Child], Child]
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.journal = Journal(self.directory / "journal")
        self.client = Chatlock(self.database.url, tenant=TENANT, poller=False)

    def environment(self, **settings: object) -> dict[str, str]:
        """The variables of a process."""
        given = {
            "url": self.database.url,
            "chat": CHAT,
            "sweep_ms": 100,
            "port": 0,
            **self.settings,
            **settings,
        }
        named = {f"CHATLOCK_{name.upper()}": str(value) for name, value in given.items() if not name.isupper()}
        return named | {n: str(v) for n, v in given.items() if n.isupper()} | {"SERVED_DIRECTORY": str(self.directory)}

    def start(self, command: str, **settings: object) -> Child:
        """`chatlock poller` or `chatlock worker` in a fork of this process, once it has begun."""
        return self.begun(self.forked(command, **settings), command)

    def forked(self, command: str, **settings: object) -> Child:
        """The same, as soon as it is there; not kept."""
        environment = self.environment(**settings)

        def run() -> None:
            os.environ.update(environment)
            logging.root.handlers.clear()
            sys.modules.pop(CHAT_MODULE, None)
            importlib.import_module("chatlock.cli").main([command], standalone_mode=False)

        return Child.fork(run)

    def begun(self, child: Child, command: str) -> Child:
        """The process, kept for the test, once it has begun."""
        self.keep(child).wait_for(f"{command}.started")
        return child

    # -- the application's callers and its gates ----------------------------------------------------------------------
    def store(self, thread: str, payload: object = "hello", **options: Any) -> Outcome:
        """Stores a message without a claim."""
        return self.client.submit(thread, payload, wait_ms=0, **options)

    def hold(self, thread: str) -> None:
        """Holds the thread's handlers, in whatever process."""
        (self.directory / f"hold-{thread}").touch()

    def let_go(self, thread: str) -> None:
        (self.directory / f"hold-{thread}").unlink()

    def answered(self, *threads: str) -> None:
        """Returns once nothing of the threads is pending or running."""
        for name in threads:
            until(lambda name=name: self._done(name), what=f"the answer in {name}")

    def _done(self, thread: str) -> bool:
        row = thread_row(self.database, thread)
        return bool(row["status"] == "idle" and row["last_seq"] == row["done_seq"])

    def delivered(self) -> list[str]:
        """The lines of the reply sink."""
        path = self.directory / "delivered"
        return path.read_text().splitlines() if path.exists() else []


def address_of(child: Child) -> str:
    """Where a poller that has begun is asked for its health."""
    found = ADDRESS.search(child.text)
    assert found, child.text
    return found[1]


def asked(address: str, path: str) -> tuple[int, str]:
    """Status and body of a page."""
    try:
        with urllib.request.urlopen(address + path, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


@contextmanager
def serving(database: Database, chat: str | None = None, **options: Any) -> Iterator[Service]:
    """A service that has not begun; it is closed at the end."""
    given: dict[str, Any] = {"url": database.url, "chat": chat or "tests.acceptance.served:hosted", "port": 0}
    service = Service(Settings(_env_file=None, drain_ms=0, **given | options))  # type: ignore[call-arg]
    try:
        yield service
    finally:
        service.drain()


def echo(turn: Any) -> Any:
    return [m.payload for m in turn.messages]
