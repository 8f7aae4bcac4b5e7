"""The pytest plugin: fixtures for an application's own tests.  pytest finds it by its entry point.

It imports what it needs at first use, so that a run that uses none of it pays nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from chatlock.testing.drill import Drill


@pytest.fixture(scope="session")
def chatlock_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with chatlock's tables, made once; an application that has tables of its own adds them here."""
    from chatlock import Chatlock

    path = tmp_path_factory.mktemp("chatlock") / "template.db"
    with Chatlock(f"sqlite:///{path}", poller=False) as chat:
        chat.setup()
    return path


@pytest.fixture
def chatlock_url(chatlock_template: Path, tmp_path: Path) -> str:
    """A database of the test's own, with chatlock's tables; override it to test on PostgreSQL."""
    return f"sqlite:///{shutil.copyfile(chatlock_template, tmp_path / 'chatlock.db')}"


@pytest.fixture
def chatlock_drill(chatlock_url: str) -> Iterator[Drill]:
    """A drill on the test's own database: `chatlock_drill.run(handler, world=.., check=..)`."""
    from chatlock.testing.drill import Drill

    drill = Drill(chatlock_url)
    yield drill
    drill.close()
