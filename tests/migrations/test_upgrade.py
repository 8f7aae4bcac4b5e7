"""`upgrade` on every kind of connection, and which databases it and `check` refuse."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

import chatlock.migrations
from chatlock import schema
from chatlock.dialects import make_engine
from chatlock.errors import InvalidInput, SchemaMismatch, StoreUnavailable
from tests.migrations import stages
from tests.migrations.stages import NEXT, plain_connection, tables, upgrade_to_next

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from tests.support.databases import Database

ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


def assert_upgraded(database: Database) -> None:
    """As another connection sees it: what was done is committed."""
    with plain_connection(database) as other:
        chatlock.migrations.check(other)
        assert chatlock.migrations.current(other) == schema.SCHEMA_VERSION


def assert_nothing_there(database: Database) -> None:
    with plain_connection(database) as other:
        assert chatlock.migrations.current(other) is None
        assert tables(other) == set()


def fail() -> None:
    raise RuntimeError("the revision fails midway")


def test_upgrade_commits_and_leaves_no_transaction_open(empty_database: Database) -> None:
    with plain_connection(empty_database) as conn:
        assert chatlock.migrations.current(conn) is None
        chatlock.migrations.upgrade(conn)
        assert not conn.in_transaction()
    assert_upgraded(empty_database)


def test_upgrade_on_a_connection_of_chatlock(empty_database: Database) -> None:
    engine = make_engine(empty_database.url)
    with engine.connect() as conn:
        chatlock.migrations.upgrade(conn)
        assert not conn.in_transaction()
    engine.dispose()
    assert_upgraded(empty_database)


@pytest.mark.parametrize("used_before", [False, True])
def test_upgrade_in_autocommit_commits_all_at_once(
    empty_database: Database, used_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with plain_connection(empty_database, isolation_level="AUTOCOMMIT") as conn:
        if used_before:
            conn.execute(sqlalchemy.text("SELECT 1"))
        monkeypatch.setattr(stages, "midway", fail)
        with pytest.raises(RuntimeError):
            upgrade_to_next(conn)
        assert_nothing_there(empty_database)
        chatlock.migrations.upgrade(conn)
        assert_upgraded(empty_database)


def test_upgrade_inside_an_open_transaction_is_the_callers_to_commit(
    empty_database: Database,
) -> None:
    with plain_connection(empty_database) as conn:
        transaction = conn.begin()
        chatlock.migrations.upgrade(conn)
        assert chatlock.migrations.current(conn) == schema.SCHEMA_VERSION
        assert_nothing_there(empty_database)
        transaction.commit()
    assert_upgraded(empty_database)


def test_the_caller_can_roll_an_upgrade_back(empty_database: Database) -> None:
    with plain_connection(empty_database) as conn:
        conn.execute(sqlalchemy.text("SELECT 1"))
        chatlock.migrations.upgrade(conn)
        conn.rollback()
    assert_nothing_there(empty_database)


def test_a_revision_that_fails_leaves_nothing(empty_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "midway", fail)
    with plain_connection(empty_database) as conn:
        with pytest.raises(RuntimeError):
            upgrade_to_next(conn)
        assert not conn.in_transaction()
    assert_nothing_there(empty_database)


def test_upgrade_repeats_without_effect(database: Database) -> None:
    with plain_connection(database) as conn:
        conn.execute(sqlalchemy.text("UPDATE chatlock_meta SET value = 5 WHERE name = 'epoch'"))
        conn.commit()
        chatlock.migrations.upgrade(conn)
        chatlock.migrations.upgrade(conn, to=1)
        assert stages.number(conn, "epoch") == 5


def test_upgrade_stops_at_the_revision_that_was_asked_for(empty_database: Database) -> None:
    with plain_connection(empty_database) as conn:
        chatlock.migrations.upgrade(conn, to=1)
        assert chatlock.migrations.current(conn) == 1
        with pytest.raises(InvalidInput):
            chatlock.migrations.upgrade(conn, to=NEXT)
        upgrade_to_next(conn)
        assert chatlock.migrations.current(conn) == NEXT


@pytest.mark.parametrize("revision", range(1, NEXT))
def test_upgrade_keeps_the_rows_of_every_older_revision(empty_database: Database, revision: int) -> None:
    row = "INSERT INTO chatlock_threads (tenant, thread_id, token) VALUES ('acme', 'one', 7)"
    with plain_connection(empty_database) as conn:
        chatlock.migrations.upgrade(conn, to=revision)
        conn.execute(sqlalchemy.text(row))
        conn.commit()
        upgrade_to_next(conn)
        assert chatlock.migrations.current(conn) == stages.number(conn, "schema") == NEXT
        found = conn.execute(sqlalchemy.text("SELECT thread_id, token FROM chatlock_threads")).all()
    assert found == [("one", 7)]


def test_upgrade_over_an_async_driver(empty_database: Database) -> None:
    async def run() -> None:
        url = sqlalchemy.make_url(empty_database.url)
        engine = create_async_engine(url.set(drivername=ASYNC_DRIVERS[empty_database.kind]))
        async with engine.connect() as conn:
            await conn.run_sync(chatlock.migrations.upgrade)
        autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        async with autocommit.connect() as conn:
            await conn.run_sync(upgrade_to_next)
            assert await conn.run_sync(chatlock.migrations.current) == NEXT
        await engine.dispose()

    asyncio.run(run())


def test_upgrade_in_another_postgresql_schema(pg_database: Database) -> None:
    with plain_connection(pg_database) as conn:
        conn.exec_driver_sql("CREATE SCHEMA chat")
        conn.exec_driver_sql("SET search_path = chat")
        conn.commit()
        assert chatlock.migrations.current(conn) is None
        chatlock.migrations.upgrade(conn)
        inspector = sqlalchemy.inspect(conn)
        made = set(inspector.get_table_names("chat"))
        assert made == set(inspector.get_table_names("public"))
        assert schema.VERSION_TABLE in made


def set_revision(conn: Connection, revision: int, min_client: int) -> None:
    """The database as another release of chatlock would have left it."""
    conn.exec_driver_sql(f"UPDATE {schema.VERSION_TABLE} SET version_num = '{revision:04}'")
    conn.exec_driver_sql(f"UPDATE chatlock_meta SET value = {min_client} WHERE name = 'min_client'")
    conn.commit()


def test_check_passes_and_leaves_no_transaction_open(database: Database) -> None:
    with plain_connection(database) as conn:
        chatlock.migrations.check(conn)
        assert not conn.in_transaction()


def test_check_leaves_the_callers_transaction_open(database: Database) -> None:
    with plain_connection(database) as conn, conn.begin() as transaction:
        chatlock.migrations.check(conn)
        assert transaction.is_active


def test_missing_tables_are_refused_with_the_remedy(empty_database: Database) -> None:
    with plain_connection(empty_database) as conn:
        with pytest.raises(SchemaMismatch, match="no chatlock tables; run `chatlock db upgrade`"):
            chatlock.migrations.check(conn)
        conn.exec_driver_sql(f"CREATE TABLE {schema.VERSION_TABLE} (version_num VARCHAR(32))")
        conn.commit()
        with pytest.raises(SchemaMismatch, match="no chatlock tables"):
            chatlock.migrations.check(conn)


def test_older_tables_are_refused_with_the_remedy(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chatlock.migrations, "SCHEMA_VERSION", NEXT)
    with (
        plain_connection(database) as conn,
        pytest.raises(SchemaMismatch, match=r"at revision \d+ .* needs \d+; run `chatlock db upgrade`"),
    ):
        chatlock.migrations.check(conn)


def test_newer_tables_that_admit_this_version_are_fine(database: Database) -> None:
    with plain_connection(database) as conn:
        set_revision(conn, NEXT, min_client=schema.SCHEMA_VERSION)
        chatlock.migrations.check(conn)
        chatlock.migrations.upgrade(conn)
        assert chatlock.migrations.current(conn) == NEXT


@pytest.mark.parametrize("operation", [chatlock.migrations.check, chatlock.migrations.upgrade])
def test_newer_tables_that_do_not_admit_this_version_are_refused(database: Database, operation: Any) -> None:
    with plain_connection(database) as conn:
        set_revision(conn, NEXT, min_client=NEXT)
        with pytest.raises(SchemaMismatch, match=rf"revision {NEXT}, too new .* upgrade the chatlock"):
            operation(conn)
        assert not conn.in_transaction()
        conn.exec_driver_sql("DELETE FROM chatlock_meta WHERE name = 'min_client'")
        conn.commit()
        with pytest.raises(SchemaMismatch, match="too new"):
            operation(conn)


@pytest.mark.parametrize("operation", [chatlock.migrations.check, chatlock.migrations.upgrade])
def test_a_server_that_is_too_old_is_named(
    empty_database: Database, operation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, text = {
        "sqlite": ((3, 34, 1), "SQLite 3.34.1 is too old: chatlock needs 3.35.0 or newer"),
        "postgresql": ((14, 20), "PostgreSQL 14.20 is too old: chatlock needs 15 or newer"),
    }[empty_database.kind]
    with plain_connection(empty_database) as conn:
        monkeypatch.setattr(conn.dialect, "server_version_info", old)
        with pytest.raises(StoreUnavailable, match=text):
            operation(conn)
    assert_nothing_there(empty_database)


@pytest.mark.parametrize("operation", [chatlock.migrations.check, chatlock.migrations.upgrade])
def test_another_kind_of_database_is_refused(
    empty_database: Database, operation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with plain_connection(empty_database) as conn:
        monkeypatch.setattr(conn.dialect, "name", "mysql")
        with pytest.raises(InvalidInput, match="postgresql and sqlite, not on 'mysql'"):
            operation(conn)
