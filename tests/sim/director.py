"""The course of a simulation: things go wrong for a while, the world heals, and all that is left is done."""

from __future__ import annotations

from functools import partial
from random import Random

from chatlock.inputs import Key
from tests.sim.cast import TENANT, Cast, Site
from tests.sim.fibers import Fiber
from tests.sim.people import operator, user

CALM_AFTER_S = 300.0


def direct(cast: Cast, random: Random) -> None:
    """Starts the processes, the users and the operators, and sees them to the end."""
    scheduler = cast.world.scheduler
    for number in range(random.choice([1, 2, 2, 3])):
        cast.start(handles=number == 0 or random.random() < 0.8, polls=random.random() < 0.6)
    users = []
    for number in range(1, random.choice([1, 1, 1, 2]) + 1):
        thread, ids = f"t{number}", []
        for who in range(random.choice([1, 2, 3])):
            messages = [(f"m{number}{who}{n}", {"kind": _kind(random)}) for n in range(random.choice([1, 2, 3]))]
            ids += [message_id for message_id, _ in messages]
            cast.sending += 1
            users.append(scheduler.spawn(cast.world, f"user{number}{who}", partial(user, cast, thread, messages)))
        acts = random.choice([0, 6, 12])
        if acts and cast.acts:
            scheduler.spawn(cast.world, f"operator{number}", partial(operator, cast, thread, ids, acts))
    _see_through(cast, users, random.choice([20.0, 60.0]))


def _kind(random: Random) -> str:
    return random.choices(["ok", "poison", "exit"], [18, 1, 1])[0]


def _see_through(cast: Cast, users: list[Fiber], seconds: float) -> None:
    """Lets things go wrong for a while, heals the world, and waits until nothing is left to do."""
    world, scheduler = cast.world, cast.world.scheduler
    scheduler.wait_for(lambda: cast.sending + cast.operating == 0, "users", scheduler.now + seconds)
    world.heal()
    cast.healed = True
    last = cast.start(handles=True, polls=True)
    _drain(cast, last)
    while not all(user.ended for user in users):
        scheduler.sleep(2.0)
        _drain(cast, last)
    cast.calm = True
    scheduler.wait_for(lambda: cast.in_handler == 0, "late turns")
    _drain(cast, last)
    cast.verify(last)
    cast.history.tables(last.chat, drained=True)
    for site in cast.living():
        cast.wait(cast.call(site, "close", site.chat.close))
    for _ in range(100):
        if _left_over(cast):
            scheduler.sleep(1.0)
    if _left_over(cast):
        cast.flaw(f"still running long after close: {_left_over(cast)}")


def _left_over(cast: Cast) -> list[str]:
    """Fibers of the product that have not ended."""
    return [fiber.name for fiber in cast.world.scheduler.living if fiber.home is not cast.world]


def _drain(cast: Cast, site: Site) -> None:
    while not _settled(cast, site):
        cast.world.scheduler.sleep(0.5)
        cast.calm = cast.calm or cast.world.scheduler.now > CALM_AFTER_S


def _settled(cast: Cast, site: Site) -> bool:
    """Nothing is pending; parked threads are put back into service on the way."""
    for row in cast.world.truth.rows():
        if row.status == "parked":
            cast.wait(cast.call(site, "resume", partial(site.chat.resume, row.thread, actor="op")))
        if row.held and row.pending and row.awaiting is not None:
            decide = partial(cast.decide, site, Key(TENANT, row.thread), row.awaiting)
            cast.wait(cast.call(site, "answer", decide))
        if row.status == "running" or (row.pending and row.status != "deleted"):
            return False
    return True
