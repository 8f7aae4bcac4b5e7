"""Runs an operation: opens and ends its transaction, retries what is safe to repeat, and turns driver errors into ours.

Every operation is safe to repeat as a whole: repeating it is also how the result of a commit whose answer was lost is
looked up.  Named pause points (`<op>.begin`, `<op>.commit`) cost production one test of None.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from chatlock import migrations
from chatlock.dialects import BEGIN, BEGIN_SNAPSHOT, Fault, fault_of, make_engine
from chatlock.errors import ChatlockError, Closed, SchemaMismatch, StoreFull, StoreReadOnly, StoreUnavailable
from chatlock.ops.hot import NotAsHeld

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

BUSY_S = 30.0
RECONNECTS_MAX = 5
CONFLICTS_MAX = 8


class Turnstile:
    """A lock that serves in order of arrival: SQLite has one writer, and none of a process's threads may starve."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._taken = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        try:
            mine.wait()
        except BaseException:
            with self._lock:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                    raise
            self.__exit__()
            raise

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False


class _Open:
    """Context that lets everyone in: PostgreSQL serializes by row."""

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


class _Attempt:
    """One try of an operation, and whether its commit may have reached the database."""

    committing = False


_executors: weakref.WeakSet[Executor] = weakref.WeakSet()
_abandoned: list[Engine] = []


class Executor:
    """One database, a pool of its own, bound to its process: a forked child starts with a fresh one."""

    def __init__(self, source: str | URL | Engine | AsyncEngine, *, pool_size: int, pooler: str | None) -> None:
        self._source, self._pool_size, self._pooler = source, pool_size, pooler
        self.points: Callable[[str], None] | None = None
        self.closed = False
        self._reset()
        _executors.add(self)

    def _reset(self) -> None:
        self._opening = threading.Lock()
        self._engine: Engine | None = None
        self._beat_engine: Engine | None = None
        self._writer: Any = _Open()

    def after_fork(self) -> None:
        """In a forked child: forget the parent's connections without closing them, and every lock it may hold."""
        _abandoned.extend(self._engines())
        self._reset()

    def _engines(self) -> list[Engine]:
        return [engine for engine in (self._engine, self._beat_engine) if engine is not None]

    @property
    def engine(self) -> Engine:
        """The engine, opened and its schema checked at first use."""
        if self.closed:
            raise Closed
        engine = self._engine
        return engine if engine is not None else self._open()

    def set_up(self, upgrade: Callable[[Connection], None]) -> None:
        """Brings the tables up to date on a connection of its own, before the schema is looked at."""
        if self.closed:
            raise Closed
        engine = make_engine(self._source, pool_size=1, pooler=self._pooler)

        def once(attempt: _Attempt) -> None:
            with engine.connect() as conn:
                upgrade(conn)

        try:
            self._retried(once)
        finally:
            engine.dispose()

    def _make(self, pool_size: int) -> Engine:
        engine = make_engine(self._source, pool_size=pool_size, pooler=self._pooler)
        self._writer = Turnstile() if engine.dialect.name == "sqlite" else _Open()
        return engine

    def _open(self) -> Engine:
        with self._opening:
            if self._engine is None:
                engine = self._make(self._pool_size)
                try:
                    self._retried(lambda attempt: self._check(engine))
                except BaseException:
                    engine.dispose()
                    raise
                self._engine = engine
            return self._engine

    def _check(self, engine: Engine) -> None:
        with engine.connect() as conn:
            migrations.check(conn)

    def close(self) -> None:
        """Closes the pool.  Later calls raise Closed."""
        self.closed = True
        for engine in self._engines():
            engine.dispose()
        self._engine = self._beat_engine = None

    # -- the ways to run ---------------------------------------------------------------------------------------------
    def transaction(self, name: str, op: Callable[[Connection], T]) -> T:
        """`op` in one locked transaction (READ COMMITTED, or BEGIN IMMEDIATE), repeated where that is safe."""
        engine = self.engine

        def once(attempt: _Attempt) -> T:
            with self._writer, engine.connect() as conn:
                self._point(f"{name}.begin")
                conn.exec_driver_sql(BEGIN[conn.dialect.name])
                try:
                    result = op(conn)
                    self._point(f"{name}.commit")
                    attempt.committing = True
                    conn.exec_driver_sql("COMMIT")
                except BaseException:
                    _roll_back(conn)
                    raise
                return result

        return self._retried(once)

    def hot(self, name: str, op: Callable[[Any], T | None]) -> T | None:
        """`op` on the driver's cursor: on PostgreSQL one statement and its own commit, on SQLite one short transaction.

        Under a schedule PostgreSQL's statement gets an explicit transaction, so that its commit can be held too.
        """
        engine = self.engine
        explicit = self.points is not None or engine.dialect.name == "sqlite"

        def once(attempt: _Attempt) -> T | None:
            with self._writer, _raw(engine) as connection:
                cursor = connection.cursor()
                self._point(f"{name}.begin")
                if not explicit:
                    attempt.committing = True
                    return op(cursor)
                cursor.execute(BEGIN[engine.dialect.name])
                try:
                    result = op(cursor)
                    self._point(f"{name}.commit")
                    attempt.committing = True
                    cursor.execute("COMMIT")
                except BaseException:
                    if connection.driver_connection.in_transaction if engine.dialect.name == "sqlite" else True:
                        cursor.execute("ROLLBACK")
                    raise
                return result

        try:
            return self._retried(once)
        except NotAsHeld:
            return None

    def read(self, name: str, op: Callable[[Connection], T]) -> T:
        """`op` in autocommit, one statement at a time: reads, and single conditional updates such as a heartbeat."""
        engine = self.engine

        def once(attempt: _Attempt) -> T:
            with engine.connect() as conn:
                self._point(f"{name}.begin")
                return op(conn)

        return self._retried(once)

    def beat(self, op: Callable[[Connection], T]) -> T:
        """`op` in autocommit on the heartbeat's own connection, which no load on the pool can keep from it."""
        with self._opening:
            if self._beat_engine is None:
                self._beat_engine = make_engine(self._source, pool_size=1, pooler=self._pooler)
            engine = self._beat_engine

        def once(attempt: _Attempt) -> T:
            with engine.connect() as conn:
                self._point("heartbeat.begin")
                return op(conn)

        return self._retried(once)

    def snapshot(self, name: str, op: Callable[[Connection], T]) -> T:
        """`op` in one read-only snapshot of the whole database."""
        engine = self.engine

        def once(attempt: _Attempt) -> T:
            with engine.connect() as conn:
                self._point(f"{name}.begin")
                conn.exec_driver_sql(BEGIN_SNAPSHOT[conn.dialect.name])
                try:
                    return op(conn)
                finally:
                    _roll_back(conn)

        return self._retried(once)

    # -- errors and retries ------------------------------------------------------------------------------------------
    def _point(self, name: str) -> None:
        points = self.points
        if points is not None:
            points(name)

    def _retried(self, once: Callable[[_Attempt], T]) -> T:
        reconnects = conflicts = 0
        commit_unknown = False
        deadline = time.monotonic() + BUSY_S
        while True:
            attempt = _Attempt()
            try:
                return once(attempt)
            except (ChatlockError, NotAsHeld, AssertionError):
                raise
            except PoolTimeout:
                raise StoreUnavailable("no database connection became free; raise pool_size") from None
            except Exception as error:
                fault = fault_of(error)
                if fault is Fault.OTHER and not _is_driver_error(error):
                    raise
                commit_unknown = commit_unknown or (attempt.committing and fault is Fault.DISCONNECT)
                again = False
                if fault is Fault.RETRY and _is_sqlite(error):
                    again = time.monotonic() < deadline
                    pause = random.uniform(0.0005, 0.006)
                elif fault is Fault.RETRY:
                    conflicts += 1
                    again, pause = conflicts <= CONFLICTS_MAX, random.uniform(0.001, 0.02) * conflicts
                elif fault is Fault.DISCONNECT:
                    reconnects += 1
                    again, pause = reconnects <= RECONNECTS_MAX, random.uniform(0.5, 1.0) * 0.1 * 2**reconnects
                    self._forget_connections()
                if not again or self.closed:
                    raise _translated(error, fault, commit_unknown) from None
            time.sleep(pause)

    def _forget_connections(self) -> None:
        for engine in self._engines():
            engine.dispose()


