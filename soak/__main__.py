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

from soak.run import Soak

PASSED, BROKEN, INVALID = 0, 1, 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--db", choices=["postgres", "sqlite"], default="sqlite")
    parser.add_argument("--seed", type=int, default=1, help="what goes wrong, and when; the machine decides the rest")
    parser.add_argument("--json", type=Path, help="also write the summary to this file")
    asked = parser.parse_args()
    gc.collect()
    gc.freeze()  # a forked process shares what is imported
    summary = Soak(asked.db, asked.seconds, asked.seed).run()
    text = json.dumps(summary, indent=1)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n")
    return {"passed": PASSED, "broken": BROKEN, "invalid": INVALID}[summary["verdict"]]


if __name__ == "__main__":
    sys.exit(main())
