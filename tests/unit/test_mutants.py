"""The seeded bugs are in step with the core, and the runner tells red from green."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import RED, TABLE, Mutant, Record, Verdict, mutate, text_faults


def test_every_text_is_found_exactly_once() -> None:
    found = text_faults()
    assert not found, "\n".join(found)


def test_names_differ_and_every_mutant_changes_something() -> None:
    assert len({mutant.name for mutant in TABLE}) == len(TABLE) >= 40
    assert all(mutant.text != mutant.instead for mutant in TABLE)


def broken(table: tuple[Mutant, ...], directory: Path) -> str:
    """What ruff says of mutants that would fail by a name that is not there, and not by the rule that they weaken."""
    for mutant in table:
        source = (mutants.ROOT / "chatlock" / mutant.file).read_text()
        (directory / f"{mutant.name}.py").write_text(source.replace(mutant.text, mutant.instead))
    rules = ["--isolated", "--no-cache", "--quiet", "--select", "E9,F821,F823"]
    command = [sys.executable, "-m", "ruff", "check", *rules, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_every_mutant_can_run(tmp_path: Path) -> None:
    assert broken(TABLE, tmp_path) == ""


def test_control_mutant_that_cannot_run_is_told(tmp_path: Path) -> None:
    nameless = Mutant(
        "nameless", "ops/fetch.py", "row = mine(conn, claim)", "row = of_nobody(conn, claim)", mutants.SIM
    )
    assert "of_nobody" in broken((nameless,), tmp_path)


def test_core_is_covered() -> None:
    files = {mutant.file for mutant in TABLE}
    ops = {"ops/submit.py", "ops/claim.py", "ops/fetch.py", "ops/finish.py", "ops/hot.py", "ops/unanswered.py"}
    assert files >= ops | {"executor.py", "flows.py", "wake/waiters.py", "sweep.py", "heart.py", "turn_core.py"}


@pytest.mark.parametrize(
    ("file", "text", "test", "wrong"),
    [
        ("ops/claim.py", "no such text", mutants.SIM, "its text is 0 times in chatlock/ops/claim.py"),
        ("ops/claim.py", "import", mutants.SIM, "times in chatlock/ops/claim.py"),
        ("ops/claim.py", "def claim_due(", "tests/test_nothing.py::test_it", "there is no tests/test_nothing.py"),
    ],
)
def test_mutant_out_of_step_is_told(file: str, text: str, test: str, wrong: str) -> None:
    (told,) = text_faults((Mutant("weaker", file, text, "", test),))
    assert wrong in told


def test_record_keeps_what_came_of_every_row_in_its_present_words(tmp_path: Path) -> None:
    path, (first, second) = tmp_path / "mutants.json", TABLE[:2]
    for mutant in (first, second):
        Record(path).add(mutant, Verdict(RED, 1.0, None, "FAILED its test"))
    assert Record(path).caught == {first.name, second.name}
    assert Record(path, (first._replace(instead="weaker"), second)).caught == {second.name}


@pytest.mark.parametrize(
    ("instead", "test", "word"),
    [
        ("x = 2", "test_it.py", "red"),
        ("x = 1  # the same", "test_it.py", "SURVIVES"),
        ("__import__('os')._exit(1)", "test_it.py", "CANNOT BE JUDGED"),
        ("x = 2", "test_it.py --no-such-option", "CANNOT BE JUDGED"),
        ("x = 2", "test_it.py -k nothing", "CANNOT BE JUDGED"),
    ],
)
def test_runner_tells_red_from_green_and_puts_the_file_back(instead: str, test: str, word: str, tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # a forked process would wait for its OS thread for ever
    (tmp_path / "chatlock" / "testing").mkdir(parents=True)
    (tmp_path / "chatlock" / "testing" / "plugin.py").touch()  # pytest loads it by its entry point
    module = tmp_path / "chatlock" / "__init__.py"
    module.write_text("x = 1")
    (tmp_path / "test_it.py").write_text("import chatlock\ndef test_it():\n    assert chatlock.x == 1\n")
    verdict = mutate(tmp_path, Mutant("weaker", "__init__.py", "x = 1", instead, test))
    assert verdict.word == word, verdict.output
    assert module.read_text() == "x = 1"
