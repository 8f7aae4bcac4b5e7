"""Child processes that a test waits for, line by line, and kills."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, Self

from tests.support import ROOT
from tests.support.waiting import SECONDS_MAX, until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Child:
    """A process in a group of its own; what it prints is read by the line."""

    def __init__(self, pid: int, output: int, poll: Callable[[], int | None]) -> None:
        self.pid = pid
        self._descriptor = output
        self._poll = poll
        self._output = b""
        self._seen = 0

    @classmethod
    def python(cls, *arguments: str, environment: Mapping[str, str] | None = None) -> Self:
        """A new interpreter: `python("-c", code)`, `python("-m", module, ...)`."""
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PYTHONUNBUFFERED": "1",
                **(environment or {}),
            },
            start_new_session=True,
        )
        os.close(writer)
        return cls(process.pid, reader, process.poll)

    @classmethod
    def fork(cls, function: Callable[[], object]) -> Self:
        """A copy of this process that runs `function` and ends. Fork before you start a thread."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run_and_exit(function, writer)
        os.close(writer)
        # Here and in the child: whoever comes first, the group is there to be killed.
        os.setpgid(pid, pid)
        return cls(pid, reader, _Collector(pid))

    @property
    def text(self) -> str:
        """All it has printed as far as it was read."""
        return self._output.decode(errors="replace")

    def wait_for(self, text: str, timeout: float = SECONDS_MAX) -> str:
        """Return the next line that contains `text`; fail when the output ends without it."""
        deadline = time.monotonic() + timeout
        while (line := self._next_line()) is None or text not in line:
            if line is None:
                remaining = deadline - time.monotonic()
                more = remaining > 0 and self._read(remaining)
                assert more, f"no line with {text!r}; the process printed:\n{self.text}"
        return line

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and all that it started, with no chance to tidy up."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self, timeout: float = SECONDS_MAX) -> int:
        """Return the exit code; for a process that was killed, minus the signal's number."""
        until(lambda: self._drained() is not None, timeout, f"the end of process {self.pid}")
        code = self._drained()
        assert code is not None
        return code

    def dispose(self) -> None:
        self.kill()
        os.close(self._descriptor)

    def _drained(self) -> int | None:
        # Polled first: what a process wrote before its end is then there to read.
        code = self._poll()
        while self._read(0):
            pass
        return code

    def _read(self, timeout: float) -> bool:
        ready, _, _ = select.select([self._descriptor], [], [], timeout)
        data = os.read(self._descriptor, 65536) if ready else b""
        self._output += data
        return bool(data)

    def _next_line(self) -> str | None:
        end = self._output.find(b"\n", self._seen)
        if end < 0:
            return None
        line = self._output[self._seen : end].decode(errors="replace")
        self._seen = end + 1
        return line


class _Collector:
    """The exit code of a forked process, kept once it is known."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    def __call__(self) -> int | None:
        if self.code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if ended else None
        return self.code


def _run_and_exit(function: Callable[[], object], writer: int) -> None:
    def run() -> int:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        function()
        return 0

    exit_with(run)


def exit_with(run: Callable[[], int], code: int = 1) -> NoReturn:
    """Ends this forked process with what `run` returns, or `code` and a traceback: without the parent's exit handlers
    and fixtures.
    """
    try:
        code = run()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
