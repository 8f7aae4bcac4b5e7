"""inspect: what a message's outcome is now: read in one statement without locks, or told of a row that is locked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, func, not_, or_, select
from sqlalchemy.engine import Connection

from chatlock.dialects import stable_ms
from chatlock.inputs import Key, from_json
from chatlock.ops.base import HELD, ThreadRow, b, named, of_those, of_thread, run
from chatlock.ops.windows import DAY_MS
from chatlock.policies import QUIET_MAX_MS
from chatlock.protocol import (
    AlreadyAnswered,
    Cancelled,
    Dead,
    Disposition,
    Expired,
    Gone,
    NotFound,
    Outcome,
    Parked,
    Queued,
    Status,
    Superseded,
)
from chatlock.schema import messages, threads, turns, windows

_ahead = messages.alias("ahead")
_position = (
    select(func.count())
    .select_from(_ahead)
    .where(
        _ahead.c.tenant == messages.c.tenant,
        _ahead.c.thread_id == messages.c.thread_id,
        _ahead.c.incarnation == messages.c.incarnation,
        _ahead.c.seq > threads.c.done_seq,
        _ahead.c.seq < messages.c.seq,
        _ahead.c.disposition == "pending",
    )
    .scalar_subquery()
)
_message_of_thread = and_(
    messages.c.tenant == threads.c.tenant,
    messages.c.thread_id == threads.c.thread_id,
    messages.c.incarnation == threads.c.incarnation,
)
_turn_of_message = and_(
    turns.c.tenant == messages.c.tenant,
    turns.c.thread_id == messages.c.thread_id,
    turns.c.incarnation == messages.c.incarnation,
    turns.c.token == messages.c.turn_token,
)
TYPICAL_DAYS = 7


def _typical_ms(agent: Any) -> Any:
    """The mean of the agent's runs that sweepers counted lately; NULL: none.  A day without a total was counted by a
    version that kept none.
    """
    return (
        select(func.sum(windows.c.total_ms) / func.sum(windows.c.runs))
        .where(windows.c.agent == agent, windows.c.day > stable_ms() / DAY_MS - TYPICAL_DAYS, windows.c.total_ms > 0)
        .correlate(threads)
    )


TYPICAL = named("windows.typical", _typical_ms(b("agent")))
OUTCOME = named(
    "message.outcome",
    select(
        threads.c.status,
        threads.c.token,
        threads.c.fetched_seq,
        threads.c.incarnation,
        (stable_ms() - threads.c.claimed_at).label("since_ms"),
        messages.c.seq,
        messages.c.disposition,
        messages.c.turn_token,
        messages.c.superseded_by,
        turns.c.reply,
        turns.c.question,
        turns.c.error,
        _position.label("position"),
        _typical_ms(threads.c.agent).scalar_subquery().label("typical_ms"),
    )
    .select_from(threads)
    .outerjoin(messages, and_(_message_of_thread, messages.c.message_id == b("message_id")))
    .outerjoin(turns, _turn_of_message)
    .where(of_thread(threads)),
)
LOCATE = named(
    "message.locate",
    select(messages.c.incarnation, messages.c.seq)
    .join(threads, _message_of_thread)
    .where(of_thread(messages), messages.c.message_id == b("message_id")),
)
HEAD = named(
    "message.in_turn",
    select(threads.c.status, messages.c.message_id)
    .outerjoin(
        messages,
        and_(_message_of_thread, messages.c.seq == threads.c.done_seq + 1, threads.c.status == "running"),
    )
    .where(of_thread(threads)),
)
_place = (messages.c.tenant, messages.c.thread_id, messages.c.incarnation, messages.c.seq)
_standing = (
    threads.c.incarnation.label("life"),
    threads.c.status,
    threads.c.token,
    threads.c.done_seq,
    threads.c.holes,
    and_(
        not_(HELD),
        or_(threads.c.not_before <= stable_ms(), threads.c.not_before > stable_ms() + b("backoff_max")),
        or_(threads.c.quiet_until <= stable_ms(), threads.c.quiet_until > stable_ms() + QUIET_MAX_MS),
    ).label("may_start"),
)
LOOK = named(
    "messages.look",
    of_those(
        select(*_place, messages.c.disposition, *_standing).join(
            threads, and_(messages.c.tenant == threads.c.tenant, messages.c.thread_id == threads.c.thread_id)
        ),
        _place,
    ),
)
LOOK_MAX = 200
_thread = (threads.c.tenant, threads.c.thread_id)
STANDINGS = named("threads.look", of_those(select(*_thread, *_standing), _thread))
STANDINGS_MAX = 1_000


def in_turn(conn: Connection, key: Key) -> tuple[str, str | None]:
    """The thread's status, and the id of the oldest message that the running turn has, or is about to have; None: no
    turn runs.
    """
    row = run(conn, HEAD, key).one_or_none()
    return (Status.ABSENT, None) if row is None else (row.status, row.message_id)


def outcome_of(conn: Connection, key: Key, message_id: str) -> Outcome:
    """The outcome of a message now.  A message of another tenant is NotFound, as one that never existed."""
    row = run(conn, OUTCOME, key, message_id=message_id).one_or_none()
    if row is None or row.seq is None:
        return NotFound(message_id=message_id)
    if row.status == Status.DELETED:
        return Gone(message_id=message_id, seq=row.seq, incarnation=row.incarnation)
    return _told(row, message_id)


def typical_ms(conn: Connection, agent: str) -> int | None:
    """How long the agent's turns took lately."""
    mean = run(conn, TYPICAL, None, agent=agent).scalar_one()
    return None if mean is None else int(mean)


