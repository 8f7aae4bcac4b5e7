"""arrivals: when the messages of recent threads were received, and how long the turns that answered them took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, select
from sqlalchemy.engine import Connection

from chatlock.dialects import stable_ms
from chatlock.ops.base import b, run
from chatlock.ops.report import Scope, scoped
from chatlock.schema import messages, turns


@dataclass(frozen=True)
class Received:
    """A message's thread, and when it was received.  run_ms: of the turn that answered it; None: none did."""

    tenant: str
    thread_id: str
    incarnation: int
    received_at: int
    run_ms: int | None


def _received(*of_tenant: Any) -> Any:
    ended = turns.alias("ended")
    recent = (
        select(ended.c.tenant, ended.c.thread_id)
        .where(ended.c.ended_at >= stable_ms() - b("since"))
        .distinct()
        .subquery("recent")
    )
    answered_by = and_(
        turns.c.tenant == messages.c.tenant,
        turns.c.thread_id == messages.c.thread_id,
        turns.c.incarnation == messages.c.incarnation,
        turns.c.token == messages.c.turn_token,
        turns.c.state == "done",
    )
    return (
        select(
            messages.c.tenant,
            messages.c.thread_id,
            messages.c.incarnation,
            messages.c.received_at,
            turns.c.ended_at - turns.c.started_at,
        )
        .select_from(
            recent.join(
                messages, and_(messages.c.tenant == recent.c.tenant, messages.c.thread_id == recent.c.thread_id)
            ).outerjoin(turns, answered_by)
        )
        .where(*of_tenant, messages.c.received_at >= stable_ms() - b("since"))
        .order_by(messages.c.tenant, messages.c.thread_id, messages.c.incarnation, messages.c.seq)
    )


RECEIVED = scoped("arrivals.received", messages, _received)


def list_received(conn: Connection, scope: Scope, since_ms: int) -> list[Received]:
    """The messages received in the last since_ms in threads where a turn ended since, by thread and seq."""
    return [Received(*row) for row in run(conn, RECEIVED.on(scope), None, **scope.bound(), since=since_ms)]
