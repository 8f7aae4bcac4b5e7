"""Who acts from outside in a simulation: users who send and ask again, and operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from chatlock import Conflict, Outcome
from chatlock.inputs import Key
from chatlock.protocol import Disposition, Status
from tests.sim.cast import TENANT, Cast, Site
from tests.sim.tables import Row, Thread
from tests.sim.turns import block

MOMENTS: tuple[Callable[[Thread], bool], ...] = (
    lambda thread: thread.row.running and thread.row.fetched_seq > thread.row.done_seq,
    lambda thread: thread.row.running and thread.row.fetched_seq == thread.row.done_seq,
    lambda thread: thread.row.running and thread.row.last_seq > thread.row.held_upto,
    lambda thread: thread.row.waits and any(thread.row.charges),
    lambda thread: thread.row.holes > 0,
    lambda thread: thread.row.stopping,
    lambda thread: thread.row.awaiting is not None,
)
"""Where operators like to act: a turn that has messages, or none yet, or more behind it; a backoff, a hole, a stop, a
question.
"""
TELLING: dict[str, Callable[[Thread], bool]] = {
    "stop": lambda thread: thread.row.running,
    "free": lambda thread: thread.row.running,
    "park": lambda thread: thread.row.running or thread.row.waits,
    "cancel": lambda thread: thread.row.last_seq > thread.row.held_upto,
    "edit": lambda thread: thread.row.last_seq > thread.row.held_upto,
    "resume": lambda thread: thread.row.status == Status.PARKED,
    "answer": lambda thread: thread.row.awaiting is not None,
    "impostor": lambda thread: thread.row.awaiting is not None,
    "redrive": lambda thread: any(m.disposition == Disposition.DEAD for m in thread.messages.values()),
}
"""When an act does something; it is done at other times too."""
FINAL = ("Answered", "AlreadyAnswered", "Cancelled", "Superseded", "Expired", "Dead", "Gone", "Conflict")


def user(cast: Cast, thread: str, messages: list[tuple[str, dict[str, Any]]]) -> None:
    """Sends its messages one after another, each until it is told that it was accepted."""
    told: dict[str, str] = {}
    for message_id, payload in messages:
        cast.world.scheduler.sleep(cast.random.choice([0.0, 0.0, 0.3, 3.0, 9.0]))
        told[message_id] = _deliver(cast, thread, message_id, payload, until=("Queued", "Parked", "Busy", *FINAL))
    cast.sending -= 1
    cast.world.scheduler.wait_for(lambda: cast.healed, "heal")
    for message_id, payload in messages:
        if told[message_id] not in FINAL or cast.random.random() < 0.3:  # most ask no more once they know
            _deliver(cast, thread, message_id, payload, until=FINAL, waits=(30_000,))


def _deliver(
    cast: Cast,
    thread: str,
    message_id: str,
    payload: dict[str, Any],
    until: tuple[str, ...],
    waits: tuple[int, ...] = (0, 0, 0, 400, 4_000, 30_000),
) -> str:
    """Sends one message, again after a crash or an error, and now and then twice at once."""
    while True:
        cast.world.scheduler.wait_for(lambda: bool(cast.living()), "process")
        site = cast.random.choice(cast.living())
        if cast.likes("twice"):
            another = cast.random.choice([{}, {}, {"another": True}])
            cast.call(site, "again", partial(cast.submit, site, thread, message_id, payload | another, 0))
        wait_ms = cast.random.choice(waits)
        told = cast.wait(cast.call(site, "submit", _way(cast, site, thread, message_id, payload, wait_ms)))
        if type(told).__name__ in until:
            return type(told).__name__
        cast.world.scheduler.sleep(cast.random.choice([0.1, 1.0, 5.0]))


def _way(cast: Cast, site: Site, thread: str, message_id: str, payload: dict[str, Any], wait_ms: int) -> Any:
    if cast.likes("block") and not cast.healed:
        return partial(block, cast, site, thread, message_id, payload, wait_ms)
    if cast.likes("caller"):
        return partial(_submit_in, cast, site, thread, message_id, payload)
    return partial(cast.submit, site, thread, message_id, payload, wait_ms)


def _submit_in(cast: Cast, site: Site, thread: str, message_id: str, payload: dict[str, Any]) -> Outcome | None:
    key = Key(TENANT, thread)
    call = cast.history.asked(key, "submit", message_id, payload)
    with cast.transaction(site) as conn:
        told = site.chat.submit(thread, payload, message_id=message_id, conn=conn)
        if cast.likes("rollback"):
            conn.exec_driver_sql("ROLLBACK")
            return None
    cast.history.told(key, call, told)
    return told


def operator(cast: Cast, thread: str, message_ids: list[str], acts: int) -> None:
    """Does something to the thread now and then, whatever its state."""
    cast.operating += 1
    _act(cast, thread, message_ids, acts)
    cast.operating -= 1


def _act(cast: Cast, thread: str, message_ids: list[str], acts: int) -> None:
    for _ in range(acts):
        scheduler = cast.world.scheduler
        scheduler.sleep(cast.random.choice([0.0, 0.0, 0.5, 2.0, 5.0]))
        if cast.random.random() < 0.7:
            _wait_for_a_moment(cast, thread)
        if cast.healed or not cast.living():
            return
        found = cast.world.truth.thread(thread)
        telling = [act for act in cast.acts if act in TELLING and TELLING[act](found)]
        site = cast.random.choice(cast.living())
        act = cast.random.choice(telling if telling and cast.random.random() < 0.7 else cast.acts)
        message_id = cast.random.choice(_likely(cast, thread, act) or message_ids)
        cast.wait(cast.call(site, act, partial(_operate, cast, site, thread, act, message_id)))


def _wait_for_a_moment(cast: Cast, thread: str) -> None:
    moment, scheduler = cast.random.choice(MOMENTS), cast.world.scheduler
    scheduler.wait_for(lambda: moment(cast.world.truth.thread(thread)), "moment", scheduler.now + 5.0)


def _likely(cast: Cast, thread: str, act: str) -> list[str]:
    """The ids of the messages that the act is meant for, most of the time."""
    wanted = Disposition.DEAD if act == "redrive" else Disposition.PENDING
    messages = cast.world.truth.thread(thread).messages.values()
    return [m.message_id for m in messages if m.disposition == wanted] if cast.random.random() < 0.6 else []


def _operate(cast: Cast, site: Site, thread: str, act: str, message_id: str) -> None:
    key, chat, row = Key(TENANT, thread), site.chat, cast.world.truth.thread(thread).row
    token = max(0, row.token - cast.random.choice([0, 0, 0, 0, 1, 2]))
    call = cast.history.asked(key, act, message_id)
    match act:
        case "cancel":
            cast.history.told(key, call, chat.cancel(thread, message_id))
        case "answer":
            cast.decide(site, key, _question(cast, thread))
        case "impostor":
            if row.awaiting is not None:
                chat.submit(thread, {"kind": "ok"}, message_id=row.awaiting, wait_ms=0)
        case "edit":
            others = [m.message_id for m in cast.world.truth.thread(thread).messages.values()]
            edit_id = cast.random.choice([f"edit-{message_id}-1", f"edit-{message_id}-2", *others[-1:]])
            payload = cast.random.choice([{"kind": "ok"}, {"kind": "ok", "another": True}])
            edited = cast.history.asked(key, "submit", edit_id, payload)
            told = chat.edit(thread, message_id, payload, edit_id)
            if edit_id not in others or not isinstance(told, Conflict):  # an id that is taken may be another message's
                cast.history.told(key, edited, told)
        case "status":
            cast.history.told(key, call, chat.status(thread, message_id))
        case "promote":
            chat.promote(thread)
        case "redrive":
            chat.redrive(thread, message_id)
        case "park":
            turn = cast.random.choice([None, token])
            if chat.park(thread, turn=turn, actor="op").done and turn is not None:
                cast.history.over(key, turn, "parked")
        case "free":
            if chat.free(thread, turn=token, force=cast.random.random() < 0.5, actor="op").done:
                cast.history.over(key, token, "freed")
                _must_be_of(cast, row, token, "free")
        case "stop":
            queued = cast.random.choice(["keep", "cancel", "park"])
            cast.history.stopping(key, token, queued)
            receipt = chat.cancel(thread, turn=token, queued=queued, grace_ms=cast.grace())
            cast.history.stopped(key, receipt)
            if receipt.done:
                _must_be_of(cast, row, token, "stop")
        case "resume":
            chat.resume(thread, actor="op")
        case "delete":
            chat.delete(thread, actor="op")


def _must_be_of(cast: Cast, row: Row, token: int, what: str) -> None:
    """What names an earlier turn than the one that had the thread may do nothing."""
    if token < row.token:
        cast.flaw(f"the {what} of turn {token} was done while the token was {row.token}")


def _question(cast: Cast, thread: str) -> str:
    """The question that is open in it, now and then one that was; or what is none."""
    found = cast.world.truth.thread(thread)
    asked = [turn.question for turn in found.turns.values() if turn.question is not None]
    if asked and cast.random.random() < 0.3:
        return cast.random.choice(asked)
    return found.row.awaiting or "no-question"
