"""The wheel in an empty environment: it has all it needs, and the README's first example runs there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
import zipfile
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

from chatlock.schema import SCHEMA_VERSION
from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

README = (ROOT / "README.md").read_text()
EXAMPLE = re.compile(r"<!-- example: fastapi -->\n```python\n(.*?)```", re.DOTALL)
INSTALL = re.compile(r"^pip install \. ([a-z ]*uvicorn)", re.M)
SERVING = re.compile(r"running on (http://127\.0\.0\.1:\d+)")
SECONDS_MAX = 240


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel and what the README installs beside it."""

    wheel: Path
    binaries: Path
    environment: dict[str, str]

    def run(self, *command: str | Path, cwd: Path) -> str:
        """The output of a command that has to succeed."""
        return _run(self.binaries / command[0], *command[1:], cwd=cwd, env=self.environment)


def _run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    ended = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", directory]
    _run(*build, ROOT, cwd=directory)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    directory = tmp_path_factory.mktemp("installed")
    _run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=directory)
    binaries = directory / "venv" / "bin"
    (others,) = INSTALL.findall(README)
    pip = [sys.executable, "-m", "pip", "--python", binaries / "python", "install", "--quiet"]
    _run(*pip, wheel, *others.split(), cwd=directory)
    # Nothing of the working tree and its environment may help out.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    return Installed(wheel, binaries, environment)


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """The README's first example, saved as it says."""
    found = EXAMPLE.search(README)
    assert found, "the README has no example marked fastapi"
    path = tmp_path / "app.py"
    assert "(3)" in found[1]
    path.write_text(found[1].replace("(3)", "(0)"))
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {name for name in names if ".dist-info/" not in name}
    files = (ROOT / "chatlock").rglob("*")
    expected = {str(file.relative_to(ROOT)) for file in files if file.suffix in (".py", ".typed", ".css")}
    assert inside == expected
    assert {"chatlock/py.typed", "chatlock/migrations/versions/0001_core.py"} <= inside
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_the_environment_has_only_the_wheel(installed: Installed, tmp_path: Path) -> None:
    where = "import chatlock, sys; print(chatlock.__file__); print(*sys.path, sep='\\n')"
    lines = installed.run("python", "-c", where, cwd=tmp_path).splitlines()
    assert lines[0].startswith(str(installed.binaries.parent))
    assert not any(line.startswith(str(ROOT)) for line in lines)


def test_the_command_makes_and_checks_the_tables(installed: Installed, tmp_path: Path) -> None:
    url = ("--url", "sqlite:///chat.db")
    made = installed.run("chatlock", "db", "upgrade", *url, cwd=tmp_path)
    assert made == f"chatlock tables upgraded to revision {SCHEMA_VERSION}\n"
    assert "ok" in installed.run("chatlock", "db", "check", *url, cwd=tmp_path)
    assert version("chatlock") in installed.run("chatlock", "--version", cwd=tmp_path)


def test_the_example_is_typed_against_the_wheel(installed: Installed, application: Path, tmp_path: Path) -> None:
    against = ["--strict", "--python-executable", installed.binaries / "python"]
    mypy = [sys.executable, "-m", "mypy", *against, "--cache-dir", tmp_path / "cache"]
    _run(*mypy, application, cwd=tmp_path, env=installed.environment)

    with application.open("a") as file:
        file.write("\nanswer_of_nobody: int = chat.submit(thread=1)\n")
    with pytest.raises(AssertionError, match="submit"):
        _run(*mypy, application, cwd=tmp_path, env=installed.environment)


@pytest.fixture
def served(installed: Installed, application: Path) -> Iterator[str]:
    """The address of the example, served as the README says, on a free port."""
    process = subprocess.Popen(
        [installed.binaries / "uvicorn", "app:app", "--port", "0"],
        cwd=application.parent,
        env=installed.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    printed = ""
    try:
        while not (address := SERVING.search(printed)):
            line = process.stderr.readline()
            assert line, f"uvicorn ended:\n{printed}"
            printed += line
        yield address[1]
    finally:
        process.terminate()
        rest = process.stderr.read()
        code = process.wait(SECONDS_MAX)
        process.stderr.close()
    assert "Traceback" not in rest
    assert code in (0, -15)


def post(url: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=20) as answer:
        return json.load(answer)


def test_the_example_serves(served: str) -> None:
    first = post(f"{served}/threads/t1/messages/m1?text=hello")
    assert (first["outcome"], first["turn"], first["reply"]) == ("Answered", 1, "You said: hello")
    assert post(f"{served}/threads/t1/messages/m1?text=hello") == first | {"outcome": "AlreadyAnswered"}
    second = post(f"{served}/threads/t1/messages/m2?text=more")
    assert (second["turn"], second["reply"]) == (2, "You said: more")
