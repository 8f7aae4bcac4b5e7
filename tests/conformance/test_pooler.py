"""The pooler of the tests gives each transaction another session, and who is not told of it finds out."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from chatlock import Answered, Chatlock, Outcome, StoreUnavailable
from chatlock.dialects import make_engine
from chatlock.doctor import Level, examine
from chatlock.executor import Executor
from tests.conformance.conftest import NewChat, Shelf
from tests.support.databases import Database


@pytest.fixture
def database(shelf: Shelf) -> Iterator[Database]:
    """A PostgreSQL database that is reached through the pooler."""
    yield from shelf.lend("pooled")


@pytest.fixture(autouse=True)
def _told_by_the_test(_compile_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a client knows of the pooler only if the test says so."""
    monkeypatch.setattr("chatlock.executor.make_engine", make_engine)


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
    chat = new_chat(pooler="transaction")
    chat.handler()(lambda turn: "done")
    assert all(isinstance(told, Answered) for told in answer_fifty(chat))


def answer_fifty(chat: Chatlock) -> list[Outcome]:
    return [chat.submit(f"c{number}", "hello") for number in range(50)]
