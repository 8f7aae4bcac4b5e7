"""Invariant D: which idle threads wait for a turn, and from when they may start.

Rows are written only under their thread's lock; a surplus row is harmless, and the sweep deletes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, delete, or_, select, update
from sqlalchemy.engine import Connection

from chatlock.dialects import per_dialect, stable_ms, wall_ms
from chatlock.inputs import Key
from chatlock.ops.base import ThreadRow, b, lock, named, of_thread, run
from chatlock.schema import due, threads


def _upsert(insert: Any) -> Any:
    new = insert(due).values(
        tenant=b("tenant"), thread_id=b("thread"), due_at=b("due_at"), priority=b("priority"), dispatched_until=0
    )
    return new.on_conflict_do_update(
        index_elements=[due.c.tenant, due.c.thread_id],
        set_={"due_at": new.excluded.due_at, "priority": new.excluded.priority, "dispatched_until": 0},
    )


DISPATCH_LEASE_MAX_MS = 600_000
"""A dispatch lease that ends further off than this means that the clock stepped: it counts as passed."""

_not_dispatched = or_(
    due.c.dispatched_until <= stable_ms(), due.c.dispatched_until > stable_ms() + DISPATCH_LEASE_MAX_MS
)
UPSERT = named("due.upsert", per_dialect(_upsert))
DELETE = named("due.delete", delete(due).where(of_thread(due)))


def _due_now(*served: Any) -> Any:
    return (
        select(due.c.tenant, due.c.thread_id, threads.c.agent)
        .join(threads, (threads.c.tenant == due.c.tenant) & (threads.c.thread_id == due.c.thread_id))
        .where(
            or_(due.c.due_at <= stable_ms(), due.c.due_at > stable_ms() + b("backoff_max")),
            _not_dispatched,
            *served,
        )
        .order_by(due.c.due_at)
        .limit(b("limit"))
    )


DUE_OF_ANYONE = named("due.list_of_anyone", _due_now())
DUE_NOW = named(
    "due.list",
    _due_now(or_(threads.c.agent.in_(bindparam("b_agents", expanding=True)), threads.c.status != "idle")),
)
LEASE = named(
    "due.lease",
    update(due)
    .where(of_thread(due), _not_dispatched)
    .values(dispatched_until=wall_ms() + b("lease"))
    .returning(due.c.thread_id),
)


@dataclass(frozen=True)
class Dispatched:
    """A due thread that is left to a worker until its dispatch lease passes; `token` names this wake-up."""

    key: Key
    incarnation: int
    token: int


def put_due(conn: Connection, key: Key, row: ThreadRow, due_at: int) -> None:
    """Writes the thread's due row, which a wake or the sweep will find, unless a question holds the thread.

    Guard: the thread's lock is held.
    """
    if not row.held:
        run(conn, UPSERT, key, due_at=due_at, priority=row.priority)


def drop_due(conn: Connection, key: Key) -> None:
    """Deletes the thread's due row.  Guard: the thread's lock is held."""
    run(conn, DELETE, key)


def list_due(conn: Connection, agents: Sequence[str] | None, limit: int, backoff_max_ms: int) -> list[tuple[Key, str]]:
    """Threads, with their agent, that may start now and whose agent is one of `agents` (None: any), longest due first;
    also surplus rows.

    A due time further off than the maximum backoff means that the clock stepped: it counts as due.
    """
    bound = {"limit": limit, "backoff_max": backoff_max_ms}
    rows = (
        run(conn, DUE_OF_ANYONE, None, **bound)
        if agents is None
        else run(conn, DUE_NOW, None, agents=list(agents), **bound)
    )
    return [(Key(row.tenant, row.thread_id), row.agent) for row in rows]


def dispatch(conn: Connection, key: Key, lease_ms: int, backoff_max_ms: int) -> Dispatched | None:
    """Leaves a due thread to a worker for lease_ms: until then no poller dispatches it again.  A row that need not be
    served is deleted; a locked thread is left alone.

    Guard: idle, something pending, may start now, no dispatch lease in force.  Repeated after a lost acknowledgement it
    finds its own lease and says None: the thread is dispatched again once that has passed.
    """
    row = lock(conn, key, skip_locked=True)
    if row is None:
        return None
    if not row.waits:
        drop_due(conn, key)
        return None
    if row.starts_at(backoff_max_ms) > row.now or not run(conn, LEASE, key, lease=lease_ms).all():
        return None
    return Dispatched(key, row.incarnation, row.token)
