"""What every operation stands on: named statements, the locked thread row, a claim."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import CursorResult, and_, bindparam, column, func, select, text, tuple_
from sqlalchemy.engine import Connection

from chatlock.charging import starts_at
from chatlock.dialects import PerDialect, wall_ms
from chatlock.errors import ClaimLost
from chatlock.inputs import Key, key_hash
from chatlock.protocol import Status, held
from chatlock.schema import messages, threads, turns

S = TypeVar("S")

CATALOG: dict[str, Any] = {}

SILENT = "silent"
WINDOW = "window"
"""Why a turn was reclaimed: it fell silent, or it beat on past its window.  A turn that fell silent and went on is
noted as SILENT too: how long it took is no evidence of how long a healthy one takes.
"""


def named(name: str, statement: S) -> S:
    """Registers a statement under its name: in logs, traces, docs/sql and pause points."""
    if name in CATALOG:
        raise ValueError(f"two statements are named {name}")
    CATALOG[name] = statement
    return statement


def b(name: str) -> Any:
    """A bind parameter; the prefix keeps it apart from column names, which SET and VALUES reserve."""
    return bindparam(f"b_{name}")


def run(conn: Connection, statement: Any, key: Key | None = None, **values: Any) -> CursorResult[*tuple[Any, ...]]:
    """Executes a catalogued statement."""
    if isinstance(statement, PerDialect):
        statement = statement.on(conn)
    bound = {f"b_{name}": value for name, value in values.items()}
    if key is not None:
        bound |= {"b_tenant": key.tenant, "b_thread": key.thread}
    return conn.execute(statement, bound)


def of_thread(table: Any) -> Any:
    """The rows of one thread, in any incarnation."""
    return and_(table.c.tenant == b("tenant"), table.c.thread_id == b("thread"))


def of_incarnation(table: Any) -> Any:
    """The rows of one incarnation of one thread."""
    return and_(of_thread(table), table.c.incarnation == b("incarnation"))


UNDER_CLAIM: Any = and_(of_incarnation(threads), threads.c.token == b("token"), threads.c.status == "running")
"""holds, in SQL: the guard of what a claim's turn writes to its thread."""
ITS_TURN: Any = and_(of_incarnation(turns), turns.c.token == b("token"), turns.c.state == "running")
"""The claim's turn, while it runs."""


def of_those(rows: Any, place: tuple[Any, ...]) -> PerDialect:
    """The rows whose place is in the list `waited`."""
    waited: Any = bindparam("b_waited", expanding=True)
    # SQLite finds no index for a list of tuples and would read every thread; it joins the list as the table that it is
    columns = (column(f"column{n}", c.type) for n, c in enumerate(place, 1))
    listed = text(":b_waited").bindparams(waited).columns(*columns).subquery("waited")
    return PerDialect(
        postgresql=rows.where(tuple_(*place).in_(waited)),
        sqlite=rows.join(listed, and_(*(c == other for c, other in zip(place, listed.c, strict=True)))),
    )


@dataclass(frozen=True)
class ThreadRow:
    """The locked row, with the database's clock read after the lock."""

    incarnation: int
    agent: str
    status: str
    token: int
    claim_id: str | None
    owner: str | None
    claimed_at: int | None
    expires_at: int | None
    window_ends_at: int | None
    beat: int
    last_seq: int
    fetched_seq: int
    done_seq: int
    holes: int
    attempts: int
    stalls: int
    not_before: int
    quiet_until: int
    awaiting: str | None
    awaiting_rule: str | None
    priority: int
    cancel_token: int | None
    cancel_until: int | None
    cancel_queued: str | None
    cancel_upto: int | None
    interrupts: int
    now: int

    @property
    def pending(self) -> bool:
        """Whether a message waits for a turn (or is in one)."""
        return self.last_seq > self.done_seq

    @property
    def claimed_ms(self) -> int | None:
        """For how long the running turn has had its claim."""
        return None if self.claimed_at is None else max(0, self.now - self.claimed_at)

    @property
    def held(self) -> bool:
        """Whether an open question keeps turns from beginning."""
        return held(self.awaiting, self.awaiting_rule)

    @property
    def stale(self) -> bool:
        """Whether a running turn's lease or window has passed."""
        return self.expires_at is not None and self.expires_at < self.now

    @property
    def silent(self) -> bool:
        """Whether it is stale because it fell silent, and not because it beat on until its window passed."""
        return self.stale and (self.window_ends_at or 0) > (self.expires_at or 0)

    @property
    def waits(self) -> bool:
        """Whether it is idle and has messages for a turn, which no question keeps from beginning."""
        return self.status == Status.IDLE and self.pending and not self.held

    @property
    def stopping(self) -> bool:
        """Whether the running turn was asked to stop; what an earlier turn was asked is void."""
        return self.status == Status.RUNNING and self.cancel_token == self.token

    @property
    def status_after(self) -> Status:
        """What the thread becomes when its running turn ends."""
        return Status.PARKED if self.stopping and self.cancel_queued == "park" else Status.IDLE

    def class_with(self, priority: int) -> int:
        """The thread's class with one message more: the first of those of its pending messages."""
        return min(self.priority, priority) if self.pending else priority

    def starts_at(self, backoff_max_ms: int) -> int:
        """When the thread may start, if idle."""
        return starts_at(self.not_before, self.quiet_until, self.now, backoff_max_ms)


