"""A database for the file, and a tenant for the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.databases import Database, Templates


@pytest.fixture(scope="module")
def postgresql(templates: Templates) -> Iterator[Database]:
    """One for the file: every test has a tenant of its own."""
    made = templates.postgresql()
    yield made
    made.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgresql" if request.param == "postgresql" else "sqlite_database").url)


@pytest.fixture
def sqlite_url(sqlite_database: Database) -> str:
    return sqlite_database.url


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)
