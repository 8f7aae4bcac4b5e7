"""epoch: raise every token past those that a failover may have lost, one thread per transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import func, select, tuple_, update

from chatlock.inputs import Key
from chatlock.ops.audit import WRITE, Act
from chatlock.ops.base import b, lock, named, of_incarnation, run
from chatlock.ops.due import put_due
from chatlock.ops.unanswered import end_unanswered, uncharged
from chatlock.protocol import TOKENS_PER_EPOCH, Status, TurnState
from chatlock.schema import meta, threads

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

WHOLE_DATABASE = Key("", "")
"""The key in the audit row of an act that concerns every thread."""

RAISE_EPOCH = named(
    "epoch.raise",
    update(meta).where(meta.c.name == "epoch").values(value=meta.c.value + 1).returning(meta.c.value),
)
COUNT = named("epoch.count", select(func.count()).select_from(threads))
THREADS_AFTER = named(
    "epoch.threads",
    select(threads.c.tenant, threads.c.thread_id)
    .where(tuple_(threads.c.tenant, threads.c.thread_id) > tuple_(b("tenant"), b("thread")))
    .order_by(threads.c.tenant, threads.c.thread_id)
    .limit(b("limit")),
)
RAISE_TOKEN = named(
    "epoch.token",
    update(threads)
    .where(
        of_incarnation(threads),
        threads.c.token == b("token"),
        threads.c.status != "running",
    )
    .values(token=threads.c.token + TOKENS_PER_EPOCH)
    .returning(threads.c.token),
)


def begin_epoch(conn: Connection, act: Act) -> int:
    """Counts the epoch up and writes one audit row, whose token is the new epoch.  Returns it."""
    epoch = int(run(conn, RAISE_EPOCH).scalar_one())
    run(
        conn,
        WRITE,
        WHOLE_DATABASE,
        incarnation=0,
        token=epoch,
        action=act.action,
        actor=act.actor,
        reason=act.reason,
    )
    return epoch


def count_threads(conn: Connection) -> int:
    """How many threads there are, deleted ones included: their tokens are raised too."""
    return int(run(conn, COUNT).scalar_one())


def threads_after(conn: Connection, after: Key, limit: int) -> list[Key]:
    """The next keys in order."""
    rows = run(conn, THREADS_AFTER, after, limit=limit)
    return [Key(row.tenant, row.thread_id) for row in rows]


def raise_token(conn: Connection, key: Key, backoff_max_ms: int) -> None:
    """Raises one thread's token.  A running turn is released, uncharged, and fenced out.

    **Effect**: an idle thread with pending messages gets its due row anew, so that a dispatch
    under the old token is forgotten.  Safe to repeat: a token may rise twice.
    """
    row = lock(conn, key)
    if row is None:
        raise AssertionError("the thread's row vanished: rows of chatlock_threads are never deleted")
    if row.status == Status.RUNNING:
        end_unanswered(
            conn,
            key,
            row,
            state=TurnState.RELEASED,
            charged=uncharged(row),
            bump=TOKENS_PER_EPOCH,
            error="epoch",
        )
        return
    run(conn, RAISE_TOKEN, key, incarnation=row.incarnation, token=row.token).one()
    if row.status == Status.IDLE and row.pending:
        put_due(conn, key, row, max(row.starts_at(backoff_max_ms), row.now))
