"""What processes do: workers run turns, submitters send bursts, callers wait, ask again, and act as operators."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from sqlalchemy import text

from chatlock import AlreadyAnswered, Debounce, Outcome, TurnNotFinished, TurnNotGranted, Unknown
from chatlock.errors import ChatlockError, StoreUnavailable
from chatlock.inputs import Key
from soak.agent import Agent
from soak.life import TENANT, Birth, Life, Poisoned

THREADS = 40
"""Of one generation; the next has threads of its own, so that no thread grows without end."""
SHARED_S = 0.5
SUBMITTERS, CALLERS = 6, 2
"""OS threads of a process."""
HELD = text("SELECT status, token FROM chatlock_threads WHERE tenant = :tenant AND thread_id = :thread")
RUNNING = text("SELECT thread_id, token FROM chatlock_turns WHERE state = 'running'")
OPEN = text("SELECT thread_id, awaiting FROM chatlock_threads WHERE awaiting IS NOT NULL AND status <> 'deleted'")
DEAD = text(
    "SELECT message_id FROM chatlock_messages WHERE tenant = :tenant AND thread_id = :thread AND disposition = 'dead'"
)
NOT_ACCEPTED = ("Busy", "Gone", "NotFound", "Conflict", "Refused", "Unknown")


class Sender:
    """Sends messages in one process, each until it is told what became of it."""

    def __init__(self, life: Life) -> None:
        self.life, self.random, self.history, self.chat = life, life.random, life.history, life.chat
        self._count = count(1)

    def new_id(self) -> str:
        return f"{self.life.name}-{next(self._count)}"

    def told(self, key: Key, call: str, outcome: Outcome) -> Outcome:
        self.history.told(key, call, outcome)
        if isinstance(outcome, AlreadyAnswered):
            self.life.slot.add("already_answered")
        elif isinstance(outcome, Unknown):
            self.life.slot.add("unknown")
        return outcome

    def submit(self, thread: str, message_id: str, payload: Any, **options: Any) -> Outcome:
        """One call."""
        key = Key(TENANT, thread)
        call = self.history.asked(key, "submit", message_id, payload)
        self.on_call(call)
        return self.told(key, call, self.chat.submit(thread, payload, message_id=message_id, **options))

    def bad_thread(self) -> str:
        """One of the threads that poisonous messages are sent to."""
        return f"{self.life.weather['generation']}-bad{self.random.randrange(10)}"

    def on_call(self, call: str | None) -> None:
        """The call may run a turn in this OS thread."""

    def deliver(self, thread: str, message_id: str, payload: Any, **options: Any) -> Outcome | None:
        """Sends it until it is told an outcome; None: this process ends first."""
        while not self.life.ending.is_set():
            try:
                outcome = self.submit(thread, message_id, payload, **options)
            except StoreUnavailable:
                self.life.slot.add("store_unavailable")
                self.life.rest(0.2)
                continue
            if not isinstance(outcome, Unknown):
                if type(outcome).__name__ not in NOT_ACCEPTED:
                    self.life.slot.add("accepted")
                return outcome
        return None


class Submitter(Sender):
    """Bursts of up to 1,000 messages, several to a thread, from a client that runs no turn."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self._sent: deque[tuple[str, str, Any]] = deque(maxlen=200)

    def burst(self) -> None:
        weather = self.life.weather
        while weather["held"] or not weather["storm"]:
            self.life.rest(0.05)
            if self.life.ending.is_set():
                return
        if self.random.random() < 0.06:
            self._bad_burst()
        left, generation = self.random.choice([20, 100, 300, 1_000, 1_000]), weather["generation"]
        while left > 0 and weather["storm"] and not self.life.ending.is_set():
            several = min(left, self.random.choice([1, 5, 20, 50, 100, 100]))
            left -= several
            thread = f"{generation}-{self.random.randrange(THREADS)}"
            messages = [(thread, self.new_id(), {"kind": "ok"}) for _ in range(several)]
            if several in (5, 20) and self.random.random() < 0.3:
                self._together(thread, messages)
            else:
                for message in messages:
                    self.deliver(*message, wait_ms=0, **self._option())
            self._sent.append(self.random.choice(messages))
        for message in self.random.sample(self._sent, min(len(self._sent), 3)):
            self.deliver(*message, wait_ms=0)

    def _option(self) -> dict[str, Any]:
        options: list[dict[str, Any]] = [
            {"policy": "latest"},
            {"policy": "reject"},
            {"policy": Debounce(quiet_ms=200, max_wait_ms=800)},
            {"expire_ms": 500},
        ]
        return self.random.choice(options) if self.random.random() < 0.02 else {}

    def _bad_burst(self) -> None:
        """A poisonous message among few others, in a thread where nothing else is sent."""
        thread = self.bad_thread()
        kind = self.random.choices(["poison", "exit", "hang"], [6, 1, 1])[0]
        kinds = [*("ok" for _ in range(self.random.randrange(4))), kind, "ok"]
        self._together(thread, [(thread, self.new_id(), {"kind": kind}) for kind in kinds])

    def _together(self, thread: str, messages: list[tuple[str, str, Any]]) -> None:
        """In one transaction of the application, then one by one if that came to nothing that is known."""
        key, told = Key(TENANT, thread), []
        try:
            with self.life.application.begin() as conn:
                for _, message_id, payload in messages:
                    call = self.history.asked(key, "submit", message_id, payload)
                    told.append((call, self.chat.submit(thread, payload, message_id=message_id, conn=conn)))
        except Exception as error:
            if isinstance(error, ChatlockError) and not isinstance(error, StoreUnavailable):
                raise
            self.life.slot.add("store_unavailable")
            for message in messages:
                self.deliver(*message, wait_ms=0)
            return
        for call, outcome in told:
            self.told(key, call, outcome)
            self.life.slot.add("accepted")


