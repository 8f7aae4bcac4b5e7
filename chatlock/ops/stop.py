"""stop: a running turn is asked to end, ended by force once its grace is over, or rolled back with what it fetched.

A stop names its token, so it never reaches the next turn; a turn that finishes anyway is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, func, select, update
from sqlalchemy.engine import Connection

from chatlock.dialects import stable_ms
from chatlock.inputs import Key
from chatlock.ops.base import UNDER_CLAIM, Claim, ThreadRow, b, lock, named, of_incarnation, of_thread, run
from chatlock.ops.resolve import SUPERSEDE, cancel_waiting, held_upto
from chatlock.ops.unanswered import Ended, Observed, end_unanswered, uncharged
from chatlock.policies import Backlog, Interrupt
from chatlock.protocol import Status, TurnState
from chatlock.schema import messages, threads, turns

GRACE_OVER = "grace over"
ROLLED_BACK = "rolled back"
"""The error of a turn that was released by force, and of one that was rolled back."""

ASK = named(
    "stop.ask",
    update(threads)
    .where(UNDER_CLAIM)
    .values(
        cancel_token=b("token"),
        cancel_until=b("until"),
        cancel_queued=b("queued"),
        cancel_upto=b("upto"),
        interrupts=threads.c.interrupts + b("spent"),
    )
    .returning(threads.c.token),
)
WAITING = named(
    "stop.waiting",
    select(messages.c.seq, messages.c.message_id)
    .where(of_incarnation(messages), messages.c.seq > b("above"), messages.c.disposition == "pending")
    .order_by(messages.c.seq),
)
OVERDUE = named(
    "stop.lock_overdue",
    select(threads.c.token)
    .where(
        of_thread(threads),
        threads.c.status == "running",
        threads.c.token == b("token"),
        threads.c.cancel_token == b("token"),
        threads.c.cancel_until < stable_ms(),
    )
    .with_for_update(key_share=True, skip_locked=True),
)


def rolled_back_since_done(of: Callable[[Any], Any]) -> Any:
    """The turns that an on_rollback hook is to see: rolled back after the last done one among those that `of` names."""
    done = turns.alias("done_turns")
    last_done = select(func.max(done.c.token)).where(of(done), done.c.state == "done").scalar_subquery()
    return and_(
        turns.c.state == "released",
        turns.c.error.is_not_distinct_from(ROLLED_BACK),
        turns.c.token > func.coalesce(last_done, 0),
    )


def _before(table: Any) -> Any:
    return and_(of_incarnation(table), table.c.token < b("token"))


SINCE_DONE = named(
    "stop.rolled_back",
    select(turns.c.token).where(_before(turns), rolled_back_since_done(_before)).order_by(turns.c.token),
)


@dataclass(frozen=True)
class CancelReceipt:
    """What became of the request that a turn stop."""

    done: bool
    """Whether the turn is asked to stop."""
    reason: str
    """asked, or why not: not_running or other_turn."""
    state: str
    """The thread's status: absent, idle, running, parked or deleted."""
    turn: int
    """The token of the turn that was named."""
    queued: Backlog
    """What becomes of the messages: keep, cancel or park."""
    held: tuple[str, ...] = ()
    """The ids of the messages that the turn has, or is about to have; they are answered if it finishes anyway."""
    waiting: tuple[str, ...] = ()
    """The ids of the messages behind them."""


def _ask(
    conn: Connection, key: Key, row: ThreadRow, grace_ms: int, queued: Backlog, *, upto: int | None, spent: int
) -> None:
    until = row.now + grace_ms
    if row.stopping and row.cancel_until is not None:
        until = min(until, row.cancel_until)
    bound = {"until": until, "queued": queued, "upto": upto, "spent": spent}
    run(conn, ASK, key, incarnation=row.incarnation, token=row.token, **bound).one()


def interrupt(conn: Connection, key: Key, row: ThreadRow, bounds: Interrupt) -> bool:
    """Asks the running turn to stop, for the sake of a new message; whether it is asked now.

    Guard: the row is locked; running, not asked yet, and fewer than per_head_max interrupts of its oldest message.
    """
    if row.status != Status.RUNNING or row.stopping or row.interrupts >= bounds.per_head_max:
        return False
    _ask(conn, key, row, bounds.grace_ms, "keep", upto=None, spent=1)
    return True


def roll_back(conn: Connection, key: Key, row: ThreadRow) -> ThreadRow:
    """Ends the running turn, and supersedes what it fetched by the message that is about to be stored.

    Guard: the row is locked and running.  token + 1, so that the turn's late finish is refused.
    """
    bound = {"above": row.done_seq, "upto": row.fetched_seq, "by": row.last_seq + 1}
    taken = len(run(conn, SUPERSEDE, key, incarnation=row.incarnation, **bound).all())
    holes = row.holes - (row.fetched_seq - row.done_seq - taken)
    end_unanswered(
        conn,
        key,
        row,
        state=TurnState.RELEASED,
        charged=uncharged(row),
        bump=1,
        error=ROLLED_BACK,
        resolved=(row.fetched_seq, holes),
    )
    after = lock(conn, key)
    if after is None:
        raise AssertionError("the locked thread vanished under its lock")
    return after


def stop(
    conn: Connection, key: Key, token: int, queued: Backlog, *, grace_ms: int, backoff_max_ms: int
) -> CancelReceipt:
    """Asks the named turn to stop.  queued="cancel": what waits behind it is cancelled now, what it has when it ends
    without an answer; "park": the thread is parked when the turn is over.  Safe to repeat; the shorter grace holds.

    Guard: running under that token.
    """
    row = lock(conn, key)
    if row is None or row.status != Status.RUNNING:
        return CancelReceipt(
            False, "not_running", row.status if row is not None else Status.ABSENT.value, token, queued
        )
    if row.token != token:
        return CancelReceipt(False, "other_turn", row.status, token, queued)
    above = held_upto(row)
    pending = run(conn, WAITING, key, incarnation=row.incarnation, above=row.done_seq).all()
    if queued == "cancel":
        cancel_waiting(conn, key, row, above=above, backoff_max_ms=backoff_max_ms)
    _ask(conn, key, row, grace_ms, queued, upto=row.last_seq, spent=0)
    held = tuple(m.message_id for m in pending if m.seq <= above)
    waiting = tuple(m.message_id for m in pending if m.seq > above)
    return CancelReceipt(True, "asked", row.status, token, queued, held, waiting)


def force(conn: Connection, seen: Observed) -> Ended | None:
    """Releases a turn whose grace is over: token + 1, uncharged, its messages pending again.  None: it has ended, or
    someone has its lock.

    Guard: running under the observed token, which was asked to stop, and the grace has passed, judged by the statement
    that locks the row.
    """
    overdue = run(conn, OVERDUE, seen.key, token=seen.token).one_or_none()
    row = lock(conn, seen.key) if overdue is not None else None
    if row is None:
        return None
    return end_unanswered(
        conn, seen.key, row, state=TurnState.RELEASED, charged=uncharged(row), bump=1, error=GRACE_OVER
    )


def rolled_back(conn: Connection, claim: Claim) -> list[int]:
    """The tokens of the turns that were rolled back since the thread's last done turn."""
    rows = run(conn, SINCE_DONE, claim.key, incarnation=claim.incarnation, token=claim.token)
    return [int(row.token) for row in rows]
