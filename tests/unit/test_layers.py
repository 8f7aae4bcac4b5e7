"""A module imports only from layers to its left, or from its own."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support import ROOT

if TYPE_CHECKING:
    from pathlib import Path

LAYERS = (
    ("protocol", "policies", "charging", "errors", "inputs", "settings", "wording"),
    ("schema", "dialects", "faults", "migrations", "urls"),
    ("ops",),
    ("turnstile", "executor", "hooks", "io", "alarm", "caller", "store", "heart", "wake", "window"),
    (
        *("intake", "turn_core", "inside", "turn", "handlers", "live", "place", "flows", "admin", "sweep", "polling"),
        *("epoch", "why", "backtest", "replay", "doctor", "console", "transfer"),
    ),
    ("writes",),
    ("options", "client_base", "client", "async_client"),
    ("testing", "observe"),
    ("hosting", "termination"),
    ("middleware", "rq_jobs"),
    ("service", "cli", "__main__"),
)
LAYER_OF = {module: number for number, layer in enumerate(LAYERS) for module in layer}
# `chatlock` itself shows the public names; what imports it imports the clients' layer.
PUBLIC = LAYER_OF["client"]
# Who alone may import a module, whatever the layers say.
ONLY_BY = {
    "rq": {"rq_jobs"},
    "prometheus_client": {"observe", "service"},
    "chatlock.settings": {"rq_jobs", "service", "cli", "poller"},
}
# What a part may not import, whatever the layers say.
NEVER_BY = {
    "protocol": {"sqlalchemy", "sqlmodel", "pydantic", "alembic", "click", "psycopg"},
    "middleware": {"sqlalchemy", "sqlmodel"},
    "cli": {"sqlmodel", "chatlock.schema", "chatlock.ops"},
}
# Parts that stand on public modules alone: what of chatlock each may import.
PUBLIC_ALONE = {
    "poller": {"chatlock", "chatlock.cli", "chatlock.settings", "chatlock.sweep", "chatlock.service"},
    "middleware": {"chatlock", "chatlock.errors", "chatlock.hooks", "chatlock.inputs", "chatlock.observe"},
}


def breaches(root: Path) -> list[str]:
    """Every forbidden import of chatlock/ and poller/ under `root`."""
    found = []
    for package in ("chatlock", "poller"):
        for path in sorted((root / package).rglob("*.py")):
            part = _part(path.relative_to(root))
            for line, imported in _imports(path, root):
                reason = _reason(part, imported)
                if reason:
                    found.append(f"{path.relative_to(root)}:{line} imports {imported}: {reason}")
    return found


def _part(path: Path) -> str:
    """The module or package directly under chatlock/ that a file belongs to."""
    if path.parts[0] == "poller":
        return "poller"
    return path.parts[1].removesuffix(".py")


def _imports(path: Path, root: Path) -> list[tuple[int, str]]:
    """The dotted names that a file imports, with their lines; relative ones in full."""
    package = path.relative_to(root).parent.parts
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [(node.lineno, _name(module, alias.name, root)) for alias in node.names]
    return found


def _name(module: str, name: str, root: Path) -> str:
    """`from chatlock import ops` imports the module chatlock.ops, not a name of chatlock."""
    inner = root / module.replace(".", "/") / name
    return f"{module}.{name}" if inner.is_dir() or inner.with_suffix(".py").exists() else module


def _reason(part: str, imported: str) -> str | None:
    for name, allowed in ONLY_BY.items():
        if _within(imported, name) and part not in allowed:
            return f"only {sorted(allowed)} may"
    for name in NEVER_BY.get(part, ()):
        if _within(imported, name):
            return f"{part} may not"
    if not _within(imported, "chatlock"):
        return None
    if part in PUBLIC_ALONE and not _within(imported, f"chatlock.{part}"):
        return None if imported in PUBLIC_ALONE[part] else f"{part} imports {sorted(PUBLIC_ALONE[part])}"
    own = PUBLIC if part == "__init__" else LAYER_OF.get(part)
    target = PUBLIC if imported == "chatlock" else LAYER_OF.get(imported.split(".")[1])
    if own is None or target is None:
        return "a module without a layer: give it one here and in the design"
    return None if target <= own else "a layer to the right"


def _within(imported: str, name: str) -> bool:
    return imported == name or imported.startswith(f"{name}.")


def test_modules_import_only_from_layers_to_their_left() -> None:
    found = breaches(ROOT)
    assert not found, "\n".join(found)


def test_adapters_touch_nothing_private_of_anything_but_themselves() -> None:
    found = []
    for path in sorted((ROOT / "chatlock" / "middleware").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
                owner = node.value.id if isinstance(node.value, ast.Name) else "?"
                if owner not in ("self", "cls", "clone"):
                    found.append(f"{path.name}:{node.lineno} touches {owner}.{node.attr}")
    assert not found, "\n".join(found)


def test_protocol_needs_only_the_standard_library() -> None:
    imported = {name.split(".")[0] for _, name in _imports(ROOT / "chatlock" / "protocol.py", ROOT)}
    assert imported <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("file", "source", "imported"),
    [
        ("chatlock/protocol.py", "import chatlock.schema", "chatlock.schema"),
        ("chatlock/protocol.py", "import sqlalchemy", "sqlalchemy"),
        ("chatlock/dialects.py", "from chatlock import ops", "chatlock.ops"),
        ("chatlock/dialects.py", "from .ops import claim", "chatlock.ops.claim"),
        ("chatlock/ops/claim.py", "from chatlock.turn import Turn", "chatlock.turn"),
        ("chatlock/ops/claim.py", "from ..executor import run", "chatlock.executor"),
        ("chatlock/ops/claim.py", "from chatlock import Chatlock", "chatlock"),
        ("chatlock/ops/claim.py", "def late():\n    import chatlock.client", "chatlock.client"),
        ("chatlock/ops/claim.py", "if TYPE_CHECKING:\n    import chatlock.turn", "chatlock.turn"),
        ("chatlock/flows.py", "from chatlock.writes import ledger", "chatlock.writes"),
        ("chatlock/client.py", "from chatlock.settings import Settings", "chatlock.settings"),
        ("chatlock/__init__.py", "from chatlock.testing import play", "chatlock.testing"),
        ("chatlock/wake/redis.py", "import rq.job", "rq.job"),
        ("chatlock/middleware/slack.py", "from sqlalchemy import text", "sqlalchemy"),
        ("chatlock/middleware/slack.py", "from chatlock.cli import main", "chatlock.cli"),
        ("chatlock/middleware/slack.py", "from chatlock.flows import submit", "chatlock.flows"),
        ("chatlock/new.py", "from chatlock import errors", "chatlock.errors"),
        ("poller/__main__.py", "from chatlock.ops import claim", "chatlock.ops.claim"),
    ],
)
def test_forbidden_import_is_reported(file: str, source: str, imported: str, tmp_path: Path) -> None:
    for package in ("chatlock/ops", "chatlock/wake", "chatlock/middleware", "poller"):
        (tmp_path / package).mkdir(parents=True)
    for module in ("ops/claim", "errors"):
        (tmp_path / "chatlock" / f"{module}.py").touch()
    (tmp_path / file).write_text(source)
    (breach,) = breaches(tmp_path)
    assert breach.startswith(f"{file}:")
    assert f" imports {imported}: " in breach


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("chatlock/ops/claim.py", "from chatlock.schema import threads"),
        ("chatlock/ops/claim.py", "from .due import put_due\nimport sqlalchemy"),
        ("chatlock/client.py", "from chatlock import executor, turn"),
        ("chatlock/__init__.py", "from chatlock.client import Chatlock"),
        ("chatlock/testing/play.py", "from chatlock import Chatlock"),
        ("chatlock/rq_jobs.py", "import rq\nfrom chatlock.settings import Settings"),
        ("chatlock/middleware/slack.py", "from chatlock import Chatlock\nfrom chatlock.middleware.inbox import Inbox"),
        ("poller/__main__.py", "from chatlock import Chatlock\nimport chatlock.settings"),
    ],
)
def test_permitted_import_is_not_reported(file: str, source: str, tmp_path: Path) -> None:
    for package in ("chatlock/ops", "chatlock/testing", "chatlock/middleware", "poller"):
        (tmp_path / package).mkdir(parents=True)
    for module in ("ops/due", "schema", "executor", "turn"):
        (tmp_path / "chatlock" / f"{module}.py").touch()
    (tmp_path / file).write_text(source)
    assert breaches(tmp_path) == []
