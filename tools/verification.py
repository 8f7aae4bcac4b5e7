"""docs/verification.md, printed from what committed runs have written to docs/verification/*.json.

python -m tools.verification     print it (`make docs` writes it, `make check` compares it)
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

RUNS = Path(__file__).resolve().parents[1] / "docs" / "verification"
LAYERS = Path(__file__).with_name("layers.md")
GOAL = {"acknowledged": 1_000_000, "kills": 1_000, "stops past the lease": 1_000}
NAMES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
ROLES = {
    "worker": "synchronous clients",
    "caller": "clients whose callers wait",
    "async": "asynchronous clients",
    "service": "the poller service itself",
    "rq": "RQ workers",
    "web": "the web server",
}
RARE = {
    "lost_claim": "claims lost under a running handler",
    "cut_committed": "connections cut after COMMIT was sent",
    "cut_not_committed": "connections cut before COMMIT left",
    "refused_fence": "fenced writes refused by the tables",
    "refused_finish": "finishes refused by the tables",
    "already_answered": "callers told the reply of another's turn",
    "alone_after_failure": "messages tried alone after a failure",
    "dead": "messages that died of their attempts",
    "at_point": "processes killed or stopped at a named point",
}

SOON = (1, 5, 10)
IN_SIM = """\
`{command}` lets the simulation alone judge the seeded bugs of what it runs, by so many seeds. It finds {caught} of
the {judged} that it was given of {mutants}, by number of seeds: {soon}. The others are left to the tests that they
name. Among them are rules of what it does not run (dispatch to workers, limits of tenants, estimates, caps,
preconditions), some that SQLite, where writers stand in line, does not need, and others that so few seeds meet too
seldom: {missed}.
"""

MUTMUT = """\
`python -m tools.mutmut_ops` made mutants of `chatlock/ops` with mutmut {mutmut} and judged {judged} of {sampled}, drawn
with seed {seed} so that each file has its share, by the conformance tests (`-k "{tests}"`, at most 60 of those that
reach the mutant). {at_import} more are in functions that run at import alone, which forked processes cannot judge.
Statements written at module level have no mutants. So this says next to nothing of the SQL, which the races and the
seeded bugs are for, nor of PostgreSQL; and much of what was killed is an argument left out, which no test overlooks.
{note}
"""


def page(directory: Path = RUNS) -> str:
    """The whole page."""
    runs = [json.loads(path.read_text()) for path in sorted(directory.glob("soak-*.json"))]
    parts = [LAYERS.read_text(), _soak(runs)]
    for name, about in (("sim", _sim), ("sim-mutants", _in_sim), ("mutants", _mutants), ("mutmut", _mutmut)):
        path = directory / f"{name}.json"
        if path.exists():
            parts.append(about(json.loads(path.read_text())))
    return "\n".join(parts)


def _soak(runs: list[dict[str, Any]]) -> str:
    """A column for each run, and the sum where sums mean something."""
    header = ["", *(NAMES[run["database"]] for run in runs), "together"]
    lines = [_row(header), "|---" * len(header) + "|"]

    def add(name: str, values: list[Any], *, summed: bool = True) -> None:
        told = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
        lines.append(_row([name, *told, f"{sum(values):,}" if summed else ""]))

    add("verdict", [f"**{run['verdict']}**" for run in runs], summed=False)
    add("seconds of faults", [int(run["seconds"]) for run in runs])
    add("messages acknowledged", [run["acknowledged"] for run in runs])
    for promise in ("lost", "answered twice", "stale writes accepted", "dishonest outcomes", "other faults"):
        add(f"**{promise}**", [run["promises broken"][promise] for run in runs])
    for fault in sorted({fault for run in runs for fault in run["faults"]}):
        add(fault, [run["faults"].get(fault, 0) for run in runs])
    for rare, text in RARE.items():
        add(text, [run["rare paths"][rare]["reached"] for run in runs])
    add("rare paths taken too seldom", [_short(run) for run in runs], summed=False)
    add("turns done", [run["turns"].get("done", 0) for run in runs])
    ends = ("failed", "released", "reclaimed", "gave_up", "interrupted", "rolled_back")
    add("turns ended otherwise", [sum(run["turns"].get(end, 0) for end in ends) for run in runs])
    for role, did in ROLES.items():
        add(f"turns begun by {did}", [run["by role"].get(role, {}).get("began", 0) for run in runs])
    add("events judged", [run["events judged"] for run in runs])
    return "\n".join(["## The soak", "", *lines, "", _against_goal(runs), ""])


def _short(run: dict[str, Any]) -> str:
    """The rare paths for which the run says too little."""
    short = [RARE.get(name, name) for name, path in run["rare paths"].items() if path["reached"] < path["least"]]
    return ", ".join(short) or "none"


def _against_goal(runs: list[dict[str, Any]]) -> str:
    """Whether the runs are as large as they were meant to be."""
    reached = {
        name: sum(run["acknowledged"] if name == "acknowledged" else run["faults"].get(name, 0) for run in runs)
        for name in GOAL
    }
    short = [f"{name} {reached[name]:,} of {goal:,}" for name, goal in GOAL.items() if reached[name] < goal]
    if short:
        return f"These runs are smaller than they are meant to be: {'; '.join(short)}."
    return "These runs are as large as they are meant to be: a million messages, a thousand kills, a thousand stops."


def _sim(run: dict[str, Any]) -> str:
    return (
        f"## The simulation\n\n{run['seeds']:,} seeds, {run['steps']:,} steps: {run['failed']:,} failed "
        f"({run['kills']:,} crashes, {run['pauses']:,} pauses, {run['acks lost']:,} acknowledgements lost).\n"
    )


def _in_sim(run: dict[str, Any]) -> str:
    """What the simulation alone finds of the seeded bugs, how soon, and what it lets pass."""
    needed = [row["seeds"] for row in run["rows"].values() if row["verdict"] == "red" and "seeds" in row]
    soon = ", ".join(f"{sum(seeds <= most for seeds in needed)} within {most}" for most in SOON)
    missed = ", ".join(f"`{name}`" for name in run["others"])
    return IN_SIM.format(soon=soon, missed=missed, judged=len(run["rows"]), **run)


def _mutants(run: dict[str, Any]) -> str:
    others = "".join(f"\n- `{name}`: {word}" for name, word in run["others"].items())
    return f"## Seeded bugs\n\n{run['caught']} of {run['mutants']} are caught, in {run['files']} files.{others}\n"


def _mutmut(run: dict[str, Any]) -> str:
    """A line for each outcome and each reason, and the survivors that nobody explained or killed since."""
    files = run["files"].values()
    total = Counter[str]()
    for counted in files:
        total.update(counted)
    everything, at_import = total.pop("mutants"), total.pop("at import")
    reasons = Counter(run["not killed"].values())
    lines = [_row(["outcome", "mutants"]), "|---|---|", *(_row([name, f"{n:,}"]) for name, n in total.most_common())]
    lines += ["", _row(["of those not killed", "mutants"]), "|---|---|"]
    lines += [_row([name, str(count)]) for name, count in reasons.most_common()]
    open_ones = [f"`{name}`" for name, reason in sorted(run["not killed"].items()) if reason == "open"]
    about = MUTMUT.format(
        judged=f"{total.total():,}", sampled=f"{everything - at_import:,}", at_import=f"{at_import:,}", **run
    )
    return "\n".join(
        ["## mutmut on the operations", "", about, *lines, "", "Open: " + (", ".join(open_ones) or "none") + ".", ""]
    )


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(page(), end="")
