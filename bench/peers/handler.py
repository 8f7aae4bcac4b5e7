"""The handler that all peers run, and the log that it writes: an atomic append per event."""

from __future__ import annotations

import asyncio
import os
import time

from bench.peers import At


class Journal:
    """Writes the lines that judge.py reads."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, kind: str, *fields: object) -> None:
        os.write(self._file, f"{' '.join(map(str, (kind, *fields)))}\n".encode())

    def close(self) -> None:
        os.close(self._file)


class Handler:
    """Works on a message for some seconds, in sync or async code."""

    def __init__(self, at: At) -> None:
        self.journal = Journal(at.log)

    def __call__(self, thread: str, message: str, work: float, turn: object = None) -> None:
        told = os.getpid(), message if turn is None else turn
        self.journal.write("begin", thread, message, time.monotonic_ns(), *told)
        if work:
            time.sleep(work)
        self.journal.write("end", thread, message, time.monotonic_ns(), *told)

    async def asynchronous(self, thread: str, message: str, work: float) -> None:
        told = os.getpid(), message
        self.journal.write("begin", thread, message, time.monotonic_ns(), *told)
        if work:
            await asyncio.sleep(work)
        self.journal.write("end", thread, message, time.monotonic_ns(), *told)
