"""heartbeat: a live turn extends its lease, never past its window.  One autocommit statement."""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.engine import Connection

from chatlock.dialects import least, wall_ms
from chatlock.ops.base import Claim, b, named, of_thread, run
from chatlock.schema import threads

# the lock comes first, in a CTE on which the update depends by data, so that the clock is read after the wait
_locked = (
    select(threads.c.tenant, threads.c.thread_id, threads.c.token)
    .where(
        of_thread(threads),
        threads.c.incarnation == b("incarnation"),
        threads.c.token == b("token"),
        threads.c.status == "running",
    )
    .with_for_update(key_share=True)
    .cte("locked")
)
BEAT = named(
    "heartbeat.beat",
    update(threads)
    .where(
        of_thread(threads),
        threads.c.tenant == _locked.c.tenant,
        threads.c.thread_id == _locked.c.thread_id,
        threads.c.token == _locked.c.token,
        wall_ms() < threads.c.window_ends_at,
    )
    .values(beat=threads.c.beat + 1, expires_at=least(wall_ms() + threads.c.lease_ms, threads.c.window_ends_at))
    .returning(threads.c.beat),
)


def heartbeat(conn: Connection, claim: Claim) -> bool:
    """Extends the lease.  False: not this claim's any more, or its window has passed; nothing was written."""
    return len(run(conn, BEAT, claim.key, incarnation=claim.incarnation, token=claim.token).all()) == 1
