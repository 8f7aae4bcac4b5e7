"""The processes of the demo: a poller and workers, started as an operator would, and what the nemesis does to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil


class Fleet:
    """Starts `chatlock poller` and `chatlock worker` with one environment, and ends them all."""

    def __init__(self, environment: dict[str, str], logs: Path) -> None:
        self._environment, self._logs = {**os.environ, **environment}, logs
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Starts one in a session of its own; what it prints goes to a log file."""
        program = Path(sys.executable).with_name("chatlock")
        with (self._logs / f"{command}.log").open("ab") as output:
            process = subprocess.Popen(
                [str(program), command],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def stop(self) -> None:
        """SIGTERM to all that live, SIGKILL to what is left."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                kill_whole(process)


def whole(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The process and its work-horses."""
    try:
        parent = psutil.Process(process.pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def send(members: list[psutil.Process], number: signal.Signals) -> None:
    """The signal to each that still lives."""
    for member in members:
        try:
            member.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def kill_whole(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a worker and its work-horses: no cleanup of any kind runs."""
    send(whole(process), signal.SIGKILL)
    process.wait(10)


def lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def until(what: str, found: Callable[[], Any], seconds: float) -> Any:
    """What `found` returns once it is true; an error that says what did not come."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(0.05)
    raise RuntimeError(f"{what} did not come within {seconds:.0f} s")
