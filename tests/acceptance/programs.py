"""Runs small programs as processes of their own, which end as Python ends: with its exit handlers, by its signals.

One process imports chatlock and forks for each program; the program is then the whole of its main module.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from tests.support import ROOT
from tests.support.waiting import SECONDS_MAX, until

if TYPE_CHECKING:
    from pathlib import Path

FORKER = """
import asyncio, gc, json, os, signal, sys, threading, time
import psycopg, sqlalchemy.dialects.postgresql, sqlalchemy.dialects.sqlite
import chatlock

gc.freeze()  # what was imported is not looked through at the end of each program
for line in sys.stdin:
    command = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
os.setsid()
for number, name in enumerate(("/dev/null", command["output"], command["output"])):
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, number)
    os.close(descriptor)
sys.argv = ["-c", *command["arguments"]]
exec(compile(command["program"], "<program>", "exec"))
"""


class Program:
    """A program that runs, or has run."""

    def __init__(self, programs: Programs, pid: int, output: Path) -> None:
        self.pid, self._programs, self._output = pid, programs, output
        self._code: int | None = None

    @property
    def text(self) -> str:
        """All it has printed so far."""
        return self._output.read_text() if self._output.exists() else ""

    def wait_for(self, text: str) -> None:
        """Returns once it has printed `text`."""
        until(lambda: text in self.text, what=f"a program that prints {text!r}")

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code; minus the number of the signal that ended it."""
        if self._code is None:
            self._code = int(self._programs.answer())
        return self._code

    def dispose(self) -> None:
        if self._code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait()


class Programs:
    """Starts one program after another."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._count = directory, 0

    def __enter__(self) -> Self:
        self._forker = subprocess.Popen(
            [sys.executable, "-c", FORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._forker.stdin
        assert self._forker.stdout
        self._forker.stdin.close()
        assert self._forker.wait(SECONDS_MAX) == 0
        self._forker.stdout.close()

    def start(self, program: str, *arguments: str) -> Program:
        """Starts `program`; the one before it has ended."""
        self._count += 1
        output = self._directory / f"output-{self._count}"
        command = {"program": program, "arguments": arguments, "output": str(output)}
        assert self._forker.stdin
        self._forker.stdin.write(json.dumps(command) + "\n")
        self._forker.stdin.flush()
        return Program(self, int(self.answer()), output)

    def answer(self) -> str:
        """The next line that the forking process says."""
        assert self._forker.stdout
        return self._forker.stdout.readline()
