"""The image, the composition and the unit: parsed, and each command line and health check run as plain processes.

No container engine runs here: what is shown is that the commands serve, not that the images build.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import redis
import yaml

from chatlock import Answered, Chatlock
from chatlock.settings import Settings
from tests.acceptance.cases.support import TENANT, message_rows, until
from tests.acceptance.services import CHAT, Served
from tests.support import ROOT, servers
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.databases import Templates
    from tests.support.servers import Endpoint

PINNED = re.compile(r"[a-z0-9./-]+:\d+\.\d+(\.\d+)?(-[a-z0-9.]+)*")
DRAIN_S = Settings.model_fields["drain_ms"].default / 1000
PORT = Settings.model_fields["port"].default
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
DOCKERFILE = (ROOT / "poller" / "Dockerfile").read_text().replace("\\\n", " ")
OURS = ("upgrade", "poller", "worker-1", "worker-2")


def seconds(text: str) -> float:
    """A duration of the composition."""
    found = re.fullmatch(r"(\d+)s", text)
    assert found, text
    return float(found[1])


def instructions(name: str) -> list[str]:
    """What follows each instruction of that name in the Dockerfile."""
    return re.findall(rf"^{name}\s+(.*?)\s*$", DOCKERFILE, re.MULTILINE)


def unit() -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names of a unit have capitals
    parser.read(ROOT / "poller" / "chatlock-poller.service")
    return parser


# -- what the files say ------------------------------------------------------------------------------------------------
def test_images_are_pinned_by_version() -> None:
    named = [service["image"] for service in SERVICES.values() if "image" in service]
    images = [*named, *instructions("FROM")]
    assert len(images) == 3
    assert all(PINNED.fullmatch(image) for image in images), images
    assert {name for name, service in SERVICES.items() if "build" in service} == set(OURS)


@pytest.mark.parametrize("image", ["postgres", "postgres:latest", "postgres:18", "valkey/valkey:alpine"])
def test_image_that_is_not_pinned_is_seen(image: str) -> None:
    assert not PINNED.fullmatch(image)


def test_image_is_built_of_files_that_are_there_and_does_not_run_as_root() -> None:
    for line in instructions("COPY"):
        *sources, _ = line.split()
        assert all((ROOT / source).exists() for source in sources), line
    extras = re.search(r"pip install '\.\[([a-z,]+)\]'", DOCKERFILE)
    assert extras
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras[1].split(",")) <= declared.keys()
    assert instructions("USER") == ["chatlock"]
    assert instructions("STOPSIGNAL") == ["SIGTERM"]


def test_every_server_has_a_health_check_and_what_depends_on_it_waits_for_it() -> None:
    for name in ("postgres", "valkey", "poller"):
        check = SERVICES[name]["healthcheck"]
        assert check["test"][0] == "CMD"
        assert seconds(check["timeout"]) < seconds(check["interval"])
    for name in ("poller", "worker-1", "worker-2"):
        assert {on: how["condition"] for on, how in SERVICES[name]["depends_on"].items()} == {
            "postgres": "service_healthy",
            "valkey": "service_healthy",
            "upgrade": "service_completed_successfully",
        }
    assert SERVICES["poller"]["healthcheck"]["test"][1:] == command_of_health_check()


def command_of_health_check() -> list[str]:
    """The image's own health check."""
    (line,) = instructions("HEALTHCHECK")
    found: list[str] = yaml.safe_load(line[line.index("[") :])
    return found


def test_ports_agree_with_the_settings() -> None:
    assert instructions("EXPOSE") == [str(PORT)]
    assert SERVICES["poller"]["ports"] == [f"127.0.0.1:{PORT}:{PORT}"], "metrics are for this machine, not the world"
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["poller"]
    for name in OURS:
        environment = SERVICES[name]["environment"]
        assert urlsplit(environment["CHATLOCK_URL"].split("@")[1]).path == "5432/chatlock"
        assert environment["CHATLOCK_REDIS_URL"] == "redis://valkey:6379/0"


def test_what_stops_a_process_waits_longer_than_the_drain() -> None:
    service = unit()["Service"]
    assert float(service["TimeoutStopSec"]) > DRAIN_S
    assert all(seconds(SERVICES[name]["stop_grace_period"]) > DRAIN_S for name in OURS)
    assert service["KillMode"] == "mixed", "SIGTERM goes to the service alone, SIGKILL to what is left"


def test_unit_waits_for_ready_and_is_watched() -> None:
    service = unit()["Service"]
    assert (service["Type"], service["Restart"]) == ("notify", "always")
    assert float(service["WatchdogSec"]) > 2 * Settings.model_fields["sweep_ms"].default / 1000


