"""Drives an application's handler through a crash, a takeover, a late finish, a duplicate and a stop, at every step.

A step is a point that the handler's call passes: `<op>.begin` and `<op>.commit` of what it asks of chatlock, and the
points of its own (`chatlock.testing.point`).  What stands at a `.commit` has an open transaction: only a crash and a
stop of the caller can meet it there.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sqlalchemy.engine import URL

from chatlock.client import Chatlock
from chatlock.errors import ClaimLost, InvalidInput
from chatlock.handlers import Handler
from chatlock.protocol import AlreadyAnswered, Answered, Outcome, Queued
from chatlock.testing.clock import DatabaseClock, MonotonicClock
from chatlock.testing.schedule import SECONDS_MAX, Schedule, _Actor

TENANT = "drill"
ROUNDS_MAX = 20
PASSES_MS = 3_600_000
"""How far time moves at once: past every lease, window and backoff."""

FAULTS: dict[str, str] = {
    "crash": "the process is gone at this step, and another one takes over",
    "reclaim": "it stands still until another one has taken over and answered, and then goes on",
    "late": "it stands still until its claim is reclaimed, and then goes on before anyone has taken over",
    "duplicate": "the same message is delivered again at this step",
    "stop": "the caller is stopped at this step, as by Ctrl-C, and hands its turn back",
}
INSIDE = frozenset({"crash", "stop"})


class Crashed(BaseException):
    """Ends what a crashed process still ran, once nothing of it can reach the database any more."""


class DrillFailed(AssertionError):
    """The handler, or what it did to the world, does not survive a fault; the message names each case."""


@dataclass
class Case:
    """One fault at one step, and what came of it."""

    fault: str
    """crash, reclaim, late, duplicate or stop."""
    step: int
    """Where the fault came: the step's number, counted from 0."""
    point: str
    """The name of the point at that step."""
    thread: str
    """The case's own thread."""
    messages: dict[str, Any]
    """The payloads by message_id, in order."""
    world: Any
    """What the `world` function made for this case; None without one."""
    runs: int = 0
    """How often the handler was entered."""
    reply: Any = None
    """What the last message is answered with in the end."""
    told: list[Outcome] = field(default_factory=list)
    """What its callers were told, in order."""
    errors: list[str] = field(default_factory=list)
    """What the handler raised besides ClaimLost, by name of its class."""

    def __str__(self) -> str:
        return f"{self.fault} at step {self.step} ({self.point})"

    @property
    def last_id(self) -> str:
        """The id of the message whose caller runs the turn."""
        return list(self.messages)[-1]


def _noted(handler: Handler, case: Case) -> Callable[..., Any]:
    """The handler in its own shape; the case counts its runs and keeps what it raised."""

    @contextmanager
    def run() -> Iterator[None]:
        case.runs += 1
        try:
            yield
        except ClaimLost:
            raise
        except Exception as error:
            case.errors.append(type(error).__name__)
            raise

    def call(turn: Any) -> Any:
        with run():
            return handler.call(turn)

    async def call_async(turn: Any) -> Any:
        with run():
            return await handler.call(turn)

    async def stream(turn: Any) -> AsyncIterator[Any]:
        with run():
            async with aclosing(handler.call(turn)) as chunks:
                async for chunk in chunks:
                    yield chunk

    return {"sync": call, "async": call_async, "stream": stream}[handler.kind]


