"""One scene per file and kind: populated, for commands that read, or empty, for a test that acts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chatlock.ops.verify import verify
from tests.cli.scene import Scene, populate
from tests.support.databases import KINDS, Templates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _scene(kind: str, templates: Templates, directory: Path) -> Iterator[Scene]:
    database = templates.sqlite(directory / "chat.db") if kind == "sqlite" else templates.postgresql()
    with pytest.MonkeyPatch.context() as patch:
        scene = Scene(database, patch)
        yield scene
        scene.close()
    database.dispose()


@pytest.fixture(scope="module", params=KINDS)
def scene(
    request: pytest.FixtureRequest, templates: Templates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """Threads in every state, for commands that read."""
    for made in _scene(request.param, templates, tmp_path_factory.mktemp("scene")):
        populate(made)
        yield made


@pytest.fixture(scope="module", params=KINDS)
def stage(
    request: pytest.FixtureRequest, templates: Templates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    yield from _scene(request.param, templates, tmp_path_factory.mktemp("stage"))


@pytest.fixture
def fresh(stage: Scene) -> Iterator[Scene]:
    """An empty scene for a test that acts."""
    yield stage
    stage.reset()


@pytest.fixture
def sound(fresh: Scene) -> Iterator[None]:
    """Whatever an operator did, every invariant holds."""
    yield
    verified = fresh.executor.snapshot("verify", lambda c: verify(c, None))
    assert verified.ok, verified
