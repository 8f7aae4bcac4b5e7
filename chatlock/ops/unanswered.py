"""fail, release, reclaim, free: the turn ends without an answer, charged or not."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, case, select, update
from sqlalchemy.engine import Connection

from chatlock.charging import UNCHARGED, Charge, charge, received
from chatlock.dialects import stable_ms, wall_ms
from chatlock.inputs import Key
from chatlock.ops.audit import Act, Receipt, write_audit
from chatlock.ops.base import (
    ITS_TURN,
    SILENT,
    TURN_STATE,
    UNDER_CLAIM,
    WINDOW,
    Claim,
    ThreadRow,
    b,
    holds,
    lock,
    named,
    of_incarnation,
    of_thread,
    resolved_prefix,
    run,
)
from chatlock.ops.due import put_due
from chatlock.ops.finish import NO_CLAIM
from chatlock.ops.resolve import cancel_stopped
from chatlock.protocol import Limits, Status, TurnState
from chatlock.schema import messages, threads, turns

STOPPED = "stopped"
"""The error of a turn that failed after it was asked to stop."""

KILL_HEAD = named(
    "unanswered.head_dead",
    update(messages)
    .where(of_incarnation(messages), messages.c.seq == b("head"), messages.c.disposition == "pending")
    .values(disposition="dead", turn_token=b("token"))
    .returning(messages.c.seq),
)
END_THREAD = named(
    "unanswered.thread",
    update(threads)
    .where(UNDER_CLAIM)
    .values(
        status=b("new_status"),
        token=threads.c.token + b("bump"),
        done_seq=b("done"),
        holes=b("new_holes"),
        fetched_seq=case((threads.c.fetched_seq < b("done"), b("done")), else_=threads.c.fetched_seq),
        attempts=b("new_attempts"),
        stalls=b("new_stalls"),
        not_before=case((b("delay") > 0, wall_ms() + b("delay")), else_=0),
        interrupts=case((b("done") > threads.c.done_seq, 0), else_=threads.c.interrupts),
        **NO_CLAIM,
    )
    .returning(threads.c.not_before),
)
END_TURN = named(
    "unanswered.turn",
    update(turns)
    .where(ITS_TURN)
    .values(state=b("new_state"), to_seq=b("to_seq"), error=b("error"), ended_at=wall_ms())
    .returning(turns.c.token),
)
RUNNING = named(
    "reclaim.observe",
    select(
        threads.c.tenant,
        threads.c.thread_id,
        threads.c.token,
        threads.c.beat,
        (threads.c.expires_at < stable_ms()).label("stale"),
        and_(threads.c.cancel_token == threads.c.token, threads.c.cancel_until < stable_ms()).label("overdue"),
    )
    .select_from(turns)
    .join(
        threads,
        (threads.c.tenant == turns.c.tenant)
        & (threads.c.thread_id == turns.c.thread_id)
        & (threads.c.token == turns.c.token),
    )
    .where(turns.c.state == "running", threads.c.status == "running"),
)
STALE = named(
    "reclaim.lock_stale",
    select(threads.c.token)
    .where(
        of_thread(threads),
        threads.c.status == "running",
        threads.c.expires_at < stable_ms(),
        threads.c.token == b("token"),
        threads.c.beat == b("beat"),
    )
    .with_for_update(key_share=True, skip_locked=True),
)


@dataclass(frozen=True)
class Ended:
    """How and why a turn ended without an answer.  left: messages wait for another."""

    charge: Charge
    left: bool
    error: str | None = None


def end_unanswered(
    conn: Connection,
    key: Key,
    row: ThreadRow,
    *,
    state: TurnState,
    charged: Charge,
    bump: int = 0,
    error: str | None = None,
    resolved: tuple[int, int] | None = None,
) -> Ended:
    """Ends the running turn of the locked row.  attempts = max makes only message done_seq + 1 dead; stalls = max
    parks.  resolved: done_seq and holes, where messages of the turn are resolved already.
    """
    status, to_seq = row.status_after, None
    done, holes = resolved if resolved is not None else (row.done_seq, row.holes)
    bound = {"incarnation": row.incarnation, "token": row.token}
    if charged.head_dead:
        state, done = TurnState.GAVE_UP, row.done_seq + 1
        to_seq = done
        if len(run(conn, KILL_HEAD, key, **bound, head=done).all()) != 1:
            raise AssertionError("the oldest message of a turn that gave up is not pending")
    holes += cancel_stopped(conn, key, row, done)
    done, holes = resolved_prefix(conn, key, row, done, holes)
    if done > row.done_seq:  # a new head starts afresh
        charged = charged._replace(attempts=0, stalls=0, delay_ms=0, parked=False)
    if charged.parked:
        status = Status.PARKED
    ended = run(
        conn,
        END_THREAD,
        key,
        **bound,
        new_status=status,
        bump=bump,
        done=done,
        new_holes=holes,
        new_attempts=charged.attempts,
        new_stalls=charged.stalls,
        delay=charged.delay_ms,
    ).all()
    closed = run(conn, END_TURN, key, **bound, new_state=state, to_seq=to_seq, error=error).all()
    if (len(ended), len(closed)) != (1, 1):
        raise AssertionError("the locked thread changed under its lock")
    left = row.last_seq > done
    if status == Status.IDLE and left:
        put_due(conn, key, row, max(int(ended[0][0]), row.quiet_until, row.now))
    return Ended(charged, left, error)


def uncharged(row: ThreadRow) -> Charge:
    """The counters as they are, due at once."""
    return UNCHARGED._replace(attempts=row.attempts, stalls=row.stalls)


def fail(conn: Connection, claim: Claim, *, held: int, error: str, limits: Limits, jitter: float) -> Ended | None:
    """Ends the turn as failed: one attempt if it had messages in hand, else one stall; released uncharged if it was
    asked to stop.  None: the claim is lost.

    Safe to repeat: a turn of this claim found ended so is a success whose acknowledgement was lost.
    """
    row = lock(conn, claim.key)
    if row is None or not holds(row, claim):
        if row is not None and _ended_itself(conn, claim):
            return Ended(uncharged(row), row.pending)
        return None
    if row.stopping:
        return end_unanswered(conn, claim.key, row, state=TurnState.RELEASED, charged=uncharged(row), error=STOPPED)
    charged = charge(limits, row.attempts, row.stalls, received=held > 0, jitter=jitter)
    return end_unanswered(conn, claim.key, row, state=TurnState.FAILED, charged=charged, error=error)


def _ended_itself(conn: Connection, claim: Claim) -> bool:
    row = run(conn, TURN_STATE, claim.key, incarnation=claim.incarnation, token=claim.token).one_or_none()
    if row is None or row.claim_id != claim.claim_id:
        return False
    return row.state in (TurnState.FAILED, TurnState.GAVE_UP) or row.error == STOPPED


def release(conn: Connection, key: Key, claim_id: str) -> bool:
    """Hands the claim back uncharged, due at once.  By claim_id, so it is safe to repeat and before any answer is
    known.
    """
    row = lock(conn, key)
    if row is None or row.status != Status.RUNNING or row.claim_id != claim_id:
        return False
    end_unanswered(conn, key, row, state=TurnState.RELEASED, charged=uncharged(row))
    return True


@dataclass(frozen=True)
class Observed:
    """A running turn as one sweep saw it.  overdue: it was asked to stop, and its grace has passed."""

    key: Key
    token: int
    beat: int
    stale: bool
    overdue: bool = False


def observe_running(conn: Connection) -> list[Observed]:
    """Every running turn of the database, without locks."""
    return [
        Observed(Key(r.tenant, r.thread_id), r.token, r.beat, bool(r.stale), bool(r.overdue))
        for r in run(conn, RUNNING)
    ]


def reclaim(conn: Connection, seen: Observed, limits: Limits, jitter: float) -> Ended | None:
    """Frees a stale claim: token + 1, charged.  None: it is not stale, not the one observed, or locked by someone.

    Guard: running, expires_at passed, token and beat as observed, judged by the statement that locks the row.
    """
    stale = run(conn, STALE, seen.key, token=seen.token, beat=seen.beat).all()
    row = lock(conn, seen.key) if stale else None
    return None if row is None else _end_stale(conn, seen.key, row, limits, jitter)


def _end_stale(conn: Connection, key: Key, row: ThreadRow, limits: Limits, jitter: float) -> Ended:
    why = SILENT if row.silent else WINDOW
    had = received(
        fetched_seq=row.fetched_seq, done_seq=row.done_seq, beat=row.beat, attempts=row.attempts, stalls=row.stalls
    )
    charged = charge(limits, row.attempts, row.stalls, received=had, jitter=jitter)
    return end_unanswered(conn, key, row, state=TurnState.RECLAIMED, charged=charged, bump=1, error=why)


def free(conn: Connection, key: Key, token: int, act: Act, *, force: bool, limits: Limits, jitter: float) -> Receipt:
    """Frees the named turn: reclaimed if it is stale, released uncharged if forced; token + 1 and an audit row
    either way.

    Guard: running under that token; a live holder is refused without force.
    """
    row = lock(conn, key)
    if row is None or row.status != Status.RUNNING:
        return Receipt(False, "not_running", row.status if row is not None else Status.ABSENT)
    if row.token != token:
        return Receipt(False, "other_turn", row.status)
    if not row.stale and not force:
        return Receipt(False, "alive", row.status)
    if force:
        ended = end_unanswered(conn, key, row, state=TurnState.RELEASED, charged=uncharged(row), bump=1, error="freed")
    else:
        ended = _end_stale(conn, key, row, limits, jitter)
    write_audit(conn, key, row, act)
    return Receipt(True, "freed", Status.PARKED if ended.charge.parked else Status.IDLE)
