"""No module, and no function of the product, grows out of one reading."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.support import ROOT

if TYPE_CHECKING:
    from pathlib import Path

LINES_MAX = 400
PRODUCT, BESIDE = ("chatlock", "poller"), ("tests", "soak", "bench", "tools", "examples")
FUNCTION_LINES_MAX = 70
# Parts that are many small things beside each other have a limit of their own.
PART_LINES_MAX = {"chatlock/writes": 250, "chatlock/middleware": 200, "poller": 200}


def too_long(root: Path) -> list[str]:
    """Every module under `root` that is over its limit, and every function of the product."""
    found = []
    for package in (*PRODUCT, *BESIDE):
        for path in sorted((root / package).rglob("*.py")):
            name = str(path.relative_to(root))
            source = path.read_text()
            lines, limit = len(source.splitlines()), _limit(name)
            if lines > limit:
                found.append(f"{name} has {lines} lines, over {limit}")
            if package in PRODUCT:
                found += _long_functions(name, source)
    return found


def _long_functions(name: str, source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                found.append(f"{name}:{node.lineno} {node.name} has {length} lines")
    return found


def _limit(name: str) -> int:
    own = (limit for part, limit in PART_LINES_MAX.items() if name.startswith(f"{part}/"))
    return next(own, LINES_MAX)


def test_no_module_or_function_is_too_long() -> None:
    found = too_long(ROOT)
    assert not found, "\n".join(found)


def test_long_module_and_long_function_are_reported(tmp_path: Path) -> None:
    def write(name: str, source: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    def function(lines: int) -> str:
        return "async def grown():\n" + "    pass\n" * (lines - 1)

    write("chatlock/fits.py", "x = 1\n" * LINES_MAX)
    write("chatlock/module.py", "x = 1\n" * (LINES_MAX + 1))
    write("chatlock/writes/module.py", "x = 1\n" * 251)
    write("poller/module.py", "x = 1\n" * 201)
    write("tests/unit/test_module.py", "x = 1\n" * 401)
    write("tools/fits.py", function(LINES_MAX))
    write("chatlock/ops/fits.py", function(FUNCTION_LINES_MAX))
    write("chatlock/ops/function.py", f"class Holder:\n    x = 1\n{function(71)}")
    assert too_long(tmp_path) == [
        "chatlock/module.py has 401 lines, over 400",
        "chatlock/ops/function.py:3 grown has 71 lines",
        "chatlock/writes/module.py has 251 lines, over 250",
        "poller/module.py has 201 lines, over 200",
        "tests/unit/test_module.py has 401 lines, over 400",
    ]
