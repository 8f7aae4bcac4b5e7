"""Every kind of saver, and a database for the file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.databases import Database, Templates

KINDS = ["memory", "sqlite", "postgres", "postgres-one"]


@pytest.fixture(scope="module")
def postgresql(templates: Templates) -> Iterator[Database]:
    """One for the file: every test has a tenant of its own."""
    made = templates.postgresql()
    yield made
    made.dispose()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest) -> str:
    """Where chatlock's tables are, and the checkpoints beside them."""
    name = "postgresql" if kind.startswith("postgres") else "sqlite_database"
    return str(request.getfixturevalue(name).url)


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    return request.node.name
