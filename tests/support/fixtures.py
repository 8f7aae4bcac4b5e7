"""The fixtures of the suite, and its rule that nothing is skipped."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import hypothesis
import pytest
import redis

from tests.support import scaled, servers, shared
from tests.support.databases import KINDS, Database, Templates

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from tests.support.processes import Child
    from tests.support.servers import Endpoint

hypothesis.settings.register_profile(
    "chatlock",
    max_examples=scaled(50, 2000),
    deadline=None,
    derandomize=True,
    database=None,
)
hypothesis.settings.load_profile("chatlock")


def pytest_configure() -> None:
    """A shell starts its background jobs with SIGINT ignored, and children would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def pg_server() -> Iterator[Endpoint]:
    """The PostgreSQL of this run: from the environment, from the runner, or our own."""
    existing = os.environ.get(servers.PG_URL)
    if existing:
        yield servers.Existing(existing)
    elif shared.postgres:
        yield shared.postgres
    else:
        with servers.PostgreSQL() as server:
            yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Endpoint]:
    """The Valkey of this process: channels are not per database, so workers share none."""
    existing = os.environ.get(servers.REDIS_URL)
    if existing:
        yield servers.Existing(existing)
    else:
        with servers.Valkey() as server:
            yield server


@pytest.fixture
def redis_url(valkey_server: Endpoint) -> str:
    """An empty Redis database."""
    url = urlsplit(valkey_server.url)._replace(path=f"/{shared.worker}").geturl()
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture(scope="session")
def templates(request: pytest.FixtureRequest) -> Iterator[Templates]:
    """Where the databases of the tests are copied from; PostgreSQL starts at the first use."""
    if shared.templates:
        yield shared.templates
        shared.templates.disconnect()
    else:
        own = Templates(lambda: request.getfixturevalue("pg_server").url)
        yield own
        own.dispose()


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, templates: Templates, tmp_path: Path) -> Iterator[Database]:
    """A database with chatlock's schema: the test runs on both kinds."""
    yield from _database(request.param, templates, tmp_path, empty=False)


@pytest.fixture(params=KINDS)
def empty_database(request: pytest.FixtureRequest, templates: Templates, tmp_path: Path) -> Iterator[Database]:
    """A database without any table: the test runs on both kinds."""
    yield from _database(request.param, templates, tmp_path, empty=True)


@pytest.fixture
def pg_database(templates: Templates, tmp_path: Path) -> Iterator[Database]:
    """A PostgreSQL database with the schema, for what only PostgreSQL has."""
    yield from _database("postgresql", templates, tmp_path, empty=False)


@pytest.fixture
def sqlite_database(templates: Templates, tmp_path: Path) -> Iterator[Database]:
    """An SQLite database with the schema, for what only SQLite has."""
    yield from _database("sqlite", templates, tmp_path, empty=False)


@pytest.fixture
def child() -> Iterator[Callable[[Child], Child]]:
    """Keeps a process for the test, and ends it afterwards: `child(Child.fork(work))`."""
    children: list[Child] = []

    def keep(process: Child) -> Child:
        children.append(process)
        return process

    yield keep
    for process in children:
        process.dispose()


def _database(kind: str, templates: Templates, directory: Path, *, empty: bool) -> Iterator[Database]:
    if kind == "sqlite":
        made = templates.sqlite(directory / "chatlock.db", empty=empty)
    else:
        made = templates.postgresql(empty=empty)
    yield made
    made.dispose()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped:
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _fail(report)
    return report


def _fail(report: Any) -> None:
    report.outcome = "failed"
    report.longrepr = f"Nothing is skipped or expected to fail here: {report.longrepr}"
    # pytest shows a report that has it as an expected failure.
    vars(report).pop("wasxfail", None)
