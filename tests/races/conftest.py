"""An arena per test file: every play has a thread of its own in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.races.arena import Arena
from tests.support.databases import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.databases import Templates


def _arena(kind: str, templates: Templates, paths: pytest.TempPathFactory) -> Iterator[Arena]:
    file = paths.mktemp("races") / "chatlock.db"
    database = templates.sqlite(file) if kind == "sqlite" else templates.postgresql()
    with Arena(database) as arena:
        yield arena
    database.dispose()


@pytest.fixture(scope="module", params=KINDS)
def arena(
    request: pytest.FixtureRequest, templates: Templates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Arena]:
    """The test plays on both kinds of database."""
    yield from _arena(request.param, templates, tmp_path_factory)


@pytest.fixture(scope="module")
def pg_arena(templates: Templates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """PostgreSQL alone: SQLite's one write transaction hides most missing guards."""
    yield from _arena("postgresql", templates, tmp_path_factory)
