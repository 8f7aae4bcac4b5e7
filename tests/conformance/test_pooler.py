"""What submit and turn promise, once more through a transaction pooler, with pooler="transaction"."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import psycopg
import pytest

from chatlock import Answered, Chatlock, Outcome, StoreUnavailable
from chatlock.doctor import Level, examine
from chatlock.executor import Executor
from tests.conformance import test_submit, test_turn
from tests.conformance.conftest import NewChat, Shelf
from tests.support.databases import Database
from tests.support.pooler import Pooler
from tests.support.servers import Endpoint


@pytest.fixture(scope="module")
def pooler(pg_server: Endpoint) -> Iterator[Pooler]:
    with Pooler(pg_server.url) as made:
        yield made


@pytest.fixture
def database(shelf: Shelf, pooler: Pooler) -> Iterator[Database]:
    """A PostgreSQL database that is reached through the pooler, and verified past it."""
    for lent in shelf.lend("postgresql"):
        shelf._checkers.setdefault("postgresql", Executor(lent.url, pool_size=1, pooler=None))
        lent.url = pooler.url_of(lent.url)
        yield lent


@pytest.fixture
def new_chat(new_chat: NewChat) -> NewChat:
    """Clients that are told of the pooler."""
    return lambda **options: new_chat(pooler="transaction", **options)


@pytest.fixture(params=["sync-hot", "sync-locked"])
def way(request: pytest.FixtureRequest) -> str:
    """Async clients run the same operations in OS threads."""
    return str(request.param)


# -- the controls ------------------------------------------------------------------------------------------------------
def backends(url: str, count: int) -> set[int]:
    """The sessions of the server that serve one connection."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True, prepare_threshold=None) as connection:
        return {connection.execute("SELECT pg_backend_pid()").fetchone()[0] for _ in range(count)}  # type: ignore[index]


def test_each_transaction_of_a_connection_has_another_session(database: Database) -> None:
    assert len(backends(database.url, 6)) > 1


def test_a_transaction_stays_in_its_session(database: Database) -> None:
    with psycopg.connect(database.url.replace("+psycopg", "")) as connection, connection.transaction():
        assert len({connection.execute("SELECT pg_backend_pid()").fetchone() for _ in range(6)}) == 1


def test_client_that_is_not_told_fails_with_a_typed_error_and_doctor_says_why(database: Database) -> None:
    """What it prepared is unknown to the next session."""
    with Chatlock(database.url, tenant="t", poller=False) as chat:
        chat.handler()(lambda turn: "done")
        with pytest.raises(StoreUnavailable):
            answer_fifty(chat)
    executor = Executor(database.url, pool_size=2, pooler=None)
    (found,) = (each for each in examine(executor, pooler=None, redis_url=None) if each.check == "pooler")
    assert found.level is Level.FAILED
    executor.close()


def test_client_that_is_told_answers(new_chat: NewChat) -> None:
    """The same fifty."""
    chat = new_chat()
    chat.handler()(lambda turn: "done")
    assert all(isinstance(told, Answered) for told in answer_fifty(chat))


def answer_fifty(chat: Chatlock) -> list[Outcome]:
    return [chat.submit(f"c{number}", "hello") for number in range(50)]


# -- the suite ---------------------------------------------------------------------------------------------------------
def again(module: ModuleType) -> dict[str, Any]:
    """The module's tests and fixtures, to be collected here."""
    short = module.__name__.rpartition("test_")[2]
    mark = getattr(module, "pytestmark", pytest.mark.usefixtures())
    tests = {name: found for name, found in vars(module).items() if name.startswith("test_")}
    fixtures = {name: found for name, found in vars(module).items() if isinstance(found, type(database))}
    assert tests
    return fixtures | {f"test_{short}_{name.removeprefix('test_')}": mark(test) for name, test in tests.items()}


for _module in (test_submit, test_turn):
    globals().update(again(_module))
