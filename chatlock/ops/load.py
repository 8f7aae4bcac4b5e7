"""load: what runs, waits and ended lately, by tenant and agent, read without locks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import and_, case, func, select
from sqlalchemy.engine import Connection

from chatlock.dialects import stable_ms
from chatlock.ops.base import b, named, run
from chatlock.ops.intents import OPEN
from chatlock.ops.report import Scope, scoped
from chatlock.schema import due, intents, threads, turns

_of_turn = and_(
    threads.c.tenant == turns.c.tenant,
    threads.c.thread_id == turns.c.thread_id,
    threads.c.token == turns.c.token,
)


def _running(*of_scope: Any) -> Any:
    stale = func.sum(case((threads.c.expires_at < stable_ms(), 1), else_=0))
    return (
        select(turns.c.tenant, turns.c.agent, func.count(), stale)
        .select_from(turns.join(threads, _of_turn))
        .where(*of_scope, turns.c.state == "running", threads.c.status == "running")
        .group_by(turns.c.tenant, turns.c.agent)
    )


def _waiting(*of_scope: Any) -> Any:
    return (
        select(due.c.tenant, threads.c.agent, func.count(), stable_ms() - func.min(due.c.due_at))
        .select_from(due.join(threads, and_(threads.c.tenant == due.c.tenant, threads.c.thread_id == due.c.thread_id)))
        .where(*of_scope, threads.c.status == "idle", threads.c.last_seq > threads.c.done_seq)
        .group_by(due.c.tenant, threads.c.agent)
    )


def _ended(*of_scope: Any) -> Any:
    run_ms = turns.c.ended_at - turns.c.started_at
    return (
        select(turns.c.tenant, turns.c.agent, turns.c.state, func.count(), func.sum(run_ms), func.max(run_ms))
        .where(*of_scope, turns.c.ended_at >= stable_ms() - b("since"))
        .group_by(turns.c.tenant, turns.c.agent, turns.c.state)
    )


def _intents(*of_scope: Any) -> Any:
    return (
        select(intents.c.tenant, intents.c.agent, func.count())
        .where(*of_scope, intents.c.state.in_(OPEN))
        .group_by(intents.c.tenant, intents.c.agent)
    )


RUNNING = scoped("load.running", turns, _running)
WAITING = scoped("load.waiting", due, _waiting)
ENDED = scoped("load.ended", turns, _ended)
INTENTS = scoped("load.intents", intents, _intents)
CLOCK = named("load.clock", select(stable_ms()))


@dataclass
class Load:
    """One tenant's agent.  oldest_due_ms: how long the first waiting thread could have started.  ended: turns by
    state; average_ms and longest_ms are of those that are done.
    """

    tenant: str
    agent: str
    running: int = 0
    stale: int = 0
    waiting: int = 0
    oldest_due_ms: int = 0
    intents: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    average_ms: int | None = None
    longest_ms: int | None = None


def read_loads(conn: Connection, scope: Scope, since_ms: int) -> list[Load]:
    """Every tenant's agent that has something, the busiest first.  Guard: one snapshot."""
    loads: dict[tuple[str, str], Load] = {}

    def of(tenant: str, agent: str) -> Load:
        return loads.setdefault((tenant, agent), Load(tenant, agent))

    bound = scope.bound()
    for tenant, agent, count, stale in run(conn, RUNNING.on(scope), None, **bound):
        of(tenant, agent).running, of(tenant, agent).stale = count, int(stale)
    for tenant, agent, count, oldest in run(conn, WAITING.on(scope), None, **bound):
        of(tenant, agent).waiting, of(tenant, agent).oldest_due_ms = count, max(0, oldest)
    for tenant, agent, count in run(conn, INTENTS.on(scope), None, **bound):
        of(tenant, agent).intents = count
    for tenant, agent, state, count, total_ms, longest_ms in run(conn, ENDED.on(scope), None, **bound, since=since_ms):
        load = of(tenant, agent)
        load.ended[state] = count
        if state == "done":
            load.average_ms, load.longest_ms = int(total_ms) // count, longest_ms
    return sorted(loads.values(), key=lambda load: (-load.running - load.waiting, load.tenant, load.agent))


def read_clock(conn: Connection) -> int:
    """Now, in ms of the database's clock."""
    return int(run(conn, CLOCK).scalar_one())
