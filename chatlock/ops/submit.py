"""submit: store a message, idempotent on its message_id, and try to claim its thread, in one transaction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.engine import Connection

from chatlock.dialects import per_dialect, wall_ms
from chatlock.inputs import Key
from chatlock.ops.base import KNOWN, ThreadRow, b, lock, named, of_incarnation, of_thread, run
from chatlock.ops.claim import Granted, Request, adopt, claim_and_fetch
from chatlock.ops.due import put_due
from chatlock.ops.inspect import eta_ms, outcome_of, queued_or_parked, typical_ms
from chatlock.ops.resolve import held_upto, supersede
from chatlock.ops.stop import interrupt, roll_back
from chatlock.policies import ANSWER, POLICIES, Debounce, Interrupt
from chatlock.protocol import TOKENS_PER_EPOCH, Busy, Conflict, Disposition, Gone, Limits, Outcome, Refused, Status
from chatlock.schema import messages, meta, threads


@dataclass(frozen=True)
class Submission:
    """A checked message on its way in: payload is canonical JSON, payload_hash its sha256."""

    key: Key
    message_id: str
    payload: str
    payload_hash: str
    agent: str
    policy: str = "enqueue"
    debounce: Debounce | None = None
    interrupt: Interrupt | None = None
    recreate: bool = False
    redrive_of: str | None = None
    trace: str | None = None
    expire_ms: int | None = None
    priority: int = 0
    if_idle: bool = False
    if_turn: int | None = None
    if_awaiting: str | None = None
    pending_max: int | None = None
    overflow: str = "reject"
    answers: bool = False

    @property
    def names_a_state(self) -> bool:
        """Whether it is refused where there is no thread yet."""
        return self.if_turn is not None or self.if_awaiting is not None

    @property
    def plain(self) -> bool:
        """Whether the hot statement can store it: no precondition or limit, and it changes nothing that is there."""
        limited = self.if_idle or self.names_a_state or (self.expire_ms, self.pending_max) != (None, None)
        policy = POLICIES[self.policy]
        return not (limited or policy.quiet) and policy.pending == "keep" and policy.turn in ("leave", "tell")


@dataclass(frozen=True)
class Submitted:
    """What the commit said: the outcome so far and, if the claim was won, the turn's first messages.

    `incarnation` and `seq` name the stored message; seq is None where nothing is stored.  superseding: other messages
    were resolved.  affected: the token of the running turn that is to be told, was asked to stop or rolled back.
    """

    outcome: Outcome
    incarnation: int = 0
    seq: int | None = None
    granted: Granted | None = None
    superseding: bool = False
    affected: int | None = None


# a thread whose row a failover lost begins above every token that it can have given out
_first_token = func.coalesce(select(meta.c.value).where(meta.c.name == "epoch").scalar_subquery(), 0) * TOKENS_PER_EPOCH
INIT = named(
    "thread.init",
    per_dialect(
        lambda insert: (
            insert(threads)
            .values(
                tenant=b("tenant"), thread_id=b("thread"), agent=b("agent"), token=_first_token, created_at=wall_ms()
            )
            .on_conflict_do_nothing()
        )
    ),
)
# no row has such a token: a write that changes nothing
TOUCH = named(
    "submit.touch",
    update(threads).where(of_thread(threads), threads.c.token < 0).values(token=threads.c.token),
)
RECREATE = named(
    "thread.recreate",
    update(threads)
    .where(of_thread(threads), threads.c.status == "deleted", threads.c.incarnation == b("incarnation"))
    .values(
        status="idle",
        incarnation=threads.c.incarnation + 1,
        token=threads.c.token + 1,
        last_seq=0,
        fetched_seq=0,
        done_seq=0,
        holes=0,
        attempts=0,
        stalls=0,
        not_before=0,
        quiet_until=0,
        interrupts=0,
        awaiting=None,
        awaiting_rule=None,
        created_at=wall_ms(),
    ),
)
STORE = named(
    "messages.insert",
    insert(messages).values(
        tenant=b("tenant"),
        thread_id=b("thread"),
        incarnation=b("incarnation"),
        seq=b("seq"),
        message_id=b("message_id"),
        payload=b("payload"),
        payload_hash=b("payload_hash"),
        disposition="pending",
        policy=b("policy"),
        received_at=b("now"),
        redrive_of=b("redrive_of"),
        trace=b("trace"),
        expire_ms=b("expire_ms"),
    ),
)
TOO_OLD = named(
    "submit.too_old",
    select(messages.c.seq)
    .where(of_incarnation(messages), messages.c.seq > b("above"), messages.c.disposition == "pending")
    .order_by(messages.c.seq.desc())
    .limit(1)
    .offset(b("newer")),
)
OLDEST = named(
    "submit.oldest",
    select(messages.c.received_at)
    .where(of_incarnation(messages), messages.c.seq > b("above"), messages.c.disposition == "pending")
    .order_by(messages.c.seq)
    .limit(1),
)
QUIET = named(
    "submit.quiet",
    update(threads).where(of_incarnation(threads)).values(quiet_until=b("until")).returning(threads.c.quiet_until),
)
CLOSE_QUESTION = named(
    "thread.close_question",
    update(threads)
    .where(of_thread(threads), threads.c.awaiting == b("question"))
    .values(awaiting=None, awaiting_rule=None)
    .returning(threads.c.token),
)
ADVANCE_LAST = named(
    "thread.advance_last",
    update(threads)
    .where(of_incarnation(threads), threads.c.last_seq == b("seq") - 1)
    .values(last_seq=b("seq"), agent=b("agent"), priority=b("priority"))
    .returning(threads.c.last_seq),
)


def init_thread(conn: Connection, key: Key, agent: str) -> None:
    """Inserts the thread's row, whoever comes first.  Safe to repeat."""
    run(conn, INIT, key, agent=agent)


