"""contents: what an operator sees inside threads, read without locks: messages, turns, intents, audit rows.

Payloads and replies are user data: they are read only where the caller asks for them; else their length alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Integer, and_, case, cast, func, select
from sqlalchemy.engine import Connection

from chatlock.dialects import stable_ms
from chatlock.inputs import Key
from chatlock.ops.base import b, named, of_thread, run
from chatlock.ops.report import Scope, optional, scoped_to_thread
from chatlock.schema import audit, intents, messages, threads, turns


def _shown(column: Any, name: str) -> list[Any]:
    return [
        case((cast(b("payloads"), Integer) == 1, column), else_=None).label(name),
        func.length(column).label(f"{name}_chars"),
    ]


def _recent(column: Any) -> Any:
    return column >= stable_ms() - b("since")


@dataclass(frozen=True)
class MessageReport:
    """One message.  error: of the turn that gave up on it.  payload: JSON text, None unless asked for."""

    tenant: str
    thread_id: str
    incarnation: int
    seq: int
    message_id: str
    disposition: str
    turn: int | None
    in_turn: bool
    policy: str
    received_at: int
    redrive_of: str | None
    error: str | None
    payload: str | None
    payload_chars: int | None


_resolver = and_(
    turns.c.tenant == messages.c.tenant,
    turns.c.thread_id == messages.c.thread_id,
    turns.c.incarnation == messages.c.incarnation,
    turns.c.token == messages.c.turn_token,
)


def _living(of: Any) -> Any:
    return and_(
        messages.c.tenant == of.c.tenant,
        messages.c.thread_id == of.c.thread_id,
        messages.c.incarnation == of.c.incarnation,
    )


def _messages_with(of: Any) -> list[Any]:
    """The columns of a message beside its thread's."""
    in_turn = and_(messages.c.disposition == "pending", of.c.status == "running", messages.c.seq <= of.c.fetched_seq)
    return [
        *(messages.c[name] for name in ("tenant", "thread_id", "incarnation", "seq", "message_id", "disposition")),
        messages.c.turn_token,
        case((in_turn, 1), else_=0).label("in_turn"),
        messages.c.policy,
        messages.c.received_at,
        messages.c.redrive_of,
        turns.c.error,
        *_shown(messages.c.payload, "payload"),
    ]


def _inbox(*of_scope: Any) -> Any:
    # each of these threads has a pending message, so that so many of them suffice
    waiting = (
        select(threads)
        .where(*of_scope, threads.c.last_seq > threads.c.done_seq)
        .order_by(threads.c.tenant, threads.c.thread_id)
        .limit(b("limit"))
        .subquery("waiting")
    )
    return (
        select(*_messages_with(waiting))
        .select_from(waiting.join(messages, _living(waiting)).outerjoin(turns, _resolver))
        .where(messages.c.seq > waiting.c.done_seq, messages.c.disposition == "pending")
        .order_by(waiting.c.tenant, waiting.c.thread_id, messages.c.seq)
        .limit(b("limit"))
    )


def _dead(*of_scope: Any) -> Any:
    gave_up = and_(_resolver, messages.c.seq == turns.c.to_seq)
    return (
        select(*_messages_with(threads))
        .select_from(turns.join(messages, gave_up).join(threads, _living(threads)))
        .where(*of_scope, turns.c.state == "gave_up", _recent(turns.c.ended_at), messages.c.disposition == "dead")
        .order_by(turns.c.ended_at.desc())
        .limit(b("limit"))
    )


INBOX = scoped_to_thread("contents.inbox", threads, _inbox)
DEAD = scoped_to_thread("contents.dead", turns, _dead)
MESSAGE = named(
    "contents.message",
    select(*_messages_with(threads))
    .select_from(threads.join(messages, _living(threads)).outerjoin(turns, _resolver))
    .where(of_thread(threads), messages.c.message_id == b("message_id")),
)


@dataclass(frozen=True)
class TurnReport:
    """One turn.  reply: JSON text, None unless asked for."""

    tenant: str
    thread_id: str
    incarnation: int
    token: int
    agent: str
    owner: str | None
    state: str
    from_seq: int
    to_seq: int | None
    error: str | None
    started_at: int
    ended_at: int | None
    late_ended_at: int | None
    reply: str | None
    reply_chars: int | None


_TURN = [
    *(turns.c[name] for name in TurnReport.__dataclass_fields__ if not name.startswith("reply")),
    *_shown(turns.c.reply, "reply"),
]


def _turns(*of_scope: Any) -> Any:
    return (
        select(*_TURN)
        .where(*of_scope, _recent(turns.c.ended_at), optional(turns.c.state, "state"))
        .order_by(turns.c.ended_at.desc())
        .limit(b("limit"))
    )


def _turns_of_thread(*of_scope: Any) -> Any:
    return (
        select(*_TURN)
        .where(*of_scope, optional(turns.c.state, "state"))
        .order_by(turns.c.token.desc())
        .limit(b("limit"))
    )


