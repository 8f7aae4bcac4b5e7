"""The recipes: their code runs, with the framework's own test model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.pages import Block, blocks_of

RECIPES = [block for page in sorted((ROOT / "docs" / "recipes").glob("*.md")) for block in blocks_of(page)]


@pytest.mark.parametrize("block", RECIPES, ids=[f"{Path(block.page).stem}-{block.number}" for block in RECIPES])
def test_recipe_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    block.run()
