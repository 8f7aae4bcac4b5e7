"""A database per test, copied from a template that is made once."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import uuid
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psycopg
import sqlalchemy
from psycopg import sql

from chatlock import migrations

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = Literal["sqlite", "postgresql"]
KINDS: tuple[Kind, ...] = ("sqlite", "postgresql")
SQLITE_BUSY_SECONDS = 30


@dataclass
class Database:
    """One test's own database."""

    kind: Kind
    url: str
    _remove: Callable[[], None]
    _connections: list[Any] = field(default_factory=list)

    def connect(self) -> Any:
        """A connection of the driver itself, in autocommit; `dispose` closes it."""
        connection = connect(self.url)
        self._connections.append(connection)
        return connection

    def dispose(self) -> None:
        for connection in self._connections:
            connection.close()
        self._remove()


class Templates:
    """The schema, made once per database kind; every test's database is a copy."""

    def __init__(self, postgres_url: Callable[[], str]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="chatlock-"))
        self._postgres_url = postgres_url
        self._postgres_template: str | None = None
        self._administration: psycopg.Connection | None = None

    def sqlite(self, path: Path, *, empty: bool = False) -> Database:
        if empty:
            with closing(connect(f"sqlite:///{path}")) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
        else:
            shutil.copyfile(self.prepare_sqlite(), path)
        return Database("sqlite", f"sqlite:///{path}", lambda: _delete_sqlite(path))

    def postgresql(self, *, empty: bool = False) -> Database:
        source = "template1" if empty else self.prepare_postgresql()
        name = _new_name("test")
        self._administer("CREATE DATABASE {} TEMPLATE {}", name, source)
        drop = "DROP DATABASE {} WITH (FORCE)"
        return Database("postgresql", self._url_of(name), lambda: self._administer(drop, name))

    def prepare_sqlite(self) -> Path:
        path = self.directory / "template.db"
        if not path.exists():
            self.sqlite(path, empty=True)
            create_schema(f"sqlite:///{path}")
        return path

    def prepare_postgresql(self) -> str:
        if self._postgres_template is None:
            name = _new_name("template")
            self._administer("CREATE DATABASE {}", name)
            create_schema(self._url_of(name))
            self._postgres_template = name
        return self._postgres_template

    def disconnect(self) -> None:
        """Close what a fork must not inherit; the next use connects again."""
        if self._administration:
            self._administration.close()
            self._administration = None

    def dispose(self) -> None:
        if self._postgres_template:
            # A server that has gone has taken the template with it.
            with suppress(psycopg.OperationalError):
                self._administer("DROP DATABASE {} WITH (FORCE)", self._postgres_template)
        self.disconnect()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _url_of(self, name: str) -> str:
        url = sqlalchemy.make_url(self._postgres_url()).set(database=name)
        return url.render_as_string(hide_password=False)

    def _administer(self, statement: sql.LiteralString, *names: str) -> None:
        if self._administration is None:
            self._administration = connect(self._postgres_url())
        identifiers = [sql.Identifier(name) for name in names]
        self._administration.execute(sql.SQL(statement).format(*identifiers))


def connect(url: str) -> Any:
    """A connection of the driver itself, in autocommit."""
    parsed = sqlalchemy.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        assert parsed.database
        return sqlite3.connect(
            parsed.database,
            timeout=SQLITE_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
    plain = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(plain, autocommit=True)


def create_schema(url: str) -> None:
    engine = sqlalchemy.create_engine(url)
    try:
        with engine.begin() as connection:
            migrations.upgrade(connection)
    finally:
        engine.dispose()


def _delete_sqlite(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _new_name(purpose: str) -> str:
    return f"chatlock_{purpose}_{uuid.uuid4().hex[:12]}"
