"""Runs a soak and prints what came of it.

    python -m soak --seconds 60 --db postgres [--seed 1] [--json summary.json]

Exit code 0: nothing broke.  1: a breach.  3: invalid: a rare path was not taken often enough, so nothing is shown.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path

from soak.judge import judge
from soak.life import LIMITS
from soak.run import Soak, verdict_of

EXIT_CODES = {"passed": 0, "broken": 1, "invalid": 3}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--db", choices=["postgres", "sqlite"], default="sqlite")
    parser.add_argument("--seed", type=int, default=1, help="what goes wrong, and when; the machine decides the rest")
    parser.add_argument("--json", type=Path, help="also write the summary to this file")
    parser.add_argument("--keep", type=Path, help="leave the histories in this new directory")
    parser.add_argument("--judge", type=Path, metavar="DIR", help="run nothing: judge what an earlier run has left")
    asked = parser.parse_args()
    if asked.judge:
        return judge_again(asked.judge)
    gc.collect()
    gc.freeze()  # a forked process shares what is imported
    summary = Soak(asked.db, asked.seconds, asked.seed).run(asked.keep)
    text = json.dumps(summary, indent=1)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n")
    return EXIT_CODES[summary["verdict"]]


def judge_again(directory: Path) -> int:
    """Prints every breach in what a run has noted."""
    judged = judge(directory, LIMITS.attempts_max)
    print(json.dumps(judged.breaches, indent=1))
    return EXIT_CODES[verdict_of(judged.by_promise(), {})]


if __name__ == "__main__":
    sys.exit(main())