def lock_or_init(conn: Connection, submission: Submission) -> ThreadRow:
    """The locked row of the thread, created if there is none, and recreated if it was deleted and the caller asked
    for it.
    """
    key = submission.key
    row = lock(conn, key)
    if row is None:
        init_thread(conn, key, submission.agent)
        row = lock(conn, key)
    if row is not None and row.status == Status.DELETED and submission.recreate:
        run(conn, RECREATE, key, incarnation=row.incarnation)
        row = lock(conn, key)
    if row is None:
        raise AssertionError("the thread's row vanished: rows of chatlock_threads are never deleted")
    return row


def store(conn: Connection, submission: Submission, row: ThreadRow) -> ThreadRow:
    """Inserts the message at the end of the thread.  Guard: the row is locked, and the message_id is new."""
    seq = row.last_seq + 1
    run(
        conn,
        STORE,
        submission.key,
        incarnation=row.incarnation,
        seq=seq,
        message_id=submission.message_id,
        payload=submission.payload,
        payload_hash=submission.payload_hash,
        policy=ANSWER if submission.answers else submission.policy,
        redrive_of=submission.redrive_of,
        trace=submission.trace,
        now=row.now,
        expire_ms=submission.expire_ms,
    )
    after = replace(row, last_seq=seq, agent=submission.agent, priority=row.class_with(submission.priority))
    moved = run(
        conn,
        ADVANCE_LAST,
        submission.key,
        incarnation=row.incarnation,
        seq=seq,
        agent=after.agent,
        priority=after.priority,
    ).all()
    if len(moved) != 1:
        raise AssertionError("the locked thread changed under its lock")
    return after


def _busy(conn: Connection, what: Submission, row: ThreadRow) -> Busy:
    return Busy(
        message_id=what.message_id,
        holder=row.owner,
        since_ms=row.claimed_ms,
        live=None if row.expires_at is None else row.expires_at > row.now,
        position=row.last_seq - row.done_seq - row.holes,
        eta_ms=eta_ms(typical_ms(conn, row.agent), row.claimed_ms, in_turn=row.fetched_seq == row.last_seq),
    )


def _refusal(conn: Connection, what: Submission, row: ThreadRow, too_old: int | None) -> Outcome | None:
    """What a new message is told that is not stored; None: it is."""
    running = row.status == Status.RUNNING
    reason = None
    if what.if_idle and row.status != Status.IDLE:
        reason = "not_idle"
    elif what.if_turn is not None and not running:
        reason = "not_running"
    elif what.if_turn is not None and what.if_turn != row.token:
        reason = "other_turn"
    elif what.if_awaiting is not None and what.if_awaiting != row.awaiting:
        reason = "not_awaiting" if row.awaiting is None else "other_question"
    elif what.message_id == row.awaiting and not what.answers:
        reason = "open_question"
    elif (running or row.pending) and POLICIES[what.policy].store == "if_free":
        return _busy(conn, what, row)
    elif too_old is not None and what.overflow == "reject":
        reason = "full"
    return None if reason is None else Refused(message_id=what.message_id, reason=reason, state=row.status)


def _too_old(conn: Connection, what: Submission, row: ThreadRow) -> int | None:
    """The newest of the pending messages that would be too many with the new one; None: there is room."""
    if what.pending_max is None or POLICIES[what.policy].pending == "supersede":
        return None
    bound = {"incarnation": row.incarnation, "above": held_upto(row), "newer": what.pending_max - 1}
    seq: int | None = run(conn, TOO_OLD, what.key, **bound).scalar_one_or_none()
    return seq


def _wait_for_quiet(conn: Connection, what: Submission, row: ThreadRow, times: Debounce, above: int) -> ThreadRow:
    """The next turn starts once it has been quiet, or the oldest message above `above` has waited long enough."""
    oldest = run(conn, OLDEST, what.key, incarnation=row.incarnation, above=above).scalar_one()
    until = min(row.now + times.quiet_ms, oldest + times.max_wait_ms)
    run(conn, QUIET, what.key, incarnation=row.incarnation, until=until).one()
    return replace(row, quiet_until=until)


