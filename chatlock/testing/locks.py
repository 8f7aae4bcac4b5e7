"""Who waits for whose lock, read from the server.

PostgreSQL: each connection that an actor takes from a SQLAlchemy pool is noted with the process that serves it, and
`pg_blocking_pids` says who waits for whom.  SQLite has one lock; who is refused it comes back to its `.begin` point, so
there is nothing to look up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from sqlalchemy import event, text
from sqlalchemy.engine import URL, Connection
from sqlalchemy.pool import Pool

from chatlock.dialects import make_engine

WHO_WAITS = text("SELECT pid, pg_blocking_pids(pid) FROM unnest(CAST(:pids AS int[])) AS pid")
NOTED = "chatlock_testing_pid"


class Locks:
    """The waits between the actors of one schedule; `actor` names the actor that runs in this context, if any."""

    def __init__(self, url: URL, actor: Callable[[], str | None]) -> None:
        self._postgresql = url.get_backend_name() == "postgresql"
        self._engine = make_engine(url, pooled=False)
        self._actor = actor
        self._noting = threading.Lock()
        self._actor_of: dict[int, str] = {}
        self._observer: Connection | None = None

    def __enter__(self) -> Self:
        if self._postgresql:
            self._observer = self._engine.connect()
            event.listen(Pool, "checkout", self._note)
            event.listen(Pool, "checkin", self._forget)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._observer is not None:
            event.remove(Pool, "checkout", self._note)
            event.remove(Pool, "checkin", self._forget)
            self._observer.close()
        self._engine.dispose()

    def waiting_for(self, standing: set[str]) -> set[str]:
        """The actors who wait for a lock of one who stands, or of one who waits so."""
        if self._observer is None:
            return set()
        with self._noting:
            actor_of = dict(self._actor_of)
        waits = {pid: set(blockers) for pid, blockers in self._observer.execute(WHO_WAITS, {"pids": list(actor_of)})}
        waiting: set[str] = set()
        while (
            more := {
                actor_of[pid]
                for pid, blockers in waits.items()
                if any(actor_of.get(blocker) in standing | waiting for blocker in blockers)
            }
            - waiting
            - standing
        ):
            waiting |= more
        return waiting

    def _note(self, connection: Any, record: Any, proxy: Any) -> None:
        actor = self._actor()
        pid = _backend_pid(connection) if actor is not None else None
        if actor is not None and pid is not None:
            record.info[NOTED] = pid
            with self._noting:
                self._actor_of[pid] = actor

    def _forget(self, connection: Any, record: Any) -> None:
        pid = record.info.pop(NOTED, None)
        if pid is not None:
            with self._noting:
                self._actor_of.pop(pid, None)


def _backend_pid(connection: Any) -> int | None:
    """The server's process behind a connection of psycopg or asyncpg; None for another driver's."""
    driver: Any = getattr(connection, "driver_connection", connection)
    if hasattr(driver, "get_server_pid"):
        return int(driver.get_server_pid())
    return int(driver.info.backend_pid) if hasattr(driver, "info") else None