# -- what the commands do ----------------------------------------------------------------------------------------------
def program(command: list[str]) -> list[str]:
    """The arguments of this interpreter that run a command of the image."""
    name, *rest = command
    return rest if name == "python" else [str(Path(sys.executable).with_name(name)), *rest]


class Deployed(Served):
    """The composition's services as processes, on the suite's servers."""

    def told(self, name: str, **settings: object) -> dict[str, str]:
        """A service's environment, with this suite's addresses, application and port."""
        environment = {key: str(value) for key, value in SERVICES[name]["environment"].items()}
        ours = {"CHATLOCK_URL": self.database.url, "CHATLOCK_REDIS_URL": self.settings["redis_url"]}
        assert ours.keys() | {"CHATLOCK_CHAT"} <= environment.keys()
        own = {"CHATLOCK_CHAT": CHAT, "CHATLOCK_PORT": self.settings["port"], "SERVED_DIRECTORY": str(self.directory)}
        return environment | ours | own | {key: str(value) for key, value in settings.items()}

    def run(self, name: str) -> Child:
        """The service's command, kept for the test."""
        return self.keep(Child.python(*program(SERVICES[name]["command"]), environment=self.told(name)))

    def health(self, name: str) -> int:
        """The exit code of the service's health check."""
        return self.keep(
            Child.python(*program(SERVICES[name]["healthcheck"]["test"][1:]), environment=self.told(name))
        ).wait()


@pytest.fixture(params=["with tables"])
def deployed(
    request: pytest.FixtureRequest,
    templates: Templates,
    tmp_path: Path,
    child: Callable[[Child], Child],
    redis_url: str,
) -> Iterator[Deployed]:
    """On a PostgreSQL database of its own."""
    database = templates.postgresql(empty=request.param == "empty")
    made = Deployed(database, tmp_path, child, {"redis_url": redis_url, "port": str(servers.free_port())})
    yield made
    made.client.close()
    database.dispose()


@pytest.mark.parametrize("deployed", ["empty"], indirect=True)
def test_composition_answers_and_its_health_check_knows_when_it_does_not(deployed: Deployed) -> None:
    assert deployed.run("upgrade").wait() == 0
    assert deployed.health("poller") == 1, "nothing serves yet"
    running = {name: deployed.run(name) for name in OURS[1:]}
    for name, process in running.items():
        process.wait_for(f"{name.split('-')[0]}.started")
    until(lambda: deployed.health("poller") == 0, what="a healthy poller")
    assert instructions("CMD") == [str(SERVICES["poller"]["command"]).replace("'", '"')]
    with Chatlock(deployed.database.url, tenant=TENANT, poller=False) as web:
        web.submit("thread", "hello", message_id="m1", wait_ms=0)
        until(lambda: message_rows(deployed.database, "thread")[0]["disposition"] == "answered", what="the answer")
        web.handler()(lambda turn: "here")
        assert isinstance(web.submit("other", "hello"), Answered)
    for process in running.values():
        process.send(signal.SIGTERM)
    assert [process.wait() for process in running.values()] == [0, 0, 0]
    assert deployed.health("poller") == 1, "it has ended"


def test_unit_starts_what_says_ready_and_feeds_the_watchdog(deployed: Deployed) -> None:
    words = unit()["Service"]["ExecStart"].split()
    name = str(deployed.directory / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name)
        systemd.settimeout(20)
        environment = deployed.told("poller", NOTIFY_SOCKET=name)
        arguments = program([Path(words[0]).name, *words[1:]])
        poller = deployed.keep(Child.python(*arguments, environment=environment))
        assert [systemd.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        poller.send(signal.SIGTERM)
        assert poller.wait() == 0


def test_servers_of_the_composition_run_as_they_are_told(pg_server: Endpoint, tmp_path: Path) -> None:
    """valkey-cli is in the image alone: PING is asked over the wire instead."""
    where = urlsplit(pg_server.url)
    _, name, *options = SERVICES["postgres"]["healthcheck"]["test"]
    address = ["--host", str(where.hostname), "--port", str(where.port)]
    ready = subprocess.run([servers.postgres_programs() / name, *options, *address], timeout=20, check=False)
    assert ready.returncode == 0
    assert SERVICES["valkey"]["healthcheck"]["test"] == ["CMD", "valkey-cli", "ping"]
    name, *options = SERVICES["valkey"]["command"]
    assert name == "valkey-server"
    port = servers.free_port()
    with subprocess.Popen([servers.valkey_program(), *options, "--port", str(port)], cwd=tmp_path) as server:
        try:
            until(lambda: answers_ping(port), what="the answer to PING")
        finally:
            server.terminate()
    assert list(tmp_path.iterdir()) == [], "it keeps nothing"


def answers_ping(port: int) -> bool:
    with redis.Redis(port=port, socket_timeout=2) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
