"""Each failure of the store is one typed error that names the remedy; nothing is lost, and nothing secret is told.

A file that stays locked is in test_load.py, a full disk in cases/test_full_store.py, the caller's own connection in
conformance/own_transaction/, a store that was moved in cli/test_move.py.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from chatlock import AsyncChatlock, Chatlock, InvalidInput, SchemaMismatch, StoreUnavailable
from chatlock.errors import ChatlockError, StoreReadOnly
from tests.acceptance.failures.told import NOBODY, NOWHERE, TENANT, stored, submit, told
from tests.support.databases import Database
from tests.support.processes import Child

if TYPE_CHECKING:
    from tests.support.databases import Templates


# -- what stands in the way ----------------------------------------------------------------------------------------
class Fails(NamedTuple):
    """How a store is broken, given its database and whether PostgreSQL or SQLite; what mends it; what is told."""

    kind: type[ChatlockError]
    remedy: str
    breaks: tuple[str, ...]
    mends: tuple[str, ...]


OLD = "UPDATE chatlock_alembic_version SET version_num = '0001'"
NEW = "UPDATE chatlock_alembic_version SET version_num = '9999'"
BACK = "UPDATE chatlock_alembic_version SET version_num = (SELECT max(version_num) FROM kept)"
KEPT = "CREATE TABLE kept AS SELECT version_num FROM chatlock_alembic_version"
BY_STATEMENTS = {
    "schema too old": Fails(SchemaMismatch, "at revision 1 .* run `chatlock db upgrade`", (KEPT, OLD), (BACK,)),
    "schema too new": Fails(
        SchemaMismatch,
        "too new for this version .* upgrade the chatlock package",
        (KEPT, NEW, "UPDATE chatlock_meta SET value = 9999 WHERE name = 'min_client'"),
        (BACK, "UPDATE chatlock_meta SET value = 1 WHERE name = 'min_client'"),
    ),
    "tables gone": Fails(
        SchemaMismatch,
        "run `chatlock db upgrade`",
        ("ALTER TABLE chatlock_messages RENAME TO away",),
        ("ALTER TABLE away RENAME TO chatlock_messages",),
    ),
}


@pytest.mark.parametrize("fails", BY_STATEMENTS.values(), ids=list(BY_STATEMENTS))
@pytest.mark.parametrize("world", ["sync", "async"])
def test_schema_that_does_not_fit_names_the_way_to_upgrade(database: Database, world: str, fails: Fails) -> None:
    submit(world, database.url, "before")
    for statement in fails.breaks:
        database.connect().execute(statement)
    told(lambda: submit(world, database.url), fails.kind, fails.remedy)
    for statement in fails.mends:
        database.connect().execute(statement)
    assert stored(database) == ["before"]
    submit(world, database.url)
    assert stored(database) == ["before", "m1"]


@pytest.mark.parametrize("world", ["sync", "async"])
def test_empty_database_names_setup(empty_database: Database, world: str) -> None:
    told(lambda: submit(world, empty_database.url), SchemaMismatch, r"no chatlock tables; .* setup\(\)")


@pytest.mark.parametrize("world", ["sync", "async"])
def test_database_that_is_read_only_by_its_url_or_settings(database: Database, world: str) -> None:
    submit(world, database.url, "before")
    url = database.url
    if database.kind == "sqlite":
        url = f"{url.replace(':///', ':///file:')}?mode=ro&uri=true"
    else:
        name = url.rpartition("/")[2]
        database.connect().execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    told(lambda: submit(world, url), StoreReadOnly, "cannot be written; check the permissions")
    assert stored(database) == ["before"]


def test_trigger_of_the_application_is_no_store_that_was_moved(sqlite_database: Database) -> None:
    sqlite_database.connect().execute(
        "CREATE TRIGGER mine BEFORE INSERT ON chatlock_messages BEGIN SELECT RAISE(ABORT, 'canary-payload'); END"
    )
    told(lambda: submit("sync", sqlite_database.url), StoreUnavailable, "refused the operation .*TRIGGER")
    assert stored(sqlite_database) == []


# -- files -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("world", ["sync", "async"])
def test_missing_folder_is_named(tmp_path: Path, world: str) -> None:
    url = f"sqlite:///{tmp_path}/missing/chat.db"
    told(lambda: submit(world, url), StoreUnavailable, "no such SQLite file; check its path and folder")
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("world", ["sync", "async"])
@pytest.mark.parametrize("content", [b"canary-payload, and no database\n" * 500, b"SQLite format 3\0" + b"\1" * 8000])
def test_file_that_is_no_database_is_left_as_it_is(tmp_path: Path, world: str, content: bytes) -> None:
    path = tmp_path / "letter.txt"
    path.write_bytes(content)
    told(lambda: submit(world, f"sqlite:///{path}"), StoreUnavailable, "not a SQLite database, or it is damaged")
    assert path.read_bytes() == content


def test_folder_in_place_of_a_file(tmp_path: Path) -> None:
    told(lambda: submit("sync", f"sqlite:///{tmp_path}"), StoreUnavailable, "cannot be opened")


@pytest.fixture
def shut(templates: Templates) -> Iterator[Path]:
    """A folder that everybody can reach, with a database that holds a message; modes are put back at the end."""
    folder = Path(tempfile.mkdtemp(prefix="chatlock-shut-"))
    folder.chmod(0o755)
    shutil.copyfile(templates.prepare_sqlite(), folder / "chat.db")
    submit("sync", f"sqlite:///{folder}/chat.db", "before")
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def powerless() -> None:
    """Root ignores modes."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


