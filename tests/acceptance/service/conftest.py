"""The application of a test, served by processes of their own or in this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chatlock import Chatlock, Limits
from tests.acceptance import served as application
from tests.acceptance.cases.support import TENANT
from tests.acceptance.services import Served
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.databases import Database


@pytest.fixture
def served(database: Database, tmp_path: Path, child: Callable[[Child], Child]) -> Iterator[Served]:
    """The test's application on both databases."""
    made = Served(database, tmp_path, child)
    yield made
    made.client.close()


@pytest.fixture
def served_pg(pg_database: Database, tmp_path: Path, child: Callable[[Child], Child]) -> Iterator[Served]:
    """The test's application on PostgreSQL."""
    made = Served(pg_database, tmp_path, child)
    yield made
    made.client.close()


@pytest.fixture
def hosted(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chatlock]:
    """The chat object that an in-process service finds."""
    chat = Chatlock(database.url, tenant=TENANT, limits=Limits(beat_ms=60_000, lease_ms=180_000))
    monkeypatch.setattr(application, "hosted", chat, raising=False)
    yield chat
    chat.close()
