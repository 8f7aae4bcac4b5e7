"""claim: an idle thread with pending messages becomes running under a new token."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from sqlalchemy import insert, select, update
from sqlalchemy.engine import Connection

from chatlock.inputs import Key, from_json
from chatlock.ops.base import Claim, Incomplete, Message, ThreadRow, b, lock, named, of_incarnation, of_thread, run
from chatlock.ops.due import drop_due
from chatlock.ops.fetch import take_batch
from chatlock.ops.resolve import expire
from chatlock.protocol import Limits, Status
from chatlock.schema import threads, turns


@dataclass(frozen=True)
class Request:
    """What a caller asks for: claim_id is made before the attempt, so that it can be released whatever happens.

    asked_at: on this process's monotonic clock, so no later than the start of the lease on the database's.
    """

    claim_id: str
    owner: str
    lease_ms: int
    window_ms: int
    limits: Limits
    asked_at: float = field(default_factory=time.monotonic, compare=False)


@dataclass(frozen=True)
class Granted:
    """A claim and, where the first fetch rode in its transaction, the messages."""

    claim: Claim
    messages: tuple[Message, ...] = field(default=())


CLAIM = named(
    "claim.update",
    update(threads)
    .where(
        of_incarnation(threads),
        threads.c.token == b("token"),
        threads.c.status == "idle",
        threads.c.last_seq > threads.c.done_seq,
    )
    .values(
        status="running",
        token=threads.c.token + 1,
        claim_id=b("claim_id"),
        owner=b("owner"),
        claimed_at=b("now"),
        window_ends_at=b("window_end"),
        expires_at=b("life_end"),
        lease_ms=b("lease"),
        beat=0,
        fetched_seq=threads.c.done_seq,
        cancel_token=None,
    )
    .returning(threads.c.token),
)
START_TURN = named(
    "turn.insert",
    insert(turns).values(
        tenant=b("tenant"),
        thread_id=b("thread"),
        incarnation=b("incarnation"),
        token=b("token"),
        claim_id=b("claim_id"),
        owner=b("owner"),
        agent=b("agent"),
        from_seq=b("from_seq"),
        state="running",
        started_at=b("now"),
    ),
)
# done_seq moves only when a turn over that head resolves it: an earlier turn from the same place did not complete
BEFORE = named(
    "turn.before",
    select(turns.c.from_seq, turns.c.token, turns.c.state, turns.c.mark)
    .where(of_incarnation(turns), turns.c.token < b("token"))
    .order_by(turns.c.token.desc())
    .limit(1),
)
AGENT = named("claim.agent", select(threads.c.agent).where(of_thread(threads)))


def _may_claim(row: ThreadRow, request: Request, seq: int | None) -> bool:
    if not row.waits or row.starts_at(request.limits.backoff_max_ms) > row.now:
        return False
    return not (seq is not None and row.done_seq >= seq)


def _claim(conn: Connection, key: Key, row: ThreadRow, request: Request, token: int) -> Claim:
    """What the holder of this token is told, at once or after a lost acknowledgement."""
    before = run(conn, BEFORE, key, incarnation=row.incarnation, token=token).one_or_none()
    incomplete = before is not None and before.from_seq == row.done_seq
    return Claim(
        key=key,
        incarnation=row.incarnation,
        token=token,
        claim_id=request.claim_id,
        from_seq=row.done_seq,
        agent=row.agent,
        lease_ms=request.lease_ms,
        asked_at=request.asked_at,
        previous_incomplete=Incomplete(before.token, before.state, from_json(before.mark))
        if before and incomplete
        else None,
    )


def claim_locked(conn: Connection, key: Key, row: ThreadRow, request: Request, seq: int | None = None) -> Claim | None:
    """Claims the locked thread.

    Guard: idle, something pending, not held by a question, may start now and, for a waiter, done_seq < its seq.  None:
    not granted.  Lease and window count from one reading of the clock, that of the lock: PostgreSQL's moves on within
    a statement.
    """
    if not _may_claim(row, request, seq):
        return None
    granted = run(
        conn,
        CLAIM,
        key,
        incarnation=row.incarnation,
        token=row.token,
        claim_id=request.claim_id,
        owner=request.owner,
        now=row.now,
        window_end=row.now + request.window_ms,
        lease=request.lease_ms,
        life_end=row.now + min(request.lease_ms, request.window_ms),
    ).all()
    if len(granted) != 1:
        return None
    token = int(granted[0][0])
    run(
        conn,
        START_TURN,
        key,
        incarnation=row.incarnation,
        token=token,
        claim_id=request.claim_id,
        owner=request.owner,
        agent=row.agent,
        from_seq=row.done_seq,
        now=row.now,
    )
    return _claim(conn, key, row, request, token)


def claim_and_fetch(
    conn: Connection, key: Key, row: ThreadRow, request: Request, seq: int | None = None
) -> Granted | None:
    """claim_locked over what has not expired, with the first fetch in the same transaction unless something was
    charged before.

    After a charge the fetch is a transaction of its own, because it is then the proof of receipt.
    """
    if _may_claim(row, request, seq):
        row = expire(conn, key, row, request.limits.backoff_max_ms)
    claim = claim_locked(conn, key, row, request, seq)
    if claim is None:
        return None
    if row.attempts or row.stalls:
        return Granted(claim)
    return Granted(
        claim,
        take_batch(conn, claim, row, after=row.done_seq, fetched=row.done_seq, batch_max=request.limits.batch_max),
    )


def adopt(conn: Connection, key: Key, row: ThreadRow, request: Request) -> Granted | None:
    """The claim that an earlier attempt with this claim_id won, whose acknowledgement was lost; it fetches for
    itself.
    """
    if row.status != Status.RUNNING or row.claim_id != request.claim_id:
        return None
    return Granted(_claim(conn, key, row, request, row.token))


def claim_for(conn: Connection, key: Key, request: Request, incarnation: int, seq: int) -> Granted | None:
    """A waiter's claim.  Guard: same incarnation, done_seq < seq, and claim_locked's.  Safe to repeat by claim_id."""
    row = lock(conn, key)
    if row is None or row.incarnation != incarnation:
        return None
    return adopt(conn, key, row, request) or claim_and_fetch(conn, key, row, request, seq)


def claim_due(conn: Connection, key: Key, request: Request, *, skip_locked: bool = True) -> Granted | None:
    """The claim of one due thread by a poller, or by the worker that it was dispatched to, which waits for its lock.

    A row that need not be served is deleted.
    """
    row = lock(conn, key, skip_locked=skip_locked)
    if row is None:
        return None
    granted = adopt(conn, key, row, request) or claim_and_fetch(conn, key, row, request)
    if granted or not row.waits:
        drop_due(conn, key)
    return granted


def agent_of(conn: Connection, key: Key) -> str | None:
    """The agent whose handler runs the thread's turns; None: there is no such thread."""
    agent: str | None = run(conn, AGENT, key).scalar_one_or_none()
    return agent
