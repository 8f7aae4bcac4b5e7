"""Invariant D: which idle threads wait for a turn, and from when they may start.

Rows are written only under their thread's lock; a surplus row is harmless, and the sweep deletes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, delete, or_, select
from sqlalchemy.engine import Connection

from chatlock.dialects import per_dialect, stable_ms
from chatlock.inputs import Key
from chatlock.ops.base import ThreadRow, b, named, of_thread, run
from chatlock.schema import due, threads


def _upsert(insert: Any) -> Any:
    new = insert(due).values(
        tenant=b("tenant"), thread_id=b("thread"), due_at=b("due_at"), priority=b("priority"), dispatched_until=0
    )
    return new.on_conflict_do_update(
        index_elements=[due.c.tenant, due.c.thread_id],
        set_={"due_at": new.excluded.due_at, "priority": new.excluded.priority, "dispatched_until": 0},
    )


UPSERT = named("due.upsert", per_dialect(_upsert))
DELETE = named("due.delete", delete(due).where(of_thread(due)))
DUE_NOW = named(
    "due.list",
    select(due.c.tenant, due.c.thread_id, threads.c.agent)
    .join(threads, (threads.c.tenant == due.c.tenant) & (threads.c.thread_id == due.c.thread_id))
    .where(
        or_(due.c.due_at <= stable_ms(), due.c.due_at > stable_ms() + b("backoff_max")),
        due.c.dispatched_until <= stable_ms(),
        or_(threads.c.agent.in_(bindparam("b_agents", expanding=True)), threads.c.status != "idle"),
    )
    .order_by(due.c.due_at)
    .limit(b("limit")),
)


def put_due(conn: Connection, key: Key, row: ThreadRow, due_at: int) -> None:
    """Writes the thread's due row, which a wake or the sweep will find.  Guard: the thread's lock is held."""
    run(conn, UPSERT, key, due_at=due_at, priority=row.priority)


def drop_due(conn: Connection, key: Key) -> None:
    """Deletes the thread's due row.  Guard: the thread's lock is held."""
    run(conn, DELETE, key)


def list_due(conn: Connection, agents: Sequence[str], limit: int, backoff_max_ms: int) -> list[tuple[Key, str]]:
    """Threads, with their agent, that may start now and whose agent is one of `agents`, longest due first; also
    surplus rows.

    A due time further off than the maximum backoff means that the clock stepped: it counts as due.
    """
    rows = run(conn, DUE_NOW, agents=list(agents), limit=limit, backoff_max=backoff_max_ms)
    return [(Key(row.tenant, row.thread_id), row.agent) for row in rows]