class _Stand(Schedule):
    """One actor that stands still at every point until it is let go on."""

    def __init__(self, script: Callable[[], Any]) -> None:
        super().__init__()
        self._one = _Actor("worker", script, self)
        self._dead = self._may_go = False
        self._instead: BaseException | None = None
        self._one.os_thread = threading.Thread(target=self._run, args=(self._one,), name="drill", daemon=True)

    def _arrive(self, name: str) -> None:
        if self._current_name() is None or name.partition(".")[0] in self._unstopped:
            return
        with self._changed:
            if self._dead:
                raise Crashed
            self._one.at, self._may_go = name, False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._may_go)
            self._one.at = None
            error, self._instead = self._instead, None
        if error is not None:
            raise error

    def begin(self) -> None:
        """Lets the actor run to its first point."""
        self._one.os_thread.start()

    def point(self) -> str | None:
        """The point where the actor stands; None: it has ended."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._one.at is not None or self._one.ended, SECONDS_MAX):
                raise DrillFailed(f"the handler passed no point and did not end within {SECONDS_MAX} s")
            return self._one.at

    def go(self, error: BaseException | None = None) -> None:
        """Lets the actor go on, into `error` if there is one."""
        with self._changed:
            self._instead, self._may_go, self._one.at = error, True, None
            self._changed.notify_all()

    def go_to_its_end(self, *, dead: bool = False) -> Any:
        """What the actor's script came to: its value or its error.  dead: nothing of it happens any more."""
        with self._changed:
            self._dead = dead
        if self.point() is not None:
            self.go(Crashed() if dead else None)
        while self.point() is not None:
            self.go()
        self._one.os_thread.join(SECONDS_MAX)
        return self._one.error if self._one.error is not None else self._one.value