TURNS = scoped_to_thread("contents.turns", turns, _turns, _turns_of_thread)
ATTEMPTS = named(
    "contents.attempts",
    select(*_TURN)
    .where(of_thread(turns), turns.c.incarnation == b("incarnation"), turns.c.from_seq == b("seq") - 1)
    .order_by(turns.c.token),
)


@dataclass(frozen=True)
class IntentReport:
    """One intent.  payload: JSON text, None unless asked for."""

    tenant: str
    thread_id: str
    incarnation: int
    token: int
    name: str
    agent: str
    state: str
    attempts: int
    step_key: str
    error: str | None
    not_before: int
    leased_until: int | None
    expires_at: int | None
    created_at: int
    ended_at: int | None
    payload: str | None
    payload_chars: int | None


_INTENT = [
    *(intents.c[name] for name in IntentReport.__dataclass_fields__ if not name.startswith("payload")),
    *_shown(intents.c.payload, "payload"),
]


def _intents(*of_scope: Any) -> Any:
    return (
        select(*_INTENT)
        .where(*of_scope, optional(intents.c.state, "state"))
        .order_by(intents.c.created_at.desc(), intents.c.thread_id, intents.c.token)
        .limit(b("limit"))
    )


INTENTS = scoped_to_thread("contents.intents", intents, _intents)
INTENT = named(
    "contents.intent",
    select(*_INTENT).where(of_thread(intents), intents.c.token == b("token"), intents.c.name == b("name")),
)


@dataclass(frozen=True)
class AuditReport:
    """One act of an operator."""

    audit_id: int
    at: int
    tenant: str
    thread_id: str
    incarnation: int
    token: int
    action: str
    actor: str
    reason: str


_AUDIT = [audit.c[name] for name in AuditReport.__dataclass_fields__]


def _audit(*of_scope: Any) -> Any:
    return select(*_AUDIT).where(*of_scope, _recent(audit.c.at)).order_by(audit.c.audit_id.desc()).limit(b("limit"))


AUDIT = scoped_to_thread("contents.audit", audit, _audit)


def list_inbox(conn: Connection, scope: Scope, limit: int, *, payloads: bool) -> list[MessageReport]:
    """Pending messages, by thread and seq."""
    return _messages(run(conn, INBOX.on(scope), None, **scope.bound(), limit=limit, payloads=int(payloads)))


def list_dead(conn: Connection, scope: Scope, since_ms: int, limit: int, *, payloads: bool) -> list[MessageReport]:
    """Messages that were given up in the last since_ms, the latest first."""
    bound = scope.bound() | {"since": since_ms, "limit": limit, "payloads": int(payloads)}
    return _messages(run(conn, DEAD.on(scope), None, **bound))


def read_message(conn: Connection, key: Key, message_id: str, *, payloads: bool) -> MessageReport | None:
    """One message of the thread's living incarnation."""
    found = _messages(run(conn, MESSAGE, key, message_id=message_id, payloads=int(payloads)))
    return found[0] if found else None


def _messages(rows: Any) -> list[MessageReport]:
    found = (MessageReport(*row) for row in rows)
    return [replace(message, in_turn=bool(message.in_turn)) for message in found]


def list_turns(
    conn: Connection, scope: Scope, since_ms: int, limit: int, *, state: str | None, payloads: bool
) -> list[TurnReport]:
    """Turns that ended in the last since_ms, or all of one thread, the running one included; the latest first."""
    bound = scope.bound() | {"since": since_ms, "limit": limit, "state": state, "payloads": int(payloads)}
    return [TurnReport(*row) for row in run(conn, TURNS.on(scope), None, **bound)]


def list_attempts(conn: Connection, message: MessageReport, *, payloads: bool) -> list[TurnReport]:
    """The turns whose oldest message it was, in order."""
    key = Key(message.tenant, message.thread_id)
    bound = {"incarnation": message.incarnation, "seq": message.seq, "payloads": int(payloads)}
    return [TurnReport(*row) for row in run(conn, ATTEMPTS, key, **bound)]


def list_intents(
    conn: Connection, scope: Scope, limit: int, *, state: str | None, payloads: bool
) -> list[IntentReport]:
    """Intents, the latest first."""
    bound = scope.bound() | {"limit": limit, "state": state, "payloads": int(payloads)}
    return [IntentReport(*row) for row in run(conn, INTENTS.on(scope), None, **bound)]


def read_intent(conn: Connection, key: Key, token: int, name: str, *, payloads: bool) -> IntentReport | None:
    """One intent, by its turn's token, which no other incarnation has."""
    row = run(conn, INTENT, key, token=token, name=name, payloads=int(payloads)).one_or_none()
    return None if row is None else IntentReport(*row)


def list_audit(conn: Connection, scope: Scope, since_ms: int, limit: int) -> list[AuditReport]:
    """Acts of the last since_ms, the latest first."""
    rows = run(conn, AUDIT.on(scope), None, **scope.bound(), since=since_ms, limit=limit)
    return [AuditReport(*row) for row in rows]
