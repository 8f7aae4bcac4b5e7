"""edit: a pending message is superseded by a new one at the end, which takes its place in the conversation."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.engine import Connection

from chatlock.inputs import Key
from chatlock.ops.base import KNOWN, b, lock, named, of_incarnation, run
from chatlock.ops.inspect import outcome_of, queued_or_parked
from chatlock.ops.resolve import held_upto, supersede
from chatlock.ops.submit import Submission, store
from chatlock.policies import ANSWER
from chatlock.protocol import Conflict, Disposition, Limits, NotFound, Outcome, Refused, Status
from chatlock.schema import messages

EDITED = named(
    "edit.message",
    select(
        messages.c.seq,
        messages.c.disposition,
        messages.c.policy,
        messages.c.expire_ms,
        messages.c.superseded_by,
    ).where(of_incarnation(messages), messages.c.message_id == b("message_id")),
)


@dataclass(frozen=True)
class Edit:
    """A checked edit: the message that it replaces, its own id, and what stands there from now on."""

    message_id: str
    edit_id: str
    payload: str
    payload_hash: str
    trace: str | None = None


def edit(conn: Connection, key: Key, what: Edit, limits: Limits) -> Outcome:
    """Stores the new message and supersedes the pending one by it.  Safe to repeat: an edit that was made tells its
    outcome, and another use of its id is Conflict.

    Guard: while a turn runs only a message above greatest(fetched_seq, done_seq + 1), else Refused("in_turn"); an
    answer is Refused("answer").  A message that is resolved tells its outcome, under its own id.
    """
    row = lock(conn, key)
    if row is None or row.status == Status.DELETED:
        return outcome_of(conn, key, what.message_id)
    known = run(conn, KNOWN, key, incarnation=row.incarnation, message_id=what.edit_id).one_or_none()
    old = run(conn, EDITED, key, incarnation=row.incarnation, message_id=what.message_id).one_or_none()
    if known is not None:
        if known.payload_hash != what.payload_hash or old is None or old.superseded_by != known.seq:
            return Conflict(message_id=what.edit_id, seq=known.seq, incarnation=row.incarnation)
        return outcome_of(conn, key, what.edit_id)
    if old is None:
        return NotFound(message_id=what.message_id)
    if old.disposition != Disposition.PENDING:
        return outcome_of(conn, key, what.message_id)
    reason = "in_turn" if old.seq <= held_upto(row) else None
    if old.policy == ANSWER or what.edit_id == row.awaiting:
        reason = "answer"
    if reason is not None:
        ids = {"message_id": what.message_id, "seq": old.seq, "incarnation": row.incarnation}
        return Refused(**ids, reason=reason, state=row.status)
    new = Submission(
        key,
        what.edit_id,
        what.payload,
        what.payload_hash,
        row.agent,
        policy=old.policy,
        expire_ms=old.expire_ms,
        trace=what.trace,
    )
    row = store(conn, new, row)
    seq, far = row.last_seq, limits.backoff_max_ms
    row = supersede(conn, key, row, above=old.seq - 1, upto=old.seq, by=seq, backoff_max_ms=far)
    return queued_or_parked(conn, what.edit_id, row)
