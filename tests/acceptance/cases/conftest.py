"""Clients, callers and the journal of a case, closed when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from chatlock import Chatlock
from chatlock.wake import waiters
from tests.acceptance.cases.support import TENANT, Agent, Callers, Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.databases import Database


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters look more often than once a second: what another process did is seen soon, and no case waits for it."""
    monkeypatch.setattr(waiters, "LOOK_EVERY_S", 0.05)


@pytest.fixture
def client() -> Iterator[Callable[..., Chatlock]]:
    """Makes clients of a database, each with a pool of its own, and no poller unless it is asked for."""
    made: list[Chatlock] = []

    def make(database: Database, *, url: str | None = None, **options: Any) -> Chatlock:
        chat = Chatlock(url or database.url, **{"tenant": TENANT, "poller": False, **options})
        made.append(chat)
        return chat

    yield make
    for chat in made:
        chat.close()


@pytest.fixture
def callers(agent: Agent) -> Iterator[Callers]:
    """People who submit beside the test; it ends when all of them were told."""
    made = Callers()
    yield made
    agent.let_go()
    made.close()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """The meters of the case."""
    return Journal(tmp_path / "journal")


@pytest.fixture
def agent(journal: Journal) -> Agent:
    """The held handler of the case."""
    return Agent(journal)


@pytest.fixture
def serving(client: Callable[..., Chatlock], agent: Agent) -> Callable[..., Chatlock]:
    """As `client`, with the case's agent as the handler."""

    def make(database: Database, **options: Any) -> Chatlock:
        chat = client(database, **options)
        chat.handler()(agent)
        return chat

    return make
