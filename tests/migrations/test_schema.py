"""The revisions, the printed SQL and the declared tables are one and the same schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import chatlock.migrations
from chatlock import schema
from chatlock.errors import InvalidInput
from chatlock.migrations import revisions
from tests.migrations.stages import NEWEST, NEXT, WITH_NEXT, number, plain_connection, tables

if TYPE_CHECKING:
    from tests.support.databases import Database

NOT_VERSION = f"<> '{schema.VERSION_TABLE}'"
POSTGRESQL_SHAPE = {
    "columns": f"""
        SELECT table_name, ordinal_position, column_name, data_type, is_nullable, column_default,
               collation_name
        FROM information_schema.columns
        WHERE table_schema = 'public' AND table_name {NOT_VERSION} ORDER BY 1, 2""",
    "constraints": f"""
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace
          AND conrelid::regclass::text {NOT_VERSION} ORDER BY 1, 2""",
    "indexes": f"""
        SELECT tablename, indexname, indexdef FROM pg_indexes
        WHERE schemaname = 'public' AND tablename {NOT_VERSION} ORDER BY 1, 2""",
    "storage": f"""
        SELECT relname, reloptions FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'S')
          AND relname {NOT_VERSION} ORDER BY 1""",
}
SQLITE_SHAPE = {
    "objects": f"""
        SELECT type, name, sql FROM sqlite_master
        WHERE tbl_name {NOT_VERSION} ORDER BY type, name"""
}


def shape(database: Database) -> dict[str, list[list[Any]]]:
    """All that the database says about chatlock's tables, but for white space."""
    queries = SQLITE_SHAPE if database.kind == "sqlite" else POSTGRESQL_SHAPE
    connection = database.connect()
    return {name: [_one_spaced(row) for row in connection.execute(query)] for name, query in queries.items()}


def _one_spaced(row: tuple[Any, ...]) -> list[Any]:
    return [" ".join(item.split()) if isinstance(item, str) else item for item in row]


def declare_instead(database: Database, *statements: str) -> dict[str, list[list[Any]]]:
    """The shape of the declared tables, made in the place of those that are there."""
    with plain_connection(database) as conn, conn.begin():
        schema.metadata.drop_all(conn)
        schema.metadata.create_all(conn)
        for statement in statements:
            conn.exec_driver_sql(statement)
    return shape(database)


def run_script(database: Database, script: str) -> None:
    connection = database.connect()
    run = connection.executescript if database.kind == "sqlite" else connection.execute
    run(script)


def test_the_newest_revision_is_the_one_that_the_code_needs() -> None:
    assert revisions.scripts().get_current_head() == f"{schema.SCHEMA_VERSION:04}"


def test_every_revision_has_a_phase_and_the_next_number() -> None:
    found = [script.module for script in revisions.scripts(WITH_NEXT).walk_revisions()]
    numbers = [int(module.revision) for module in found]
    assert numbers == list(range(len(found), 0, -1))
    assert {module.phase for module in found} <= {"pre", "post"}


def test_all_revisions_make_the_declared_tables(empty_database: Database) -> None:
    with plain_connection(empty_database) as conn:
        chatlock.migrations.upgrade(conn)
    migrated = shape(empty_database)
    assert all(migrated.values())
    assert migrated == declare_instead(empty_database)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE chatlock_due ADD COLUMN extra INTEGER",
        "DROP INDEX chatlock_turns_one_running",
    ],
)
def test_a_schema_that_differs_is_told_apart(database: Database, statement: str) -> None:
    migrated = shape(database)
    assert migrated != declare_instead(database, statement)


def test_the_shape_holds_what_is_particular_to_postgresql(pg_database: Database) -> None:
    migrated = shape(pg_database)
    pg_database.connect().execute("ALTER TABLE chatlock_threads SET (fillfactor = 90)")
    assert migrated != shape(pg_database)


def test_the_printed_sql_makes_the_same_schema(empty_database: Database) -> None:
    run_script(empty_database, chatlock.migrations.sql(empty_database.kind))
    assert shape(empty_database) == declare_instead(empty_database)


def test_the_printed_sql_leaves_a_database_that_passes_the_check(empty_database: Database) -> None:
    run_script(empty_database, chatlock.migrations.sql(empty_database.kind))
    with plain_connection(empty_database) as conn:
        chatlock.migrations.check(conn)
        chatlock.migrations.upgrade(conn)
        assert chatlock.migrations.current(conn) == schema.SCHEMA_VERSION
        assert number(conn, "min_client") == 1


def test_the_printed_sql_starts_from_a_named_revision(database: Database) -> None:
    script = revisions.render(database.kind, NEWEST, "head", WITH_NEXT)
    assert "chatlock_threads" not in script
    run_script(database, script)
    with plain_connection(database) as conn:
        assert "chatlock_next" in tables(conn)
        assert chatlock.migrations.current(conn) == number(conn, "schema") == NEXT


def test_printed_sql_that_fails_leaves_nothing(empty_database: Database) -> None:
    broken = chatlock.migrations.sql(empty_database.kind).replace(
        "CREATE TABLE chatlock_meta", "CREATE TABLE chatlock_due"
    )
    with pytest.raises(Exception, match="chatlock_due"):
        run_script(empty_database, broken)
    with plain_connection(empty_database) as conn:
        conn.rollback()
        assert chatlock.migrations.current(conn) is None


@pytest.mark.parametrize("revision", ["9999", 0, -1, "+1", "base", "", "0001@head"])
def test_an_unknown_revision_is_refused(revision: int | str) -> None:
    with pytest.raises(InvalidInput, match="no schema revision"):
        chatlock.migrations.sql("sqlite", to=revision)
    with pytest.raises(InvalidInput, match="no schema revision"):
        chatlock.migrations.sql("sqlite", from_=revision)


def test_sql_for_another_database_is_refused() -> None:
    with pytest.raises(InvalidInput, match="postgresql and sqlite"):
        chatlock.migrations.sql("mysql")
