"""Any sequence of what can happen to a thread leaves every message pending or with one disposition, in order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from chatlock import Chatlock, ClaimLost, Conflict, Key, Limits, Parked, Queued, Refused, Superseded, Turn
from chatlock.io import drive
from chatlock.ops.verify import verify
from chatlock.policies import AWAITING_RULES, BACKLOGS, OVERFLOWS, POLICIES
from chatlock.testing import DatabaseClock, MonotonicClock
from tests.conformance import rows
from tests.support import scaled
from tests.support.databases import KINDS, Database

LIMITS = Limits(attempts_max=2, stalls_max=3, batch_max=3, mid_fetches_max=2)
WINDOW_MS = LIMITS.window_default_ms
DRAIN_STEPS_MAX = 200
VERIFY_EVERY = 7
NUMBER = count()

a_policy = st.sampled_from(sorted(POLICIES))
a_cap = st.sampled_from([None, None, 1, 3])
an_overflow = st.sampled_from(sorted(OVERFLOWS))
a_limit_ms = st.sampled_from([None, None, 1_000])
which = st.integers(0, 9)


class Thread(RuleBasedStateMachine):
    """One thread of a tenant of its own.  Each rule says which dispositions it may give; the invariant compares."""

    chat: ClassVar[Chatlock]
    database: ClassVar[Database]
    clock: ClassVar[DatabaseClock]
    monotonic: ClassVar[MonotonicClock]

    def __init__(self) -> None:
        super().__init__()
        self.key = Key(f"machine-{next(NUMBER)}", "c1")
        self.to = {"tenant": self.key.tenant}
        self.turn: Turn | None = None
        self.stale: list[Turn] = []
        self.ids: list[str] = []
        self.resolved: dict[str, tuple[str, int | None]] = {}
        self.allowed: dict[str, set[str] | None] = {}
        self.questions: dict[str, str | None] = {}
        self.stopped: set[str] = set()
        self.fetches = self.steps = 0

    # -- what the tables hold ----------------------------------------------------------------------------------------
    def rows_of(self, name: str) -> list[dict[str, Any]]:
        cursor = rows.plain(self.database).execute(f"SELECT * FROM {name} WHERE tenant = '{self.key.tenant}'")
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    @property
    def row(self) -> dict[str, Any]:
        found = self.rows_of("chatlock_threads")
        return found[0] if found else {"status": "absent", "token": 0, "awaiting": None, "awaiting_rule": None}

    @property
    def messages(self) -> list[dict[str, Any]]:
        return sorted(self.rows_of("chatlock_messages"), key=lambda message: message["seq"])

    @property
    def pending(self) -> list[int]:
        return [message["seq"] for message in self.messages if message["disposition"] == "pending"]

    @property
    def held(self) -> bool:
        row = self.row
        return row["awaiting"] is not None and row["awaiting_rule"] == "hold"

    def lives(self, turn: Turn) -> bool:
        row = self.row
        return (row["status"], row["token"]) == ("running", turn.token)

    # -- steps -------------------------------------------------------------------------------------------------------
    def may(self, **allowed: set[str] | None) -> None:
        """The step may give these dispositions: to exactly these messages, or (None) to any."""
        self.allowed = allowed

    def some_id(self, number: int) -> str:
        return self.ids[number % len(self.ids)]

    def stored(self, told: Any, message_id: str) -> None:
        if told.message_id == message_id and isinstance(told, Queued | Parked | Superseded):
            self.ids.append(message_id)

    def took(self, turn: Turn | None) -> None:
        if self.turn is not None and turn is not None:
            self.stale.append(self.turn)
        self.turn, self.fetches = (turn, 0) if turn is not None else (self.turn, self.fetches)

    def options(self, policy: str, cap: int | None, overflow: str, expire_ms: int | None) -> dict[str, Any]:
        caps = {} if cap is None else {"pending_max": cap, "overflow": overflow}
        return {**self.to, **caps, "policy": policy, "expire_ms": expire_ms, "wait_ms": 0}

    @rule(policy=a_policy, cap=a_cap, overflow=an_overflow, expire_ms=a_limit_ms)
    def submit(self, policy: str, cap: int | None, overflow: str, expire_ms: int | None) -> None:
        self.may(superseded=None)
        message_id = f"m{next(NUMBER)}"
        options = self.options(policy, cap, overflow, expire_ms)
        self.stored(self.chat.submit("c1", message_id, message_id=message_id, **options), message_id)

    @rule(policy=a_policy, expire_ms=a_limit_ms)
    def begin(self, policy: str, expire_ms: int | None) -> None:
        self.may(superseded=None, expired=None)
        message_id, held = f"m{next(NUMBER)}", self.held
        options = self.options(policy, None, "reject", expire_ms)
        got = self.chat.begin("c1", message_id, message_id=message_id, **options)
        if isinstance(got, Turn):
            assert not held
            self.ids.append(message_id)
            self.took(got)
        else:
            self.stored(got, message_id)

    @precondition(lambda self: self.ids)
    @rule(number=which, same=st.booleans())
    def send_again(self, number: int, same: bool) -> None:
        self.may()
        message_id = self.some_id(number)
        payload = message_id if same else "another"
        told = self.chat.submit("c1", payload, message_id=message_id, wait_ms=0, **self.to)
        if not same:
            assert isinstance(told, Conflict)

    @rule()
    def claim(self) -> None:
        self.may(expired=None)
        held = self.held
        granted = self.chat._sweep.claim(self.key, "default")
        if granted is None:
            return
        assert not held
        core = self.chat._flows.opened(granted, "poller")
        drive(core.first_fetch(self.chat._flows.store))
        turn = Turn(core, self.chat._flows.store)
        if turn.messages:
            self.took(turn)
        else:
            turn.release()

    # -- the turn ----------------------------------------------------------------------------------------------------
    def in_turn(self, act: Any, *, goes_on: bool = False) -> None:
        """What a stale turn tries is refused; what a live one does is not."""
        turn = self.turn
        assert turn is not None
        live = self.lives(turn)
        if not live:
            self.may()
        try:
            act(turn)
        except ClaimLost:
            assert not live
        else:
            assert live
        if not (live and goes_on):
            self.turn = None

    @precondition(lambda self: self.turn)
    @rule()
    def fetch(self) -> None:
        """One more than the limit does not look, so it says nothing of the claim either."""
        assert self.turn is not None
        self.fetches += 1
        if self.fetches > LIMITS.mid_fetches_max:
            assert self.turn.fetch() == []
            return
        self.may(expired=None)
        self.in_turn(lambda turn: turn.fetch(), goes_on=True)

    def answered_upto(self, number: int) -> int:
        assert self.turn is not None
        held = self.turn.messages
        upto = held[number % len(held)].seq
        self.may(answered={message.message_id for message in held if message.seq <= upto})
        return upto

    @precondition(lambda self: self.turn)
    @rule(number=which)
    def finish(self, number: int) -> None:
        upto = self.answered_upto(number)
        self.in_turn(lambda turn: turn.finish("reply", upto=upto))

    @precondition(lambda self: self.turn)
    @rule(awaiting=st.sampled_from(sorted(AWAITING_RULES)))
    def suspend(self, awaiting: Any) -> None:
        self.answered_upto(-1)
        self.in_turn(lambda turn: self.questions.setdefault(turn.suspend("go on?", awaiting=awaiting), None))

    @precondition(lambda self: self.turn)
    @rule()
    def fail(self) -> None:
        self.may(dead=None)
        self.in_turn(lambda turn: turn.fail("no"))

    @precondition(lambda self: self.turn)
    @rule()
    def release(self) -> None:
        self.may()
        assert self.turn is not None
        live = self.lives(self.turn)
        assert self.turn.release() == live
        self.turn = None

    @precondition(lambda self: self.turn or self.stale)
    @rule(queued=st.sampled_from(sorted(BACKLOGS)), number=which)
    def stop(self, queued: Any, number: int) -> None:
        """What the turn has is cancelled when it ends, whatever ends it; another turn than the named one is left."""
        turns = [*self.stale, *([self.turn] if self.turn is not None else [])]
        turn = turns[number % len(turns)]
        live = self.lives(turn)
        receipt = self.chat.cancel("c1", turn=turn.token, queued=queued, grace_ms=1_000, **self.to)
        assert receipt.done == live
        self.may(cancelled=set(receipt.waiting) if queued == "cancel" else set())
        if live:
            self.stopped = set(receipt.held) if queued == "cancel" else set()

    @precondition(lambda self: self.stale)
    @rule()
    def wake_a_stale_turn(self) -> None:
        self.may()
        with pytest.raises(ClaimLost):
            self.stale.pop().finish("late")

    # -- callers -----------------------------------------------------------------------------------------------------
    @precondition(lambda self: self.ids)
    @rule(number=which)
    def cancel(self, number: int) -> None:
        message_id = self.some_id(number)
        before = {message["message_id"]: message["disposition"] for message in self.messages}
        told = self.chat.cancel("c1", message_id, **self.to)
        refused = isinstance(told, Refused)
        self.may(cancelled={message_id} if before[message_id] == "pending" and not refused else set())

    @rule()
    def promote(self) -> None:
        self.may()
        self.chat.promote("c1", **self.to)

    @precondition(lambda self: self.ids)
    @rule(number=which)
    def edit(self, number: int) -> None:
        message_id, edit_id = self.some_id(number), f"m{next(NUMBER)}"
        told = self.chat.edit("c1", message_id, edit_id, edit_id, **self.to)
        edited = told.message_id == edit_id
        self.may(superseded={message_id} if edited else set())
        self.ids += [edit_id] if edited else []

    @precondition(lambda self: self.questions)
    @rule(number=which, decision=st.sampled_from(["yes", "no"]))
    def answer(self, number: int, decision: str) -> None:
        self.may()
        question = sorted(self.questions)[number % len(self.questions)]
        is_open, decided = self.row["awaiting"] == question, self.questions[question]
        told = self.chat.answer("c1", question, decision, wait_ms=0, **self.to)
        if decided is not None:
            assert isinstance(told, Conflict) == (decided != decision)
        elif is_open:
            self.stored(told, question)
            self.questions[question] = decision
        else:
            assert isinstance(told, Refused)

    @precondition(lambda self: self.questions)
    @rule(number=which)
    def close_question(self, number: int) -> None:
        question = sorted(self.questions)[number % len(self.questions)]
        if self.row["awaiting"] == question:
            self.may()
            self.chat.cancel("c1", question, **self.to)
            assert self.row["awaiting"] is None

    # -- operators and time ------------------------------------------------------------------------------------------
    @rule(named=st.booleans())
    def park(self, named: bool) -> None:
        self.may()
        self.chat.park("c1", turn=self.row["token"] if named else None, actor="op", **self.to)

    @rule()
    def resume(self) -> None:
        self.may()
        self.chat.resume("c1", actor="op", **self.to)

    @rule(force=st.booleans())
    def free(self, force: bool) -> None:
        self.may(dead=None)
        self.chat.free("c1", turn=self.row["token"], force=force, actor="op", **self.to)

    @rule(by_ms=st.sampled_from([500, 2_000, 15_000, WINDOW_MS + 1]))
    def time_passes(self, by_ms: int) -> None:
        self.may()
        self.clock.advance(by_ms)

    @rule()
    def sweep(self) -> None:
        self.may(dead=None)
        self.chat._sweep.reclaim_stale()
        self.monotonic.advance(2 * LIMITS.beat_ms + 2_000)
        self.chat._sweep.reclaim_stale()

    # -- what always holds -------------------------------------------------------------------------------------------
    @invariant()
    def every_message_has_its_place(self) -> None:
        messages = self.messages
        assert [message["message_id"] for message in messages] == self.ids
        now = {m["message_id"]: (m["disposition"], m["turn_token"]) for m in messages if m["disposition"] != "pending"}
        assert {name: now.get(name) for name in self.resolved} == self.resolved
        for name in now.keys() - self.resolved.keys():
            which_may = self.allowed.get(now[name][0], self.stopped if now[name][0] == "cancelled" else set())
            assert which_may is None or name in which_may, f"{name} is {now[name]}"
        for disposition, exactly in self.allowed.items():
            missing = {name for name in exactly or () if now.get(name, ("pending",))[0] != disposition}
            assert not missing, f"{missing} are not {disposition}"
        self.resolved, self.allowed = now, {}
        if self.turn is not None and self.lives(self.turn):
            held = [message.seq for message in self.turn.messages]
            assert held == [m["seq"] for m in messages if m["disposition"] == "pending"][: len(held)]

    @invariant()
    def every_invariant_holds_now_and_then(self) -> None:
        self.steps += 1
        if self.steps % VERIFY_EVERY == 0:
            self.every_invariant_holds()

    def every_invariant_holds(self) -> None:
        breaches = self.chat._executor.snapshot("verify", lambda c: verify(c, self.key.tenant)).breaches
        assert breaches == ()

    def teardown(self) -> None:
        """What is left to do is done, and then every message has a disposition."""
        self.every_invariant_holds()
        for _ in range(DRAIN_STEPS_MAX):
            if self.turn is not None:
                self.finish(-1)
            elif self.pending:
                row = self.row
                if row["status"] == "parked":
                    self.resume()
                elif row["awaiting"] is not None:
                    self.chat.cancel("c1", row["awaiting"], **self.to)
                elif row["status"] == "running":
                    self.chat.free("c1", turn=row["token"], force=True, actor="op", **self.to)
                self.clock.advance(LIMITS.backoff_max_ms + 15_000)
                self.claim()
            else:
                break
            self.every_message_has_its_place()
        self.every_invariant_holds()
        assert self.pending == []
        for turn in self.stale:
            turn._core.end("dropped")


@pytest.fixture
def machine(database: Database) -> Iterator[type[Thread]]:
    clock, monotonic = DatabaseClock.install(database.url), MonotonicClock()
    chat = Chatlock(database.url, poller=False, heartbeat=False, limits=LIMITS)
    for one in (clock, monotonic):
        one.attach(chat)
    shared = {"chat": chat, "database": database, "clock": clock, "monotonic": monotonic}
    yield type("Thread", (Thread,), shared)
    chat.close()


@pytest.mark.parametrize("database", KINDS, indirect=True)  # the set clock needs a session
def test_any_sequence_leaves_every_message_with_one_disposition(machine: type[Thread]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=scaled(25, 150),
            stateful_step_count=scaled(20, 40),
            deadline=None,
            derandomize=not scaled(0, 1),
            suppress_health_check=list(HealthCheck),
        ),
    )
