"""The application of a test, dispatched over RQ, and its Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from tests.acceptance.services import Served
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.databases import Database


@pytest.fixture
def served(database: Database, tmp_path: Path, child: Callable[[Child], Child], redis_url: str) -> Iterator[Served]:
    """The test's application on both databases, dispatched over RQ."""
    yield from _served(database, tmp_path, child, redis_url)


@pytest.fixture
def served_pg(
    pg_database: Database, tmp_path: Path, child: Callable[[Child], Child], redis_url: str
) -> Iterator[Served]:
    """The test's application on PostgreSQL, dispatched over RQ."""
    yield from _served(pg_database, tmp_path, child, redis_url)


def _served(database: Database, path: Path, child: Callable[[Child], Child], redis_url: str) -> Iterator[Served]:
    made = Served(database, path, child, {"dispatch": "rq", "redis_url": redis_url})
    yield made
    made.client.close()


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as connection:
        yield connection
