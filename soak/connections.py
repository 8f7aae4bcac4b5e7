"""Connections that break while their COMMIT is under way, disks that are full, and SQLite's clock.

On PostgreSQL the socket is really cut: the COMMIT is sent and its answer never comes, or the COMMIT never leaves.  On
SQLite, where there is no line to cut, the driver reports an I/O error after the commit, or instead of it.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from random import Random
from typing import Any

import psycopg
from sqlalchemy import Dialect, Engine, event

from chatlock.executor import Executor
from chatlock.ops import hot
from soak.weather import Slot, Weather

COMMITTING = ("COMMIT", hot.S1_POSTGRESQL, hot.S2_POSTGRESQL)
PAGES_MAX = 1_073_741_823
MS_PER_DAY = 86_400_000
UNIX_EPOCH_JULIAN = 2_440_587.5


_compiled: dict[str, tuple[Dialect, dict[Any, Any]]] = {}


def compiled_once(engine: Engine) -> Engine:
    """What one process has compiled, those forked from it need not compile again; else that is most of a short life."""
    engine.dialect, cache = _compiled.setdefault(engine.dialect.name, (engine.dialect, {}))
    engine.update_execution_options(compiled_cache=cache)
    return engine


class Breaks:
    """Decides which commits of one process are cut off, and counts both ways."""

    def __init__(self, weather: Weather, slot: Slot, random: Random, share: float) -> None:
        self.weather, self._slot, self._random, self._share = weather, slot, random, share

    def way(self) -> str | None:
        """None, or whether the commit that is about to be sent arrives."""
        if not self.weather["storm"] or self._random.random() >= self._share:
            return None
        way = self._random.choice(("cut_committed", "cut_not_committed"))
        self._slot.add(way)
        return way

    def attach(self, executor: Executor) -> None:
        """Its engines connect through these."""
        make = executor._make

        def made(pool_size: int) -> Engine:
            return compiled_once(self.on(make(pool_size)))

        executor._make = made  # type: ignore[method-assign]

    def on(self, engine: Engine) -> Engine:
        """The same engine, with connections that may break."""

        def connect(dialect: Any, record: Any, args: Any, options: Any) -> Any:
            if engine.dialect.name == "sqlite":
                made = sqlite3.connect(*args, **options, factory=SqliteConnection)
                made.create_function("julianday", 1, self.julianday)
            else:
                made = PgConnection.connect(*args, **options)
                made.cursor_factory = PgCursor
            made.breaks = self
            return made

        event.listen(engine, "do_connect", connect)
        return engine

    def julianday(self, when: str) -> float:
        """SQLite's clock: this machine's, moved by what the nemesis says."""
        return (time.time() * 1000 + self.weather["offset_ms"]) / MS_PER_DAY + UNIX_EPOCH_JULIAN


class PgConnection(psycopg.Connection[Any]):
    breaks: Breaks


class PgCursor(psycopg.Cursor[Any]):
    def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
        way = self.connection.breaks.way() if query in COMMITTING else None
        if way is not None:
            descriptor = os.dup(self.connection.fileno())
            with socket.socket(fileno=descriptor) as line:
                # of the answer nothing is read any more; or nothing is sent any more
                line.shutdown(socket.SHUT_RD if way == "cut_committed" else socket.SHUT_WR)
        return super().execute(query, *arguments, **options)


class SqliteConnection(sqlite3.Connection):
    breaks: Breaks
    full = 0

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(SqliteCursor)


class SqliteCursor(sqlite3.Cursor):
    connection: SqliteConnection

    def execute(self, statement: str, *parameters: Any) -> Any:
        breaks = self.connection.breaks
        if statement == "BEGIN IMMEDIATE" and breaks.weather["full"] != self.connection.full:
            self._fill(breaks.weather["full"])
        way = breaks.way() if statement == "COMMIT" else None
        if way == "cut_not_committed":
            raise _disk_error()
        done = super().execute(statement, *parameters)
        if way == "cut_committed":
            raise _disk_error()
        return done

    def _fill(self, full: int) -> None:
        (pages,) = super().execute("PRAGMA page_count").fetchone()
        super().execute(f"PRAGMA max_page_count = {pages if full else PAGES_MAX}").fetchone()
        self.connection.full = full


def _disk_error() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("the soak broke this commit")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error
