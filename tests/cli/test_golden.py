"""What every command that reads prints as JSON: the same on both databases, and as the files in golden/ have it.

CHATLOCK_GOLDEN=write pytest tests/cli/test_golden.py writes the files anew; read the diff before you commit it.
"""

from __future__ import annotations

import json
import os
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.scene import Scene

GOLDEN = Path(__file__).parent / "golden"
COMMANDS = {
    "threads-ls": ("threads ls", 0),
    "threads-ls-all": ("threads ls --all-tenants", 0),
    "threads-ls-running": ("threads ls --status running --agent default", 0),
    "threads-ls-page": ("threads ls --limit 2 --after awaiting", 0),
    "threads-ls-stuck": ("threads ls --stuck --older 5s", 3),
    "threads-ls-stuck-all": ("threads ls --stuck --all-tenants --older 1m", 3),
    "threads-show": ("threads show alive", 0),
    "threads-show-payloads": ("threads show answered --payloads", 0),
    "why": ("why stale", 0),
    "inbox-ls": ("inbox ls", 0),
    "inbox-ls-thread": ("inbox ls parked --payloads", 0),
    "inbox-show": ("inbox show answered m2", 0),
    "dead-ls": ("dead ls --payloads", 0),
    "dead-show": ("dead show poison p1", 0),
    "turns-ls": ("turns ls", 0),
    "turns-ls-thread": ("turns ls poison", 0),
    "turns-ls-state": ("turns ls --state failed --since 1m", 0),
    "intents-ls": ("intents ls --payloads", 0),
    "intents-show": ("intents show answered --turn 1", 0),
    "stats": ("stats", 0),
    "stats-all": ("stats --all-tenants --since 1d", 0),
    "top": ("top --once", 0),
    "top-all": ("top --once --all-tenants --limit 2", 0),
    "verify": ("verify", 0),
    "verify-since": ("verify --all-tenants --since 1m", 0),
    "windows-show": ("windows show", 0),
    "windows-backtest": ("windows backtest --margin 2 --margin 3", 0),
    "replay": ("replay --policy enqueue --policy latest", 0),
    "replay-all": ("replay --all-tenants --policy enqueue --since 10m", 0),
    "audit": ("audit", 0),
    "audit-thread": ("audit parked", 0),
    "audit-all": ("audit --all-tenants", 0),
}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_as_recorded(scene: Scene, name: str) -> None:
    arguments, code = COMMANDS[name]
    printed = scene.json(*arguments.split(), code=code)
    path = GOLDEN / f"{name}.json"
    if os.environ.get("CHATLOCK_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(printed, indent=1) + "\n")
    assert printed == json.loads(path.read_text())
    assert printed
    for line in printed:
        assert line["schema_version"] == 1
        assert_times(line)


def assert_times(value: Any) -> None:
    """Every field that is a time is RFC 3339 in UTC."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "at" or name.endswith(("_at", "_until", "_before")):
                assert inner is None or (TIME.fullmatch(inner) and datetime.fromisoformat(inner)), name
            assert_times(inner)
    elif isinstance(value, list):
        for inner in value:
            assert_times(inner)


def test_every_golden_file_is_used() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(COMMANDS)
