"""What PostgreSQL may be set to: its encodings, and how many connections it lets in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url

from chatlock import Chatlock, Queued
from chatlock.errors import StoreUnavailable

if TYPE_CHECKING:
    from tests.support.databases import Database


def test_text_is_utf8_whatever_encoding_the_url_asks_for(pg_database: Database) -> None:
    url = make_url(pg_database.url).update_query_dict({"client_encoding": "latin1"})
    with Chatlock(url, tenant="t", poller=False) as chat:
        chat.handler()(lambda turn: turn.messages[0].payload)
        assert chat.submit("日本", "€", message_id="ы").reply == "€"  # type: ignore[union-attr]


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_database_of_another_encoding_is_refused(pg_database: Database, encoding: str) -> None:
    name = f"{make_url(pg_database.url).database}_{encoding.lower()}"
    connection = pg_database.connect()
    connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    try:
        with Chatlock(make_url(pg_database.url).set(database=name), tenant="t", poller=False) as chat:
            for call in (chat.setup, chat.verify):
                with pytest.raises(StoreUnavailable, match="not in UTF-8"):
                    call()
    finally:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_role_with_few_connections_is_served_by_those_it_has(pg_database: Database) -> None:
    """More are refused: the callers share what is open, and nothing that is open is closed for it."""
    role = f"{make_url(pg_database.url).database}_few"
    connection = pg_database.connect()
    connection.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 2 PASSWORD 'few'")
    connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    try:
        url = make_url(pg_database.url).set(username=role, password="few")
        with Chatlock(url, tenant="t", poller=False, pool_size=5) as chat, ThreadPoolExecutor(6) as callers:
            told = list(callers.map(lambda number: chat.submit(f"c{number}", "hello", wait_ms=0), range(6)))
        assert all(isinstance(outcome, Queued) for outcome in told)
    finally:
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")
