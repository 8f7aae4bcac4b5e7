"""Clients that go away, and SIGTERM, on uvicorn, hypercorn and granian: the claim always comes back."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from tests.frameworks.conftest import row_of
from tests.support.databases import Database, Templates
from tests.support.processes import Child
from tests.support.waiting import SECONDS_MAX, until

APP = "tests.frameworks.hosted:app"
COMMANDS = {
    "uvicorn": ["-m", "uvicorn", APP, "--port={port}", "--timeout-graceful-shutdown=1", "--log-level=warning"],
    "hypercorn": ["-m", "hypercorn", APP, "--bind=127.0.0.1:{port}", "--graceful-timeout=1"],
    "granian": ["-m", "granian", APP, "--interface=asgi", "--port={port}", "--workers-kill-timeout=5", "--no-log"],
}


@dataclass
class Server:
    """One server process over a database of its own."""

    child: Child
    port: int
    folder: Path
    database: Database

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=SECONDS_MAX)

    def ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def hold(self, thread: str) -> Path:
        held = self.folder / f"hold-{thread}"
        held.touch()
        return held

    def entered(self, thread: str) -> None:
        until((self.folder / f"entered-{thread}").exists, what="the turn")

    def state(self, thread: str) -> tuple[object, ...]:
        return row_of(self.database, thread, "status, attempts, stalls, done_seq")

    def messages(self, thread: str) -> str:
        return f"/threads/{thread}/messages"


@pytest.fixture(scope="module")
def servers(templates: Templates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """All of them, started side by side."""
    started: dict[str, Server] = {}
    for name, command in COMMANDS.items():
        folder = tmp_path_factory.mktemp(name)
        database = templates.sqlite(folder / "chatlock.db")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {"HOSTED_FOLDER": str(folder), "HOSTED_URL": database.url}
        child = Child.python(*(part.format(port=port) for part in command), environment=environment)
        started[name] = Server(child, port, folder, database)
    yield started
    for server in started.values():
        server.child.dispose()
        server.database.dispose()


@pytest.fixture(params=COMMANDS)
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    found = servers[request.param]
    until(found.ready, what=f"{request.param}, which printed {found.child.text}")
    return found


def test_dropped_client_releases_an_attached_turn(server: Server) -> None:
    server.hold("a")
    with server.http as http, http.stream("POST", "/attached/a", json="x") as response:
        lines = response.iter_lines()  # kept: httpx drops the connection with its iterator
        assert next(lines) == "begun"
        assert server.state("a")[0] == "running"
    until(lambda: server.state("a") == ("idle", 0, 0, 0), what="the release")


@pytest.mark.parametrize(
    ("thread", "path", "accept"),
    [
        ("b-stream", "/threads/b-stream/messages", "text/event-stream"),
        ("b-json", "/threads/b-json/messages", "application/json"),
        ("b-plain", "/plain/b-plain", "application/json"),
    ],
    ids=["detached stream", "detached json", "attached json"],
)
def test_dropped_client_stops_neither_a_detached_turn_nor_a_plain_handler(
    server: Server, thread: str, path: str, accept: str
) -> None:
    """A detached turn, and an attached one whose handler returns its answer in one piece."""
    held = server.hold(thread)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAccept: {accept}\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(f'{head}Idempotency-Key: k\r\nContent-Length: 3\r\n\r\n"x"'.encode())
        server.entered(thread)
    assert server.state(thread)[0] == "running"
    held.unlink()
    until(lambda: server.state(thread) == ("idle", 0, 0, 1), what="the answer")


def test_dropped_socket_does_not_stop_its_turn_and_is_followed_on(server: Server) -> None:
    held = server.hold("c")
    url = f"ws://127.0.0.1:{server.port}/threads/c/socket"
    with connect(url, close_timeout=1) as client:
        client.send(json.dumps({"do": "submit", "message_id": "m", "payload": "x"}))
        server.entered("c")
        client.socket.shutdown(socket.SHUT_RDWR)
    with connect(url, close_timeout=1) as client:
        client.send(json.dumps({"do": "follow", "message_id": "m"}))
        assert json.loads(client.recv(SECONDS_MAX))["data"] == "one "
        held.unlink()
        assert json.loads(client.recv(SECONDS_MAX))["data"] == "two"
    until(lambda: server.state("c") == ("idle", 0, 0, 1), what="the answer")


def test_server_that_is_told_to_end_hands_every_turn_back(server: Server) -> None:
    """Last: it ends the process.  granian waits for an open stream, and then kills: its client leaves before."""
    for thread in ("d", "e"):
        server.hold(thread)
    with server.http as http, ExitStack() as streaming:
        streaming.enter_context(http.stream("POST", "/attached/d", json="x"))
        http.post(server.messages("e"), json="x", headers={"Prefer": "respond-async"})
        server.entered("d")
        server.entered("e")
        if "granian" in server.folder.name:
            streaming.close()
        server.child.send(signal.SIGTERM)
        server.child.wait()
    assert (server.folder / "closed").exists()
    assert [server.state(thread) for thread in ("d", "e")] == [("idle", 0, 0, 0)] * 2