class Drill:
    """Runs cases on one database, which must be the test's own: its clock is set.

        drill = Drill("sqlite:///drill.db")
        drill.run(answer, world=Mailbox, check=lambda case: ...)
        drill.close()

    Args:
        url: The test's own database, with chatlock's tables.
    """

    def __init__(self, url: str | URL) -> None:
        self._clock, self._monotonic = DatabaseClock.install(url), MonotonicClock()
        self._outside, self._first, self._second = (self._client(url) for _ in range(3))
        self._handler: Callable[..., Any] = lambda turn: None
        self._case: Case | None = None
        self._cases = 0

    def _client(self, url: str | URL) -> Chatlock:
        chat = Chatlock(url, tenant=TENANT, poller=False, heartbeat=False)
        self._clock.attach(chat)
        chat._sweep._monotonic = self._monotonic
        return chat

    def close(self) -> None:
        """Closes the clients."""
        for chat in (self._outside, self._first, self._second):
            chat.close()

    def run(
        self,
        handler: Callable[..., Any],
        *,
        world: Callable[[], Any] | None = None,
        messages: Sequence[object] = ("hello",),
        check: Callable[[Case], object] = lambda case: None,
        faults: Sequence[str] = tuple(FAULTS),
    ) -> tuple[Case, ...]:
        """Plays every fault at every step of `handler`, each in a thread of its own, and returns the cases.

        Afterwards each message must be answered once, verify must hold, no caller may have been told a falsehood, and
        check must pass.  Raises DrillFailed, which names every case that does not hold; InvalidInput.

        Args:
            handler: handler(turn), or handler(world, turn) with a world.  Sync, async or an async generator.
            world: Makes what stands for the world outside, for each case anew: a mailbox, a shop.
            messages: The payloads that its turn finds; at least one.
            check: check(case) asserts that the world is as it should be.
            faults: Which faults to play: crash, reclaim, late, duplicate, stop.
        """
        unknown = [fault for fault in faults if fault not in FAULTS]
        if unknown or not messages:
            raise InvalidInput("bad_drill", f"a drill needs messages, and faults among {', '.join(FAULTS)}")
        play = partial(self._play, handler, world, list(messages), check)
        plain, points = play("none", -1, "")
        if isinstance(plain, str):
            raise DrillFailed(f"the handler fails without any fault: {plain}")
        found = [
            play(fault, step, point)[0]
            for fault in faults
            for step, point in enumerate(points)
            if fault in INSIDE or not point.endswith(".commit")
        ]
        if failed := [case for case in found if isinstance(case, str)]:
            raise DrillFailed("\n".join([f"{len(failed)} of {len(found)} cases failed:", *failed]))
        return tuple(case for case in found if isinstance(case, Case))

    # -- one case ----------------------------------------------------------------------------------------------------
    def _play(
        self,
        handler: Callable[..., Any],
        world: Callable[[], Any] | None,
        payloads: list[object],
        check: Callable[[Case], object],
        fault: str,
        step: int,
        point: str,
    ) -> tuple[Case | str, list[str]]:
        """The case, or what is wrong with it; and the points that its caller passed."""
        self._cases += 1
        thread = f"case-{self._cases}"
        made = world() if world is not None else None
        case = Case(fault, step, point, thread, {f"{thread}-{n}": p for n, p in enumerate(payloads, 1)}, made)
        bound = partial(handler, made) if world is not None else handler
        for chat in (self._first, self._second):
            chat._flows.handlers.pop("default", None)
            chat.handler()(bound)
            registered = chat._flows.handlers["default"]
            chat._flows.handlers["default"] = replace(registered, call=_noted(registered, case))
        for message_id in list(case.messages)[:-1]:
            self._outside.submit(thread, case.messages[message_id], message_id=message_id, wait_ms=0)
        points: list[str] = []
        try:
            self._drive(case, points)
            self._settle(case)
            self._judge(case)
            check(case)
        except Exception as error:  # noqa: BLE001  every case is played, and each that failed is told
            return f"{case}: {type(error).__name__}: {error}", points
        return case, points

    def _drive(self, case: Case, points: list[str]) -> None:
        """The first caller's submit, from point to point, with the fault at its step."""
        stand = _Stand(lambda: self._submit(self._first, case))
        self._first._executor.points = stand._arrive
        try:
            stand.begin()
            while (point := stand.point()) is not None:
                points.append(point)
                if len(points) - 1 == case.step:
                    if point != case.point:
                        raise DrillFailed(f"the handler is at {point} here: it must take the same steps every time")
                    self._meet(case, stand)
                    break
                stand.go()
            self._note(case, stand.go_to_its_end())
        finally:
            stand.go_to_its_end(dead=True)
            self._first._executor.points = None

    def _meet(self, case: Case, stand: _Stand) -> None:
        match case.fault:
            case "crash" if case.point.endswith(".commit"):
                stand.go_to_its_end(dead=True)
            case "crash":
                self._settle(case)
                stand.go_to_its_end(dead=True)
            case "reclaim":
                self._pass_time()
                self._settle(case, ask=False)
                stand.go()
            case "late":
                self._pass_time()
                self._second._sweep.reclaim_stale()
                stand.go()
            case "duplicate":
                self._note(case, self._submit(self._second, case))
                stand.go()
            case "stop":
                stand.go(KeyboardInterrupt())

    def _submit(self, chat: Chatlock, case: Case) -> Outcome:
        """What a caller does with the last message; asking again is always safe."""
        return chat.submit(case.thread, case.messages[case.last_id], message_id=case.last_id, wait_ms=0)

    def _note(self, case: Case, came: object) -> None:
        if isinstance(came, Outcome):
            case.told.append(came)
        elif isinstance(came, Exception):
            raise came

    def _pass_time(self) -> None:
        """Long enough for every lease, window and backoff; a sweeper sees before and after."""
        self._second._sweep.reclaim_stale()
        self._clock.advance(PASSES_MS)
        self._monotonic.advance(PASSES_MS)
        for core in list(self._first._flows.live.turns.values()):
            core._valid_until = 0.0  # check() reads this machine's monotonic clock, which nobody can set

    def _settle(self, case: Case, *, ask: bool = True) -> None:
        """The caller asks again, and the other process runs what is due until nothing is left."""
        if ask:
            case.told.append(self._submit(self._second, case))
        for _ in range(ROUNDS_MAX):
            if not any(isinstance(outcome, Queued) for outcome in self._outcomes(case)):
                return
            self._pass_time()
            self._second.sweep_once()

    def _outcomes(self, case: Case) -> list[Outcome]:
        return [self._outside.status(case.thread, message_id) for message_id in case.messages]

    def _judge(self, case: Case) -> None:
        for outcome in self._outcomes(case):
            if not isinstance(outcome, AlreadyAnswered):
                raise DrillFailed(f"message {outcome.message_id} ended as {type(outcome).__name__}")
            case.reply = outcome.reply
        for told in case.told:
            if isinstance(told, Answered | AlreadyAnswered) and told.reply != case.reply:
                raise DrillFailed(f"a caller was told {told.reply!r}, and the reply is {case.reply!r}")
        if sum(isinstance(told, Answered) for told in case.told) > 1:
            raise DrillFailed("two callers were told Answered, and would both show the reply")
        for breach in self._outside.verify(tenant=TENANT).breaches:
            raise DrillFailed(f"{breach.invariant}: {breach.text}")
