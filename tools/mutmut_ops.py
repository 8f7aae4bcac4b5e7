"""mutmut on chatlock/ops: a seeded sample of its mutants against the conformance tests on SQLite.

python -m tools.mutmut_ops run DIRECTORY [SECONDS] [SEED]     in a copy of the tree made at DIRECTORY
python -m tools.mutmut_ops report DIRECTORY                   what it found, to docs/verification/mutmut.json

mutmut is no dependency of ours: install it beside the test extras.  A mutant is chosen when a mutated function is
called, so code that runs at import alone cannot be judged: its functions are left out, and counted.  Why one was
not killed is written into the JSON by hand, and kept by the next report.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / "docs" / "verification" / "mutmut.json"
OPEN = "open"
TESTS = "sqlite and not async"  # an operation is the same function in both clients
CONFIG = f"""
[tool.mutmut]
source_paths = ["chatlock"]
only_mutate = ["chatlock/ops/*.py"]
also_copy = ["bench", "docs", "examples", "poller", "soak", "tools"]
pytest_add_cli_args = ["-k", "{TESTS}"]
pytest_add_cli_args_test_selection = ["tests/conformance"]
track_dependencies = false
timeout_multiplier = 4.0
timeout_constant = 5.0
"""
SAMPLE = "sample.json"
WARM_UP = "tests/conformance/test_turn_memory.py"
TESTS_MAX, TEST_MAX_S = 60, 4.0


def fair_order(names: Iterable[str], seed: int) -> list[str]:
    """The mutants so that each beginning of the list holds the same share of each file's, drawn at random."""
    by_file = defaultdict(list)
    for name in sorted(names):
        by_file[name.partition(".x")[0]].append(name)
    drawn = random.Random(seed)
    placed = []
    for mutants in by_file.values():
        drawn.shuffle(mutants)
        first = drawn.random()
        placed += [((place + first) / len(mutants), name) for place, name in enumerate(mutants)]
    return [name for _, name in sorted(placed)]


def some_of(tests: Iterable[str], took_s: dict[str, float], drawn: random.Random) -> set[str]:
    """At most TESTS_MAX of a mutant's tests, drawn from the quick ones if there are any."""
    known = sorted(tests)
    quick = [test for test in known if took_s.get(test, 0.0) < TEST_MAX_S] or known
    return set(drawn.sample(quick, min(len(quick), TESTS_MAX)))


def judge(seed: int, seconds: int) -> None:
    """Runs mutmut here, for at most so long, over the mutants in a fair order."""
    from mutmut import __main__ as mutmut
    from mutmut.state import state
    from mutmut.workers.isolation import ForkRunner

    collect = mutmut.collect_source_file_mutation_data
    rank: dict[str, int] = {}

    def sample(**options: Any) -> Any:
        mutants, files = collect(**options)
        reached, first = state().tests_by_mangled_function_name, next(iter(state().duration_by_test))
        function = mutmut.mangled_name_from_mutant_name
        # what ran while the tests were imported is put down to the first of them
        at_import = {name for _, name, _ in mutants if reached.get(function(name)) == {first}}
        order = fair_order({name for _, name, _ in mutants} - at_import, seed)
        rank.update((name, place) for place, name in enumerate(order))
        drawn = random.Random(seed)
        for name in sorted(reached):
            reached[name] = some_of(reached[name], state().duration_by_test, drawn)
        from tests.support import databases, shared

        shared.templates = databases.Templates(lambda: "no PostgreSQL here")
        shared.templates.prepare_sqlite()
        Path(SAMPLE).write_text(json.dumps({"seed": seed, "order": order, "at import": sorted(at_import)}))
        return [mutant for mutant in mutants if mutant[1] in rank], files

    mutmut.collect_source_file_mutation_data = sample
    mutmut.estimated_worst_case_time = rank.__getitem__  # what mutmut sorts by
    # all tests passed when it was noted which of them reach what: these few fill the caches that its forks inherit
    ForkRunner.run_clean_tests = lambda self, tests: self.test_runner.run_tests(mutant_name=None, tests=[WARM_UP])

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    mutmut._run((), os.cpu_count())


def report(directory: Path) -> dict[str, Any]:
    """What was judged, by outcome and by file.  not killed: survivors and timeouts, each with the reason of before."""
    from mutmut.stats import status_by_exit_code

    drawn = json.loads((directory / SAMPLE).read_text())
    before = json.loads(RUN.read_text()) if RUN.exists() else {"note": "", "not killed": {}}
    files, left = {}, {}
    for path in sorted((directory / "mutants/chatlock/ops").glob("*.meta")):
        codes = json.loads(path.read_text())["exit_code_by_key"]
        told = {name: status_by_exit_code[codes[name]] for name in codes if name not in set(drawn["at import"])}
        left |= {name: before["not killed"].get(name, OPEN) for name in told if told[name] in ("survived", "timeout")}
        counted = Counter(outcome for outcome in told.values() if outcome != "not checked")
        files[path.stem] = {"mutants": len(codes), "at import": len(codes) - len(told), **dict(sorted(counted.items()))}
    about = {"mutmut": version("mutmut"), "seed": drawn["seed"], "tests": TESTS, "note": before["note"]}
    return about | {"files": files, "not killed": left}


def main(command: str, directory: Path, seconds: int = 3600, seed: int = 1) -> None:
    if command == "report":
        RUN.write_text(json.dumps(report(directory), indent=1) + "\n")
    elif command == "judge":
        judge(seed, seconds)
    else:
        copy_tree(directory)
        again = [sys.executable, "-m", "tools.mutmut_ops", "judge", ".", str(seconds), str(seed)]
        subprocess.run(again, cwd=directory, check=True, env=os.environ | {"PYTHONPATH": "."})


def copy_tree(directory: Path) -> None:
    """What git knows of, with mutmut's settings."""
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files"], check=True, capture_output=True, text=True).stdout
    for name in tracked.splitlines():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, directory / name)
    with (directory / "pyproject.toml").open("a") as project:
        project.write(CONFIG)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
