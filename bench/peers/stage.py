"""A peer on stage: a fresh database, a log, a sender, and two worker processes in groups of their own."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psycopg
import redis

from bench.peers import At, Peer
from bench.peers.handler import Journal
from bench.peers.judge import Log, read

WORKERS = 2
LOOK_S = 0.1
START_S = 30


@dataclass(frozen=True)
class Servers:
    """What all stages share."""

    url: str
    """PostgreSQL, without a database's name."""
    redis: str
    """Valkey, without a database's number."""
    folder: Path
    threads: tuple[str, ...]


class Stage:
    """One peer with its workers; `number` keeps stages that are up together apart."""

    def __init__(self, servers: Servers, peer: Peer, number: int = 0) -> None:
        self.peer, self._servers, self._number = peer, servers, number
        self._module: Any = importlib.import_module(f"bench.peers.{peer.module}")
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        servers, name = self._servers, f"peer{self._number}"
        with psycopg.connect(f"{servers.url}/postgres", autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {name}")
        log = servers.folder / f"{name}-{time.monotonic_ns()}.log"
        address = f"{servers.redis}/{self._number}"
        redis.Redis.from_url(address).flushdb()
        self.at = At(f"{servers.url}/{name}", address, str(log), servers.threads, self.peer.options)
        self.journal = Journal(self.at.log)
        self._module.setup(self.at)
        self._producer = self._module.Producer(self.at)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            self._kill(worker)
        self._producer.close()
        self.journal.close()

    def send(self, thread: str, message: str, work: float = 0.0) -> None:
        """Sends a message, whose handler then works for so many seconds."""
        at = time.monotonic_ns()
        self.journal.write("sent", thread, message, at)
        self._producer.send(thread, message, work)
        if not self.peer.in_place:
            self.journal.write("accepted", thread, message, at, time.monotonic_ns())

    def analyze(self) -> None:
        """Gives the planner its statistics, as autovacuum would within a minute."""
        with psycopg.connect(self.at.url, autocommit=True) as connection:
            connection.execute("ANALYZE")

    def _start(self) -> None:
        """Starts the workers; returns when they handle messages."""
        environment = {**os.environ, **self.at.environment(), "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-m", "bench.peers.worker", self.peer.module]
        with open(f"{self.at.log}.errors", "ab") as errors:
            for _ in range(WORKERS):
                worker = subprocess.Popen(
                    command, env=environment, stdout=errors, stderr=errors, start_new_session=True
                )
                self._workers.append(worker)
        names = [f"warm{number}" for number in range(2 * WORKERS)]
        for name in names:
            self.send(name, name)
        if not self.done(names, START_S):
            raise SystemExit(f"{self.peer.name} handled nothing:\n{self.errors()}")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The workers stand still meanwhile."""
        for worker in self._workers:
            os.killpg(worker.pid, signal.SIGSTOP)
        yield
        for worker in self._workers:
            os.killpg(worker.pid, signal.SIGCONT)

    def log(self) -> Log:
        return read(Path(self.at.log).read_text())

    def until(self, true_of: Callable[[Log], bool], seconds: float) -> bool:
        """Looks at the log until it is so, or so many seconds are over."""
        deadline = time.monotonic() + seconds
        while not true_of(self.log()):
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_S)
        return True

    def done(self, messages: Iterable[str], seconds: float) -> bool:
        """Waits until a handler was done with each."""
        wanted = set(messages)
        return self.until(lambda log: wanted <= log.done(), seconds)

    def kill(self, pid: int) -> int:
        """Kills the worker that is, or has forked, this process; returns when."""
        worker = next(worker for worker in self._workers if worker.pid in (pid, os.getpgid(pid)))
        self._kill(worker)
        at = time.monotonic_ns()
        self.journal.write("killed", pid, at)
        return at

    def errors(self) -> str:
        """The end of what the workers printed."""
        return Path(f"{self.at.log}.errors").read_text(errors="replace")[-2000:]

    def _kill(self, worker: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
