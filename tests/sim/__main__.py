"""Play seeds: `python -m tests.sim SEED` replays one, `--seeds N` plays the first N.  Exit code 1: a seed failed."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.sim.play import make_template, play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="replay this one, and show every step")
    parser.add_argument("--seeds", type=int, default=1000, help="how many to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    parser.add_argument("--json", type=Path, help="also write a summary to this file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chatlock-sim-") as directory:
        template = Path(directory) / "template.db"
        make_template(template)
        if asked.seed is not None:
            return replay(asked.seed, template)
        summary = explore(range(asked.first, asked.first + asked.seeds), asked.failures, template)
    if asked.json:
        asked.json.write_text(json.dumps(summary, indent=1) + "\n")
    return int(summary["failed"] > 0)


def replay(seed: int, template: Path) -> int:
    played = play(seed, template, template.with_name("play.db"))
    print("\n".join(played.trace))
    print(f"seed {seed}: {played.steps} steps, {played.commits} commits, trace {played.digest}")
    print(f"reached: {dict(sorted(played.reached.items()))}")
    if played.flaws:
        print(played.report())
    return int(bool(played.flaws))


def explore(seeds: range, failures_max: int, template: Path) -> dict[str, int]:
    began, failed, steps = time.monotonic(), 0, 0
    reached: Counter[str] = Counter()
    for number, seed in enumerate(seeds, 1):
        played = play(seed, template, template.with_name("play.db"))
        steps += played.steps
        reached += played.reached
        if played.flaws:
            failed += 1
            print(played.report(), flush=True)
            if failed >= failures_max:
                break
        if number % 1000 == 0:
            print(f"{number} seeds, {failed} failed, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{number} seeds, {failed} failed, {steps} steps, {time.monotonic() - began:.1f} s")
    print(f"reached: {dict(sorted(reached.items()))}")
    faults = {"kills": "kill", "pauses": "pause", "acks lost": "ack_lost"}
    counts = {name: reached[f"fault {fault}"] for name, fault in faults.items()}
    return {"seeds": number, "failed": failed, "steps": steps, **counts}


if __name__ == "__main__":
    sys.exit(main())
