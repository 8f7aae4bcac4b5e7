"""docs/operations.md holds every setting with its default, and names tests that are there."""

from __future__ import annotations

import re

import pytest

from chatlock.settings import Settings
from tests.support import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()
ROW = re.compile(r"^\| `(CHATLOCK_\w+)` \| (.+?) \| (.+) \|$", re.MULTILINE)


def shown_default(name: str) -> str:
    """How the page must show a setting's default."""
    field = Settings.model_fields[name]
    if field.is_required():
        return "required"
    return "none" if field.default is None else f"`{field.default}`"


def test_every_setting_is_there_with_its_default() -> None:
    told = {name: default for name, default, _ in ROW.findall(PAGE)}
    assert told == {f"CHATLOCK_{name.upper()}": shown_default(name) for name in Settings.model_fields}


@pytest.mark.parametrize("name", Settings.model_fields)
def test_help_and_page_agree_on_the_choices(name: str) -> None:
    (text,) = (text for found, _, text in ROW.findall(PAGE) if found == f"CHATLOCK_{name.upper()}")
    choices = [value for value in getattr(Settings.model_fields[name].annotation, "__args__", ()) if type(value) is str]
    assert all(f"`{value}`" in text for value in choices)


def test_what_the_failure_table_names_as_shown_is_there() -> None:
    tests = {
        name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    named = set(re.findall(r"\| `(test_\w+)` \|", PAGE))
    assert len(named) >= 10
    assert named <= tests
    assert all((ROOT / path).exists() for path in re.findall(r"`(tests/\S+\.py)`", PAGE))


def test_page_says_that_the_images_were_not_built() -> None:
    assert "not built where they were written" in " ".join(PAGE.split())
