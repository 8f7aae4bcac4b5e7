"""intents: durable records of external effects.  A worker leases one, makes the effect, and ends it by its lease.

Only the oldest open intent of a thread may be leased, so that effects leave in the order of their turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, bindparam, exists, insert, not_, or_, select, update
from sqlalchemy.engine import Connection

from chatlock.dialects import stable_ms, wall_ms
from chatlock.inputs import Key, from_json
from chatlock.ops.base import Claim, b, named, of_thread, run
from chatlock.schema import intents, messages, turns

REPLY = "reply"
OPEN = ("pending", "leased")

LEASE_MS = 60_000
BACKOFF_MAX_MS = 300_000
"""A lease or a backoff that ends further off than these means that the clock stepped: it counts as passed."""

_this = and_(
    of_thread(intents),
    intents.c.incarnation == b("incarnation"),
    intents.c.token == b("token"),
    intents.c.name == b("name"),
)
_leased_by_me = and_(_this, intents.c.state == "leased", intents.c.lease_token == b("lease_token"))
_earlier = intents.alias("earlier")
_first_of_thread = not_(
    exists().where(
        _earlier.c.tenant == intents.c.tenant,
        _earlier.c.thread_id == intents.c.thread_id,
        _earlier.c.state.in_(OPEN),
        or_(
            _earlier.c.incarnation < intents.c.incarnation,
            and_(_earlier.c.incarnation == intents.c.incarnation, _earlier.c.token < intents.c.token),
            and_(
                _earlier.c.incarnation == intents.c.incarnation,
                _earlier.c.token == intents.c.token,
                _earlier.c.name < intents.c.name,
            ),
        ),
    )
)
_free_now = or_(
    and_(
        intents.c.state == "pending",
        or_(intents.c.not_before <= stable_ms(), intents.c.not_before > stable_ms() + BACKOFF_MAX_MS),
    ),
    and_(
        intents.c.state == "leased",
        or_(intents.c.leased_until < stable_ms(), intents.c.leased_until > stable_ms() + LEASE_MS),
    ),
)

WRITE = named(
    "intents.insert",
    insert(intents).values(
        tenant=b("tenant"),
        thread_id=b("thread"),
        incarnation=b("incarnation"),
        token=b("token"),
        name=b("name"),
        agent=b("agent"),
        step_key=b("step_key"),
        payload=b("payload"),
        expires_at=wall_ms() + b("expire_ms"),
        created_at=wall_ms(),
    ),
)


def _ready(*served: Any) -> Any:
    return (
        select(
            intents.c.tenant,
            intents.c.thread_id,
            intents.c.incarnation,
            intents.c.token,
            intents.c.name,
            intents.c.lease_token,
        )
        .where(_free_now, *served, _first_of_thread)
        .order_by(intents.c.not_before, intents.c.created_at)
        .limit(b("limit"))
    )


READY_OF_ANYONE = named("intents.ready_of_anyone", _ready())
READY = named("intents.ready", _ready(intents.c.agent.in_(bindparam("b_agents", expanding=True))))
LEASE = named(
    "intents.lease",
    update(intents)
    .where(_this, intents.c.lease_token == b("lease_token"), _free_now)
    .values(
        state="leased",
        lease_token=intents.c.lease_token + 1,
        leased_until=wall_ms() + LEASE_MS,
        attempts=intents.c.attempts + 1,
    )
    .returning(
        intents.c.lease_token,
        intents.c.attempts,
        intents.c.agent,
        intents.c.step_key,
        intents.c.payload,
        (intents.c.expires_at < wall_ms()).label("expired"),
    ),
)
END = named(
    "intents.end",
    update(intents)
    .where(_leased_by_me)
    .values(state=b("new_state"), leased_until=None, ended_at=wall_ms(), error=b("error"))
    .returning(intents.c.token),
)
RETRY = named(
    "intents.retry",
    update(intents)
    .where(_leased_by_me)
    .values(state="pending", leased_until=None, not_before=wall_ms() + b("delay"), error=b("error"))
    .returning(intents.c.token),
)
CANCEL = named(
    "intents.cancel",
    update(intents)
    .where(of_thread(intents), intents.c.state == "pending")
    .values(state="cancelled", ended_at=wall_ms()),
)
AGAIN = named(
    "intents.again",
    update(intents)
    .where(_this, intents.c.state == "failed")
    .values(state="pending", attempts=0, not_before=0, ended_at=None)
    .returning(intents.c.token),
)
ANSWERED_IDS = named(
    "intents.answered_ids",
    select(messages.c.message_id, turns.c.question)
    .join(
        turns,
        and_(
            turns.c.tenant == messages.c.tenant,
            turns.c.thread_id == messages.c.thread_id,
            turns.c.incarnation == messages.c.incarnation,
            turns.c.token == messages.c.turn_token,
        ),
    )
    .where(
        of_thread(messages),
        messages.c.incarnation == b("incarnation"),
        messages.c.turn_token == b("token"),
        messages.c.disposition == "answered",
    )
    .order_by(messages.c.seq),
)


@dataclass(frozen=True)
class Effect:
    """An effect that a turn's finish decides: its name within the turn, stable key, JSON payload and time limit."""

    name: str
    step_key: str
    payload: str
    expire_ms: int | None = None


