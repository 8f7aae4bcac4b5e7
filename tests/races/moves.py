"""The moves: every operation as an actor makes it, what it was told, and what of that can be seen in the tables."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from chatlock import Cancelled, ClaimLost
from chatlock.dialects import BEGIN, Fault, fault_of
from chatlock.ops import claim, fence, fetch, finish, heartbeat, operate, unanswered
from chatlock.ops import stop as stop_op
from chatlock.ops import submit as submit_op
from chatlock.ops.audit import Act
from chatlock.policies import Interrupt
from chatlock.protocol import Event
from chatlock.store import finish_once, submit_once
from chatlock.testing import point
from tests.races.arena import LIMITS, finish_of, request, submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.engine import Connection

    from chatlock.executor import Executor
    from chatlock.ops.base import Claim, Message
    from tests.races.arena import Held

M2_SEQ = 3
FIRST_LIFE = 1
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

    scene: str
    make: Callable[[Actor], Any]
    done: Callable[[Any], tuple[Event, ...]]


MOVES: dict[str, Move] = {}
"""Every operation of the protocol, in the scene in which it finds work."""
MORE_MOVES: dict[str, Move] = {}
"""Variants that only some schedules need."""


def move(
    scene: str, done: Callable[[Any], tuple[Event, ...]], moves: dict[str, Move] = MOVES
) -> Callable[[Callable[[Actor], Any]], Any]:
    def register(make: Callable[[Actor], Any]) -> Callable[[Actor], Any]:
        moves[make.__name__] = Move(scene, make, done)
        return make

    return register


def variant(scene: str, done: Callable[[Any], tuple[Event, ...]]) -> Callable[[Callable[[Actor], Any]], Any]:
    return move(scene, done, MORE_MOVES)


def move_of(name: str) -> Move:
    return MOVES.get(name) or MORE_MOVES[name]


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
    return me.transaction("claim", lambda c: claim.claim_for(c, me.held.key, wanted, FIRST_LIFE, M2_SEQ))


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


def failed(result: Any) -> tuple[Event, ...]:
    """A turn that was asked to stop is released."""
    if result is None:
        return ()
    return (Event.RELEASE,) if result.error == unanswered.STOPPED else (Event.FAIL,)


@move("more", failed)
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
    return me.executor.beat(lambda c: heartbeat.heartbeat(c, me.held.claim)).beat == heartbeat.Beat.EXTENDED


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


def if_cancelled(outcome: Any) -> tuple[Event, ...]:
    return (Event.CANCEL,) if isinstance(outcome, Cancelled) else ()


@move("more", if_cancelled)
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


@dataclass(frozen=True)
class Turned:
    """A turn that a move ran to its end: its own, or the scene's with more messages in hand."""

    claim: Claim
    hand: tuple[Message, ...]
    finished: Any


def fetched_and_ended(result: Any) -> tuple[Event, ...]:
    return () if result is None or result == LATE else (Event.FETCH, Event.FINISH)


# -- variants --
@variant("more", fetched_and_ended)
def fetch_and_finish(me: Actor) -> Any:
    """The turn fetches what has come since, and answers all that it has in hand."""
    more = fetch_more(me)
    if more == LATE:
        return LATE
    hand = (*me.held.hand, *more[1])
    finished = finish_once(me.executor, finish_of(me.held.claim, hand, f"by {me.name}"), None)
    return Turned(me.held.claim, hand, finished) if finished else None


@variant("pending", lambda result: (Event.CLAIM, Event.FINISH) if result else ())
def claim_and_finish(me: Actor) -> Any:
    """A turn of the actor's own, from its claim to its end."""
    granted = claim_due(me)
    if granted is None:
        return None
    finished = finish_once(me.executor, finish_of(granted.claim, granted.messages, f"by {me.name}"), None)
    return Turned(granted.claim, granted.messages, finished) if finished else None


@variant("absent", stored)
def submit_same(me: Actor) -> Any:
    """Every actor submits the same message."""
    return submit_once(me.executor, submission(me.held.key, "same"), request(me.name), LIMITS)


@variant("pending", lambda result: (Event.CLAIM,) if result.granted else ())
def submit_again(me: Actor) -> Any:
    """Asks again for m2, which is stored."""
    return submit_once(me.executor, submission(me.held.key, "m2"), request(me.name), LIMITS)


@variant("idle", stored)
def submit_only(me: Actor) -> Any:
    """Stores without asking for a claim, as a call does that waits for nothing."""
    return submit_once(me.executor, submission(me.held.key, f"new-{me.name}"), None, LIMITS)


