"""heartbeat: a live turn extends its lease, never past its window.  Autocommit statements, which wait for no lock.

A turn's own fenced transaction may hold the row for long: a beat that waited for it would keep the other turns of its
process from beating.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import func, or_, select, update
from sqlalchemy.engine import Connection

from chatlock.dialects import least, stable_ms, wall_ms
from chatlock.ops.base import ITS_TURN, SILENT, UNDER_CLAIM, Claim, b, named, of_incarnation, of_thread, run
from chatlock.policies import POLICIES
from chatlock.protocol import TurnState
from chatlock.schema import messages, threads, turns

# the lock comes first, in a CTE on which the update depends by data, so that the clock is read after it
_locked = (
    select(threads.c.tenant, threads.c.thread_id, threads.c.token)
    .where(UNDER_CLAIM)
    .with_for_update(key_share=True, skip_locked=True)
    .cte("locked")
)
_steered = (
    select(func.max(messages.c.seq))
    .where(
        of_incarnation(messages),
        messages.c.seq > threads.c.fetched_seq,
        messages.c.disposition == "pending",
        or_(*(messages.c.policy == name for name, policy in POLICIES.items() if policy.turn == "tell")),
    )
    .correlate(threads)
    .scalar_subquery()
)


def _beat(*also: Any) -> Any:
    return (
        update(threads)
        .where(
            of_thread(threads),
            threads.c.tenant == _locked.c.tenant,
            threads.c.thread_id == _locked.c.thread_id,
            threads.c.token == _locked.c.token,
            wall_ms() < threads.c.window_ends_at,
            *also,
        )
        .values(beat=threads.c.beat + 1, expires_at=least(wall_ms() + threads.c.lease_ms, threads.c.window_ends_at))
        .returning(threads.c.cancel_token, _steered.label("steered"))
    )


BEAT = named("heartbeat.beat", _beat(wall_ms() <= threads.c.expires_at))
BEAT_LATE = named("heartbeat.beat_late", _beat())
NOTE_SILENCE = named(
    "heartbeat.note_silence",
    update(turns).where(ITS_TURN).values(error=SILENT).returning(turns.c.token),
)
WHY_NOT = named(
    "heartbeat.why_not",
    select(
        turns.c.state,
        (threads.c.window_ends_at > stable_ms()).label("within_window"),
        (threads.c.expires_at < stable_ms()).label("silent"),
    )
    .select_from(turns)
    .outerjoin(
        threads,
        (threads.c.tenant == turns.c.tenant)
        & (threads.c.thread_id == turns.c.thread_id)
        & (threads.c.incarnation == turns.c.incarnation)
        & (threads.c.token == turns.c.token),
    )
    .where(of_incarnation(turns), turns.c.token == b("token")),
)


class Beat(StrEnum):
    """What a heartbeat found.  BUSY: someone holds the row; try again soon."""

    EXTENDED = "extended"
    BUSY = "busy"
    DONE = "done"
    LOST = "lost"


class Pulse(NamedTuple):
    """What a heartbeat brought back.  cancelled: the turn is asked to stop; steered: the seq of the newest message that
    it is told to fetch, 0 = none.
    """

    beat: Beat
    cancelled: bool = False
    steered: int = 0


def _extended(beaten: Any, claim: Claim) -> Pulse:
    return Pulse(Beat.EXTENDED, beaten.cancel_token == claim.token, beaten.steered or 0)


def heartbeat(conn: Connection, claim: Claim) -> Pulse:
    """Extends the lease; a turn whose lease had passed is noted as one that fell silent first.

    Guard: incarnation, token, running, now < window_ends_at.  Else its turn, read by the token, says whether it is
    done, only locked, or lost.
    """
    bound = {"incarnation": claim.incarnation, "token": claim.token}
    beaten = run(conn, BEAT, claim.key, **bound).one_or_none()
    if beaten is not None:
        return _extended(beaten, claim)
    row = run(conn, WHY_NOT, claim.key, **bound).one_or_none()
    if row is None:
        return Pulse(Beat.LOST)
    if row.state == TurnState.DONE:
        return Pulse(Beat.DONE)
    if row.state != TurnState.RUNNING or not row.within_window:
        return Pulse(Beat.LOST)
    if row.silent and run(conn, NOTE_SILENCE, claim.key, **bound).all():
        late = run(conn, BEAT_LATE, claim.key, **bound).one_or_none()
        return _extended(late, claim) if late is not None else Pulse(Beat.BUSY)
    return Pulse(Beat.BUSY)
