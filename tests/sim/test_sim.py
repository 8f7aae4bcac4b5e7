"""Seeds of the simulation: each plays the real core against crashes, silence, lost answers and stepping clocks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.sim.play import Played, make_template, play
from tests.support import ROOT, scaled

SEEDS = scaled(300, 3000)
CHUNK = 25
CHUNKS = range(0, SEEDS, CHUNK)
RARE = {
    *(f"fault {name}" for name in ("kill", "pause", "interrupt", "outage", "clock", "ack_lost", "error_before_commit")),
    *(f"told {name}" for name in ("Answered", "AlreadyAnswered", "Queued", "Busy", "Cancelled", "Dead", "Parked")),
    *(f"told {name}" for name in ("Gone", "NotFound", "Refused", "Superseded", "Unknown")),
    *(f"over {name}" for name in ("lost", "failed", "released", "parked", "freed", "stopped")),
    *(f"asking {name}" for name in ("hold", "run", "cancel")),
    *(f"turn {name}" for name in ("done", "failed", "released", "reclaimed", "gave_up")),
    *(f"message {name}" for name in ("answered", "cancelled", "superseded", "dead", "deleted")),
    *(f"committed {name}" for name in ("submit_hot", "submit", "claim", "claim_due", "fetch", "finish_hot", "finish")),
    *(f"committed {name}" for name in ("fail", "release", "reclaim", "free", "cancel", "park", "resume", "delete")),
    *(f"committed {name}" for name in ("stop", "force", "promote", "edit")),
    *(f"committed {name}" for name in ("session", "mark", "report_late", "user", "windows.observe")),
}

reached: dict[int, Counter[str]] = {}
"""What each chunk of seeds came past."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sim") / "template.db"
    make_template(path)
    return path


def play_chunk(first: int, template: Path) -> None:
    total: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        played = play(seed, template, template.with_name("play.db"))
        assert not played.flaws, played.report()
        total += played.reached
    reached[first] = total


@pytest.mark.parametrize("first", CHUNKS)
def test_seeds(first: int, template: Path) -> None:
    play_chunk(first, template)


def test_rare_paths_are_taken(template: Path) -> None:
    for first in CHUNKS:
        if first not in reached:
            play_chunk(first, template)
    assert sum(reached.values(), Counter()).keys() >= RARE


def digest(played: Played) -> tuple[str, int, int]:
    return played.digest, played.steps, played.commits


def test_seed_replays_exactly(template: Path) -> None:
    first, other, again = (play(seed, template, template.with_name("play.db")) for seed in (7, 8, 7))
    assert digest(first) == digest(again)
    assert first.digest != other.digest


def test_seed_replays_exactly_in_another_process(template: Path) -> None:
    """Sets and hashes of another process are in another order; a run may not depend on it."""
    here = play(11, template, template.with_name("play.db"))
    there = subprocess.run(
        [sys.executable, "-m", "tests.sim", "11"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"trace {here.digest}" in there.stdout


def test_failing_seed_says_how_to_replay_it(template: Path) -> None:
    played = play(0, template, template.with_name("play.db"))
    played.flaws.append("a flaw")
    assert "make sim SEED=0" in played.report()
    assert "a flaw" in played.report()
