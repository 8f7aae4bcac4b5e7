"""verify: every invariant that tables can show, checked in one read-only snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Text, and_, bindparam, cast, exists, func, not_, or_, select, tuple_, union
from sqlalchemy.engine import Connection

from chatlock.dialects import greatest, stable_ms
from chatlock.ops.base import HELD, named
from chatlock.schema import due, messages, threads, turns

EXAMPLES_MAX = 20

Scoping = Callable[[Any], Any]
"""The condition that narrows a table's rows to those that are looked at."""


class Check(NamedTuple):
    """What is looked for, and the statement that finds it: everywhere, or in recent threads."""

    text: str
    whole: Any
    recent: Any


_tenant = cast(bindparam("b_tenant"), Text)  # PostgreSQL cannot tell the type of a bare NULL


def _of_tenant(table: Any) -> Any:
    return or_(_tenant.is_(None), table.c.tenant == _tenant)


_turn, _due = turns.alias("recent_turn"), due.alias("recent_due")
# threads in which a turn ended since then, runs, or is due
_recent_keys = union(
    select(_turn.c.tenant, _turn.c.thread_id).where(
        _of_tenant(_turn), _turn.c.ended_at >= stable_ms() - bindparam("b_since")
    ),
    select(_turn.c.tenant, _turn.c.thread_id).where(_of_tenant(_turn), _turn.c.state == "running"),
    select(_due.c.tenant, _due.c.thread_id).where(_of_tenant(_due)),
)


def _of_recent(table: Any) -> Any:
    return and_(_of_tenant(table), tuple_(table.c.tenant, table.c.thread_id).in_(_recent_keys))


def _joined(table: Any, to: Any = threads) -> Any:
    return and_(table.c.tenant == to.c.tenant, table.c.thread_id == to.c.thread_id)


def _living(table: Any) -> Any:
    return and_(_joined(table), table.c.incarnation == threads.c.incarnation)


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


def _resolving(scope: Scoping) -> Any:
    """The turns that resolve messages, each with the one before it."""
    ranges = {"partition_by": (turns.c.tenant, turns.c.thread_id, turns.c.incarnation), "order_by": turns.c.from_seq}
    return (
        select(
            turns.c.tenant,
            turns.c.thread_id,
            turns.c.from_seq,
            turns.c.token,
            func.lag(turns.c.to_seq).over(**ranges).label("before"),
            func.lag(turns.c.token).over(**ranges).label("token_before"),
        )
        .where(turns.c.state.in_(["done", "gave_up"]), scope(turns))
        .subquery()
    )


def _check(text: str, name: str, table: Any, *wrong: Any, everywhere: bool = False) -> Check:
    """everywhere: all threads are looked at, always, since no index leads to what is looked for."""

    def build(scope: Scoping) -> Any:
        return select(table.c.tenant, table.c.thread_id).where(scope(table), *wrong).limit(EXAMPLES_MAX)

    if everywhere:
        statement = named(f"verify.{name}", build(_of_tenant))
        return Check(text, statement, statement)
    return _registered(text, name, build)


def _check_ranges(text: str, name: str, wrong: Callable[[Any], Any]) -> Check:
    def build(scope: Scoping) -> Any:
        ranges = _resolving(scope)
        return select(ranges.c.tenant, ranges.c.thread_id).where(wrong(ranges)).limit(EXAMPLES_MAX)

    return _registered(text, name, build)


def _registered(text: str, name: str, build: Callable[[Scoping], Any]) -> Check:
    return Check(text, named(f"verify.{name}", build(_of_tenant)), named(f"verify.{name}_recent", build(_of_recent)))


