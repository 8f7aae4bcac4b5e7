"""Invariant D: which idle threads wait for a turn, from when they may start, and whose are taken first.

Rows are written only under their thread's lock; a surplus row is harmless, and the sweep deletes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, bindparam, delete, or_, select, text, update
from sqlalchemy.engine import Connection

from chatlock.dialects import CLOCK_SQLITE, STABLE_PG, PerDialect, per_dialect, stable_ms, wall_ms
from chatlock.inputs import Key
from chatlock.ops.base import ThreadRow, b, lock, named, of_thread, run
from chatlock.policies import PRIORITIES, QUIET_MAX_MS
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

LOOKED_AT = 4
"""How many due threads are looked at for each that is taken, so that there is a choice between tenants."""

_not_dispatched = or_(
    due.c.dispatched_until <= stable_ms(), due.c.dispatched_until > stable_ms() + DISPATCH_LEASE_MAX_MS
)
UPSERT = named("due.upsert", per_dialect(_upsert))
DELETE = named("due.delete", delete(due).where(of_thread(due)))


def _oldest(*served: Any) -> Any:
    return (
        select(due.c.tenant, due.c.thread_id, threads.c.agent, due.c.priority, due.c.due_at)
        .join(threads, (threads.c.tenant == due.c.tenant) & (threads.c.thread_id == due.c.thread_id))
        .where(
            or_(
                due.c.due_at <= stable_ms(),
                and_(
                    due.c.due_at > stable_ms() + b("backoff_max"),
                    or_(threads.c.quiet_until <= stable_ms(), threads.c.quiet_until > stable_ms() + QUIET_MAX_MS),
                ),
            ),
            _not_dispatched,
            *served,
        )
        .order_by(due.c.due_at)
        .limit(b("limit"))
    )


# a queue is what is due of a tenant in one class: each is found by one look into the index, and none is sorted
_QUEUES = {
    "postgresql": """
WITH RECURSIVE queues(tenant, priority) AS (
  (SELECT tenant, priority FROM chatlock_due ORDER BY tenant, priority LIMIT 1)
  UNION ALL
  SELECT n.tenant, n.priority FROM queues q CROSS JOIN LATERAL (
    SELECT tenant, priority FROM chatlock_due WHERE (tenant, priority) > (q.tenant, q.priority)
     ORDER BY tenant, priority LIMIT 1) n)""",
    "sqlite": """
WITH RECURSIVE queues(tenant, priority) AS (
  SELECT * FROM (SELECT tenant, priority FROM chatlock_due ORDER BY tenant, priority LIMIT 1)
  UNION ALL
  SELECT n.tenant, n.priority FROM queues q CROSS JOIN chatlock_due n ON n.rowid = coalesce(
    (SELECT rowid FROM chatlock_due WHERE tenant=q.tenant AND priority>q.priority ORDER BY priority LIMIT 1),
    (SELECT rowid FROM chatlock_due WHERE tenant>q.tenant ORDER BY tenant, priority LIMIT 1)))""",
}
_FIRST_OF_QUEUE = """
  SELECT {columns} FROM chatlock_due d {join_thread}
   WHERE d.tenant=q.tenant AND d.priority=q.priority AND d.due_at{when} AND {served}
     AND (d.dispatched_until<={now} OR d.dispatched_until>{now}+{far})
   ORDER BY d.due_at LIMIT (SELECT CASE WHEN count(*)<:b_limit THEN :b_limit/count(*) ELSE 1 END FROM queues)"""
_TAKEN_FROM_QUEUES = {
    "postgresql": """
SELECT f.* FROM queues q CROSS JOIN LATERAL (({due_now}) UNION ALL ({far_off})) f""",
    "sqlite": """
