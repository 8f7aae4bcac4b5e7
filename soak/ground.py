"""What a soak stands on: servers of its own, one database, its stepped clock, a disk that fills, application tables."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Self

import psycopg
import redis
import sqlalchemy
from sqlalchemy import Engine, event

from soak.weather import Weather
from tests.support.databases import connect, create_schema
from tests.support.servers import PostgreSQL, Valkey, free_port

TABLES = {
    "postgres": (
        "CREATE TABLE soak_effects(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, thread text, token bigint)",
        "CREATE TABLE soak_replies(thread text, token bigint, nonce text)",
    ),
    "sqlite": (
        "CREATE TABLE soak_effects(id INTEGER PRIMARY KEY AUTOINCREMENT, thread TEXT, token INTEGER)",
        "CREATE TABLE soak_replies(thread TEXT, token INTEGER, nonce TEXT)",
    ),
}
CLOCK = """
CREATE SCHEMA soak_clock;
CREATE TABLE soak_clock.step(by_ms bigint NOT NULL);
INSERT INTO soak_clock.step VALUES (0);
CREATE FUNCTION soak_clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  $$ SELECT pg_catalog.clock_timestamp() + by_ms * interval '1 millisecond' FROM soak_clock.step $$;
CREATE FUNCTION soak_clock.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS
  $$ SELECT pg_catalog.statement_timestamp() + by_ms * interval '1 millisecond' FROM soak_clock.step $$;
CREATE FUNCTION public.soak_full() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$;
"""
FILL = "CREATE TRIGGER soak_full BEFORE INSERT ON chatlock_messages FOR EACH ROW EXECUTE FUNCTION public.soak_full()"
EMPTY = "DROP TRIGGER IF EXISTS soak_full ON chatlock_messages"
PG_SETTINGS: dict[str, str | int] = {"shared_buffers": "128MB", "max_wal_size": "2GB", "shared_preload_libraries": ""}
BACKLOG = """
SELECT coalesce(sum(last_seq - done_seq - holes), 0), count(*) FILTER (WHERE status = 'running'),
       count(*) FILTER (WHERE status = 'parked')
  FROM chatlock_threads WHERE status <> 'deleted' AND (last_seq > done_seq OR status = 'running')
"""
HELD = """
SELECT thread_id, awaiting FROM chatlock_threads
 WHERE status = 'idle' AND last_seq > done_seq AND awaiting IS NOT NULL AND awaiting_rule = 'hold'
"""
PARKED = "SELECT thread_id FROM chatlock_threads WHERE status = 'parked'"


class Ground:
    """One run's servers and database; `with` starts and ends them."""

    def __init__(self, kind: str, weather: Weather) -> None:
        self.kind, self.weather = kind, weather
        self.url, self.redis_url = "", None
        self._ending = ExitStack()
        self._postgres: PostgreSQL | None = None
        self._valkey: Valkey | None = None

    def __enter__(self) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix="chatlock-soak-"))
        self._ending.callback(shutil.rmtree, self.directory, ignore_errors=True)
        if self.kind == "postgres":
            self._postgres = self._ending.enter_context(PostgreSQL(PG_SETTINGS))
            self._valkey = self._ending.enter_context(Valkey())
            self.url, self.redis_url = self._postgres.url, self._valkey.url
        else:
            self.url = f"sqlite:///{self.directory / 'chat.db'}"
        self.web_port = free_port()
        create_schema(self.url)
        with closing(connect(self.url)) as conn:
            for statement in TABLES[self.kind]:
                conn.execute(statement)
            if self.kind == "postgres":
                conn.execute(CLOCK)
                conn.execute('ALTER DATABASE postgres SET search_path = soak_clock, "$user", public, pg_catalog')
        return self

    def __exit__(self, *exc: object) -> None:
        self._ending.close()

    # -- what the nemesis does ---------------------------------------------------------------------------------------
    def step_clock(self, by_ms: int) -> None:
        """The database's clock jumps."""
        self.weather["offset_ms"] += by_ms
        if self.kind == "postgres":
            self._administer("UPDATE soak_clock.step SET by_ms = %s", self.weather["offset_ms"])

    def fill_disk(self, full: bool) -> None:
        """Nothing more can be inserted, or again."""
        self.weather["full"] = int(full)
        if self.kind == "postgres":
            self._administer(FILL if full else EMPTY)

    def crash_server(self) -> None:
        """PostgreSQL ends without a farewell, and recovers."""
        assert self._postgres
        self._postgres.kill()
        self._postgres.start()

    def break_redis(self, flush: bool) -> None:
        """All that it holds is forgotten; else it ends and starts again."""
        assert self._valkey
        if flush:
            with redis.Redis.from_url(self._valkey.url) as client:
                client.flushall()
        else:
            self._valkey.kill()
            self._valkey.start()

    # -- what is seen ------------------------------------------------------------------------------------------------
    def backlog(self) -> tuple[int, int, int] | None:
        """Pending messages, running turns and parked threads; None: the database is away."""
        rows = self._seen(BACKLOG)
        return None if rows is None else (int(rows[0][0]), int(rows[0][1]), int(rows[0][2]))

    def parked(self) -> list[str]:
        """The threads that someone has to put back into service."""
        return [thread for (thread,) in self._seen(PARKED) or []]

    def held(self) -> list[tuple[str, str]]:
        """The threads whose messages wait until someone decides on a question, and the question."""
        return [(thread, question) for thread, question in self._seen(HELD) or []]

    def rows(self, statement: str) -> Iterator[Any]:
        """What the database holds now."""
        with closing(connect(self.url)) as conn:
            yield from conn.execute(statement)

    def _seen(self, statement: str) -> list[Any] | None:
        with suppress(psycopg.Error, sqlite3.Error), closing(connect(self.url)) as conn:
            return list(conn.execute(statement).fetchall())
        return None

    def _administer(self, statement: str, *values: int) -> None:
        """A process that stands still in a transaction may have the table: then the disk is not full this time."""
        with suppress(psycopg.Error), closing(connect(self.url)) as conn:
            conn.execute("SET lock_timeout = '2s'")
            conn.execute(statement, values)

    def application_engine(self) -> Engine:
        """The application's own engine, for its transactions."""
        if self.kind == "postgres":
            return sqlalchemy.create_engine(self.url, pool_size=4, pool_pre_ping=True)
        engine = sqlalchemy.create_engine(self.url, connect_args={"timeout": 30}, pool_size=4)

        @event.listens_for(engine, "connect")
        def by_hand(connection: Any, record: Any) -> None:
            connection.isolation_level = None

        @event.listens_for(engine, "begin")
        def immediate(conn: Any) -> None:
            conn.exec_driver_sql("BEGIN IMMEDIATE")

        return engine
