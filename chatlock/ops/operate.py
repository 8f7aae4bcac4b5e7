"""cancel, promote, park, resume, delete, redrive: what callers and operators do to a thread outside a turn."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import select, update
from sqlalchemy.engine import Connection

from chatlock.dialects import wall_ms
from chatlock.inputs import Key
from chatlock.ops.audit import Act, Receipt, write_audit
from chatlock.ops.base import KNOWN, b, lock, named, of_incarnation, of_thread, run
from chatlock.ops.due import drop_due, put_due
from chatlock.ops.fence import FORGET
from chatlock.ops.finish import NO_CLAIM
from chatlock.ops.inspect import outcome_of
from chatlock.ops.intents import cancel_intents
from chatlock.ops.resolve import cancel_one, held_upto
from chatlock.ops.submit import close_question
from chatlock.ops.unanswered import end_unanswered, uncharged
from chatlock.policies import ANSWER, PRIORITIES
from chatlock.protocol import Cancelled, Disposition, NotFound, Outcome, Refused, Status, TurnState
from chatlock.schema import messages, threads, turns

PROMOTE = named(
    "promote.thread",
    update(threads)
    .where(of_incarnation(threads), threads.c.last_seq > threads.c.done_seq)
    .values(priority=b("priority"), quiet_until=0)
    .returning(threads.c.token),
)
PARK = named(
    "park.thread",
    update(threads)
    .where(of_thread(threads), threads.c.status == "idle")
    .values(status="parked")
    .returning(threads.c.token),
)
RESUME = named(
    "resume.thread",
    update(threads)
    .where(of_thread(threads), threads.c.status == "parked")
    .values(status="idle", attempts=0, stalls=0, not_before=0)
    .returning(threads.c.token),
)
DELETE_THREAD = named(
    "delete.thread",
    update(threads)
    .where(of_thread(threads), threads.c.status != "deleted")
    .values(status="deleted", token=threads.c.token + 1, awaiting=None, awaiting_rule=None, **NO_CLAIM)
    .returning(threads.c.token),
)
DELETE_PENDING = named(
    "delete.messages",
    update(messages).where(of_incarnation(messages), messages.c.disposition == "pending").values(disposition="deleted"),
)
DELETE_TURN = named(
    "delete.turn",
    update(turns)
    .where(of_incarnation(turns), turns.c.state == "running")
    .values(state="released", error="deleted", ended_at=wall_ms()),
)
DEAD_MESSAGE = named(
    "redrive.dead",
    select(
        messages.c.incarnation,
        messages.c.seq,
        messages.c.disposition,
        messages.c.payload,
        messages.c.payload_hash,
        messages.c.policy,
        threads.c.agent,
    )
    .join(
        threads,
        (threads.c.tenant == messages.c.tenant)
        & (threads.c.thread_id == messages.c.thread_id)
        & (threads.c.incarnation == messages.c.incarnation),
    )
    .where(of_thread(messages), messages.c.message_id == b("message_id")),
)


def cancel(conn: Connection, key: Key, message_id: str, backoff_max_ms: int) -> Outcome:
    """Resolves a pending message as cancelled; any other message tells its present outcome.  Safe to repeat.  The id of
    the open question closes it.

    Guard: while a turn runs only a message above greatest(fetched_seq, done_seq + 1), else Refused("in_turn").
    """
    row = lock(conn, key)
    if row is None or row.status == Status.DELETED:
        return outcome_of(conn, key, message_id)
    known = run(conn, KNOWN, key, incarnation=row.incarnation, message_id=message_id).one_or_none()
    if known is None and message_id != row.awaiting:
        return NotFound(message_id=message_id)
    if known is None:
        row = close_question(conn, key, row)
        if row.status == Status.IDLE and row.pending:
            put_due(conn, key, row, max(row.starts_at(backoff_max_ms), row.now))
        return Cancelled(message_id=message_id)
    if known.disposition == Disposition.PENDING:
        if known.seq <= held_upto(row):
            ids = {"message_id": message_id, "seq": known.seq, "incarnation": row.incarnation}
            return Refused(**ids, reason="in_turn", state=row.status)
        cancel_one(conn, key, row, known.seq, backoff_max_ms)
    return outcome_of(conn, key, message_id)


def promote(conn: Connection, key: Key, backoff_max_ms: int) -> Receipt:
    """Puts a thread with pending messages among the first that pollers take, and ends its quiet time.

    The order inside the thread, and a backoff after a failure, stay.  Safe to repeat.
    """
    row = lock(conn, key)
    if row is None or row.status == Status.DELETED:
        return Receipt(False, "not_found", Status.ABSENT if row is None else row.status)
    if not row.pending:
        return Receipt(False, "nothing_pending", row.status)
    run(conn, PROMOTE, key, incarnation=row.incarnation, priority=PRIORITIES["user"]).one()
    row = replace(row, priority=PRIORITIES["user"], quiet_until=0)
    if row.status == Status.IDLE:
        put_due(conn, key, row, max(row.starts_at(backoff_max_ms), row.now))
    return Receipt(True, "promoted", row.status)


def park(conn: Connection, key: Key, token: int | None, act: Act) -> Receipt:
    """Takes the thread out of automatic service.  A running turn must be named: it is released and fenced out
    (token + 1).
    """
    row = lock(conn, key)
    if row is None or row.status == Status.DELETED:
        return Receipt(False, "not_found", Status.ABSENT)
    if row.status == Status.PARKED:
        return Receipt(True, "parked", Status.PARKED)
    if row.status == Status.RUNNING:
        if token is None:
            return Receipt(False, "running", row.status)
        if token != row.token:
            return Receipt(False, "other_turn", row.status)
        end_unanswered(conn, key, row, state=TurnState.RELEASED, charged=uncharged(row), bump=1, error="parked")
    if row.status_after != Status.PARKED:  # else its end has parked it
        run(conn, PARK, key).one()
    drop_due(conn, key)
    write_audit(conn, key, row, act)
    return Receipt(True, "parked", Status.PARKED)


def resume(conn: Connection, key: Key, act: Act) -> Receipt:
    """Puts a parked thread back into service with its counters and backoff cleared."""
    row = lock(conn, key)
    if row is None or row.status == Status.DELETED:
        return Receipt(False, "not_found", Status.ABSENT)
    if row.status != Status.PARKED:
        return Receipt(False, "not_parked", row.status)
    run(conn, RESUME, key).one()
    if row.pending:
        put_due(conn, key, row, max(row.quiet_until, row.now))
    write_audit(conn, key, row, act)
    return Receipt(True, "resumed", Status.IDLE)


def delete(conn: Connection, key: Key, act: Act) -> Receipt:
    """Deletes the thread: a tombstone keeps its token; a running turn is fenced out; pending messages become
    deleted.
    """
    row = lock(conn, key)
    if row is None:
        return Receipt(False, "not_found", Status.ABSENT)
    if row.status == Status.DELETED:
        return Receipt(True, "deleted", Status.DELETED)
    run(conn, DELETE_TURN, key, incarnation=row.incarnation)
    run(conn, DELETE_PENDING, key, incarnation=row.incarnation)
    run(conn, DELETE_THREAD, key).one()
    run(conn, FORGET, key)
    cancel_intents(conn, key)
    drop_due(conn, key)
    write_audit(conn, key, row, act)
    return Receipt(True, "deleted", Status.DELETED)


@dataclass(frozen=True)
class DeadMessage:
    """What redrive needs of a dead message."""

    incarnation: int
    seq: int
    payload: str
    payload_hash: str
    agent: str
    answers: bool


def find_dead(conn: Connection, key: Key, message_id: str) -> DeadMessage | Outcome:
    """The dead message to send again, or the outcome that says why it cannot be."""
    row = run(conn, DEAD_MESSAGE, key, message_id=message_id).one_or_none()
    if row is None:
        return outcome_of(conn, key, message_id)
    if row.disposition != Disposition.DEAD or row.payload is None:
        ids = {"message_id": message_id, "seq": row.seq, "incarnation": row.incarnation}
        reason = "purged" if row.disposition == Disposition.DEAD else "not_dead"
        return Refused(**ids, reason=reason, state=row.disposition)
    return DeadMessage(row.incarnation, row.seq, row.payload, row.payload_hash, row.agent, answers=row.policy == ANSWER)
