"""`chatlock db`: what it does, what it prints, and its exit codes."""

from __future__ import annotations

import json
import socket
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

import chatlock.migrations
from chatlock import schema
from chatlock.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.databases import Database

SECRET = "s3cret-w0rd"
NEWEST = schema.SCHEMA_VERSION


def run(*arguments: str, url: str | None = None) -> Result:
    """One command, with the URL in the environment."""
    return CliRunner(env={"CHATLOCK_URL": url}).invoke(main, ["db", *arguments])


def revision_of(database: Database) -> str:
    query = f"SELECT version_num FROM {schema.VERSION_TABLE}"
    return str(database.connect().execute(query).fetchone()[0])


def set_version(database: Database, version: str, min_client: int) -> None:
    connection = database.connect()
    connection.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = '{version}'")
    connection.execute(f"UPDATE chatlock_meta SET value = {min_client} WHERE name = 'min_client'")


def test_upgrade_makes_the_tables_and_says_so(empty_database: Database) -> None:
    first = run("upgrade", url=empty_database.url)
    assert (first.exit_code, first.output) == (0, f"chatlock tables upgraded to revision {NEWEST}\n")
    assert revision_of(empty_database) == f"{NEWEST:04}"
    again = run("upgrade", url=empty_database.url)
    assert (again.exit_code, again.output) == (0, f"chatlock tables already at revision {NEWEST}\n")


def test_the_option_wins_over_the_environment(empty_database: Database) -> None:
    result = run("upgrade", "--url", empty_database.url, url="sqlite:////nowhere/chat.db")
    assert result.exit_code == 0
    assert revision_of(empty_database) == f"{NEWEST:04}"


def test_upgrade_to_a_revision(empty_database: Database) -> None:
    assert run("upgrade", "--to", "1", url=empty_database.url).exit_code == 0
    unknown = run("upgrade", "--to", "99", url=empty_database.url)
    assert unknown.exit_code == 2
    assert "no schema revision '99'" in unknown.stderr