@dataclass(frozen=True)
class IntentId:
    """Which intent, and the lease that the caller saw or holds."""

    key: Key
    incarnation: int
    token: int
    name: str
    lease_token: int

    def bound(self) -> dict[str, Any]:
        """As bind values."""
        return {
            "incarnation": self.incarnation,
            "token": self.token,
            "name": self.name,
            "lease_token": self.lease_token,
        }


@dataclass(frozen=True)
class Leased:
    """An intent that the caller may now carry out, until its lease passes."""

    intent: IntentId
    agent: str
    step_key: str
    payload: Any
    attempt: int
    message_ids: tuple[str, ...]
    question: str | None


def write_intent(conn: Connection, claim: Claim, effect: Effect) -> None:
    """Writes the intent in the transaction that ends the claim's turn: a stale turn's effect never comes to exist."""
    run(
        conn,
        WRITE,
        claim.key,
        incarnation=claim.incarnation,
        token=claim.token,
        name=effect.name,
        agent=claim.agent,
        step_key=effect.step_key,
        payload=effect.payload,
        expire_ms=effect.expire_ms,
    )


def ready_intents(conn: Connection, agents: Sequence[str] | None, limit: int) -> list[IntentId]:
    """Intents of `agents` (None: of any) that may be leased now, the oldest open one of each thread only."""
    if agents is None:
        rows = run(conn, READY_OF_ANYONE, None, limit=limit)
    else:
        rows = run(conn, READY, None, agents=list(agents), limit=limit)
    return [IntentId(Key(r.tenant, r.thread_id), r.incarnation, r.token, r.name, r.lease_token) for r in rows]


def lease(conn: Connection, seen: IntentId) -> Leased | None:
    """Leases the intent for LEASE_MS.  Guard: its lease_token is the one seen, and it is free now.  None: someone else
    has it, or it had expired, which ends it.
    """
    row = run(conn, LEASE, seen.key, **seen.bound()).one_or_none()
    if row is None:
        return None
    mine = IntentId(seen.key, seen.incarnation, seen.token, seen.name, row.lease_token)
    if row.expired:
        end_intent(conn, mine, "expired", None)
        return None
    answered = run(conn, ANSWERED_IDS, seen.key, incarnation=seen.incarnation, token=seen.token).all()
    ids, question = tuple(a.message_id for a in answered), answered[0].question if answered else None
    return Leased(mine, row.agent, row.step_key, from_json(row.payload), row.attempts, ids, question)


def end_intent(conn: Connection, mine: IntentId, state: str, error: str | None) -> bool:
    """Ends the intent as sent, failed or expired.  False: the lease was lost, and someone else may have sent it too."""
    return bool(run(conn, END, mine.key, **mine.bound(), new_state=state, error=error).all())


def retry_intent(conn: Connection, mine: IntentId, delay_ms: int, error: str) -> bool:
    """Puts the intent back for a later attempt.  False: the lease was lost."""
    return bool(run(conn, RETRY, mine.key, **mine.bound(), delay=delay_ms, error=error).all())


def send_again(conn: Connection, intent: IntentId) -> bool:
    """Puts a failed intent back into service, on an operator's word."""
    bound = {name: value for name, value in intent.bound().items() if name != "lease_token"}
    return bool(run(conn, AGAIN, intent.key, **bound).all())


def cancel_intents(conn: Connection, key: Key) -> None:
    """Cancels the thread's pending intents; one that is leased may still be carried out.  Guard: the thread's lock."""
    run(conn, CANCEL, key)
