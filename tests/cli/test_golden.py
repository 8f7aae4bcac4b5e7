"""What every command prints as JSON: the same on both databases, and as the files in golden/ have it.

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

from chatlock.ops.diagnose import Server
from tests.cli.scene import START_MS, populate
from tests.cli.tree import leaves

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
WHY = "--reason why --actor olga"
# One after the other, on the scene that the commands above read.
ACTS = {
    "threads-free": (f"threads free stale --turn 1 {WHY}", 0),
    "threads-free-refused": (f"threads free alive --turn 1 {WHY}", 1),
    "threads-park": (f"threads park alive --turn 1 {WHY}", 0),
    "threads-park-late": (f"threads park silent --turn 9 {WHY}", 4),
    "threads-resume": (f"threads resume parked {WHY}", 0),
    "answer": ("answer awaiting --question question-1 --decision yes", 0),
    "answer-late": ("answer awaiting --question question-1 --decision no", 4),
    "cancel": ("cancel alive m3", 0),
    "cancel-turn": ("cancel hung --turn 1 --queued park", 0),
    "inbox-drop": ("inbox drop parked m1 m9", 1),
    "inbox-promote": ("inbox promote untaken", 0),
    "dead-redrive": ("dead redrive poison p1", 0),
    "dead-purge": ("dead purge --older 1s --yes", 0),
    "intents-retry": (f"intents retry answered --turn 1 {WHY}", 0),
    "db-purge": ("db purge --older 20m --yes", 0),
    "db-bump-epoch": (f"db bump-epoch --yes {WHY}", 0),
}
ELSEWHERE = {"db-check", "db-upgrade", "export", "import"}  # in test_db.py and test_move.py
WITHOUT_JSON = {"poller", "worker", "db-sql"}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_as_recorded(scene: Scene, name: str) -> None:
    assert_as_recorded(name, scene, *COMMANDS[name])


def test_json_of_acts_is_as_recorded(fresh: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatlock.console.jitter", lambda: 1.0)
    populate(fresh)
    fresh.execute("UPDATE chatlock_intents SET state = 'failed', ended_at = 1, error = 'x', attempts = 8")
    for name, (arguments, code) in ACTS.items():
        assert_as_recorded(name, fresh, arguments, code)


def test_json_of_doctor_is_as_recorded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = scene.database.kind
    journal = "wal" if kind == "sqlite" else None
    server = Server(kind, {"sqlite": (3, 51, 3), "postgresql": (18, 0)}[kind], 1, journal)
    monkeypatch.setattr("chatlock.doctor.migrations.current", lambda conn: 1)
    monkeypatch.setattr("chatlock.doctor.diagnose.read_server", lambda conn: server)
    monkeypatch.setattr("chatlock.doctor.time.time", lambda: START_MS / 1000)
    monkeypatch.setattr("chatlock.doctor._version", lambda package: "3.0.0")
    assert_as_recorded(f"doctor-{kind}", scene, "doctor", 1)


def assert_as_recorded(name: str, scene: Scene, arguments: str, code: int) -> None:
    """Its objects are those of its file."""
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


def test_every_command_has_a_golden_file_and_every_file_a_command() -> None:
    files = {path.stem for path in GOLDEN.glob("*.json")}
    assert files == {*COMMANDS, *ACTS, "doctor-sqlite", "doctor-postgresql"}
    names = {"-".join(path) for path in leaves()}
    assert {name for name in names if not any(file.startswith(name) for file in files)} == ELSEWHERE | WITHOUT_JSON