def test_upgrade_makes_a_missing_sqlite_file(tmp_path: Path) -> None:
    assert run("upgrade", url=f"sqlite:///{tmp_path}/new.db").exit_code == 0
    with closing(sqlite3.connect(tmp_path / "new.db")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_json_is_one_object_on_one_line(empty_database: Database) -> None:
    results = [run(name, "--json", url=empty_database.url) for name in ("upgrade", "check")]
    assert [json.loads(result.stdout) for result in results] == [
        {"schema_version": 1, "before": None, "revision": NEWEST},
        {"schema_version": 1, "revision": NEWEST},
    ]
    assert all(result.stdout.count("\n") == 1 for result in results)


def test_check_passes(database: Database) -> None:
    result = run("check", url=database.url)
    assert (result.exit_code, result.output) == (0, f"chatlock tables at revision {NEWEST}: ok\n")


def test_check_names_the_remedy_for_missing_tables(empty_database: Database) -> None:
    result = run("check", url=empty_database.url)
    assert result.exit_code == 1
    assert "no chatlock tables; run `chatlock db upgrade`" in result.stderr
    assert result.stdout == ""


def test_check_names_the_remedy_for_older_tables(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chatlock.migrations, "SCHEMA_VERSION", NEWEST + 1)
    result = run("check", url=database.url)
    assert result.exit_code == 1
    assert "run `chatlock db upgrade`" in result.stderr


def test_tables_that_are_too_new_are_refused(database: Database) -> None:
    set_version(database, "0009", min_client=9)
    for command in ("check", "upgrade"):
        result = run(command, url=database.url)
        assert result.exit_code == 1
        assert "revision 9, too new" in result.stderr
        assert "upgrade the chatlock package" in result.stderr


def test_newer_tables_that_admit_this_version_pass(database: Database) -> None:
    set_version(database, "0009", min_client=NEWEST)
    result = run("check", url=database.url)
    assert (result.exit_code, result.output) == (0, "chatlock tables at revision 9: ok\n")


def test_check_does_not_make_a_missing_sqlite_file(tmp_path: Path) -> None:
    result = run("check", url=f"sqlite:///{tmp_path}/typo.db")
    assert result.exit_code == 5
    assert "no such SQLite file" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_sql_prints_the_script_and_nothing_else(dialect: str) -> None:
    result = run("sql", "--dialect", dialect)
    assert result.exit_code == 0
    assert result.output == chatlock.migrations.sql(dialect)
    assert result.output.startswith("BEGIN")
    assert result.output.endswith("COMMIT;\n")


def test_sql_between_revisions() -> None:
    result = run("sql", "--dialect", "sqlite", "--from", "1", "--to", "1")
    assert (result.exit_code, "CREATE" in result.output) == (0, False)
    assert run("sql", "--dialect", "sqlite", "--from", "8").exit_code == 2
    assert run("sql", "--dialect", "mysql").exit_code == 2
    assert run("sql").exit_code == 2


def test_bump_epoch_needs_yes(database: Database) -> None:
    result = run("bump-epoch", url=database.url)
    assert result.exit_code == 2
    assert "add --yes" in result.stderr
    query = "SELECT value FROM chatlock_meta WHERE name = 'epoch'"
    assert database.connect().execute(query).fetchone() == (0,)


def test_bump_epoch_says_what_it_did(database: Database) -> None:
    connection = database.connect()
    for name in ("one", "two"):
        connection.execute(f"INSERT INTO chatlock_threads (tenant, thread_id, token) VALUES ('acme', '{name}', 7)")
    result = run("bump-epoch", "--yes", "--actor", "olga", "--reason", "failover to db2", url=database.url)
    assert result.exit_code == 0
    assert result.stdout == "epoch 1 began; the tokens of 2 threads were raised\n"
    assert result.stderr == ""  # progress is for whoever watches a terminal
    tokens = connection.execute("SELECT token FROM chatlock_threads").fetchall()
    assert tokens == [(1_000_007,), (1_000_007,)]
    audit = "SELECT action, actor, reason, token, tenant, thread_id FROM chatlock_audit"
    assert connection.execute(audit).fetchall() == [("bump_epoch", "olga", "failover to db2", 1, "", "")]
    again = run("bump-epoch", "--yes", "--json", url=database.url)
    assert json.loads(again.stdout) == {"schema_version": 1, "epoch": 2, "threads": 2}


def test_a_command_without_a_database_is_misuse() -> None:
    result = run("check")
    assert result.exit_code == 2
    assert "--url" in result.stderr


@pytest.mark.parametrize(
    "url",
    [
        f"no url {SECRET}",
        f"mysql://app:{SECRET}@db/app",
        f"postgresql://app:{SECRET}@db:port/app",
        f"postgresql://app:x@y:{SECRET}@db/app",
        f"postgresql://app@db/app?host=db&port={SECRET}",
        f"sqlite:///file:/dev/null?uri=true&timeout={SECRET}",
        "sqlite://",
    ],
)
def test_a_url_that_cannot_serve_is_misuse(url: str) -> None:
    result = run("check", url=url)
    assert result.exit_code == 2
    assert SECRET not in result.output


def test_an_unreachable_server_has_an_exit_code_of_its_own() -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"postgresql://app:{SECRET}@127.0.0.1:{unused.getsockname()[1]}/app"
        result = run("upgrade", url=url)
    assert result.exit_code == 5
    assert "cannot be reached" in result.stderr
    assert SECRET not in result.output


def test_a_file_that_is_no_database_is_told_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("not a database, but long enough to be looked at" * 100)
    result = run("upgrade", url=f"sqlite:///{tmp_path}/notes.db")
    assert result.exit_code == 5
    assert isinstance(result.exception, SystemExit)
    assert str(tmp_path) not in result.output


def test_a_locked_file_is_told(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatlock.executor.BUSY_S", 0.0)
    sqlite_database.connect().execute("BEGIN IMMEDIATE")
    result = run("upgrade", url=sqlite_database.url)
    assert result.exit_code == 5
    assert "locked by another writer" in result.stderr


def test_an_old_server_is_told(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(chatlock.migrations.SERVER_LEAST, database.kind, (99,))
    result = run("check", url=database.url)
    assert result.exit_code == 5
    assert "is too old: chatlock needs 99 or newer" in result.stderr
