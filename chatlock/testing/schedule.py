"""A schedule: named actors, each in an OS thread of its own, pass named points one at a time, in a given order.

Every operation of an attached client stops at `<op>.begin`, before its first statement, and at `<op>.commit`, before
its COMMIT.  An actor that waits for another's lock is recognised in the database itself (locks.py), never by time.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chatlock.client_base import Client
from chatlock.testing.locks import Locks

LOOK_EVERY_S = 0.002
SECONDS_MAX = 20.0


class ScheduleFailed(AssertionError):
    """The order could not be imposed, or was not: the message says where every actor stood."""


class Step(NamedTuple):
    """One actor passed one point."""

    actor: str
    """The actor's name."""
    point: str
    """The point's name."""

    def __str__(self) -> str:
        return f"{self.actor}:{self.point}"


@dataclass(frozen=True)
class Played:
    """What a play came to: its trace, and what each actor returned or raised."""

    trace: tuple[Step, ...]
    """Every step, in the order in which they were taken."""
    postponed: tuple[str, ...]
    """Actors whose step was due while they waited for another's lock; they took it as soon as they had it."""
    surplus: tuple[str, ...]
    """Steps of the order for which their actor had no point left."""
    rest: tuple[Step, ...]
    """Steps that the order did not name."""
    values: dict[str, Any]
    """What each actor's script returned."""
    errors: dict[str, BaseException]
    """What each actor's script raised."""

    def value(self, actor: str) -> Any:
        """What the actor's script returned; raises what it raised.

        Args:
            actor: The actor's name.
        """
        if actor in self.errors:
            raise self.errors[actor]
        return self.values[actor]

    def __str__(self) -> str:
        return " ".join(map(str, self.trace))


@dataclass(eq=False)
class _Actor:
    name: str
    script: Callable[[], Any]
    schedule: Schedule
    at: str | None = None
    passed: str | None = None
    refused: bool = False
    refused_first: float = 0.0
    blocked: bool = False
    ended: bool = False
    owed: int = 0
    value: Any = None
    error: BaseException | None = None
    os_thread: threading.Thread = field(init=False)

    @property
    def moves(self) -> bool:
        return self.at is None and not self.ended

    @property
    def inside(self) -> bool:
        """Whether it stands in an open transaction."""
        return self.at is not None and self.at.endswith(".commit")

    def where(self) -> str:
        if self.ended:
            return "has ended"
        if self.refused:
            return f"waits at {self.at} for another's transaction"
        if self.at is not None:
            return f"stands at {self.at}"
        return "waits for another's lock" if self.blocked else f"runs since {self.passed or 'its start'}"


_current: contextvars.ContextVar[_Actor | None] = contextvars.ContextVar("chatlock_testing_actor", default=None)


def point(name: str) -> None:
    """A point of the test's own, in an actor's script.

    Args:
        name: The point's name; one that ends in `.commit` is inside a transaction.
    """
    actor = _current.get()
    if actor is not None:
        actor.schedule._arrive(name)


