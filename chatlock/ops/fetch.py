"""fetch: hand pending messages to the turn, and move fetched_seq over them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, update
from sqlalchemy.engine import Connection

from chatlock.inputs import from_json
from chatlock.ops.base import ITS_TURN, UNDER_CLAIM, Claim, Message, ThreadRow, b, mine, named, of_incarnation, run
from chatlock.ops.resolve import expire
from chatlock.policies import ANSWER
from chatlock.protocol import Limits
from chatlock.schema import messages, threads, turns

ADVANCE = named(
    "fetch.advance",
    update(threads)
    .where(UNDER_CLAIM, threads.c.fetched_seq <= b("fetched"))
    .values(fetched_seq=b("fetched"))
    .returning(threads.c.fetched_seq),
)
BATCH = named(
    "fetch.batch",
    select(
        messages.c.seq,
        messages.c.message_id,
        messages.c.payload,
        messages.c.received_at,
        messages.c.redrive_of,
        messages.c.policy,
        messages.c.trace,
    )
    .where(
        of_incarnation(messages),
        messages.c.seq > b("after"),
        messages.c.seq <= b("fetched"),
        messages.c.disposition == "pending",
    )
    .order_by(messages.c.seq),
)


def message_of(row: Any) -> Message:
    """A turn's view of a stored message."""
    answers = (row.redrive_of or row.message_id) if row.policy == ANSWER else None
    payload = from_json(row.payload)
    return Message(row.seq, row.message_id, payload, row.received_at, row.redrive_of, answers, row.trace)


def take_batch(
    conn: Connection, claim: Claim, row: ThreadRow, *, after: int, fetched: int, batch_max: int
) -> tuple[Message, ...]:
    """Advances fetched_seq, then reads the pending messages above `after` in its own statement.  Guard: locked and
    mine.

    After a failed attempt the oldest pending message is handed out alone, so that only it can become dead.
    """
    bound = row.last_seq if row.attempts == 0 else row.done_seq + 1
    high = max(fetched, min(bound, row.done_seq + batch_max))
    moved = run(conn, ADVANCE, claim.key, incarnation=claim.incarnation, token=claim.token, fetched=high).all()
    if len(moved) != 1:
        raise AssertionError("the locked thread changed under its lock")
    rows = run(conn, BATCH, claim.key, incarnation=claim.incarnation, after=after, fetched=high)
    return tuple(message_of(r) for r in rows)


def fetch(conn: Connection, claim: Claim, after: int, limits: Limits) -> tuple[Message, ...]:
    """Pending messages above `after`, the highest seq the caller holds in memory, that have not expired: safe to
    repeat.

    Raises ClaimLost unless the thread is still under this claim.
    """
    row = mine(conn, claim)
    row = expire(conn, claim.key, row, limits.backoff_max_ms)
    return take_batch(conn, claim, row, after=after, fetched=row.fetched_seq, batch_max=limits.batch_max)


MARK = named(
    "turn.mark",
    update(turns).where(ITS_TURN).values(mark=b("mark")).returning(turns.c.token),
)


def mark(conn: Connection, claim: Claim, value: str) -> None:
    """Keeps a note on the running turn, which a next turn over the same oldest message finds in previous_incomplete."""
    mine(conn, claim)
    run(conn, MARK, claim.key, incarnation=claim.incarnation, token=claim.token, mark=value).one()
