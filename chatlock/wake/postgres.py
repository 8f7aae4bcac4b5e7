"""Wakes by PostgreSQL LISTEN and NOTIFY.  NOTIFY takes a global lock at commit, so it runs alone, beside every turn.

Not behind a transaction pooler: LISTEN needs a session.
"""

from __future__ import annotations

from typing import Any

from chatlock.errors import InvalidInput, StoreUnavailable
from chatlock.urls import checked_url
from chatlock.wake.channel import LISTEN_S, Channel

CHANNEL = "chatlock_wake"
# a half-open connection is noticed within a quarter of a minute; until then the poll interval decides
ALIVE: dict[str, Any] = {
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 15_000,
}


class PostgresWake(Channel):
    """One channel for all threads, on two connections of its own.

    Args:
        url: The database's URL; not one that leads through a transaction pooler.
    """

    def __init__(self, url: str) -> None:
        checked = checked_url(url)
        if checked.get_backend_name() != "postgresql":
            raise InvalidInput("bad_wake", "PostgresWake needs a PostgreSQL URL")
        try:
            import psycopg
        except ModuleNotFoundError:
            raise StoreUnavailable("PostgreSQL needs psycopg: install chatlock with its extra 'postgres'") from None
        self._library = psycopg
        self._dsn = checked.set(drivername="postgresql").render_as_string(hide_password=False)
        super().__init__()

    def after_fork(self) -> None:
        """See Channel."""
        super().after_fork()
        self._sender: Any = None

    def _connect(self) -> Any:
        return self._library.connect(
            self._dsn, autocommit=True, application_name="chatlock wake", connect_timeout=5, **ALIVE
        )

    def _send(self, names: list[str]) -> None:
        if self._sender is None or self._sender.closed:
            self._sender = self._connect()
        try:
            self._sender.execute("SELECT pg_notify(%s, name) FROM unnest(%s::text[]) AS name", (CHANNEL, names))
        except self._library.Error:
            self._sender.close()
            raise

    def _listen(self) -> None:
        with self._connect() as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            self._listening()
            while not self.closed:
                for notification in connection.notifies(timeout=LISTEN_S):
                    self._woken(notification.payload)
                connection.execute("SELECT 1")  # a dead connection shows here

    def _disconnect(self) -> None:
        if self._sender is not None:
            self._sender.close()
