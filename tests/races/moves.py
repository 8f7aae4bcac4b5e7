"""The moves: every operation as an actor makes it, what it was told, and what of that can be seen in the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chatlock import Cancelled, ClaimLost
from chatlock.ops import claim, fetch, heartbeat, operate, unanswered
from chatlock.ops import submit as submit_op
from chatlock.ops.audit import Act
from chatlock.protocol import Event
from chatlock.store import finish_once, submit_once
from tests.races.arena import LIMITS, finish_of, request, submission

if TYPE_CHECKING:
    from collections.abc import Callable

    from chatlock.executor import Executor
    from tests.races.arena import Held

M2_SEQ = 3
LIFE = 1
LATE = "lost"
"""What a move returns that was refused because its claim is lost."""


@dataclass(frozen=True)
class Actor:
    """Who makes a move: a name, a client's executor, and what the scene left in its memory."""

    name: str
    executor: Executor
    held: Held

    def transaction(self, name: str, op: Callable[[Any], Any]) -> Any:
        return self.executor.transaction(name, op)


@dataclass(frozen=True)
class Move:
    """One operation.  scene: where it finds work; done: the events that its result says it brought about."""

    name: str
    scene: str
    make: Callable[[Actor], Any]
    done: Callable[[Any], tuple[Event, ...]]


MOVES: dict[str, Move] = {}


def move(scene: str, done: Callable[[Any], tuple[Event, ...]]) -> Callable[[Callable[[Actor], Any]], Any]:
    def register(make: Callable[[Actor], Any]) -> Callable[[Actor], Any]:
        MOVES[make.__name__] = Move(make.__name__, scene, make, done)
        return make

    return register


def stored(result: Any) -> tuple[Event, ...]:
    if result.seq is None:
        return ()
    return (Event.SUBMIT, Event.CLAIM) if result.granted else (Event.SUBMIT,)


def ended(result: Any) -> tuple[Event, ...]:
    if result is None:
        return ()
    return (Event.HAND_OFF,) if result.granted else (Event.FINISH,)


def if_true(event: Event) -> Callable[[Any], tuple[Event, ...]]:
    return lambda result: (event,) if result and result != LATE else ()


def if_done(event: Event) -> Callable[[Any], tuple[Event, ...]]:
    return lambda receipt: (event,) if receipt.done else ()


@move("idle", stored)
def submit_hot(me: Actor) -> Any:
    return submit_once(me.executor, submission(me.held.key, f"new-{me.name}"), request(me.name), LIMITS)


@move("pending", stored)
def submit(me: Actor) -> Any:
    what, wanted = submission(me.held.key, f"new-{me.name}"), request(me.name)
    return me.transaction("submit", lambda c: submit_op.submit(c, what, wanted, LIMITS))


@move("pending", if_true(Event.CLAIM))
def claim_for(me: Actor) -> Any:
    wanted = request(me.name)
    return me.transaction("claim", lambda c: claim.claim_for(c, me.held.key, wanted, LIFE, M2_SEQ))


@move("pending", if_true(Event.CLAIM))
def claim_due(me: Actor) -> Any:
    wanted = request(me.name)
    return me.transaction("claim_due", lambda c: claim.claim_due(c, me.held.key, wanted))


@move("more", if_true(Event.FETCH))
def fetch_more(me: Actor) -> Any:
    after = me.held.hand[-1].seq
    try:
        return me.transaction("fetch", lambda c: ("fetched", fetch.fetch(c, me.held.claim, after, LIMITS)))
    except ClaimLost:
        return LATE


@move("running", ended)
def finish_hot(me: Actor) -> Any:
    return finish_once(me.executor, finish_of(me.held.claim, me.held.hand, f"by {me.name}"), None)


@move("more", ended)
def hand_off(me: Actor) -> Any:
    return finish_once(me.executor, finish_of(me.held.claim, me.held.hand, f"by {me.name}"), request(me.name))


@move("more", if_true(Event.FAIL))
def fail(me: Actor) -> Any:
    count = len(me.held.hand)
    return me.transaction(
        "fail",
        lambda c: unanswered.fail(c, me.held.claim, held=count, error="broke", limits=LIMITS, jitter=1.0),
    )


@move("more", if_true(Event.RELEASE))
def release(me: Actor) -> Any:
    return me.transaction("release", lambda c: unanswered.release(c, me.held.key, me.held.claim.claim_id))


@move("running", if_true(Event.HEARTBEAT))
def beat(me: Actor) -> Any:
    return me.executor.beat(lambda c: heartbeat.heartbeat(c, me.held.claim)) == heartbeat.Beat.EXTENDED


@move("stale", if_true(Event.RECLAIM))
def reclaim(me: Actor) -> Any:
    seen = unanswered.Observed(me.held.key, me.held.claim.token, 0, stale=True)
    return me.transaction("reclaim", lambda c: unanswered.reclaim(c, seen, LIMITS, 1.0))


@move("more", if_done(Event.FREE))
def free(me: Actor) -> Any:
    act, token = Act("free", me.name, ""), me.held.claim.token
    return me.transaction(
        "free", lambda c: unanswered.free(c, me.held.key, token, act, force=True, limits=LIMITS, jitter=1.0)
    )


@move("more", lambda outcome: (Event.CANCEL,) if isinstance(outcome, Cancelled) else ())
def cancel(me: Actor) -> Any:
    return me.transaction("cancel", lambda c: operate.cancel(c, me.held.key, "m2", LIMITS.backoff_max_ms))


@move("more", if_done(Event.PARK))
def park(me: Actor) -> Any:
    act, token = Act("park", me.name, ""), me.held.claim.token
    return me.transaction("park", lambda c: operate.park(c, me.held.key, token, act))


@move("more", if_done(Event.DELETE))
def delete(me: Actor) -> Any:
    act = Act("delete", me.name, "")
    return me.transaction("delete", lambda c: operate.delete(c, me.held.key, act))


@move("parked", if_done(Event.RESUME))
def resume(me: Actor) -> Any:
    act = Act("resume", me.name, "")
    return me.transaction("resume", lambda c: operate.resume(c, me.held.key, act))
