"""pytest over a copy of the tree, in a forked process that has loaded what the tests need of others already.

Most of a short run is imports. What belongs to this tree is forgotten after the fork, and loaded from the copy.
"""

from __future__ import annotations

import compileall
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import IO

import pytest

from tests.support.processes import exit_with

ROOT = Path(__file__).resolve().parents[1]
NO_END = -1
"""In place of an exit code: the run took too long."""
OTHERS = {
    "tests/": ("sqlalchemy.ext.asyncio", "psycopg", "alembic", "hypothesis"),
    "tests/frameworks/": (
        *("fastapi.testclient", "langgraph.graph", "langgraph.checkpoint.sqlite", "agents", "slack_bolt.async_app"),
        *("aiogram", "telegram.ext"),
    ),
}
"""What tests under a directory need of others."""


def preload(tests: set[str]) -> None:
    """Loads what these tests need of others, once for all runs that follow."""
    for directory, names in OTHERS.items():
        if any(test.startswith(directory) for test in tests):
            for name in names:
                importlib.import_module(name)
    gc.freeze()


def compile_all(tree: Path) -> None:
    """Compiles a copy. A file that changes later is told by its content: the time of a change is too coarse."""
    compileall.compile_dir(tree, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)


def run_pytest(tree: Path, arguments: list[str], seconds_max: float) -> tuple[int, str]:
    """pytest's exit code, or NO_END, and what it printed."""
    with tempfile.TemporaryFile() as output:
        process = multiprocessing.get_context("fork").Process(target=_become_pytest, args=(tree, arguments, output))
        process.start()
        process.join(seconds_max)
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        code = process.exitcode
        output.seek(0)
        return NO_END if code is None or code < 0 else code, output.read().decode(errors="replace")


def _become_pytest(tree: Path, arguments: list[str], output: IO[bytes]) -> None:
    def run() -> int:
        os.setsid()
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.stdout, sys.stderr = (open(fd, "w", closefd=False) for fd in (1, 2))  # noqa: SIM115 they end with us
        _move_to(tree)
        return int(pytest.main(arguments))

    exit_with(run, int(pytest.ExitCode.INTERNAL_ERROR))


def _move_to(tree: Path) -> None:
    """From here on this tree's modules are those of the copy, in this process and those that it starts."""
    sys.path[:] = [str(tree), *(entry for entry in sys.path if Path(entry).resolve() != ROOT)]
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or sys.prefix)
        if name != "__main__" and path.is_relative_to(ROOT) and not path.is_relative_to(sys.prefix):
            del sys.modules[name]
    os.chdir(tree)
    os.environ |= {"PYTHONPATH": str(tree), "COLUMNS": "200"}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
