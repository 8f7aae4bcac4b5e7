"""The tables of the peers in docs/performance.md, from the run that docs/performance/peers.json holds.

make bench-peers ARGS="--json docs/performance/peers.json"
python -m tools.docs
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench.peers.table import tables

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "performance.md"
RUN = DOCS / "performance" / "peers.json"
PRINTED = re.compile(r"(?<=<!-- printed by tools/peers\.py -->\n).*(?=<!-- until here -->)", re.DOTALL)


def page() -> str:
    """The page with the tables of the committed run; what a person wrote in it stays."""
    text = PAGE.read_text()
    if len(PRINTED.findall(text)) != 1:
        raise SystemExit(f"{PAGE.name} has no one place for the tables of the peers")
    return PRINTED.sub(lambda _: section(json.loads(RUN.read_text())), text)


def section(run: dict[str, Any]) -> str:
    """What the run was, and its tables."""
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    sizes = run["sizes"]
    about = (
        f"`make bench-peers`, {run['at']}, {run['cores']} cores, Python {run['python']}, {run['seconds']} s in all; "
        f"the load when it began and after each round was {', '.join(f'{load:.1f}' for load in run['load'])}. "
        f"{sizes['rounds']} rounds; {sizes['drained']:,} messages over {sizes['drained'] // 10} threads to drain, "
        f"{sizes['hot']} queued on the hot thread, {sizes['beside']} beside it. {versions}."
    )
    return f"\n{about}\n\n{tables(run)}\n\n"
