"""Tests force the order of things: they neither sleep for it nor skip where it is hard."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support import ROOT

if TYPE_CHECKING:
    from pathlib import Path

# `sleep(0)` only yields, a scheduler's moves a simulated clock; a bounded poll, and work to be interrupted, say so.
SLEEP = re.compile(
    r"(?<!scheduler\.)(?<!made\.)(?<!made\.time\.)(?<!def )\bsleep\((?!0[),])(?!.*# (bounded poll|interrupted))"
)
SKIP = re.compile(r"\b(skip|skipif|xfail|importorskip)\b\(|\bmark\.(skip|xfail)\b")


def shortcuts(root: Path) -> list[str]:
    """Every unexplained sleep and every skip in the tests under `root`."""
    found = []
    for path in sorted(root.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if SLEEP.search(line) or SKIP.search(line):
                found.append(f"{path.relative_to(root)}:{number} {line.strip()}")
    return found


def test_no_test_sleeps_or_skips() -> None:
    # This file and the tests of the runner hold what they forbid.
    own = ("unit/test_tests.py", "acceptance/test_runner.py")
    found = [found for found in shortcuts(ROOT / "tests") if not found.startswith(own)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "time.sleep(1)",
        "await asyncio.sleep(0.1)",
        "sleep(0.5)  # long enough",
        "pytest.skip('no server')",
        "@pytest.mark.xfail(reason='flaky')",
        "@pytest.mark.skip",
        "redis = pytest.importorskip('redis')",
    ],
)
def test_shortcut_is_reported(line: str, tmp_path: Path) -> None:
    (tmp_path / "test_short.py").write_text(f"x = 1\n{line}\n")
    assert shortcuts(tmp_path) == [f"test_short.py:2 {line}"]


@pytest.mark.parametrize(
    "line",
    [
        "await asyncio.sleep(0)",
        "return await asyncio.sleep(0, key)",
        "scheduler.sleep(3.0)",
        "time.sleep(0.01)  # bounded poll",
        "cursor.skip_locked = True",
    ],
)
def test_yield_and_bounded_poll_are_not_reported(line: str, tmp_path: Path) -> None:
    (tmp_path / "test_fine.py").write_text(line)
    assert shortcuts(tmp_path) == []