class Caller(Sender):
    """Users who wait for their answer and ask again, and operators."""

    def __init__(self, life: Life, agent: Agent) -> None:
        super().__init__(life)
        self._agent = agent
        self._acts: dict[Callable[[str], None], int] = {
            self._talk: 30,
            self._share: 20,
            self._block: 15,
            self._cancel: 8,
            self._answer: 8,
            self._edit: 4,
            self._free: 12,
            self._stop: 5,
            self._redrive: 3,
            self._park: 2,
            self._delete: 2,
            self._promote: 2,
        }

    def on_call(self, call: str | None) -> None:
        self._agent.calling(call)

    def act(self) -> None:
        if not self.life.weather["storm"]:
            self.life.rest(0.1)
            return
        act = self.random.choices(list(self._acts), list(self._acts.values()))[0]
        try:
            act(f"{self.life.weather['generation']}-c{self.random.randrange(8)}")
        finally:
            self._agent.calling(None)
        self.life.rest(self.random.choice([0.0, 0.05, 0.2]))

    def _wait(self) -> int:
        return self.random.choice([0, 200, 1_000, 5_000])

    def _talk(self, thread: str) -> None:
        """Now and then it does something to the turn that runs."""
        policies = ["enqueue", "enqueue", "enqueue", "steer", "interrupt", "rollback"]
        options = {"policy": self.random.choice(policies), "priority": self.random.choice(["user", "background"])}
        self.deliver(thread, self.new_id(), {"kind": "ok"}, wait_ms=self._wait(), recreate=True, **options)

    def _share(self, thread: str) -> None:
        """The same message as other callers send in this half second, in this process and others."""
        number = int(time.time() / SHARED_S)
        self.deliver(f"shared-{number % 8}", f"shared-{number}", {"kind": "ok"}, wait_ms=self._wait())

    def _block(self, thread: str) -> None:
        """The caller runs the turn itself."""
        key, message_id, payload = Key(TENANT, thread), self.new_id(), {"kind": "ok"}
        call = self.history.asked(key, "submit", message_id, payload)
        self._agent.calling(call)
        try:
            with self.chat.turn(thread, payload, message_id=message_id, wait_ms=self._wait()) as turn:
                reply = self._agent(turn)
                if reply is not None:
                    turn.finish(reply)
                    self.history.finished(turn)
        except TurnNotGranted as refused:
            self.told(key, call, refused.outcome)
        except (Poisoned, TurnNotFinished):
            pass

    def _cancel(self, thread: str) -> None:
        message_id = self.new_id()
        self.deliver(thread, message_id, {"kind": "ok"}, wait_ms=0, recreate=True)
        self._told_of(thread, "cancel", message_id, partial(self.chat.cancel, thread, message_id))
        self._told_of(thread, "status", message_id, partial(self.chat.status, thread, message_id))

    def _edit(self, thread: str) -> None:
        message_id, edit_id, payload = self.new_id(), self.new_id(), {"kind": "ok", "edited": True}
        self.deliver(thread, message_id, {"kind": "ok"}, wait_ms=0, recreate=True)
        key = Key(TENANT, thread)
        call = self.history.asked(key, "submit", edit_id, payload)
        self.told(key, call, self.chat.edit(thread, message_id, payload, edit_id))

    def _answer(self, _: str) -> None:
        """Decides on an open question, as others may at the same time, and not always alike."""
        with self.life.application.connect() as conn:
            questions = list(conn.execute(OPEN))
        if questions:
            thread, question_id = self.random.choice(questions)
            key, decision = Key(TENANT, thread), {"kind": "ok", "decision": self.random.choice(["yes", "yes", "no"])}
            call = self.history.asked(key, "submit", question_id, decision)
            self.on_call(call)
            self.told(key, call, self.chat.answer(thread, question_id, decision, wait_ms=self._wait()))

    def _told_of(self, thread: str, what: str, message_id: str, ask: Any) -> None:
        key = Key(TENANT, thread)
        call = self.history.asked(key, what, message_id)
        self.told(key, call, ask())

    # -- operators ---------------------------------------------------------------------------------------------------
    def _held(self, thread: str) -> tuple[str, int]:
        with self.life.application.connect() as conn:
            row = conn.execute(HELD, {"tenant": TENANT, "thread": thread}).one_or_none()
        return ("absent", 0) if row is None else (row.status, row.token)

    def _free(self, _: str) -> None:
        """Frees a turn although it lives."""
        with self.life.application.connect() as conn:
            running = list(conn.execute(RUNNING))
        if running:
            thread, token = self.random.choice(running)
            if self.chat.free(thread, turn=token, force=self.random.random() < 0.8, actor="op").done:
                self.history.over(Key(TENANT, thread), token, "freed")

    def _stop(self, _: str) -> None:
        """Asks a turn to stop; it ends by itself, or by force when its grace is over."""
        with self.life.application.connect() as conn:
            running = list(conn.execute(RUNNING))
        if running:
            thread, token = self.random.choice(running)
            queued: Any = self.random.choice(["keep", "keep", "cancel"])
            key, grace_ms = Key(TENANT, thread), self.random.choice([200, 2_000])
            self.history.stopping(key, token, queued)
            self.history.stopped(key, self.chat.cancel(thread, turn=token, queued=queued, grace_ms=grace_ms))

    def _promote(self, thread: str) -> None:
        self.chat.promote(thread)

    def _park(self, thread: str) -> None:
        status, token = self._held(thread)
        running = status == "running"
        if self.chat.park(thread, turn=token if running else None, actor="op").done and running:
            self.history.over(Key(TENANT, thread), token, "parked")
        self.life.rest(self.random.choice([0.0, 0.5]))
        self.chat.resume(thread, actor="op")

    def _delete(self, thread: str) -> None:
        self.history.asked(Key(TENANT, thread), "delete")
        self.chat.delete(thread, actor="op")

    def _redrive(self, _: str) -> None:
        thread = self.bad_thread()
        with self.life.application.connect() as conn:
            dead = conn.execute(DEAD, {"tenant": TENANT, "thread": thread}).scalar()
        if dead is not None:
            self.chat.redrive(thread, dead)


def run_submitter(birth: Birth) -> None:
    """One life of a process that only submits."""
    life = Life(birth, polls=False)
    life.run(*[Submitter(life).burst] * SUBMITTERS)


def run_worker(birth: Birth, callers: int = 0) -> None:
    """One life of a process whose poller runs turns."""
    life = Life(birth, polls=True)
    agent = Agent(life)
    life.chat.handler()(agent)
    life.chat._ready()
    life.run(*[Caller(life, agent).act] * callers)


def run_caller(birth: Birth) -> None:
    """One life of a worker that has callers and operators too."""
    run_worker(birth, CALLERS)