CHECKS: dict[str, Check] = {
    "S.one_running_turn": _check(
        "a running thread has exactly one running turn, under its token",
        "running_without_turn",
        threads,
        threads.c.status == "running",
        not_(exists().where(_living(turns), turns.c.token == threads.c.token, turns.c.state == "running")),
        everywhere=True,
    ),
    "S.turn_without_claim": _check(
        "a running turn's thread is running under the turn's token",
        "turn_without_claim",
        turns,
        turns.c.state == "running",
        not_(exists().where(_living(turns), threads.c.token == turns.c.token, threads.c.status == "running")),
    ),
    "S.stop": _check(
        "only the running turn is asked to stop, and within a grace",
        "stop_of_no_turn",
        threads,
        threads.c.cancel_token.is_not(None),
        not_(
            and_(
                threads.c.status == "running",
                threads.c.cancel_token == threads.c.token,
                threads.c.cancel_until.is_not(None),
            )
        ),
    ),
    "T.token": _check(
        "no turn has a token above its thread's, and later ranges have higher tokens",
        "token_above",
        turns,
        exists().where(_joined(turns), turns.c.token > threads.c.token),
    ),
    "T.order": _check_ranges(
        "turns that resolve messages have rising tokens", "token_order", lambda r: r.c.token <= r.c.token_before
    ),
    "R.tiles": _check_ranges(
        "ranges of turns that resolve messages do not overlap", "overlap", lambda r: r.c.from_seq < r.c.before
    ),
    "R.pending_below": _check(
        "no message at or below done_seq is pending",
        "pending_below_done",
        messages,
        messages.c.disposition == "pending",
        exists().where(_living(messages), messages.c.seq <= threads.c.done_seq),
    ),
    "R.answered": _check(
        "an answered message lies in the range of its done turn, a dead one in that of a turn that gave up",
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
    "R.superseded_by": _check(
        "what took a superseded message's place is a later message of its thread",
        "superseded_by",
        messages,
        messages.c.superseded_by.is_not(None),
        or_(
            messages.c.disposition != "superseded",
            messages.c.superseded_by <= messages.c.seq,
            exists().where(_living(messages), messages.c.superseded_by > threads.c.last_seq),
        ),
    ),
    "R.empty_turn": _check(
        "a done turn answered at least one message",
        "empty_turn",
        turns,
        turns.c.state == "done",
        exists().where(_living(turns)),
        not_(exists().where(_answering, messages.c.disposition == "answered")),
    ),
    "R.each_seq_once": _check(
        "the messages of a thread have the seqs 1 to last_seq",
        "seqs",
        threads,
        threads.c.status != "deleted",
        _messages_of_thread != threads.c.last_seq,
    ),
    "H.head_pending": _check(
        "while last_seq > done_seq, message done_seq + 1 is pending",
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
    "H.holes": _check(
        "holes is the number of resolved messages above done_seq",
        "holes",
        threads,
        threads.c.status != "deleted",
        threads.c.holes != _resolved_above,
    ),
    "D.due": _check(
        "an idle thread with pending messages has a due row no later than it may start",
        "due",
        threads,
        threads.c.status == "idle",
        threads.c.last_seq > threads.c.done_seq,
        not_(HELD),
        not_(
            exists().where(
                _joined(due),
                due.c.due_at <= greatest(stable_ms(), greatest(threads.c.not_before, threads.c.quiet_until)),
            )
        ),
    ),
    "A.held": _check(
        "no turn runs on a thread that a question holds", "held", threads, threads.c.status == "running", HELD
    ),
    "A.asked": _check(
        "a question that is open was asked by a done turn of this incarnation and has no answer",
        "asked",
        threads,
        threads.c.awaiting.is_not(None),
        or_(
            not_(exists().where(_living(turns), turns.c.question == threads.c.awaiting, turns.c.state == "done")),
            exists().where(_living(messages), messages.c.message_id == threads.c.awaiting),
        ),
    ),
    "D.class": _check(
        "the due row of an idle thread with pending messages that no question holds has the thread's class",
        "class",
        threads,
        threads.c.status == "idle",
        threads.c.last_seq > threads.c.done_seq,
        not_(HELD),
        exists().where(_joined(due), due.c.priority != threads.c.priority),
    ),
}

_COUNTS = _registered(
    "messages by disposition",
    "counts",
    lambda scope: select(messages.c.disposition, func.count()).where(scope(messages)).group_by(messages.c.disposition),
)
_TURNS = _registered(
    "turns by state",
    "turns",
    lambda scope: select(turns.c.state, func.count()).where(scope(turns)).group_by(turns.c.state),
)


@dataclass(frozen=True)
class Breach:
    """An invariant that does not hold in one thread."""

    invariant: str
    """Its letter in the table of invariants; of a history, the name of the check."""
    text: str
    """What does not hold."""
    tenant: str
    """The thread's owner."""
    thread: str
    """The thread."""


@dataclass(frozen=True)
class Verified:
    """What verify saw."""

    messages: dict[str, int]
    """How many messages have each disposition."""
    turns: dict[str, int]
    """How many turns have each state."""
    breaches: tuple[Breach, ...]
    """Every breach, at most 20 of a kind."""

    @property
    def ok(self) -> bool:
        """Whether every invariant holds."""
        return not self.breaches


def verify(
    conn: Connection,
    tenant: str | None,
    since_ms: int | None = None,
    progress: Callable[[int, int], object] = lambda done, of: None,
) -> Verified:
    """Checks every invariant for one tenant, or all.  Guard: the connection is in one read-only snapshot.

    since_ms: only threads where a turn ended so lately, runs, or is due, which indexes find; that a running thread has
    its turn is checked of all threads, since no index finds one without.  progress(done, of) is
    called after each check.
    """

    def rows(check: Check) -> Any:
        statement = check.whole if since_ms is None else check.recent
        return conn.execute(statement, {"b_tenant": tenant, "b_since": since_ms})

    breaches: list[Breach] = []
    for done, (name, check) in enumerate(CHECKS.items(), 1):
        breaches += [Breach(name, check.text, row.tenant, row.thread_id) for row in rows(check)]
        progress(done, len(CHECKS))
    dispositions = {str(d): int(n) for d, n in rows(_COUNTS)}
    states = {str(s): int(n) for s, n in rows(_TURNS)}
    return Verified(dispositions, states, tuple(breaches))