@dataclass(frozen=True)
class Incomplete:
    """The turn before this one over the same oldest message, which did not answer it."""

    token: int
    """Its token."""
    state: str
    """How it ended: failed, released or reclaimed."""
    mark: Any = None
    """What it last gave to Turn.mark: a JSON value; None: nothing."""


@dataclass(frozen=True)
class Claim:
    """A granted claim.  from_seq is done_seq at the claim; asked_at: when it was asked for, on this process's monotonic
    clock.
    """

    key: Key
    incarnation: int
    token: int
    claim_id: str
    from_seq: int
    agent: str
    lease_ms: int
    previous_incomplete: Incomplete | None = None
    asked_at: float = field(default_factory=time.monotonic, compare=False)

    @property
    def after_release(self) -> bool:
        """Whether the turn before was handed back: one that is, time and again, is not to be run at once each time."""
        return self.previous_incomplete is not None and self.previous_incomplete.state == "released"

    def named(self) -> dict[str, object]:
        """What a log record names its turn by."""
        thread_hash = key_hash(self.key)[:12]
        return {"thread_hash": thread_hash, "token": self.token, "claim_id": self.claim_id, "agent": self.agent}


@dataclass(frozen=True)
class Message:
    """A message as a turn holds it."""

    seq: int
    """Its position in the thread, counted from 1."""
    message_id: str
    """Its id, on which it was deduped."""
    payload: Any
    """What was submitted: a JSON value."""
    received_at: int
    """When it was stored, in ms since 1970 of the database clock."""
    redrive_of: str | None = None
    """The id of the dead message that this one sends again."""
    answers: str | None = None
    """The id of the question that it answers; the payload is the decision then."""
    trace: str | None = None
    """What a subscriber of the client that stored it gave it, such as a W3C traceparent."""


HELD: Any = and_(threads.c.awaiting.is_not(None), func.coalesce(threads.c.awaiting_rule, "") == "hold")
"""ThreadRow.held, in SQL."""

_COLUMNS = [threads.c[name] for name in ThreadRow.__dataclass_fields__ if name != "now"]


def _lock(skip_locked: bool) -> Any:
    locked = (
        select(*_COLUMNS)
        .where(of_thread(threads))
        .with_for_update(key_share=True, skip_locked=skip_locked)
        .cte("locked")
    )
    return select(*locked.c, wall_ms())


LOCK = named("thread.lock", _lock(skip_locked=False))
LOCK_SKIP = named("thread.lock_or_skip", _lock(skip_locked=True))

TURN_STATE = named(
    "turn.state",
    select(turns.c.state, turns.c.claim_id, turns.c.error).where(of_incarnation(turns), turns.c.token == b("token")),
)
KNOWN = named(
    "messages.known",
    select(messages.c.seq, messages.c.disposition, messages.c.payload_hash).where(
        of_incarnation(messages), messages.c.message_id == b("message_id")
    ),
)
FIRST_PENDING = named(
    "messages.first_pending",
    select(messages.c.seq)
    .where(of_incarnation(messages), messages.c.seq > b("done"), messages.c.disposition == "pending")
    .order_by(messages.c.seq)
    .limit(1),
)


def lock(conn: Connection, key: Key, *, skip_locked: bool = False) -> ThreadRow | None:
    """The first statement of every transaction on a thread.  None: no row (or, with skip_locked, someone has it)."""
    row = run(conn, LOCK_SKIP if skip_locked else LOCK, key).one_or_none()
    return None if row is None else ThreadRow(*row)


def holds(row: ThreadRow | None, claim: Claim) -> bool:
    """Whether the locked row is still under this claim."""
    return row is not None and (row.incarnation, row.token, row.status) == (
        claim.incarnation,
        claim.token,
        Status.RUNNING,
    )


def mine(conn: Connection, claim: Claim) -> ThreadRow:
    """Locks the row.  Raises ClaimLost unless it is still under this claim."""
    row = lock(conn, claim.key)
    if row is None or not holds(row, claim):
        raise ClaimLost
    return row


def turn_state(conn: Connection, claim: Claim) -> str | None:
    """The state of the claim's turn, read by its token.  Used wherever the result of a commit is unknown."""
    row = run(conn, TURN_STATE, claim.key, incarnation=claim.incarnation, token=claim.token).one_or_none()
    return None if row is None or row.claim_id != claim.claim_id else str(row.state)


def state_of(conn: Connection, claim: Claim, token: int) -> str | None:
    """The state of a turn of the claim's thread.  None: its row is purged, or was of an earlier incarnation."""
    row = run(conn, TURN_STATE, claim.key, incarnation=claim.incarnation, token=token).one_or_none()
    return None if row is None else str(row.state)


def resolved_prefix(conn: Connection, key: Key, row: ThreadRow, done: int, holes: int) -> tuple[int, int]:
    """done_seq moved over the resolved messages that follow it, and the holes that are left.

    Scanned after the lock, in its own statement, and only if there are holes.
    """
    if not holes:
        return done, 0
    first = run(conn, FIRST_PENDING, key, incarnation=row.incarnation, done=done).scalar_one_or_none()
    moved = row.last_seq if first is None else first - 1
    return moved, holes - (moved - done)
