"""verify: every invariant that tables can show, checked in one read-only snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Text, and_, bindparam, cast, exists, func, not_, or_, select
from sqlalchemy.engine import Connection

from chatlock.dialects import greatest, stable_ms
from chatlock.ops.base import named
from chatlock.schema import due, messages, threads, turns

EXAMPLES_MAX = 20

_tenant = cast(bindparam("b_tenant"), Text)  # PostgreSQL cannot tell the type of a bare NULL


def _joined(table: Any, to: Any = threads) -> Any:
    return and_(table.c.tenant == to.c.tenant, table.c.thread_id == to.c.thread_id)


def _living(table: Any) -> Any:
    return and_(_joined(table), table.c.incarnation == threads.c.incarnation)


def _check(name: str, table: Any, *wrong: Any, source: Any = None) -> Any:
    statement = select(table.c.tenant, table.c.thread_id)
    if source is not None:
        statement = statement.select_from(source)
    return named(
        f"verify.{name}", statement.where(or_(_tenant.is_(None), table.c.tenant == _tenant), *wrong).limit(EXAMPLES_MAX)
    )


_answering = and_(
    turns.c.tenant == messages.c.tenant,
    turns.c.thread_id == messages.c.thread_id,
    turns.c.incarnation == messages.c.incarnation,
    turns.c.token == messages.c.turn_token,
)
_in_range = and_(messages.c.seq > turns.c.from_seq, messages.c.seq <= turns.c.to_seq)
_messages_of_thread = select(func.count()).where(_living(messages)).correlate(threads).scalar_subquery()
_resolved_above = (
    select(func.count())
    .where(_living(messages), messages.c.seq > threads.c.done_seq, messages.c.disposition != "pending")
    .correlate(threads)
    .scalar_subquery()
)
_resolving = (
    select(
        turns.c.tenant,
        turns.c.thread_id,
        turns.c.from_seq,
        turns.c.token,
        func.lag(turns.c.to_seq)
        .over(partition_by=(turns.c.tenant, turns.c.thread_id, turns.c.incarnation), order_by=turns.c.from_seq)
        .label("before"),
        func.lag(turns.c.token)
        .over(partition_by=(turns.c.tenant, turns.c.thread_id, turns.c.incarnation), order_by=turns.c.from_seq)
        .label("token_before"),
    )
    .where(turns.c.state.in_(["done", "gave_up"]))
    .subquery()
)

CHECKS: dict[str, tuple[str, Any]] = {
    "S.one_running_turn": (
        "a running thread has exactly one running turn, under its token",
        _check(
            "running_without_turn",
            threads,
            threads.c.status == "running",
            not_(exists().where(_living(turns), turns.c.token == threads.c.token, turns.c.state == "running")),
        ),
    ),
    "S.turn_without_claim": (
        "a running turn's thread is running under the turn's token",
        _check(
            "turn_without_claim",
            turns,
            turns.c.state == "running",
            not_(exists().where(_living(turns), threads.c.token == turns.c.token, threads.c.status == "running")),
        ),
    ),
    "T.token": (
        "no turn has a token above its thread's, and later ranges have higher tokens",
        _check("token_above", turns, exists().where(_joined(turns), turns.c.token > threads.c.token)),
    ),
    "T.order": (
        "turns that resolve messages have rising tokens",
        _check("token_order", _resolving, _resolving.c.token <= _resolving.c.token_before),
    ),
    "R.tiles": (
        "ranges of turns that resolve messages do not overlap",
        _check("overlap", _resolving, _resolving.c.from_seq < _resolving.c.before),
    ),
    "R.pending_below": (
        "no message at or below done_seq is pending",
        _check(
            "pending_below_done",
            messages,
            messages.c.disposition == "pending",
            exists().where(_living(messages), messages.c.seq <= threads.c.done_seq),
        ),
    ),
    "R.answered": (
        "an answered message lies in the range of its done turn, a dead one in that of a turn that gave up",
        _check(
            "resolved_by_turn",
            messages,
            messages.c.disposition.in_(["answered", "dead"]),
            not_(
                exists().where(
                    _answering,
                    _in_range,
                    or_(
                        and_(turns.c.state == "done", messages.c.disposition == "answered"),
                        and_(turns.c.state == "gave_up", messages.c.disposition == "dead"),
                    ),
                )
            ),
        ),
    ),
    "R.empty_turn": (
        "a done turn answered at least one message",
        _check(
            "empty_turn",
            turns,
            turns.c.state == "done",
            exists().where(_living(turns)),
            not_(exists().where(_answering, messages.c.disposition == "answered")),
        ),
    ),
    "R.each_seq_once": (
        "the messages of a thread have the seqs 1 to last_seq",
        _check("seqs", threads, threads.c.status != "deleted", _messages_of_thread != threads.c.last_seq),
    ),
    "H.head_pending": (
        "while last_seq > done_seq, message done_seq + 1 is pending",
        _check(
            "head",
            threads,
            threads.c.status != "deleted",
            threads.c.last_seq > threads.c.done_seq,
            not_(
                exists().where(
                    _living(messages), messages.c.seq == threads.c.done_seq + 1, messages.c.disposition == "pending"
                )
            ),
        ),
    ),
    "H.holes": (
        "holes is the number of resolved messages above done_seq",
        _check("holes", threads, threads.c.status != "deleted", threads.c.holes != _resolved_above),
    ),
    "D.due": (
        "an idle thread with pending messages has a due row no later than it may start",
        _check(
            "due",
            threads,
            threads.c.status == "idle",
            threads.c.last_seq > threads.c.done_seq,
            not_(
                exists().where(
                    _joined(due),
                    due.c.due_at <= greatest(stable_ms(), greatest(threads.c.not_before, threads.c.quiet_until)),
                )
            ),
        ),
    ),
}

_COUNTS = named(
    "verify.counts",
    select(messages.c.disposition, func.count())
    .where(or_(_tenant.is_(None), messages.c.tenant == _tenant))
    .group_by(messages.c.disposition),
)
_TURNS = named(
    "verify.turns",
    select(turns.c.state, func.count())
    .where(or_(_tenant.is_(None), turns.c.tenant == _tenant))
    .group_by(turns.c.state),
)


@dataclass(frozen=True)
class Breach:
    """An invariant that does not hold in one thread."""

    invariant: str
    text: str
    tenant: str
    thread: str


@dataclass(frozen=True)
class Verified:
    """What verify saw: counts of messages by disposition and turns by state, and every breach (at most 20 of a
    kind).
    """

    messages: dict[str, int]
    turns: dict[str, int]
    breaches: tuple[Breach, ...]

    @property
    def ok(self) -> bool:
        """Whether every invariant holds."""
        return not self.breaches


def verify(conn: Connection, tenant: str | None) -> Verified:
    """Checks every invariant for one tenant, or all.  Guard: the connection is in one read-only snapshot."""
    breaches = [
        Breach(name, text, row.tenant, row.thread_id)
        for name, (text, statement) in CHECKS.items()
        for row in conn.execute(statement, {"b_tenant": tenant})
    ]
    dispositions = {str(d): int(n) for d, n in conn.execute(_COUNTS, {"b_tenant": tenant})}
    states = {str(s): int(n) for s, n in conn.execute(_TURNS, {"b_tenant": tenant})}
    return Verified(dispositions, states, tuple(breaches))
