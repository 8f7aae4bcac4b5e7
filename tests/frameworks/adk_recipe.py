"""The recipe for Google ADK.  Only `make compat` runs it: ADK holds back packages of the suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.pages import blocks_of


def test_recipe_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks_of(ROOT / "docs" / "recipes" / "google-adk.md")
    block.run()
