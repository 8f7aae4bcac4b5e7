"""forget: the payloads of dead messages, on an operator's word; their ids and dispositions stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, select, update
from sqlalchemy.engine import Connection

from chatlock.dialects import stable_ms
from chatlock.inputs import Key
from chatlock.ops.base import b, lock, named, of_incarnation, run
from chatlock.ops.report import Scope, scoped
from chatlock.schema import messages, turns

_given_up = and_(
    messages.c.tenant == turns.c.tenant,
    messages.c.thread_id == turns.c.thread_id,
    messages.c.incarnation == turns.c.incarnation,
    messages.c.seq == turns.c.to_seq,
    messages.c.disposition == "dead",
    messages.c.payload.is_not(None),
)


def _old_dead(*of_scope: Any) -> Any:
    return (
        select(messages.c.tenant, messages.c.thread_id, messages.c.incarnation, messages.c.seq)
        .select_from(turns.join(messages, _given_up))
        .where(*of_scope, turns.c.state == "gave_up", turns.c.ended_at < stable_ms() - b("age"))
        .order_by(turns.c.ended_at)
        .limit(b("limit"))
    )


OLD_DEAD = scoped("forget.old_dead", turns, _old_dead)
FORGET_DEAD = named(
    "forget.payload",
    update(messages)
    .where(of_incarnation(messages), messages.c.seq == b("seq"), messages.c.disposition == "dead")
    .values(payload=None),
)


@dataclass(frozen=True)
class DeadPayload:
    """A dead message that still has its payload."""

    key: Key
    incarnation: int
    seq: int


def old_dead(conn: Connection, scope: Scope, age_ms: int, limit: int) -> list[DeadPayload]:
    """Dead messages with a payload that were given up more than age_ms ago, the oldest first."""
    rows = run(conn, OLD_DEAD.on(scope), None, **scope.bound(), age=age_ms, limit=limit)
    return [DeadPayload(Key(row.tenant, row.thread_id), row.incarnation, row.seq) for row in rows]


def forget_payload(conn: Connection, dead: DeadPayload) -> None:
    """Forgets one payload.  Guard: the thread's lock, and the message is dead.  Safe to repeat."""
    lock(conn, dead.key)
    run(conn, FORGET_DEAD, dead.key, incarnation=dead.incarnation, seq=dead.seq)
