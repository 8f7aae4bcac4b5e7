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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import TimeoutError as PoolTimeout

from chatlock import migrations
from chatlock.dialects import BEGIN, BEGIN_SNAPSHOT, Fault, fault_of, is_driver_error, make_engine
from chatlock.errors import ChatlockError, Closed, StoreUnavailable
from chatlock.faults import typed_error
from chatlock.ops.hot import NotAsHeld
from chatlock.turnstile import Gate, Turnstile
from chatlock.urls import checked_url, existing

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

BUSY_S = 30.0
RECONNECTS_MAX = 5
CONFLICTS_MAX = 8
LOCK_WAITS_MAX = 2
"""How often a lock is waited for once more: on PostgreSQL each wait is of lock_timeout, 10 s."""
CLOSE_S = 10.0
FORK_S = 5.0


class _Attempt:
    """One try of an operation, and whether its commit may have reached the database."""

    committing = False


_executors: weakref.WeakSet[Executor] = weakref.WeakSet()
_abandoned: list[Engine] = []


class Executor:
    """One database, a pool of its own, bound to its process: a forked child starts with a fresh one."""

    def __init__(self, source: str | URL | Engine | AsyncEngine, *, pool_size: int, pooler: str | None) -> None:
        self.url, self._pool_size, self._pooler = checked_url(source), pool_size, pooler
        self._sqlite = self.url.get_backend_name() == "sqlite"
        self.points: Callable[[str], None] | None = None
        self.closed = False
        self._reset()
        _executors.add(self)

    def _reset(self) -> None:
        self._opening = threading.Lock()
        self._engine: Engine | None = None
        self._beat_engine: Engine | None = None
        self._checked = False
        self._turnstile = Turnstile()
        self._gate = Gate()

    def before_fork(self) -> None:
        """SQLite's locks belong to the process: what it has open at a fork would be unlocked, unseen, in the child."""
        if self._sqlite:
            self._gate.hold()
            self._gate.wait_empty(FORK_S)
            self._forget_connections()

    def after_fork_in_parent(self) -> None:
        """Goes on, with new connections where the old ones had to be closed."""
        if self._sqlite:
            self._gate.let_go()

    def after_fork_in_child(self) -> None:
        """Forgets the parent's connections without closing them, and every lock it may hold."""
        _abandoned.extend(self._engines())
        self._reset()

    def _engines(self) -> list[Engine]:
        return [engine for engine in (self._engine, self._beat_engine) if engine is not None]

    @property
    def engine(self) -> Engine:
        """The engine, opened and its schema checked at first use."""
        engine = self._engine
        return engine if engine is not None and self._checked else self._open()

    def _open(self) -> Engine:
        with self._opening:
            self._refuse_if_closed()
            if self._engine is None:
                existing(self.url)
                self._engine = self._make(self._pool_size)
            engine = self._engine
        self._retried(lambda attempt: self._check(engine))  # outside the lock: a server that is away delays all alike
        self._checked = True
        return engine

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise Closed

    def _make(self, pool_size: int) -> Engine:
        return make_engine(self.url, pool_size=pool_size, pooler=self._pooler)

    def _check(self, engine: Engine) -> None:
        with self._connected(engine) as conn:
            migrations.check(conn)

    def load_driver(self) -> None:
        """Imports the driver and connects to nothing: a process that forks for every job does so once, before."""
        self.url.get_dialect().import_dbapi()

    def set_up(self, upgrade: Callable[[Connection], None]) -> None:
        """Brings the tables up to date on a connection of its own, before the schema is looked at."""
        self._refuse_if_closed()
        engine = self._make(1)

        def once(attempt: _Attempt) -> None:
            with self._connected(engine) as conn:
                upgrade(conn)

        try:
            self._retried(once, lock_waits_max=CONFLICTS_MAX)  # another process may be migrating
        finally:
            engine.dispose()

    def close(self, last: Callable[[], object] = lambda: None) -> None:
        """Refuses new operations, waits for those under way, lets the caller do a last thing, and closes the pool."""
        self._gate.close()
        self._gate.wait_empty(CLOSE_S)
        try:
            last()
        finally:
            with self._opening:
                self.closed = True
                engines, self._engine, self._beat_engine = self._engines(), None, None
            for engine in engines:
                engine.dispose()

    # -- the ways to run ---------------------------------------------------------------------------------------------
    def transaction(self, name: str, op: Callable[[Connection], T]) -> T:
        """`op` in one locked transaction (READ COMMITTED, or BEGIN IMMEDIATE), repeated where that is safe."""
        engine = self.engine

        def once(attempt: _Attempt) -> T:
            with self._writing(), self._connected(engine) as conn:
                self._point(f"{name}.begin")
                with _rolled_back(conn.exec_driver_sql):
                    conn.exec_driver_sql(BEGIN[conn.dialect.name])
                    result = op(conn)
                    self._point(f"{name}.commit")
                    attempt.committing = True
                    conn.exec_driver_sql("COMMIT")
                return result

        return self._retried(once)

    def hot(self, name: str, op: Callable[[Any], T | None]) -> T | None:
        """`op` on the driver's cursor: on PostgreSQL one statement and its own commit, on SQLite one short transaction.

        Under a schedule PostgreSQL's statement gets an explicit transaction, so that its commit can be held too.
        """
        engine = self.engine
        explicit = self.points is not None or self._sqlite

        def once(attempt: _Attempt) -> T | None:
            with self._writing(), self._connected_raw(engine) as connection:
                cursor = connection.cursor()
                self._point(f"{name}.begin")
                if not explicit:
                    attempt.committing = True
                    return op(cursor)
                with _rolled_back(cursor.execute):
                    cursor.execute(BEGIN[engine.dialect.name])
                    result = op(cursor)
                    self._point(f"{name}.commit")
                    attempt.committing = True
                    cursor.execute("COMMIT")
                return result

        try:
            return self._retried(once)
        except NotAsHeld:
            return None

    def read(self, name: str, op: Callable[[Connection], T]) -> T:
        """`op` in autocommit, one statement at a time: reads, and single conditional updates such as a heartbeat."""
        return self._read(self.engine, name, op)

    def beat(self, op: Callable[[Connection], T]) -> T:
        """`op` in autocommit on the heartbeat's own connection, which no load on the pool can keep from it."""
        with self._opening:
            self._refuse_if_closed()
            if self._beat_engine is None:
                existing(self.url)
                self._beat_engine = self._make(1)
            engine = self._beat_engine
        return self._read(engine, "heartbeat", op)

    def _read(self, engine: Engine, name: str, op: Callable[[Connection], T]) -> T:
        def once(attempt: _Attempt) -> T:
            with self._connected(engine) as conn:
                self._point(f"{name}.begin")
                return op(conn)

        return self._retried(once)

    def snapshot(self, name: str, op: Callable[[Connection], T]) -> T:
        """`op` in one read-only snapshot of the whole database."""
        engine = self.engine

        def once(attempt: _Attempt) -> T:
            with self._connected(engine) as conn:
                self._point(f"{name}.begin")
                with _rolled_back(conn.exec_driver_sql):
                    conn.exec_driver_sql(BEGIN_SNAPSHOT[conn.dialect.name])
                    result = op(conn)
                    conn.exec_driver_sql("ROLLBACK")
                return result

        return self._retried(once)

    def _writing(self) -> AbstractContextManager[None]:
        return self._turnstile.ticket() if self._sqlite else nullcontext()

    @contextmanager
    def _connected(self, engine: Engine) -> Iterator[Connection]:
        """A pooled connection.  One that cannot be handed on (in a transaction, broken, closed) is thrown away."""
        with self._gate, engine.connect() as conn:
            try:
                yield conn
            finally:
                if self.closed or not (conn.invalidated or _at_rest(conn.connection.driver_connection)):
                    conn.invalidate()

    @contextmanager
    def _connected_raw(self, engine: Engine) -> Iterator[Any]:
        """As _connected, without SQLAlchemy's Connection around it."""
        with self._gate:
            connection = engine.raw_connection()
            try:
                yield connection
            finally:
                if self.closed or not _at_rest(connection.driver_connection):
                    connection.invalidate()
                connection.close()

    # -- errors and retries ------------------------------------------------------------------------------------------
    def _point(self, name: str) -> None:
        points = self.points
        if points is not None:
            points(name)

    def _retried(self, once: Callable[[_Attempt], T], *, lock_waits_max: int = LOCK_WAITS_MAX) -> T:
        reconnects = conflicts = lock_waits = 0
        commit_unknown = False
        busy_until: float | None = None
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
                if fault is Fault.OTHER and not is_driver_error(error):
                    raise
                commit_unknown = commit_unknown or (attempt.committing and fault in (Fault.DISCONNECT, Fault.DISK))
                again = False
                if fault is Fault.RETRY and self._sqlite:
                    busy_until = time.monotonic() + BUSY_S if busy_until is None else busy_until
                    again, pause = time.monotonic() < busy_until, random.uniform(0.0005, 0.006)
                elif fault is Fault.RETRY:
                    conflicts += 1
                    again, pause = conflicts <= CONFLICTS_MAX, random.uniform(0.001, 0.02) * conflicts
                elif fault is Fault.LOCKED:
                    lock_waits += 1
                    again, pause = lock_waits <= lock_waits_max, 0.0
                elif fault in (Fault.DISCONNECT, Fault.TOO_MANY):
                    reconnects += 1
                    again, pause = reconnects <= RECONNECTS_MAX, random.uniform(0.5, 1.0) * 0.1 * 2**reconnects
                    if fault is Fault.DISCONNECT:  # where there are too many, those that are open go on
                        self._forget_connections()
                if not again:
                    raise typed_error(error, fault, commit_unknown=commit_unknown) from None
            self._gate.sleep(pause)

    def _forget_connections(self) -> None:
        for engine in self._engines():
            engine.dispose()


def _at_rest(driver: Any) -> bool:
    """Whether a driver's connection is usable and in no transaction, asked of the driver alone."""
    if isinstance(driver, sqlite3.Connection):
        return not driver.in_transaction
    return driver is not None and int(driver.pgconn.transaction_status) == 0


@contextmanager
def _rolled_back(execute: Callable[[str], object]) -> Iterator[None]:
    """What fails inside is rolled back; where even that fails, the connection is not at rest, and is thrown away."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # SQLite has ended the transaction itself where the disk was full
            execute("ROLLBACK")
        raise


def _each(call: Callable[[Executor], None]) -> Callable[[], None]:
    def every() -> None:
        for executor in list(_executors):
            call(executor)

    return every


os.register_at_fork(
    before=_each(Executor.before_fork),
    after_in_parent=_each(Executor.after_fork_in_parent),
    after_in_child=_each(Executor.after_fork_in_child),
)
