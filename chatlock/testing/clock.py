"""Clocks that a test sets: the database's, which decides everything, and the monotonic one of a sweeper.

The product has no seam for it.  PostgreSQL looks `clock_timestamp()` and `statement_timestamp()` up in a schema that
stands before pg_catalog in the search_path of this one database; SQLite calls the connection's function `julianday`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from sqlalchemy import event, text
from sqlalchemy.engine import URL

from chatlock.client_base import Client
from chatlock.dialects import make_engine
from chatlock.urls import checked_url

SCHEMA = "chatlock_clock"
MS_PER_DAY = 86_400_000
UNIX_EPOCH_JULIAN = 2_440_587.5

INSTALL = f"""
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
CREATE TABLE IF NOT EXISTS {SCHEMA}.stopped(one boolean PRIMARY KEY DEFAULT true CHECK (one), at_ms bigint NOT NULL);
INSERT INTO {SCHEMA}.stopped(at_ms) VALUES ((extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint)
  ON CONFLICT (one) DO UPDATE SET at_ms = excluded.at_ms;
CREATE OR REPLACE FUNCTION {SCHEMA}.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  $$ SELECT timestamptz 'epoch' + at_ms * interval '1 millisecond' FROM {SCHEMA}.stopped $$;
CREATE OR REPLACE FUNCTION {SCHEMA}.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS
  $$ SELECT timestamptz 'epoch' + at_ms * interval '1 millisecond' FROM {SCHEMA}.stopped $$;
DO $$ BEGIN
  IF current_setting('search_path') NOT LIKE '{SCHEMA},%' THEN
    EXECUTE format('ALTER DATABASE %I SET search_path = {SCHEMA}, %s, pg_catalog', current_database(),
                   current_setting('search_path'));
  END IF;
END $$
"""  # noqa: S608 composed of constants
GET = text(f"SELECT at_ms FROM {SCHEMA}.stopped")  # noqa: S608
SET = text(f"UPDATE {SCHEMA}.stopped SET at_ms = :at_ms")  # noqa: S608
SEEN = {
    "postgresql": text("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"),
    "sqlite": text(f"SELECT CAST((julianday('now') - {UNIX_EPOCH_JULIAN}) * {MS_PER_DAY}.0 AS INTEGER)"),
}


class DatabaseClock:
    """The stopped clock of a test's own database; every process that attaches to it reads the same time.

        clock = DatabaseClock.install(url)
        clock.attach(chat)
        clock.advance(10_001)

    Times are in milliseconds since 1970.  The database must belong to the test: on PostgreSQL its search_path changes.

    Args:
        url: The database, whose clock was installed already: by another process, say.
    """

    def __init__(self, url: str | URL) -> None:
        self._url = checked_url(url)
        self._kind = self._url.get_backend_name()
        self._engine = make_engine(self._url, pooled=False)

    @classmethod
    def install(cls, url: str | URL) -> DatabaseClock:
        """Stops the database's clock at the present, for every connection that is opened or attached from now on.

        Args:
            url: The database.
        """
        clock = cls(url)
        if clock._kind == "postgresql":
            with clock._engine.connect() as conn:
                driver: Any = conn.connection.driver_connection
                driver.execute(INSTALL)
        else:
            with clock._engine.connect() as conn:
                clock.set(int(conn.execute(SEEN["sqlite"]).scalar_one()))
        return clock

    def attach(self, client: Client) -> None:
        """The client's connections read this clock from now on; those that it had are dropped.

        Raises AssertionError if the database still tells another time.

        Args:
            client: A Chatlock or AsyncChatlock that holds no turn.
        """
        executor = client._executor
        engines = [executor.engine, executor.beat(lambda conn: conn.engine)]
        for engine in engines:
            engine.dispose()
            if self._kind == "sqlite" and not event.contains(engine, "connect", self._teach):
                event.listen(engine, "connect", self._teach)
            with engine.connect() as conn:
                seen = int(conn.execute(SEEN[self._kind]).scalar_one())
            if seen != self.now_ms:
                raise AssertionError(f"the client's database tells {seen}, the clock {self.now_ms}")

    @property
    def now_ms(self) -> int:
        """The time that the database tells."""
        if self._kind == "sqlite":
            return int(self._file.read_text())
        with self._engine.connect() as conn:
            return int(conn.execute(GET).scalar_one())

    def set(self, at_ms: int) -> None:
        """The database tells this time until it is set again.

        Args:
            at_ms: In ms since 1970.
        """
        if self._kind == "postgresql":
            with self._engine.connect() as conn:
                conn.execute(SET, {"at_ms": at_ms})
            return
        with tempfile.NamedTemporaryFile("w", dir=self._file.parent, delete=False) as new:
            new.write(str(at_ms))
        os.replace(new.name, self._file)  # a reader in another process sees the old time or the new one

    def advance(self, by_ms: int) -> int:
        """Moves the clock; returns the new time.

        Args:
            by_ms: By how many ms; below 0: back.
        """
        now_ms = self.now_ms + by_ms
        self.set(now_ms)
        return now_ms

    @property
    def _file(self) -> Path:
        return Path(f"{self._url.database}-clock")

    def _teach(self, connection: Any, record: Any) -> None:
        def julianday(when: str) -> float:
            if when != "now":
                raise ValueError("under a stopped clock julianday tells 'now' only")
            return (int(self._file.read_text()) + 0.5) / MS_PER_DAY + UNIX_EPOCH_JULIAN  # + 0.5: the cast truncates

        connection.create_function("julianday", 1, julianday)


class MonotonicClock:
    """A monotonic clock in seconds that moves only when it is told to: by it a sweeper tells two sightings apart.

    Args:
        now_s: What it shows first, in seconds.
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def attach(self, client: Client) -> None:
        """The client's sweeper reads this clock from now on.

        Args:
            client: A Chatlock or AsyncChatlock.
        """
        client._sweep._monotonic = self

    def advance(self, by_ms: int) -> None:
        """Moves on.  A monotonic clock never goes back: ValueError.

        Args:
            by_ms: By how many ms.
        """
        if by_ms < 0:
            raise ValueError("a monotonic clock never goes back")
        self.now_s += by_ms / 1000
