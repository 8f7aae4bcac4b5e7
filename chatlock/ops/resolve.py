"""resolve: messages get their disposition without a turn: cancelled, superseded or expired."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import case, select, update
from sqlalchemy.engine import Connection

from chatlock.dialects import greatest
from chatlock.inputs import Key
from chatlock.ops.base import ThreadRow, b, named, of_incarnation, resolved_prefix, run
from chatlock.ops.due import put_due
from chatlock.protocol import Disposition, Status
from chatlock.schema import messages, threads, turns


def _resolving(name: str, disposition: Disposition, *which: Any, **also: Any) -> Any:
    return named(
        name,
        update(messages)
        .where(of_incarnation(messages), *which, messages.c.disposition == "pending")
        .values(disposition=disposition.value, **also)
        .returning(messages.c.seq),
    )


OVERDUE = named(
    "resolve.overdue",
    select(messages.c.seq)
    .where(
        of_incarnation(messages),
        messages.c.seq > b("above"),
        messages.c.disposition == "pending",
        messages.c.expire_ms < b("now") - messages.c.received_at,
    )
    .order_by(messages.c.seq)
    .limit(1),
)
LAST_END = named(
    "resolve.last_end",
    select(turns.c.ended_at)
    .where(of_incarnation(turns), turns.c.ended_at.is_not(None))
    .order_by(turns.c.token.desc())
    .limit(1),
)
CANCEL = _resolving("resolve.cancel", Disposition.CANCELLED, messages.c.seq == b("seq"))
CANCEL_RANGE = _resolving(
    "resolve.cancel_range", Disposition.CANCELLED, messages.c.seq > b("above"), messages.c.seq <= b("upto")
)
SUPERSEDE = _resolving(
    "resolve.supersede",
    Disposition.SUPERSEDED,
    messages.c.seq > b("above"),
    messages.c.seq <= b("upto"),
    superseded_by=b("by"),
)
EXPIRE = _resolving(
    "resolve.expire",
    Disposition.EXPIRED,
    messages.c.seq > b("above"),
    messages.c.expire_ms < b("now") - greatest(messages.c.received_at, b("last_end")),
)
# a new head starts afresh: counters and backoff belonged to the message that is resolved
MOVE_PREFIX = named(
    "resolve.thread",
    update(threads)
    .where(of_incarnation(threads), threads.c.token == b("token"))
    .values(
        done_seq=b("done"),
        holes=b("new_holes"),
        fetched_seq=case((threads.c.fetched_seq < b("done"), b("done")), else_=threads.c.fetched_seq),
        attempts=case((b("done") > threads.c.done_seq, 0), else_=threads.c.attempts),
        stalls=case((b("done") > threads.c.done_seq, 0), else_=threads.c.stalls),
        not_before=case((b("done") > threads.c.done_seq, 0), else_=threads.c.not_before),
        interrupts=case((b("done") > threads.c.done_seq, 0), else_=threads.c.interrupts),
    )
    .returning(
        threads.c.done_seq,
        threads.c.holes,
        threads.c.fetched_seq,
        threads.c.attempts,
        threads.c.stalls,
        threads.c.not_before,
    ),
)


def held_upto(row: ThreadRow) -> int:
    """No turn has a message above this seq, or is about to have it: those may be resolved.  Guard: the row is
    locked.
    """
    return max(row.fetched_seq, row.done_seq + 1) if row.status == Status.RUNNING else row.done_seq


def cancel_one(conn: Connection, key: Key, row: ThreadRow, seq: int, backoff_max_ms: int) -> ThreadRow:
    """Resolves one pending message above held_upto as cancelled.  Guard: the row is locked."""
    run(conn, CANCEL, key, incarnation=row.incarnation, seq=seq).one()
    return _settle(conn, key, row, 1, backoff_max_ms)


def cancel_waiting(conn: Connection, key: Key, row: ThreadRow, *, above: int, backoff_max_ms: int) -> ThreadRow:
    """Resolves every pending message above `above` as cancelled.  Guard: the row is locked, above >= held_upto(row)."""
    return _settled(conn, key, row, CANCEL_RANGE, backoff_max_ms, above=above, upto=row.last_seq)


def cancel_stopped(conn: Connection, key: Key, row: ThreadRow, above: int) -> int:
    """Resolves as cancelled what was pending when the running turn was stopped with queued="cancel"; returns how many.

    Guard: the row is locked, and this transaction ends the turn without an answer to what stands above `above`.
    """
    if not row.stopping or row.cancel_queued != "cancel":
        return 0
    return len(run(conn, CANCEL_RANGE, key, incarnation=row.incarnation, above=above, upto=row.cancel_upto).all())


def supersede(
    conn: Connection, key: Key, row: ThreadRow, *, above: int, upto: int, by: int | None, backoff_max_ms: int
) -> ThreadRow:
    """Resolves the pending messages of (above, upto] as superseded by the message `by`.

    Guard: the row is locked, and above >= held_upto(row).
    """
    return _settled(conn, key, row, SUPERSEDE, backoff_max_ms, above=above, upto=upto, by=by)


def expire(conn: Connection, key: Key, row: ThreadRow, backoff_max_ms: int) -> ThreadRow:
    """Resolves as expired what may be resolved and has waited longer than its own expire_ms, since it was received or
    since the thread's last turn ended, whichever is later.  Guard: the row is locked.
    """
    bound = {"above": held_upto(row), "now": row.now}
    if run(conn, OVERDUE, key, incarnation=row.incarnation, **bound).one_or_none() is None:
        return row
    last_end = run(conn, LAST_END, key, incarnation=row.incarnation).scalar_one_or_none()
    return _settled(conn, key, row, EXPIRE, backoff_max_ms, **bound, last_end=last_end or 0)


def _settled(
    conn: Connection, key: Key, row: ThreadRow, statement: Any, backoff_max_ms: int, **bound: Any
) -> ThreadRow:
    count = len(run(conn, statement, key, incarnation=row.incarnation, **bound).all())
    return _settle(conn, key, row, count, backoff_max_ms) if count else row


def _settle(conn: Connection, key: Key, row: ThreadRow, count: int, backoff_max_ms: int) -> ThreadRow:
    """The thread after `count` more messages were resolved: unless a turn runs, done_seq moves over the resolved
    prefix.
    """
    done, holes = row.done_seq, row.holes + count
    if row.status != Status.RUNNING:
        done, holes = resolved_prefix(conn, key, row, done, holes)
    moved = run(conn, MOVE_PREFIX, key, incarnation=row.incarnation, token=row.token, done=done, new_holes=holes).one()
    row = replace(row, **moved._mapping)
    if row.status == Status.IDLE and row.pending:
        put_due(conn, key, row, max(row.starts_at(backoff_max_ms), row.now))
    return row
