"""diagnose: what the database tells of itself and of its pollers, for `chatlock doctor`.  Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.engine import Connection

from chatlock.migrations import current
from chatlock.ops.base import named, run

BACKEND = named("diagnose.backend", text("SELECT pg_backend_pid()"))
JOURNAL = named("diagnose.journal", text("PRAGMA journal_mode"))


@dataclass(frozen=True)
class Server:
    """product: postgresql or sqlite.  revision: of chatlock's tables.  journal: SQLite's journal mode."""

    product: str
    version: tuple[int, ...]
    revision: int | None
    journal: str | None


def read_server(conn: Connection) -> Server:
    """What the database is.  It may have no tables, or others than this version needs."""
    product = conn.dialect.name
    journal = str(run(conn, JOURNAL).scalar_one()) if product == "sqlite" else None
    version = tuple(int(part) for part in conn.dialect.server_version_info or ())
    return Server(product, version, current(conn), journal)


def backend(conn: Connection) -> int:
    """Which of PostgreSQL's processes serves this connection now.  Behind a transaction pooler it changes."""
    return int(run(conn, BACKEND).scalar_one())