class Schedule:
    """Plays orders of actors over attached clients.  Give each actor a client of its own: on SQLite it must have one.

        schedule = Schedule()
        with schedule.attached(one, two):
            schedule.actor("A", lambda: one.submit("t1", "hi", wait_ms=0))
            schedule.actor("B", lambda: two.submit("t1", "ho", wait_ms=0))
            played = schedule.play("ABAB")

    The actor is known by a context variable, which chatlock's own OS threads (heartbeat, poller, look) do not have:
    they are never stopped.

    Args:
        unstopped: The operations at whose points nobody stops; the default reads a cache.
        seconds_max: After so many seconds every wait ends with ScheduleFailed.
    """

    def __init__(self, *, unstopped: Collection[str] = ("windows",), seconds_max: float = SECONDS_MAX) -> None:
        self._unstopped, self._seconds_max = unstopped, seconds_max
        self._changed = threading.Condition()
        self._actors: dict[str, _Actor] = {}
        self._go: _Actor | None = None
        self._free = False
        self._trace: list[Step] = []
        self._locks: Locks | None = None

    @contextmanager
    def attached(self, *clients: Client) -> Iterator[Schedule]:
        """The clients' operations stop at their points, for actors of this schedule, until the block ends.

        Opens the clients.  Raises ScheduleFailed if another schedule has one.

        Args:
            clients: All of one database.
        """
        if self._locks is not None or any(client._executor.points is not None for client in clients):
            raise ScheduleFailed("this schedule, or one of the clients, is attached already")
        urls = {client._executor.engine.url for client in clients}
        if len(urls) != 1:
            raise ScheduleFailed(f"the clients of a schedule must share one database; these have {len(urls)}")
        with Locks(urls.pop(), self._current_name) as locks:
            self._locks = locks
            for client in clients:
                client._executor.points = self._arrive
            try:
                yield self
            finally:
                for client in clients:
                    client._executor.points = None
                self._locks = None

    def actor(self, name: str, script: Callable[[], Any]) -> None:
        """Adds an actor to the next play.

        Args:
            name: Its name in the order.
            script: What it does: a function without arguments, or a coroutine function.
        """
        if name in self._actors:
            raise ScheduleFailed(f"there is an actor {name} already")
        self._actors[name] = _Actor(name, script, self)

    def play(
        self, order: Sequence[str], *, exact: bool = True, watch: Callable[[Step], object] = lambda step: None
    ) -> Played:
        """Starts the actors and lets each name of `order` pass the point where its actor stands, until all have ended.

        An actor that waits for a lock takes its step as soon as it has the lock (`postponed`).  Raises ScheduleFailed
        where the order or the trace differs; what a script raises is in `errors`.

        Args:
            order: Names of actors, one for each step.
            exact: `order` must neither name a step that its actor does not have nor leave one out; else such steps are
                dropped (`surplus`), and what is left is played one actor after another (`rest`).
            watch: Called after each step, when all actors are at rest.
        """
        if self._locks is None:
            raise ScheduleFailed("play is called inside `with schedule.attached(client, ..):`")
        if unknown := set(order) - self._actors.keys():
            raise ScheduleFailed(f"the order names {sorted(unknown)}, who are no actors")
        play = _Play(self, order, watch)
        try:
            self._start()
            self._settle()
            play.run()
            for actor in self._actors.values():
                actor.os_thread.join(self._seconds_max)
            return play.judged(exact)
        finally:
            self._end()

    # -- the actors' side --------------------------------------------------------------------------------------------
    def _arrive(self, name: str) -> None:
        actor = _current.get()
        if actor is None or actor.schedule is not self or name.rpartition(".")[0] in self._unstopped:
            return
        with self._changed:
            if self._free:
                return
            if actor.at is not None:
                raise ScheduleFailed(f"actor {actor.name} is at {actor.at} and at {name} at once")
            # SQLite refuses BEGIN IMMEDIATE while another holds the write transaction; the executor then tries again
            again = name == actor.passed and not name.endswith(".commit")
            if not again:
                actor.refused_first = time.monotonic()
            actor.refused = again and any(other.inside for other in self._actors.values())
            actor.at, actor.blocked = name, False
            self._changed.notify_all()
            let = self._changed.wait_for(lambda: self._free or self._go is actor, self._seconds_max)
            if self._go is actor:
                self._go = None
                if not actor.refused:
                    self._trace.append(Step(actor.name, name))
            actor.at, actor.passed, actor.refused = None, name, False
            self._changed.notify_all()
            if not let:
                raise ScheduleFailed(f"nobody let actor {actor.name} pass {name}")

    def _run(self, actor: _Actor) -> None:
        _current.set(actor)
        try:
            made = actor.script()
            actor.value = asyncio.run(_awaited(made)) if inspect.isawaitable(made) else made
        except BaseException as error:  # noqa: BLE001 the test is told by Played
            actor.error = error
        with self._changed:
            actor.ended, actor.at = True, None
            self._changed.notify_all()

    def _current_name(self) -> str | None:
        actor = _current.get()
        return actor.name if actor is not None and actor.schedule is self else None

    # -- the player's side -------------------------------------------------------------------------------------------
    def _start(self) -> None:
        self._free, self._go, self._trace = False, None, []
        for actor in self._actors.values():
            name = f"actor-{actor.name}"
            actor.os_thread = threading.Thread(target=self._run, args=(actor,), name=name, daemon=True)
            actor.os_thread.start()

    def _end(self) -> None:
        """Whatever happened, the actors run on to their end, and no point stops them."""
        with self._changed:
            self._free = True
            self._changed.notify_all()
        for actor in self._actors.values():
            actor.os_thread.join(self._seconds_max)
        self._actors = {}

    def _let(self, actor: _Actor) -> None:
        with self._changed:
            self._go = actor
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._go is None, self._seconds_max)
        self._settle()

    def _settle(self) -> None:
        """Returns once every actor stands at a point, has ended, or waits for the lock of one who stands."""
        deadline = time.monotonic() + self._seconds_max
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._moving(), LOOK_EVERY_S)
                moving = self._moving()
                refused = [actor for actor in self._actors.values() if actor.refused]
                inside = any(actor.inside for actor in self._actors.values())
            if not moving:
                if inside or not refused:
                    return
                self._let(min(refused, key=lambda actor: actor.refused_first))  # as PostgreSQL's queue: who came first
            elif self._all_blocked(moving):
                return
            if time.monotonic() > deadline:
                raise ScheduleFailed(f"the actors did not come to rest: {self._where()}\n{self._stacks(moving)}")

    def _moving(self) -> list[_Actor]:
        return [actor for actor in self._actors.values() if actor.moves]

    def _all_blocked(self, moving: list[_Actor]) -> bool:
        """One look at the server's locks: whether those who move all wait, at last for one who stands still."""
        if self._locks is None:
            return False
        standing = {actor.name for actor in self._actors.values() if not actor.moves}
        blocked = self._locks.waiting_for(standing)
        if not blocked.issuperset(actor.name for actor in moving):
            return False
        with self._changed:
            if self._moving() != moving:
                return False
            for actor in moving:
                actor.blocked = True
            return True

    def _where(self) -> str:
        return "; ".join(f"{actor.name} {actor.where()}" for actor in self._actors.values())

    def _stacks(self, actors: list[_Actor]) -> str:
        frames = sys._current_frames()
        return "\n".join(
            f"{actor.name}:\n{''.join(traceback.format_stack(frames[ident])[-6:])}"
            for actor in actors
            if (ident := actor.os_thread.ident) in frames and ident is not None
        )