MODES = {"file": (0o444, 0o777), "folder": (0o666, 0o555), "both": (0o444, 0o555), "unreadable": (0o000, 0o755)}


@pytest.mark.parametrize("what", MODES)
def test_file_or_folder_without_rights_is_named(shut: Path, what: str, child: Callable[[Child], Child]) -> None:
    of_file, of_folder = MODES[what]
    (shut / "chat.db").chmod(of_file)
    shut.chmod(of_folder)

    def attempt() -> None:
        powerless()
        told(lambda: submit("sync", f"sqlite:///{shut}/chat.db"), *RIGHTS[what])

    process = child(Child.fork(attempt))
    assert process.wait() == 0, process.text
    shut.chmod(0o755)
    (shut / "chat.db").chmod(0o644)
    with closing(sqlite3.connect(shut / "chat.db")) as connection:
        assert connection.execute("SELECT message_id FROM chatlock_messages").fetchall() == [("before",)]


RIGHTS: dict[str, tuple[type[ChatlockError], str]] = {
    "file": (StoreReadOnly, "check the permissions of its file and folder"),
    "folder": (StoreReadOnly, "check the permissions of its file and folder"),
    "both": (StoreReadOnly, "check the permissions of its file and folder"),
    "unreadable": (StoreUnavailable, "check that its folder exists and may be read and written"),
}


def test_control_rights_do_not_stand_in_the_way_of_whoever_has_them(shut: Path) -> None:
    assert stat.S_IMODE((shut / "chat.db").stat().st_mode) & 0o200
    submit("sync", f"sqlite:///{shut}/chat.db")


# -- URLs and drivers --------------------------------------------------------------------------------------------------
BAD_URLS = {
    "nonsense": ("nonsense canary-password", "cannot be parsed"),
    "no text": (None, "cannot be parsed"),
    "a number": (7, "cannot be parsed"),
    "bytes": (b"sqlite:///chat.db", "cannot be parsed"),
    "empty": ("", "cannot be parsed"),
    "port": ("postgresql://u:canary-password@host:canary-password/db", "cannot be parsed"),
    "mysql": ("mysql://u:canary-password@host/db", "postgresql and sqlite"),
    "unknown": ("canary://u:canary-password@host/db", "postgresql and sqlite"),
    "no file": ("sqlite://", "give a file"),
    "memory": ("sqlite:///:memory:", "give a file"),
    "memory by name": ("sqlite:///file:x?mode=memory&uri=true", "give a file"),
    "memory as a file": ("sqlite:///file::memory:?uri=true", "give a file"),
}


@pytest.mark.parametrize(("url", "remedy"), BAD_URLS.values(), ids=list(BAD_URLS))
@pytest.mark.parametrize("client", [Chatlock, AsyncChatlock])
def test_bad_url_is_refused_before_anything_is_opened(client: Any, url: Any, remedy: str) -> None:
    error = told(lambda: client(url, tenant=TENANT), InvalidInput, remedy)
    assert isinstance(error, InvalidInput)
    assert error.reason == "bad_url"


@pytest.mark.parametrize("how", ["not installed", "without libpq"])
@pytest.mark.parametrize("world", ["sync", "async"])
def test_missing_driver_names_what_to_install(monkeypatch: pytest.MonkeyPatch, how: str, world: str) -> None:
    if how == "not installed":
        monkeypatch.setitem(sys.modules, "psycopg", None)
    else:

        def without_libpq() -> Any:
            raise ImportError("no pq wrapper available")

        monkeypatch.setattr(PGDialect_psycopg, "import_dbapi", without_libpq)
    told(lambda: submit(world, NOWHERE), StoreUnavailable, r"with its extra 'postgres'")
