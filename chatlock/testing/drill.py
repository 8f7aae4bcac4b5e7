"""Drives an application's handler through crashes, takeovers, duplicates, arrivals and stops, at every step.

A step is a point that the handler's call passes: `<op>.begin` and `<op>.commit` of what it asks of chatlock, and the
points of its own (`chatlock.testing.point`).  What stands at a `.commit` has an open transaction: only a crash and a
stop of the caller can meet it there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy.engine import URL

from chatlock.client import Chatlock
from chatlock.errors import ClaimLost, InvalidInput
from chatlock.protocol import AlreadyAnswered, Answered, Outcome, Queued
from chatlock.testing.cases import FAULTS, INSIDE, Case, DrillFailed, noted
from chatlock.testing.clock import DatabaseClock, MonotonicClock
from chatlock.testing.schedule import SECONDS_MAX, Schedule, _Actor

log = logging.getLogger("chatlock")

TENANT = "drill"
ROUNDS_MAX = 20
PASSES_MS = 3_600_000
"""How far time moves at once: past every lease, window and backoff."""


class Crashed(BaseException):
    """Ends what a crashed process still ran, once nothing of it can reach the database any more."""


@contextmanager
def _quiet() -> Iterator[None]:
    """The log leaves out what the drill itself brings about: claims that are reclaimed, and turns that find it out."""

    def unexpected(record: logging.LogRecord) -> bool:
        return record.msg != "turn.reclaimed" and getattr(record, "error", None) != ClaimLost.__name__

    log.addFilter(unexpected)
    try:
        yield
    finally:
        log.removeFilter(unexpected)


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
        self._first._flows.signals_raise = lambda os_thread: True  # the caller's stands for a main one
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
        check must pass.  Raises DrillFailed, which names every case that does not hold, and whose cause is what the
        handler or the check raised first; InvalidInput.

        Args:
            handler: handler(turn), or handler(world, turn) with a world.  Sync, async or an async generator.
            world: Makes what stands for the world outside, for each case anew: a mailbox, a shop.
            messages: The payloads that its turn finds; at least one.  What `arrival` brings is the last of them once
                more, as another message.
            check: check(case) asserts that the world is as it should be.
            faults: Which faults to play: crash, arrival, reclaim, late, duplicate, stop.
        """
        __tracebackhide__ = True
        unknown = [fault for fault in faults if fault not in FAULTS]
        if unknown or not messages:
            raise InvalidInput("bad_drill", f"a drill needs messages, and faults among {', '.join(FAULTS)}")
        play = partial(self._play, handler, world, list(messages), check)
        with _quiet():
            plain, points = play("none", -1, "")
            self._verify([plain])
            if plain.failure is not None:
                raise DrillFailed(f"the handler fails without any fault: {plain._what_failed()}") from plain._cause
            found = [
                play(fault, step, point)[0]
                for fault in faults
                for step, point in enumerate(points)
                if fault in INSIDE or not point.endswith(".commit")
            ]
            self._verify(found)
        if failed := [case for case in found if case.failure is not None]:
            lines = [f"{len(failed)} of {len(found)} cases failed:"]
            lines += [f"{case}: {case._what_failed()}" for case in failed]
            lines += [f"({fault}: {FAULTS[fault]})" for fault in dict.fromkeys(case.fault for case in failed)]
            raise DrillFailed("\n".join(lines)) from failed[0]._cause
        return tuple(found)

    def _verify(self, cases: Sequence[Case]) -> None:
        """One look at all of them: a breach names its thread."""
        by_thread = {case.thread: case for case in cases if case.failure is None}
        for breach in self._outside.verify(tenant=TENANT).breaches:
            if breach.thread in by_thread:
                by_thread[breach.thread].failure = DrillFailed(f"{breach.invariant}: {breach.text}")

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
    ) -> tuple[Case, list[str]]:
        """The case, and the points that its caller passed."""
        self._cases += 1
        thread = f"case-{self._cases}"
        made = world() if world is not None else None
        by_id = {f"{thread}-{n}": payload for n, payload in enumerate(payloads, 1)}
        case = Case(fault, step, point, thread, by_id, list(by_id)[-1], made)
        bound = partial(handler, made) if world is not None else handler
        for chat in (self._first, self._second):
            chat._flows.handlers.pop("default", None)
            chat.handler()(bound)
            registered = chat._flows.handlers["default"]
            chat._flows.handlers["default"] = replace(registered, call=noted(registered, case))
        for message_id in list(by_id)[:-1]:
            self._store(case, message_id)
        points: list[str] = []
        try:
            self._drive(case, points)
            self._settle(case)
            self._judge(case)
            check(case)
        except Exception as error:  # noqa: BLE001  every case is played, and each that failed is told
            case.failure = error
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
            case "arrival" if case.point.endswith(".commit"):
                stand.go_to_its_end(dead=True)
                self._arrive(case)
            case "arrival":
                self._arrive(case)
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
        return chat.submit(case.thread, case.messages[case.own_id], message_id=case.own_id, wait_ms=0)

    def _store(self, case: Case, message_id: str) -> None:
        """What somebody does who has no handler."""
        self._outside.submit(case.thread, case.messages[message_id], message_id=message_id, wait_ms=0)

    def _arrive(self, case: Case) -> None:
        later_id = f"{case.own_id}-later"
        case.messages[later_id] = case.messages[case.own_id]
        self._store(case, later_id)

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
        replies = {}
        for outcome in self._outcomes(case):
            if not isinstance(outcome, AlreadyAnswered):
                raise DrillFailed(f"message {outcome.message_id} ended as {type(outcome).__name__}")
            replies[outcome.message_id] = outcome.reply
        case.reply = replies[case.own_id]
        for told in case.told:
            if isinstance(told, Answered | AlreadyAnswered) and told.reply != case.reply:
                raise DrillFailed(f"a caller was told {told.reply!r}, and the reply is {case.reply!r}")
        if sum(isinstance(told, Answered) for told in case.told) > 1:
            raise DrillFailed("two callers were told Answered, and would both show the reply")
