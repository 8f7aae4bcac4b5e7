"""The judge of seeded bugs: applies each to a copy of the tree, and runs the test that it names."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.forked import ROOT, compile_all, preload, run_pytest
from tests.mutants.mutant import SIM, Mutant
from tests.mutants.table import TABLE

SECONDS_MAX = 900
GREEN, RED = 0, 1
CAUGHT, SURVIVES, UNJUDGED = "red", "SURVIVES", "CANNOT BE JUDGED"
NOT_IN_SIM = ("middleware/", "wake/redis.py")
CHUNK = 25
"""So many seeds are one case of the simulation's test."""
SEED = re.compile(r"seed (\d+) failed")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.*)", re.MULTILINE)


def by_simulation(seeds: int) -> list[Mutant]:
    """The mutants of what the simulation runs, each judged by its first seeds and by no other test."""
    test = " ".join(f"{SIM}::test_seeds[{first}]" for first in range(0, seeds, CHUNK))
    return [mutant._replace(test=test) for mutant in TABLE if not mutant.file.startswith(NOT_IN_SIM)]


def text_faults(table: tuple[Mutant, ...] = TABLE) -> list[str]:
    """Mutants whose text is not in its file exactly once, or whose test is no file of the suite."""
    found = []
    for mutant in table:
        times = (ROOT / "chatlock" / mutant.file).read_text().count(mutant.text)
        if times != 1:
            found.append(f"{mutant.name}: its text is {times} times in chatlock/{mutant.file}")
        if not (ROOT / re.split("::| ", mutant.test)[0]).is_file():
            found.append(f"{mutant.name}: there is no {mutant.test}")
    return found


class Verdict(NamedTuple):
    """What the test said of a mutant: pytest's exit code, and how many seeds the simulation needed."""

    code: int
    seconds: float
    seeds: int | None
    output: str

    @property
    def failed(self) -> str:
        """What pytest says of the test that failed, or of what was looked at after it; empty if none did."""
        said = FAILED.search(self.output)
        return said[1] if said else ""

    @property
    def word(self) -> str:
        """red, SURVIVES, or neither: a test that could not run, or did not end, says nothing of the mutant."""
        if self.code == GREEN:
            return SURVIVES
        return CAUGHT if self.code == RED and self.failed else UNJUDGED


class Record:
    """What came of each row of the table, kept in a file from run to run, whichever rows a run chooses."""

    def __init__(self, path: Path | None, table: Sequence[Mutant] = TABLE, command: str = "make mutants") -> None:
        kept = json.loads(path.read_text())["rows"] if path is not None and path.exists() else {}
        self._path, self._command = path, command
        self._table = {mutant.name: mutant for mutant in table}
        self._rows = {
            name: row for name, row in kept.items() if name in self._table and row["as"] == _as_it_is(self._table[name])
        }

    @property
    def caught(self) -> set[str]:
        """The names of those that are caught in their present words."""
        return {name for name, row in self._rows.items() if row["verdict"] == CAUGHT}

    def add(self, mutant: Mutant, verdict: Verdict) -> None:
        self._rows[mutant.name] = {
            "verdict": verdict.word,
            "failed": verdict.failed,
            **({} if verdict.seeds is None else {"seeds": verdict.seeds}),
            "seconds": round(verdict.seconds),
            "as": _as_it_is(mutant),
        }
        if self._path is not None:
            summary = {
                "command": self._command,
                "date": time.strftime("%Y-%m-%d"),
                "mutants": len(self._table),
                "files": len({mutant.file for mutant in self._table.values()}),
                "caught": len(self.caught),
                "others": {name: row["verdict"] for name, row in self._rows.items() if row["verdict"] != CAUGHT},
                "rows": {name: self._rows[name] for name in self._table if name in self._rows},
            }
            self._path.write_text(json.dumps(summary, indent=1) + "\n")


def _as_it_is(mutant: Mutant) -> str:
    """Tells a row that was changed from what was judged under its name."""
    return hashlib.sha256(repr(mutant).encode()).hexdigest()[:12]


def copied(directory: Path) -> Path:
    """A copy of the working tree, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
    return directory


def judged(tree: Path, test: str) -> Verdict:
    """Runs a test on a copy, with the copy's chatlock."""
    began = time.monotonic()
    code, output = run_pytest(tree, ["-x", "-q", "-p", "no:cacheprovider", *shlex.split(test)], SECONDS_MAX)
    seed = SEED.search(output)
    seeds = int(seed[1]) + 1 if seed else None
    return Verdict(code, time.monotonic() - began, seeds, output)


def mutate(tree: Path, mutant: Mutant) -> Verdict:
    """Applies one mutant to the copy, runs its test, and puts the file back."""
    path = tree / "chatlock" / mutant.file
    source = path.read_text()
    path.write_text(source.replace(mutant.text, mutant.instead))
    try:
        return judged(tree, mutant.test)
    finally:
        path.write_text(source)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Weaken the core rule by rule, and see that a test goes red for each.",
    )
    parser.add_argument("word", nargs="?", default="", help="only mutants whose name holds it")
    parser.add_argument("--json", type=Path, help="keep what came of each in this file, and go on with the others")
    parser.add_argument("--sim", type=int, metavar="SEEDS", help="judge each by so many seeds of the simulation alone")
    asked = parser.parse_args()
    if faults := text_faults():
        print("\n".join(faults))
        return 1
    table = TABLE if asked.sim is None else by_simulation(asked.sim)
    chosen = [mutant for mutant in table if asked.word in mutant.name]
    command = "make mutants" if asked.sim is None else f'make mutants ARGS="--sim {asked.sim}"'
    record = Record(asked.json, table, command)
    left = [mutant for mutant in chosen if mutant.name not in record.caught]
    left.sort(key=lambda mutant: (mutant.test == SIM, mutant.test))  # the simulation takes longest
    with tempfile.TemporaryDirectory(prefix="chatlock-mutants-") as directory:
        tree = copied(Path(directory))
        compile_all(tree)
        preload({mutant.test for mutant in left})
        for test, mutants in itertools.groupby(left, key=lambda mutant: mutant.test):
            green = judged(tree, test)
            if green.code != GREEN:
                print(f"{test} is not green without any mutant:\n{green.output[-3000:]}")
                return 1
            print(f"{'(nothing)':<36} {test} is green in {green.seconds:.0f} s", flush=True)
            for mutant in mutants:
                verdict = mutate(tree, mutant)
                after = f" after {verdict.seeds} seeds" if verdict.seeds else ""
                print(
                    f"{mutant.name:<36} {mutant.file:<18} {verdict.word}{after} in {verdict.seconds:.0f} s", flush=True
                )
                record.add(mutant, verdict)
    caught = sum(mutant.name in record.caught for mutant in chosen)
    print(f"{caught} of {len(chosen)} mutants are caught")
    return int(caught < len(chosen))
