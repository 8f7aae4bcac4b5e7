"""A server that refuses a login, cannot be reached or restarts: one typed error that names the remedy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from chatlock import AlreadyAnswered, AsyncChatlock, Chatlock, StoreUnavailable
from chatlock.cli import main
from chatlock.errors import LoginRefused, StoreReadOnly
from tests.acceptance.failures.told import NOWHERE, PASSWORD, PAYLOAD, TENANT, leaks, submit, told
from tests.acceptance.life import AT_ONCE, until
from tests.support import servers
from tests.support.databases import connect


@pytest.fixture(scope="module")
def own_server() -> Iterator[servers.PostgreSQL]:
    """A PostgreSQL that asks `guarded` for a password, and that these tests may stop."""
    with servers.PostgreSQL() as server:
        with Chatlock(server.url, tenant=TENANT, poller=False) as chat:
            chat.setup()
        rules = server.data / "pg_hba.conf"
        rules.write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        with closing(connect(server.url)) as connection:
            connection.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
            connection.execute("SELECT pg_reload_conf()")
        yield server


def guarded(server: servers.PostgreSQL, password: str) -> str:
    return server.url.replace("postgres@", f"guarded:{password}@")


@pytest.mark.parametrize("world", ["sync", "async"])
def test_wrong_password_and_missing_rights(own_server: servers.PostgreSQL, world: str) -> None:
    until(lambda: asks_for_a_password(own_server), what="the new rules of the server")
    told(lambda: submit(world, guarded(own_server, PASSWORD)), LoginRefused, "refused the login; check the user")
    no_password = own_server.url.replace("postgres@", "guarded@")
    told(lambda: submit(world, no_password), LoginRefused, "refused the login; check the user")
    nowhere = make_url(own_server.url).set(database=PASSWORD)
    told(lambda: submit(world, nowhere), LoginRefused, "has no such database; check the database's name")
    told(lambda: submit(world, guarded(own_server, "right")), StoreReadOnly, "permissions .* of the role")


REFUSED = {PASSWORD: "the server refused the login", "right": "the server has no such database"}


@pytest.mark.parametrize("password", REFUSED)
def test_commands_tell_a_refused_login_from_an_outage(own_server: servers.PostgreSQL, password: str) -> None:
    until(lambda: asks_for_a_password(own_server), what="the new rules of the server")
    url = make_url(guarded(own_server, password))
    env = {"CHATLOCK_URL": (url if password == PASSWORD else url.set(database=PASSWORD)).render_as_string(False)}
    for command, code in (["db", "check"], 2), (["doctor"], 1):
        result = CliRunner(env=env).invoke(main, command)
        assert (result.exit_code, REFUSED[password] in result.output) == (code, True), result.output
        assert PASSWORD not in result.output


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_login_that_is_refused_to_the_callers_own_connection(own_server: servers.PostgreSQL, driver: str) -> None:
    until(lambda: asks_for_a_password(own_server), what="the new rules of the server")

    async def store(url: Any) -> None:
        engine = create_async_engine(url)
        async with AsyncChatlock(own_server.url, tenant=TENANT, poller=False) as chat, AsyncSession(engine) as session:
            await chat.submit("thread", PAYLOAD, conn=session)

    wrong = make_url(guarded(own_server, PASSWORD)).set(drivername=f"postgresql+{driver}")
    told(lambda: asyncio.run(store(wrong)), LoginRefused, "refused the login")
    nowhere = make_url(own_server.url).set(drivername=f"postgresql+{driver}", database=PASSWORD)
    told(lambda: asyncio.run(store(nowhere)), LoginRefused, "no such database")


def asks_for_a_password(server: servers.PostgreSQL) -> bool:
    with suppress(psycopg.OperationalError):
        connect(guarded(server, "wrong")).close()
        return False
    return True


@pytest.mark.parametrize("world", ["sync", "async"])
@pytest.mark.parametrize("where", [NOWHERE, NOWHERE.replace("127.0.0.1", "host.invalid")])
def test_server_that_cannot_be_reached(world: str, where: str) -> None:
    told(lambda: submit(world, where), StoreUnavailable, "cannot be reached; check that it runs")


@pytest.mark.parametrize("world", ["sync", "async"])
def test_restart_of_the_server_in_the_middle(own_server: servers.PostgreSQL, world: str) -> None:
    """While it is away calls are refused and store nothing; then the same client goes on, and so does its turn."""
    if world == "async":
        asyncio.run(_restarted_async(own_server))
        return
    with Chatlock(own_server.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat:
        turn: Any = chat.begin(world, PAYLOAD, message_id="m1")
        own_server.kill()
        told(lambda: chat.status(world, "m1"), StoreUnavailable, "cannot be reached")
        told(lambda: chat.submit("other", PAYLOAD, message_id="m2", wait_ms=0), StoreUnavailable, "cannot be reached")
        told(lambda: turn.finish(PAYLOAD), StoreUnavailable, "cannot be reached")
        own_server.start()
        assert type(chat.status("other", "m2")).__name__ == "NotFound"
        turn.finish("done")
        assert isinstance(chat.status(world, "m1"), AlreadyAnswered)
        assert chat.verify().ok


async def _restarted_async(server: servers.PostgreSQL) -> None:
    async with AsyncChatlock(server.url, tenant=TENANT, poller=False, limits=AT_ONCE) as chat:
        turn: Any = await chat.begin("async", PAYLOAD, message_id="m1")
        server.kill()
        for call in (chat.status("async", "m1"), chat.submit("other", PAYLOAD, message_id="m2", wait_ms=0)):
            with pytest.raises(StoreUnavailable, match="cannot be reached") as refused:
                await call
            assert not leaks(str(refused.value))
        server.start()
        assert type(await chat.status("other", "m2")).__name__ == "NotFound"
        await turn.finish("done")
        assert isinstance(await chat.status("async", "m1"), AlreadyAnswered)