@variant("more", if_done(Event.FREE))
def free_current(me: Actor) -> Any:
    """Forces whatever turn runs now."""
    token = me.executor.read("look", lambda c: operate.lock(c, me.held.key)).token
    act = Act("free", me.name, "")
    return me.transaction(
        "free", lambda c: unanswered.free(c, me.held.key, token, act, force=True, limits=LIMITS, jitter=1.0)
    )


@variant("deleted", lambda result: (Event.RECREATE, *stored(result)))
def recreate(me: Actor) -> Any:
    what = replace(submission(me.held.key, f"new-{me.name}"), recreate=True)
    return submit_once(me.executor, what, request(me.name), LIMITS)


@variant("pending", if_cancelled)
def cancel_head(me: Actor) -> Any:
    return me.transaction("cancel", lambda c: operate.cancel(c, me.held.key, "m1", LIMITS.backoff_max_ms))


@variant("stale", if_done(Event.FREE))
def free_stale(me: Actor) -> Any:
    """Without force: refused while the turn lives."""
    act, token = Act("free", me.name, ""), me.held.claim.token
    return me.transaction(
        "free", lambda c: unanswered.free(c, me.held.key, token, act, force=False, limits=LIMITS, jitter=1.0)
    )


def affecting(event: Event) -> Callable[[Any], tuple[Event, ...]]:
    return lambda result: ((event,) if result.affected else ()) + stored(result)


@variant("more", affecting(Event.INTERRUPT))
def interrupt(me: Actor) -> Any:
    what = replace(submission(me.held.key, f"new-{me.name}"), policy="interrupt", interrupt=Interrupt())
    wanted = request(me.name)
    return me.transaction("submit", lambda c: submit_op.submit(c, what, wanted, LIMITS))


@variant("more", affecting(Event.ROLLBACK))
def roll_back(me: Actor) -> Any:
    """The turn that it names alone; without a claim, so that the thread must be found by its due row."""
    what = replace(submission(me.held.key, f"new-{me.name}"), policy="rollback", if_turn=me.held.claim.token)
    return me.transaction("submit", lambda c: submit_op.submit(c, what, None, LIMITS))


@variant("more", if_done(Event.STOP))
def stop(me: Actor) -> Any:
    """What waits is cancelled, and what the turn has if it ends without an answer."""
    far, token = LIMITS.backoff_max_ms, me.held.claim.token
    return me.transaction(
        "stop", lambda c: stop_op.stop(c, me.held.key, token, "cancel", grace_ms=1, backoff_max_ms=far)
    )


@variant("overdue", if_true(Event.FORCE))
def force(me: Actor) -> Any:
    seen = unanswered.Observed(me.held.key, me.held.claim.token, 0, stale=False, overdue=True)
    return me.transaction("force", lambda c: stop_op.force(c, seen))


@contextmanager
def app_transaction(me: Actor) -> Iterator[Connection]:
    """The application's own transaction, with points of its own; it is refused SQLite's lock as ours are."""
    with me.executor.engine.connect() as conn:
        while True:
            point("app.begin")
            try:
                conn.exec_driver_sql(BEGIN[conn.dialect.name])
                break
            except DBAPIError as error:
                if fault_of(error) is not Fault.RETRY:
                    raise
        try:
            yield conn
            point("app.commit")
            conn.exec_driver_sql("COMMIT")
        except BaseException:
            conn.exec_driver_sql("ROLLBACK")
            raise


WRITE = text("INSERT INTO app_log(tenant, thread_id, token, who) VALUES (:tenant, :thread, :token, :who)")


def write_app_row(conn: Connection, me: Actor) -> None:
    key = me.held.key
    conn.execute(WRITE, {"tenant": key.tenant, "thread": key.thread, "token": me.held.claim.token, "who": me.name})


@variant("running", if_true(Event.FENCE))
def fenced_write(me: Actor) -> Any:
    """A row of the application, written under the fence."""
    try:
        with app_transaction(me) as conn:
            fence.fence(conn, me.held.claim)
            write_app_row(conn, me)
    except ClaimLost:
        return LATE
    return True


@variant("running", if_true(Event.FINISH))
def finish_in_app(me: Actor) -> Any:
    """The reply's row of the application and the end of the turn, in the application's transaction."""
    try:
        with app_transaction(me) as conn:
            write_app_row(conn, me)
            if finish.finish_in(conn, finish_of(me.held.claim, me.held.hand, f"by {me.name}")) is None:
                raise ClaimLost
    except ClaimLost:
        return LATE
    return True