def eta_ms(typical: Any, since: int | None, *, in_turn: bool) -> int | None:
    """When a message may be answered: by the running turn, or by the one after it, which takes all that is pending."""
    if typical is None:
        return None
    left = max(0, int(typical) - since) if since is not None else 0
    return left if in_turn else left + int(typical)


def queued_or_parked(conn: Connection, message_id: str, row: ThreadRow) -> Outcome:
    """What the thread's newest message is told, stored under the lock and not in a turn."""
    ids: dict[str, Any] = {"message_id": message_id, "seq": row.last_seq, "incarnation": row.incarnation}
    if row.status == Status.PARKED:
        return Parked(**ids)
    eta = eta_ms(typical_ms(conn, row.agent), row.claimed_ms, in_turn=False)
    return Queued(**ids, position=row.last_seq - 1 - row.done_seq - row.holes, eta_ms=eta)


def locate(conn: Connection, key: Key, message_id: str) -> tuple[int, int] | None:
    """(incarnation, seq) of a message of the thread's present incarnation."""
    row = run(conn, LOCATE, key, message_id=message_id).one_or_none()
    return None if row is None else (int(row.incarnation), int(row.seq))


def _told(row: Any, message_id: str) -> Outcome:
    ids: dict[str, Any] = {"message_id": message_id, "seq": int(row.seq), "incarnation": row.incarnation}
    match row.disposition:
        case Disposition.ANSWERED:
            return AlreadyAnswered(**ids, reply=from_json(row.reply), turn=row.turn_token, question=row.question)
        case Disposition.DEAD:
            return Dead(**ids, reason=row.error or "attempts")
        case Disposition.SUPERSEDED:
            return Superseded(**ids, by=row.superseded_by)
        case Disposition.CANCELLED:
            return Cancelled(**ids)
        case Disposition.EXPIRED:
            return Expired(**ids)
        case Disposition.DELETED:
            return Gone(**ids)
    if row.status == Status.PARKED:
        return Parked(**ids)
    in_turn = row.status == Status.RUNNING and row.seq <= row.fetched_seq
    eta = eta_ms(row.typical_ms, row.since_ms, in_turn=in_turn)
    return Queued(**ids, position=0 if in_turn else row.position, eta_ms=eta, turn=row.token if in_turn else None)


@dataclass(frozen=True)
class Standing:
    """Of a thread's row, what changes whenever one of its messages is resolved or may be claimed.

    done_seq + holes counts the resolved messages.
    """

    incarnation: int
    status: str
    token: int
    done_seq: int
    holes: int
    may_start: bool

    @property
    def settled(self) -> bool:
        """Whether there is nothing to do for a pending message as long as the thread stands so."""
        return self.status == Status.RUNNING or (self.status == Status.IDLE and not self.may_start)


def _standing_of(row: Any) -> Standing:
    return Standing(row.life, row.status, row.token, row.done_seq, row.holes, bool(row.may_start))


@dataclass(frozen=True)
class Look:
    """What a waiter's shared look saw.  resolved: ask for the outcome; claimable: try to claim; standing: of the
    thread, at that moment.
    """

    resolved: bool
    claimable: bool
    standing: Standing | None = None


Waited = tuple[str, str, int, int]
"""(tenant, thread, incarnation, seq) of a message that someone waits for."""


def look(conn: Connection, waited: Sequence[Waited], backoff_max_ms: int) -> dict[Waited, Look]:
    """One look for many waiters, at most LOOK_MAX, without locks.  A missing entry is a message that is gone."""
    seen: dict[Waited, Look] = {}
    for row in run(conn, LOOK, waited=list(waited), backoff_max=backoff_max_ms):
        standing = _standing_of(row)
        pending = row.disposition == Disposition.PENDING and row.incarnation == standing.incarnation
        seen[(row.tenant, row.thread_id, row.incarnation, row.seq)] = Look(
            resolved=not pending or standing.status in (Status.PARKED, Status.DELETED),
            claimable=pending and standing.status == Status.IDLE and standing.may_start,
            standing=standing,
        )
    return seen


def standings(conn: Connection, keys: Sequence[Key], backoff_max_ms: int) -> dict[Key, Standing]:
    """How threads stand, at most STANDINGS_MAX, without locks: whether there may be anything new to look at."""
    rows = run(conn, STANDINGS, waited=[(key.tenant, key.thread) for key in keys], backoff_max=backoff_max_ms)
    return {Key(row.tenant, row.thread_id): _standing_of(row) for row in rows}
