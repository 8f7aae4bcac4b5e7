"""The conditional writes of the protocol, and for each of its predicates a scene in which it alone refuses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

Values = Callable[[Any], dict[str, Any]]
"""Values to bind, from the thread's row and `lost`, the token of the thread's first turn, which was released."""

NEXT = count()
WRITTEN, REFUSED = "written", "refused"
DIVISION_BY_ZERO, CHECK_VIOLATED = "22012", "23514"
FAR_OFF = 9_000_000_000_000


class Wrong(NamedTuple):
    """A predicate, by a part of its text that no other has, and how to make it alone refuse.

    changed: other values; scene: start elsewhere; first: an UPDATE of a table's row of the thread beforehand.
    """

    predicate: str
    changed: Values = lambda t: {}
    scene: str = ""
    first: str = ""


RIGHT = Wrong("")


class Guarded(NamedTuple):
    """A conditional write: values under which it writes in the scene, and its predicates."""

    statement: str
    scene: str
    values: Values
    wrongs: tuple[Wrong, ...]
    first: str = ""


def claim_of(t: Any) -> dict[str, Any]:
    return {"incarnation": t.incarnation, "token": t.token}


OF_LIFE = Wrong("incarnation = ", lambda t: {"incarnation": t.incarnation + 1})
OF_CLAIM = (OF_LIFE, Wrong("token = ", lambda t: {"token": t.token - 1}))
OF_THE_RUNNING = (*OF_CLAIM, Wrong("status = ", scene="pending"))
PAST_WINDOW = Wrong(" < chatlock_threads.window_ends_at", first="UPDATE chatlock_threads SET window_ends_at = 1")
OF_ITS_TURN = (*OF_CLAIM, Wrong("state = ", lambda t: {"token": t.lost}))
ASKED = {"question": "q", "rule": "hold"}

STOP = "UPDATE chatlock_threads SET cancel_until ="

GUARDED = [
    Guarded(
        "claim.update",
        "pending",
        lambda t: claim_of(t) | {"claim_id": "c", "owner": "o", "lease": 1, "now": 1, "window_end": 1, "life_end": 1},
        (*OF_CLAIM, Wrong("status = ", scene="more"), Wrong("last_seq > ", scene="idle")),
    ),
    Guarded(
        "fetch.advance",
        "more",
        lambda t: claim_of(t) | {"fetched": t.last_seq},
        (*OF_THE_RUNNING, Wrong("fetched_seq <= ", lambda t: {"fetched": t.fetched_seq - 1})),
    ),
    Guarded("turn.mark", "running", lambda t: claim_of(t) | {"mark": "1"}, OF_ITS_TURN),
    Guarded("fence.lock", "running", claim_of, OF_THE_RUNNING),
    Guarded("fence.touch", "running", claim_of, OF_THE_RUNNING),
    Guarded(
        "fence.raise_highest",
        "fenced",
        lambda t: {"resource": "ledger", "token": t.token},
        (Wrong("highest <= ", lambda t: {"token": t.token - 1}),),
    ),
    Guarded(
        "finish.answer",
        "more",
        lambda t: claim_of(t) | {"from_seq": t.done_seq, "upto": t.fetched_seq},
        (
            OF_LIFE,
            Wrong("seq > ", lambda t: {"from_seq": t.fetched_seq}),
            Wrong("seq <= ", lambda t: {"upto": t.done_seq}),
            Wrong("disposition = ", lambda t: {"from_seq": 0, "upto": t.done_seq}),
        ),
    ),
    Guarded(
        "finish.thread",
        "more",
        lambda t: claim_of(t) | {"done": t.fetched_seq, "new_holes": 0, "new_status": "idle"} | ASKED,
        OF_THE_RUNNING,
    ),
    Guarded(
        "finish.turn",
        "more",
        lambda t: claim_of(t) | {"from_seq": t.done_seq, "upto": t.fetched_seq, "reply": "1", "silent": 0} | ASKED,
        OF_ITS_TURN,
    ),
    Guarded(
        "turn.report_late",
        "reclaimed",
        lambda t: {"incarnation": t.incarnation, "token": t.token - 1},
        (
            OF_LIFE,
            Wrong("token = ", lambda t: {"token": t.token}),
            Wrong("state = ", lambda t: {"token": t.lost}),
            Wrong("late_ended_at IS NULL", first="UPDATE chatlock_turns SET late_ended_at = 1"),
        ),
    ),
    Guarded(
        "unanswered.head_dead",
        "more",
        lambda t: claim_of(t) | {"head": t.done_seq + 1},
        (
            OF_LIFE,
            Wrong("seq = ", lambda t: {"head": t.last_seq + 1}),
            Wrong("disposition = ", lambda t: {"head": t.done_seq}),
        ),
    ),
    Guarded(
        "unanswered.thread",
        "more",
        lambda t: (
            claim_of(t)
            | {"new_status": "idle", "bump": 1, "done": t.done_seq, "delay": 0}
            | {"new_holes": 0, "new_attempts": 0, "new_stalls": 0}
        ),
        OF_THE_RUNNING,
    ),
    Guarded(
        "unanswered.turn",
        "more",
        lambda t: claim_of(t) | {"new_state": "failed", "to_seq": None, "error": None},
        OF_ITS_TURN,
    ),
    Guarded(
        "reclaim.lock_stale",
        "stale",
        lambda t: {"token": t.token, "beat": t.beat},
        (
            Wrong("expires_at < ", scene="more"),
            Wrong("token = ", lambda t: {"token": t.token - 1}),
            Wrong("beat = ", lambda t: {"beat": t.beat + 1}),
        ),
    ),
    Guarded(
        "heartbeat.beat",
        "running",
        claim_of,
        (
            *OF_CLAIM,
            PAST_WINDOW,
            Wrong(" <= chatlock_threads.expires_at", first="UPDATE chatlock_threads SET expires_at = 1"),
        ),
    ),
    Guarded("heartbeat.beat_late", "stale", claim_of, (*OF_CLAIM, PAST_WINDOW)),
    Guarded("heartbeat.note_silence", "stale", claim_of, OF_ITS_TURN),
    Guarded(
        "thread.recreate",
        "deleted",
        lambda t: {"incarnation": t.incarnation},
        (OF_LIFE, Wrong("status = ", scene="pending")),
    ),
    Guarded(
        "thread.advance_last",
        "pending",
        lambda t: {"incarnation": t.incarnation, "seq": t.last_seq + 1, "agent": "default", "priority": 0},
        (OF_LIFE, Wrong("last_seq = ", lambda t: {"seq": t.last_seq + 2})),
    ),
    Guarded(
        "thread.close_question",
        "pending",
        lambda t: {"question": "q"},
        (Wrong("awaiting = ", lambda t: {"question": "q0"}),),
        first="UPDATE chatlock_threads SET awaiting = 'q'",
    ),
    Guarded(
        "resolve.cancel",
        "more",
        lambda t: {"incarnation": t.incarnation, "seq": t.last_seq},
        (
            OF_LIFE,
            Wrong("seq = ", lambda t: {"seq": t.last_seq + 1}),
            Wrong("disposition = ", lambda t: {"seq": t.done_seq}),
        ),
    ),
    Guarded(
        "resolve.cancel_range",
        "more",
        lambda t: {"incarnation": t.incarnation, "above": t.fetched_seq, "upto": t.last_seq},
        (
            OF_LIFE,
            Wrong("seq > ", lambda t: {"above": t.last_seq}),
            Wrong("seq <= ", lambda t: {"upto": t.fetched_seq}),
            Wrong("disposition = ", lambda t: {"above": 0, "upto": t.done_seq}),
        ),
    ),
    Guarded(
        "stop.ask",
        "more",
        lambda t: claim_of(t) | {"until": 1, "queued": "keep", "upto": None, "spent": 1},
        OF_THE_RUNNING,
    ),
    Guarded(
        "stop.lock_overdue",
        "running",
        lambda t: {"token": t.token},
        (
            Wrong("status = ", scene="pending"),
            Wrong(
                "threads.token = ",
                lambda t: {"token": t.token - 1},
                first=f"{STOP} 1, cancel_token = token, token = token + 1",
            ),
            Wrong("cancel_token = ", first=f"{STOP} 1, cancel_token = token - 1"),
            Wrong("cancel_until < ", first=f"{STOP} {FAR_OFF}, cancel_token = token"),
        ),
        first=f"{STOP} 1, cancel_token = token",
    ),
    Guarded(
        "resolve.supersede",
        "more",
        lambda t: {"incarnation": t.incarnation, "above": t.fetched_seq, "upto": t.last_seq, "by": t.last_seq + 1},
        (
            OF_LIFE,
            Wrong("seq > ", lambda t: {"above": t.last_seq}),
            Wrong("seq <= ", lambda t: {"upto": t.fetched_seq}),
            Wrong("disposition = ", lambda t: {"above": 0, "upto": t.done_seq}),
        ),
    ),
    Guarded(
        "resolve.expire",
        "more",
        lambda t: {"incarnation": t.incarnation, "above": t.fetched_seq, "now": FAR_OFF, "last_end": 0},
        (
            OF_LIFE,
            Wrong("seq > ", lambda t: {"above": t.last_seq}),
            Wrong("expire_ms < ", lambda t: {"last_end": FAR_OFF}),
            Wrong("disposition = ", first="UPDATE chatlock_messages SET disposition = 'cancelled', expire_ms = 1"),
        ),
        first="UPDATE chatlock_messages SET expire_ms = 1",
    ),
    Guarded("resolve.thread", "pending", lambda t: claim_of(t) | {"done": t.done_seq, "new_holes": 0}, OF_CLAIM),
    Guarded("park.thread", "pending", lambda t: {}, (Wrong("status = ", scene="parked"),)),
    Guarded("resume.thread", "parked", lambda t: {}, (Wrong("status = ", scene="pending"),)),
    Guarded("delete.thread", "pending", lambda t: {}, (Wrong("status != ", scene="deleted"),)),
    Guarded(
        "delete.messages",
        "pending",
        lambda t: {"incarnation": t.incarnation},
        (OF_LIFE, Wrong("disposition = ", scene="idle")),
    ),
    Guarded(
        "delete.turn", "running", lambda t: {"incarnation": t.incarnation}, (OF_LIFE, Wrong("state = ", scene="idle"))
    ),
]
IMPLIED = {
    ("reclaim.lock_stale", "chatlock_threads.status = "): "only a running thread has expires_at, by its CHECK",
    ("heartbeat.beat", "chatlock_threads.status = "): "only a running thread has window_ends_at, by its CHECK",
    ("heartbeat.beat", "chatlock_threads.token = locked.token"): "the row that the CTE locked, found by its key",
    ("heartbeat.beat_late", "chatlock_threads.status = "): "only a running thread has window_ends_at, by its CHECK",
    ("heartbeat.beat_late", "chatlock_threads.token = locked.token"): "the row that the CTE locked, found by its key",
}
"""Predicates that no row can make refuse alone, and why."""