SELECT d.tenant, d.thread_id, t.agent, d.priority, d.due_at
  FROM queues q CROSS JOIN chatlock_due d ON d.rowid IN (SELECT * FROM ({due_now}) UNION ALL SELECT * FROM ({far_off}))
  JOIN chatlock_threads t ON t.tenant=d.tenant AND t.thread_id=d.thread_id""",
}
# one by one as they come: PostgreSQL takes a queue for short, and would else hash all threads of its tenant and sort
_JOIN_THREAD = {
    "postgresql": """CROSS JOIN LATERAL (
    SELECT agent, status, quiet_until FROM chatlock_threads
     WHERE tenant=d.tenant AND thread_id=d.thread_id LIMIT 1) t""",
    "sqlite": "JOIN chatlock_threads t ON t.tenant=d.tenant AND t.thread_id=d.thread_id",
}
_COLUMNS_OF_QUEUE = {"postgresql": "d.tenant, d.thread_id, t.agent, d.priority, d.due_at", "sqlite": "d.rowid"}
_NOW = {"postgresql": STABLE_PG, "sqlite": CLOCK_SQLITE}


def _of_each_queue(served: str, *binds: Any) -> PerDialect:
    """The oldest of every queue, each as many as its share of the limit."""

    def spelled(dialect: str) -> Any:
        now = _NOW[dialect]
        values = {"columns": _COLUMNS_OF_QUEUE[dialect], "join_thread": _JOIN_THREAD[dialect]}
        values |= {"served": served, "now": now, "far": str(DISPATCH_LEASE_MAX_MS)}
        due_now = _FIRST_OF_QUEUE.format(when=f"<={now}", **values)
        no_quiet = f"(t.quiet_until<={now} OR t.quiet_until>{now}+{QUIET_MAX_MS})"
        far_off = _FIRST_OF_QUEUE.format(when=f">{now}+:b_backoff_max AND {no_quiet}", **values)
        taken = _TAKEN_FROM_QUEUES[dialect].format(due_now=due_now, far_off=far_off)
        return text(_QUEUES[dialect] + taken).bindparams(*binds)

    return PerDialect(spelled("postgresql"), spelled("sqlite"))


_agents: Any = bindparam("b_agents", expanding=True)
OLDEST_OF_ANYONE = named("due.list_of_anyone", _oldest())
OLDEST = named("due.list", _oldest(or_(threads.c.agent.in_(_agents), threads.c.status != "idle")))
OF_EACH_QUEUE_OF_ANYONE = named("due.of_each_queue_of_anyone", _of_each_queue("true"))
OF_EACH_QUEUE = named("due.of_each_queue", _of_each_queue("(t.agent IN :b_agents OR t.status<>'idle')", _agents))

# what is stale does not count: it must not keep its own recovery from running.  What was dispatched was among the first
_BUSY = """
SELECT w.tenant,
       (SELECT count(*) FROM chatlock_turns r
          JOIN chatlock_threads t ON t.tenant=r.tenant AND t.thread_id=r.thread_id AND t.token=r.token
         WHERE r.tenant=w.tenant AND r.state='running' AND t.expires_at>={now})
     + (SELECT count(*)
          FROM (SELECT dispatched_until FROM chatlock_due WHERE tenant=w.tenant
                 ORDER BY priority, due_at LIMIT :b_limit) d
         WHERE d.dispatched_until>{now} AND d.dispatched_until<={now}+{far})
  FROM {tenants}"""
_TENANTS = {
    "postgresql": "jsonb_array_elements_text(CAST(:b_tenants AS jsonb)) AS w(tenant)",
    "sqlite": "(SELECT value AS tenant FROM json_each(:b_tenants)) w",
}
BUSY = named(
    "due.busy",
    PerDialect(*(text(_BUSY.format(now=_NOW[d], far=DISPATCH_LEASE_MAX_MS, tenants=_TENANTS[d])) for d in _TENANTS)),
)
LEASE = named(
    "due.lease",
    update(due)
    .where(of_thread(due), _not_dispatched)
    .values(dispatched_until=wall_ms() + b("lease"))
    .returning(due.c.thread_id),
)


@dataclass(frozen=True)
class Waiting:
    """A due thread, with the agent that is to run its next turn."""

    key: Key
    agent: str
    priority: int
    due_at: int


@dataclass(frozen=True)
class Dispatched:
    """A due thread that is left to a worker until its dispatch lease passes; `token` names this wake-up.

    retried: the turn before did not answer, so that its messages have waited longer than others.
    """

    key: Key
    incarnation: int
    token: int
    retried: bool = False


def put_due(conn: Connection, key: Key, row: ThreadRow, due_at: int) -> None:
    """Writes the thread's due row, which a wake or the sweep will find, unless a question holds the thread.

    Guard: the thread's lock is held.
    """
    if not row.held:
        run(conn, UPSERT, key, due_at=due_at, priority=row.priority)


def drop_due(conn: Connection, key: Key) -> None:
    """Deletes the thread's due row.  Guard: the thread's lock is held."""
    run(conn, DELETE, key)


def list_due(
    conn: Connection,
    agents: Sequence[str] | None,
    limit: int,
    backoff_max_ms: int,
    tenant_turns_max: int | None = None,
) -> list[tuple[Key, str]]:
    """Threads, with their agent, that may start now and whose agent is one of `agents` (None: any), shared out fairly;
    also surplus rows.

    A due time further off than the maximum backoff, and no quiet time, means that the clock stepped: it counts as due.
    tenant_turns_max: none of a tenant of which so many turns run, threads left to workers counted, stale turns not.
    """
    looked_at = LOOKED_AT * limit
    bound: dict[str, Any] = {"limit": looked_at, "backoff_max": backoff_max_ms}
    if agents is not None:
        bound["agents"] = list(agents)
    rows = run(conn, OLDEST_OF_ANYONE if agents is None else OLDEST, None, **bound).all()
    if len(rows) == looked_at:  # there may be other tenants behind these
        rows = run(conn, OF_EACH_QUEUE_OF_ANYONE if agents is None else OF_EACH_QUEUE, None, **bound).all()
    waiting = [Waiting(Key(row.tenant, row.thread_id), row.agent, row.priority, row.due_at) for row in rows]

    room = dict.fromkeys((one.key.tenant for one in waiting), limit)
    if tenant_turns_max is not None:
        looked_for = {"tenants": json.dumps(list(room)), "limit": LOOKED_AT * tenant_turns_max}
        room |= {tenant: max(0, tenant_turns_max - busy) for tenant, busy in run(conn, BUSY, None, **looked_for)}
    return [(taken.key, taken.agent) for taken in share_out(waiting, limit, room)]


def share_out(waiting: Iterable[Waiting], limit: int, room: Mapping[str, int]) -> list[Waiting]:
    """Up to `limit` of what waits, background threads after all others; of each kind the tenants take turns, so that of
    T tenants each gets at least limit // T where it has so many.  room: how many more of a tenant may be taken.
    """
    places = Counter[tuple[bool, str]]()
    in_order = []
    for one in sorted(waiting, key=lambda one: (one.priority, one.due_at)):
        background = one.priority >= PRIORITIES["background"]
        in_order.append(((background, places[background, one.key.tenant], one.priority, one.due_at), one))
        places[background, one.key.tenant] += 1
    taken_of = Counter[str]()
    taken: list[Waiting] = []
    for _, one in sorted(in_order, key=lambda placed: placed[0]):
        tenant = one.key.tenant
        if len(taken) < limit and taken_of[tenant] < room[tenant]:
            taken_of[tenant] += 1
            taken.append(one)
    return taken


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
    return Dispatched(key, row.incarnation, row.token, retried=row.attempts + row.stalls > 0)
