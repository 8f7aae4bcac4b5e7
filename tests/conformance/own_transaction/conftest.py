"""The caller's own connection, of each kind, beside a client on its database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance import rows
from tests.conformance.bridge import Bridge
from tests.conformance.conftest import NewChat, Shelf
from tests.conformance.owned import ASYNC, KINDS, Owned
from tests.support.databases import Database


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Which kind of connection the caller has."""
    return str(request.param)


@pytest.fixture
def database(kind: str, shelf: Shelf) -> Iterator[Database]:
    """The database that the kind is made for, with the application's own table."""
    for lent in shelf.lend(KINDS[kind]):
        rows.execute(lent, "DROP TABLE IF EXISTS notes")
        rows.execute(lent, "CREATE TABLE notes (text text)")
        yield lent


@pytest.fixture
def world(kind: str) -> str:
    """Async connections are for the async client."""
    return "async" if kind.startswith(ASYNC) else "sync"


@pytest.fixture
def chat(new_chat: NewChat, world: str) -> Any:
    return new_chat()


@pytest.fixture
def owned(database: Database, kind: str, chat: Any) -> Iterator[Owned]:
    """The caller's connection, closed before the client is."""
    made = Owned(database.url, kind, chat if isinstance(chat, Bridge) else None)
    yield made
    made.close()