class _Play:
    """One order on its way: which steps were taken, and which were not as the order says."""

    def __init__(self, schedule: Schedule, order: Sequence[str], watch: Callable[[Step], object]) -> None:
        self._schedule, self._order, self._watch = schedule, order, watch
        self._taken: list[Step] = []
        self._postponed: list[str] = []
        self._surplus: list[str] = []
        self._rest: list[Step] = []

    def run(self) -> None:
        actors = self._schedule._actors
        for name in self._order:
            actor = actors[name]
            if actor.ended:
                self._surplus.append(name)
            elif actor.moves or actor.refused:
                actor.owed += 1
                self._postponed.append(name)
            else:
                self._take(actor)
            self._take_owed()
        while standing := [a for a in actors.values() if a.at is not None and not a.refused]:
            self._rest.append(self._take(standing[0]))
            self._take_owed()
        if waiting := [a for a in actors.values() if not a.ended]:
            raise ScheduleFailed(f"{', '.join(a.name for a in waiting)} cannot go on: {self._schedule._where()}")

    def _take(self, actor: _Actor) -> Step:
        step = Step(actor.name, actor.at or "")
        self._taken.append(step)
        self._schedule._let(actor)
        self._watch(step)
        return step

    def _take_owed(self) -> None:
        while free := [a for a in self._schedule._actors.values() if a.owed and not a.moves and not a.refused]:
            for actor in free:
                actor.owed -= 1
                if actor.ended:
                    self._surplus.append(actor.name)
                else:
                    self._take(actor)

    def judged(self, exact: bool) -> Played:
        schedule = self._schedule
        actors = schedule._actors.values()
        played = Played(
            trace=tuple(schedule._trace),
            postponed=tuple(self._postponed),
            surplus=tuple(self._surplus),
            rest=tuple(self._rest),
            values={a.name: a.value for a in actors if a.error is None},
            errors={a.name: a.error for a in actors if a.error is not None},
        )
        if list(played.trace) != self._taken:
            raise ScheduleFailed(
                f"the order was not imposed: played {self._taken}, but the actors passed {played.trace}"
            )
        if exact and (played.surplus or played.rest):
            raise ScheduleFailed(
                f"the order {self._order!r} is not the actors': too many steps of {list(played.surplus)}, "
                f"none for {list(map(str, played.rest))}; they passed {played}"
            )
        return played


async def _awaited(made: Any) -> Any:
    return await made
