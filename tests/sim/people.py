"""Who acts from outside in a simulation: users who send and ask again, and operators."""

from __future__ import annotations

from functools import partial
from typing import Any

from chatlock import Outcome
from chatlock.inputs import Key
from tests.sim.cast import TENANT, Cast, Site
from tests.sim.turns import block

FINAL = ("Answered", "AlreadyAnswered", "Cancelled", "Superseded", "Dead", "Gone", "Conflict")


def user(cast: Cast, thread: str, messages: list[tuple[str, dict[str, Any]]]) -> None:
    """Sends its messages one after another, each until it is told that it was accepted."""
    for message_id, payload in messages:
        cast.world.scheduler.sleep(cast.random.choice([0.0, 0.0, 0.3, 3.0]))
        _deliver(cast, thread, message_id, payload, until=("Queued", "Parked", "Busy", *FINAL))
    cast.sending -= 1
    cast.world.scheduler.wait_for(lambda: cast.healed, "heal")
    for message_id, payload in messages:
        _deliver(cast, thread, message_id, payload, until=FINAL)


def _deliver(cast: Cast, thread: str, message_id: str, payload: dict[str, Any], until: tuple[str, ...]) -> None:
    """Sends one message, again after a crash or an error, and now and then twice at once."""
    while True:
        cast.world.scheduler.wait_for(lambda: bool(cast.living()), "process")
        site = cast.random.choice(cast.living())
        if cast.likes("twice"):
            cast.call(site, "again", partial(cast.submit, site, thread, message_id, payload, 0))
        wait_ms = cast.random.choice([0, 0, 0, 400, 4_000, 30_000])
        told = cast.wait(cast.call(site, "submit", _way(cast, site, thread, message_id, payload, wait_ms)))
        if type(told).__name__ in until:
            return
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
    for _ in range(acts):
        scheduler = cast.world.scheduler
        scheduler.sleep(cast.random.choice([0.0, 0.5, 2.0, 9.0]))
        if cast.random.random() < 0.5:
            scheduler.wait_for(lambda: cast.in_handler > 0, "turn", scheduler.now + 5.0)
        if cast.healed or not cast.living():
            return
        site, message_id = cast.random.choice(cast.living()), cast.random.choice(message_ids)
        act, waiting = cast.random.choice(cast.acts), cast.world.truth.pending_ids(thread)
        if waiting and cast.random.random() < 0.7:
            message_id = cast.random.choice(waiting)
        cast.wait(cast.call(site, act, partial(_operate, cast, site, thread, act, message_id)))


def _operate(cast: Cast, site: Site, thread: str, act: str, message_id: str) -> None:
    key, token, chat = Key(TENANT, thread), cast.world.truth.token_of(thread), site.chat
    call = cast.history.asked(key, act, message_id)
    match act:
        case "cancel":
            cast.history.told(key, call, chat.cancel(thread, message_id))
        case "answer":
            cast.decide(site, key, cast.world.truth.awaiting(thread))
        case "edit":
            edit_id = f"edit-{message_id}-{cast.random.choice([1, 2])}"
            edited = cast.history.asked(key, "submit", edit_id, edit_id)
            cast.history.told(key, edited, chat.edit(thread, message_id, {"kind": "ok"}, edit_id))
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
        case "stop":
            queued = cast.random.choice(["keep", "cancel", "park"])
            cast.history.stopping(key, token, queued)
            cast.history.stopped(key, chat.cancel(thread, turn=token, queued=queued, grace_ms=cast.grace()))
        case "resume":
            chat.resume(thread, actor="op")
        case "delete":
            chat.delete(thread, actor="op")
