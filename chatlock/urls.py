"""The URL of a database: what it may be, whether its file is there, and whether two are of one database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from sqlalchemy import Engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.util import asbool

from chatlock.errors import InvalidInput, StoreUnavailable

if TYPE_CHECKING:  # its import needs greenlet, which only users of async engines have
    from sqlalchemy.ext.asyncio import AsyncEngine


DRIVERS = {
    "postgresql": ("psycopg", "psycopg_async", "psycopg2", "asyncpg"),
    "sqlite": ("pysqlite", "aiosqlite"),
}
"""Whose URLs are taken.  Another driver's may mean what chatlock's own would not do, as an encrypted file."""


def checked_url(source: str | URL | Engine | AsyncEngine) -> URL:
    """The sync URL behind what the caller gave; InvalidInput for a database that chatlock cannot stand on."""
    try:
        url = make_url(source) if isinstance(source, str | URL) else source.url
    except (ArgumentError, ValueError, AttributeError):  # a port that is no number may be part of a password
        raise InvalidInput(
            "bad_url",
            "the database URL cannot be parsed; write sqlite:///chat.db or postgresql://user@host/name",
        ) from None
    name, _, driver = url.drivername.partition("+")
    backend = "postgresql" if name == "postgres" else name
    if backend not in DRIVERS:
        raise InvalidInput("bad_url", f"chatlock runs on postgresql and sqlite, not on {backend!r}")
    if driver and driver not in DRIVERS[backend]:
        raise InvalidInput("bad_url", f"a URL of {backend} may name {', '.join(DRIVERS[backend])} or no driver")
    _check_texts(url)
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if (
        not url.database
        or url.database.startswith((":memory:", "file::memory:"))
        or "mode=memory" in url.database
        or url.query.get("mode") == "memory"
    ):
        raise InvalidInput(
            "bad_url", "an in-memory SQLite database has one connection only; give a file: sqlite:///chat.db"
        )
    return url.set(drivername="sqlite", database=_absolute(url.database, asbool(url.query.get("uri", False))))


def _check_texts(url: URL) -> None:
    """Raises InvalidInput for what neither a file's name nor a server can carry."""
    values = (value for given in url.query.values() for value in ((given,) if isinstance(given, str) else given))
    for text in (url.username, url.password, url.host, url.database, *url.query, *values):
        try:
            unsound = b"\0" in str(text or "").encode()
        except UnicodeEncodeError:
            unsound = True
        if unsound:
            raise InvalidInput("bad_url", "the database URL has a NUL character or a lone surrogate")


def _absolute(path: str, as_uri: bool) -> str:
    """A file's path from now on, whatever becomes of the current directory: every engine resolves it anew."""
    scheme, relative = path[:5], path[5:]
    try:
        if not as_uri or scheme != "file:":
            return os.path.abspath(path)
        return path if relative.startswith("/") else f"file:{quote(os.getcwd())}/{relative}"
    except FileNotFoundError:
        raise InvalidInput("bad_url", "the path of the SQLite file is relative, and there is no directory") from None


def existing(url: URL) -> URL:
    """`url`, unless it is that of an SQLite file that is missing, which only `db upgrade` and setup() make."""
    if url.get_backend_name() == "sqlite" and not os.path.exists(_file(url)):
        raise StoreUnavailable(
            "there is no such SQLite file; check its path and folder; `chatlock db upgrade` or setup() makes it"
        )
    return url


def _file(url: URL) -> str:
    """The path of a checked URL's SQLite file, which may be given as a URI."""
    database = url.database or ""
    return unquote(urlsplit(database).path) if database.startswith("file:") else database


def surely_apart(one: URL, other: URL) -> bool:
    """Whether two URLs cannot be of one database; servers with two names may be one."""
    if one.get_backend_name() != other.get_backend_name():
        return True
    (server, name), (other_server, other_name) = _address(one), _address(other)
    return server == other_server and None not in (name, other_name) and name != other_name


def _address(url: URL) -> tuple[object, object]:
    """Which server, and which of its databases (None: only the driver knows)."""
    if url.get_backend_name() == "sqlite":
        return None, Path(_file(url)).resolve()
    server = (url.query.get("host", url.host), str(url.query.get("port", url.port or 5432)))
    return server, url.query.get("dbname", url.database) or None