def close_question(conn: Connection, key: Key, row: ThreadRow) -> ThreadRow:
    """The question that is open is so no longer: answered, or given up.  Guard: the row is locked."""
    run(conn, CLOSE_QUESTION, key, question=row.awaiting).one()
    return replace(row, awaiting=None, awaiting_rule=None)


def _take_in(conn: Connection, what: Submission, row: ThreadRow, too_old: int | None, limits: Limits) -> ThreadRow:
    """Stores the new message, and supersedes the pending ones that its policy or the limit says, or itself."""
    above = held_upto(row)
    if row.awaiting is not None and (what.answers or row.awaiting_rule == "cancel"):
        row = close_question(conn, what.key, row)
    row = store(conn, what, row)
    seq = row.last_seq
    by: int | None = seq
    if what.debounce is not None and (too_old is None or what.overflow != "drop_newest"):
        row = _wait_for_quiet(conn, what, row, what.debounce, above)
    if POLICIES[what.policy].pending == "supersede":
        upto = seq - 1
    elif too_old is None:
        return row
    elif what.overflow == "drop_oldest":
        upto = too_old
    else:
        above, upto, by = seq - 1, seq, None
    return supersede(conn, what.key, row, above=above, upto=upto, by=by, backoff_max_ms=limits.backoff_max_ms)


def _affect(conn: Connection, what: Submission, row: ThreadRow) -> tuple[ThreadRow, int | None]:
    """What the policy does to the running turn, before the message is stored; the token of a turn that it touches."""
    effect = POLICIES[what.policy].turn
    if row.status != Status.RUNNING or effect == "leave":
        return row, None
    if effect == "rollback":
        return roll_back(conn, what.key, row), row.token
    if what.interrupt is not None and not interrupt(conn, what.key, row, what.interrupt):
        return row, None
    return row, row.token


def submit(conn: Connection, submission: Submission, request: Request | None, limits: Limits) -> Submitted:
    """Stores the message and, with a request, tries to claim.

    Guard: the thread's lock; a known message_id gets its present state and no new seq, whatever its preconditions.
    Safe to repeat: the claim_id adopts what an attempt with a lost acknowledgement won.
    """
    key, message_id, superseding, affected = submission.key, submission.message_id, False, None
    if submission.names_a_state and lock(conn, key) is None:
        reason = "not_running" if submission.if_turn is not None else "not_awaiting"
        return Submitted(Refused(message_id=message_id, reason=reason, state=Status.ABSENT.value))
    row = lock_or_init(conn, submission)
    if row.status == Status.DELETED:
        return Submitted(Gone(message_id=message_id))
    if message_id == row.awaiting == submission.if_awaiting:  # an answer is never put off, merged or dropped
        submission = replace(submission, answers=True, policy="enqueue", debounce=None, pending_max=None)
    known = run(conn, KNOWN, key, incarnation=row.incarnation, message_id=message_id).one_or_none()
    if known is not None:
        if known.payload_hash != submission.payload_hash:
            return Submitted(Conflict(message_id=message_id, seq=known.seq, incarnation=row.incarnation))
        if known.disposition != Disposition.PENDING:
            return Submitted(outcome_of(conn, key, message_id), row.incarnation, known.seq)
        seq = int(known.seq)
    else:
        too_old = _too_old(conn, submission, row)
        refused = _refusal(conn, submission, row, too_old)
        if refused is not None:
            return Submitted(refused)
        before = row
        dropped = too_old is not None and submission.overflow == "drop_newest"
        if not dropped:
            row, affected = _affect(conn, submission, row)
        row = _take_in(conn, submission, row, too_old, limits)
        seq = row.last_seq
        if dropped:
            return Submitted(outcome_of(conn, key, message_id), row.incarnation, seq)
        superseding = (row.done_seq, row.holes) != (before.done_seq, before.holes)
    granted = None
    if request is not None:
        granted = adopt(conn, key, row, request) or claim_and_fetch(conn, key, row, request, seq)
    if granted is None and row.status == Status.IDLE:
        put_due(conn, key, row, max(row.starts_at(limits.backoff_max_ms), row.now))
    told = queued_or_parked(conn, message_id, row) if known is None else outcome_of(conn, key, message_id)
    return Submitted(told, row.incarnation, seq, granted, superseding, affected)


def submit_in(conn: Connection, submission: Submission, limits: Limits) -> Submitted:
    """submit in the caller's own transaction, without a claim: a write comes first, because it takes SQLite's lock.

    What names a state may be refused where there is no thread, so that write changes no row.
    """
    if submission.names_a_state:
        run(conn, TOUCH, submission.key)
    else:
        init_thread(conn, submission.key, submission.agent)
    return submit(conn, submission, None, limits)


def submission_values(submission: Submission) -> dict[str, Any]:
    """The submission's columns for the hot statement."""
    return {
        "tenant": submission.key.tenant,
        "thread": submission.key.thread,
        "message_id": submission.message_id,
        "payload": submission.payload,
        "payload_hash": submission.payload_hash,
        "agent": submission.agent,
        "policy": submission.policy,
        "priority": submission.priority,
        "trace": submission.trace,
    }
