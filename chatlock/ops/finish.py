"""finish: the turn ends answered, with its reply, in one transaction; with a request it hands off to the next turn."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Text, case, cast, func, select, update
from sqlalchemy.engine import Connection

from chatlock.dialects import wall_ms
from chatlock.errors import ClaimLost, InvalidInput
from chatlock.inputs import plain
from chatlock.ops.base import (
    ITS_TURN,
    KNOWN,
    SILENT,
    UNDER_CLAIM,
    Claim,
    ThreadRow,
    b,
    holds,
    lock,
    named,
    of_incarnation,
    resolved_prefix,
    run,
)
from chatlock.ops.claim import Granted, Request, adopt, claim_and_fetch
from chatlock.ops.due import put_due
from chatlock.ops.fence import fence
from chatlock.ops.intents import Effect, write_intent
from chatlock.ops.resolve import cancel_stopped
from chatlock.protocol import Status
from chatlock.schema import messages, threads, turns


@dataclass(frozen=True)
class Question:
    """What a turn asks a person: its id, and what it does to new messages meanwhile."""

    question_id: str
    rule: str


@dataclass(frozen=True)
class Finish:
    """What the worker holds in memory: every pending message above from_seq up to `upto`, `held` of them.

    question: the reply asks it, and it stays open.
    """

    claim: Claim
    upto: int
    held: int
    reply: str
    effect: Effect | None = None
    question: Question | None = None

    @property
    def stored(self) -> Stored:
        """What it leaves in the turn."""
        return Stored(self.reply, self.upto, self.question.question_id if self.question is not None else None)


@dataclass(frozen=True)
class Stored:
    """What a turn that is done has stored."""

    reply: str
    upto: int
    question_id: str | None


@dataclass(frozen=True)
class Finished:
    """The commit ended the turn.  left: pending messages remain; granted: the next turn, by hand-off; found: what an
    earlier finish of this turn had stored.
    """

    left: bool
    granted: Granted | None = None
    found: Stored | None = None


ANSWER = named(
    "finish.answer",
    update(messages)
    .where(
        of_incarnation(messages),
        messages.c.seq > b("from_seq"),
        messages.c.seq <= b("upto"),
        messages.c.disposition == "pending",
    )
    .values(disposition="answered", turn_token=b("token"))
    .returning(messages.c.seq),
)
NO_CLAIM = {
    "claim_id": None,
    "owner": None,
    "claimed_at": None,
    "expires_at": None,
    "window_ends_at": None,
    "lease_ms": None,
    "cancel_token": None,
    "cancel_until": None,
    "cancel_queued": None,
    "cancel_upto": None,
}
ALL_DONE = named(
    "finish.thread",
    update(threads)
    .where(UNDER_CLAIM)
    .values(
        status=b("new_status"),
        done_seq=b("done"),
        holes=b("new_holes"),
        fetched_seq=case((threads.c.fetched_seq < b("done"), b("done")), else_=threads.c.fetched_seq),
        attempts=0,
        stalls=0,
        not_before=0,
        interrupts=0,
        awaiting=func.coalesce(cast(b("question"), Text), threads.c.awaiting),
        awaiting_rule=func.coalesce(cast(b("rule"), Text), threads.c.awaiting_rule),
        **NO_CLAIM,
    )
    .returning(threads.c.last_seq),
)
END_DONE = named(
    "finish.turn",
    update(turns)
    .where(ITS_TURN)
    .values(
        state="done",
        from_seq=b("from_seq"),
        to_seq=b("upto"),
        reply=b("reply"),
        question=b("question"),
        error=case((b("silent") == 1, SILENT), else_=turns.c.error),
        ended_at=wall_ms(),
    )
    .returning(turns.c.token),
)
FOUND = named(
    "finish.found",
    select(turns.c.reply, turns.c.to_seq, turns.c.question).where(
        of_incarnation(turns),
        turns.c.token == b("token"),
        turns.c.claim_id == b("claim_id"),
        turns.c.state == "done",
    ),
)
LATE = named(
    "turn.report_late",
    update(turns)
    .where(
        of_incarnation(turns),
        turns.c.token == b("token"),
        turns.c.state == "reclaimed",
        turns.c.late_ended_at.is_(None),
    )
    .values(late_ended_at=wall_ms())
    .returning(turns.c.token),
)


def finish(conn: Connection, what: Finish, request: Request | None = None) -> Finished | None:
    """Ends the turn as done and exactly the messages it held as answered.  None: the claim is lost, nothing was
    written.

    Guard: incarnation, token, running, from_seq < upto <= fetched_seq, and the pending messages of that range are
    those held.  Safe to repeat: a turn found done by this claim is a success whose acknowledgement was lost, and what
    it stored then is told with it.
    """
    claim = what.claim
    row = lock(conn, claim.key)
    if row is None or not holds(row, claim):
        found = _found(conn, claim)
        if row is None or found is None:
            return None
        granted = adopt(conn, claim.key, row, request) if request is not None else None
        return Finished(left=row.pending, granted=granted, found=found)
    if not claim.from_seq == row.done_seq < what.upto <= row.fetched_seq:
        return None
    _resolve(conn, what, row)
    return _idle_or_next(conn, what, request)


def _found(conn: Connection, claim: Claim) -> Stored | None:
    mine = {"incarnation": claim.incarnation, "token": claim.token, "claim_id": claim.claim_id}
    row = run(conn, FOUND, claim.key, **mine).one_or_none()
    return None if row is None else Stored(row.reply, row.to_seq, row.question)


def finish_in(conn: Connection, what: Finish) -> Finished:
    """finish in the caller's own transaction: the fence comes first, because its write takes SQLite's lock.

    Raises ClaimLost.
    """
    fence(conn, what.claim)
    finished = finish(conn, what)
    if finished is None:
        raise ClaimLost
    return finished


def _resolve(conn: Connection, what: Finish, row: ThreadRow) -> None:
    claim = what.claim
    bound = {"incarnation": claim.incarnation, "token": claim.token, "from_seq": claim.from_seq, "upto": what.upto}
    answered = len(run(conn, ANSWER, claim.key, **bound).all())
    if answered != what.held or answered == 0:
        raise AssertionError("the pending messages of the range are not those that the turn held")
    holes = row.holes - (what.upto - claim.from_seq - answered) + cancel_stopped(conn, claim.key, row, what.upto)
    done, holes = resolved_prefix(conn, claim.key, row, what.upto, holes)
    question_id = rule = None
    if what.question is not None:
        question_id, rule = what.question.question_id, plain(what.question.rule)
        if run(conn, KNOWN, claim.key, incarnation=claim.incarnation, message_id=question_id).all():
            raise InvalidInput("bad_question", "a message of the thread has the id of this question")
    mine = {"incarnation": claim.incarnation, "token": claim.token}
    place = {"done": done, "new_holes": holes, "new_status": row.status_after}
    ended = run(conn, ALL_DONE, claim.key, **mine, **place, question=question_id, rule=rule).all()
    closed = run(
        conn, END_DONE, claim.key, **bound, reply=what.reply, question=question_id, silent=int(row.silent)
    ).all()
    if (len(ended), len(closed)) != (1, 1):
        raise AssertionError("the locked thread changed under its lock")
    if what.effect is not None:
        write_intent(conn, claim, what.effect)


def _idle_or_next(conn: Connection, what: Finish, request: Request | None) -> Finished:
    key = what.claim.key
    after = lock(conn, key)
    if after is None:
        raise AssertionError("the locked thread vanished under its lock")
    if not after.pending:
        return Finished(left=False)
    granted = claim_and_fetch(conn, key, after, request) if request is not None else None
    if granted is None and after.status == Status.IDLE:
        put_due(conn, key, after, max(after.quiet_until, after.now))
    return Finished(left=True, granted=granted)


def report_late(conn: Connection, claim: Claim) -> bool:
    """Notes that a reclaimed turn reported its end after all: a healthy run that was too slow for its window counts."""
    return bool(run(conn, LATE, claim.key, incarnation=claim.incarnation, token=claim.token).all())