def _is_sqlite(error: Exception) -> bool:
    return isinstance(getattr(error, "orig", error), sqlite3.Error)


def _is_driver_error(error: BaseException) -> bool:
    module = type(error).__module__.partition(".")[0]
    return isinstance(error, DBAPIError) or module in ("sqlite3", "psycopg")


def _translated(error: Exception, fault: Fault, commit_unknown: bool) -> ChatlockError:
    """The typed error, without SQL, parameters or DSN."""
    if fault is Fault.NO_SCHEMA:
        return SchemaMismatch("chatlock's tables are missing or old; run `chatlock db upgrade`, or call setup()")
    if fault is Fault.FULL:
        return StoreFull("the database's disk or quota is full; nothing was written; free space and try again")
    if fault is Fault.READ_ONLY:
        return StoreReadOnly(
            "the database cannot be written; check the permissions of its file and folder, or of the role"
        )
    if fault is Fault.RETRY:
        return StoreUnavailable("the database stayed locked by another writer for too long; nothing was written")
    if fault is Fault.DISCONNECT:
        return StoreUnavailable(
            "the database cannot be reached; check that it runs and that the URL is right",
            commit_unknown=commit_unknown,
        )
    orig = getattr(error, "orig", None) or error
    code = getattr(orig, "sqlstate", None) or getattr(orig, "sqlite_errorname", None) or type(orig).__name__
    return StoreUnavailable(f"the database refused the operation ({code}); nothing was written")


def _roll_back(conn: Connection) -> None:
    """Ends the transaction; a connection that cannot even do that is thrown away."""
    try:
        driver: Any = conn.connection.driver_connection
        if conn.dialect.name != "sqlite" or driver.in_transaction:
            conn.exec_driver_sql("ROLLBACK")
    except Exception:  # noqa: BLE001  whatever it was, the connection is not used again
        conn.invalidate()


@contextmanager
def _raw(engine: Engine) -> Iterator[Any]:
    """A pooled driver connection; thrown away if an error leaves it unusable."""
    connection = engine.raw_connection()
    try:
        yield connection
    except BaseException as error:
        if fault_of(error) is Fault.DISCONNECT:
            connection.invalidate()
        raise
    finally:
        connection.close()


def _after_fork_in_child() -> None:
    for executor in list(_executors):
        executor.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
