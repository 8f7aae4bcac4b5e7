"""gauges: how much runs and waits in the whole database, for metrics.  One statement, without locks."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, func, select
from sqlalchemy.engine import Connection

from chatlock.dialects import stable_ms
from chatlock.ops.base import named, run
from chatlock.ops.intents import OPEN
from chatlock.schema import due, intents, threads, turns

_running = turns.c.state == "running"
_stale = (
    select(func.count())
    .select_from(turns)
    .join(
        threads,
        and_(
            threads.c.tenant == turns.c.tenant,
            threads.c.thread_id == turns.c.thread_id,
            threads.c.token == turns.c.token,
        ),
    )
    .where(_running, threads.c.status == "running", threads.c.expires_at < stable_ms())
)
GAUGES = named(
    "gauges.read",
    select(
        select(func.count()).select_from(turns).where(_running).scalar_subquery().label("running"),
        select(func.count()).select_from(due).scalar_subquery().label("waiting"),
        (stable_ms() - select(func.min(due.c.due_at)).scalar_subquery()).label("oldest_due_age_ms"),
        _stale.scalar_subquery().label("stuck"),
        select(func.count()).select_from(intents).where(intents.c.state.in_(OPEN)).scalar_subquery().label("intents"),
    ),
)


@dataclass(frozen=True)
class Gauges:
    """running: turns.  waiting: threads with a due row.  oldest_due_age_ms: how long the first of them could have
    started.  stuck: turns past their lease that no sweep has reclaimed.  intents: not yet sent.
    """

    running: int
    waiting: int
    oldest_due_age_ms: int
    stuck: int
    intents: int


def read_gauges(conn: Connection) -> Gauges:
    """The numbers now."""
    row = run(conn, GAUGES).one()
    return Gauges(row.running, row.waiting, max(0, row.oldest_due_age_ms or 0), row.stuck, row.intents)
