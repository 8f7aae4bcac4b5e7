"""What the actors of a simulation share: the processes, one record of all that happens, and how a call is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, PendingRollbackError

from chatlock import Chatlock, Debounce, Interrupt, Limits, Outcome, Queued, Turn, dialects
from chatlock.errors import ChatlockError
from chatlock.hooks import TurnEnded
from chatlock.inputs import Key
from chatlock.policies import ANSWER
from chatlock.protocol import TurnState
from chatlock.testing.history import History
from tests.sim.fibers import Fiber
from tests.sim.world import ConnectionLost, Process, World

TENANT = "acme"
LIMITS = Limits(
    beat_ms=2_000,
    lease_ms=6_000,
    sweep_ms=3_000,
    backoff_ms=500,
    backoff_max_ms=4_000,
    attempts_max=3,
    stalls_max=4,
    batch_max=3,
    hand_offs_max=2,
    mid_fetches_max=3,
    window_floor_ms=10_000,
    window_default_ms=20_000,
)
CHOSEN = ("latest", "debounce", "steer", "interrupt", "roll_back")
"""Features that are a message's policy."""
ENDED_AS = {
    "done": (TurnState.DONE,),
    "failed": (TurnState.FAILED, TurnState.GAVE_UP, TurnState.RELEASED),
    "lost": tuple(set(TurnState) - {TurnState.FAILED}),
}
"""What the tables may hold of a turn that has ended so for its process; it may not know that it is done."""


class Poisoned(Exception):
    """What a handler raises over a message that it can never answer."""


EXPECTED = (ChatlockError, ConnectionLost, Poisoned, DBAPIError, PendingRollbackError)
"""What a call may raise where connections break; the last two come from the application's own transaction."""


@dataclass(eq=False)
class Site:
    """A process with its client, and whether it has a handler and a poller."""

    process: Process
    chat: Chatlock
    handles: bool
    polls: bool
    outside: Engine = field(init=False)


@dataclass
class Cast:
    """The actors of one run, and their common record.  script: what the handler of every process does."""

    world: World
    history: History
    url: str
    features: dict[str, float]
    acts: list[str]
    script: Callable[[Cast, Site, Turn], Any]
    sites: list[Site] = field(default_factory=list)
    gentle: bool = False
    sending: int = 0
    operating: int = 0
    in_handler: int = 0
    undone: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    healed: bool = False
    calm: bool = False

    @property
    def random(self) -> Random:
        return self.world.random

    def likes(self, feature: str) -> bool:
        return self.random.random() < self.features.get(feature, 0.0)

    def flaw(self, text: str) -> None:
        """Something that may never happen."""
        self.world.flaws.append(text)

    # -- processes ---------------------------------------------------------------------------------------------------
    def start(self, *, handles: bool, polls: bool) -> Site:
        """A new process: it opens its client as its first act, in a fiber of its own."""
        world = self.world
        process = Process(world, f"p{len(world.processes) + 1}")
        world.processes.append(process)
        chat = Chatlock(
            self.url,
            tenant=TENANT,
            poller=polls,
            limits=LIMITS,
            pool_size=30,
            heartbeat=self.features["no_heartbeat"] < 0.5,
        )
        chat.subscribe(self._must_have_ended_so)
        chat._executor.points = process.point
        chat._sweep._monotonic = world.scheduler.time.monotonic
        process.owner = chat._flows.store.owner
        site = Site(process, chat, handles, polls)
        if handles:
            chat.handler()(partial(self.script, self, site))
            chat.on_rollback()(self._undo)
        self.sites.append(site)
        if polls:
            self.call(site, "open", lambda: chat.status("none", "none"))
        return site

    def _must_have_ended_so(self, notice: object) -> None:
        """What a process makes of the end of its turn is what the tables say."""
        if not isinstance(notice, TurnEnded):
            return
        claim, how = notice.claim, notice.how
        thread = self.world.truth.thread(claim.key.thread)
        turn = thread.turns.get(claim.token) if thread.row.incarnation == claim.incarnation else None
        if turn is not None and turn.state not in ENDED_AS.get(how, (turn.state,)):
            self.flaw(f"turn {claim.token} is {turn.state}, and for its process it is {how}")

    def _undo(self, turn: Turn, tokens: list[int]) -> None:
        self.undone[turn.key.thread, turn.token] = tokens

    def living(self, *, handles: bool = False) -> list[Site]:
        return [site for site in self.sites if not site.process.dead and (site.handles or not handles)]

    def call(self, site: Site, name: str, work: Callable[[], Any]) -> Fiber:
        """Something that one OS thread of the process does; an interrupt may hit it."""

        def expected() -> Any:
            try:
                return work()
            except (KeyboardInterrupt, *EXPECTED) as error:
                if "refused the operation" in str(error):
                    self.flaw(f"{name}: {error}")
                return error

        fiber = self.world.scheduler.spawn(site.process, name, expected)
        fiber.interruptible = True
        return fiber

    def wait(self, fiber: Fiber) -> Any:
        """What the call came to; None if its process died."""
        self.world.scheduler.wait_for(lambda: not fiber.is_alive(), "wait")
        if fiber.error is not None:
            raise fiber.error
        return fiber.value

    @contextmanager
    def transaction(self, site: Site) -> Iterator[Connection]:
        """The application's own transaction, on an engine of its own."""
        if not hasattr(site, "outside"):
            site.outside = dialects.make_engine(self.url, pooled=False)
        site.process.point("user.begin")
        with site.outside.connect() as conn:
            conn.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                yield conn
                if conn.connection.driver_connection.in_transaction:
                    conn.exec_driver_sql("COMMIT")
            except BaseException:
                if conn.connection.driver_connection.in_transaction:
                    conn.exec_driver_sql("ROLLBACK")
                raise

    # -- calls of users, operators and handlers ----------------------------------------------------------------------
    def submit(self, site: Site, thread: str, message_id: str, payload: dict[str, Any], wait_ms: int) -> Outcome:
        key = Key(TENANT, thread)
        call = self.history.asked(key, "submit", message_id, payload)
        policy: Any = "reject" if self.likes("reject") and not self.healed else "enqueue"
        made: dict[str, Any] = {"roll_back": "rollback", "interrupt": Interrupt(grace_ms=self.grace())}
        made["debounce"] = Debounce(quiet_ms=1_000, max_wait_ms=3_000)
        for feature in CHOSEN if not self.healed else ():
            if self.likes(feature):
                policy = made.get(feature, feature)
        told = site.chat.submit(
            thread,
            payload,
            message_id=message_id,
            wait_ms=wait_ms,
            policy=policy,
            priority=self.random.choice(["user", "resume", "background"]),
            recreate=self.likes("recreate"),
            expire_ms=self.random.choice([500, 3_000]) if self.likes("expire") and not self.healed else None,
        )
        self.history.told(key, call, told)
        return told

    def grace(self) -> int:
        return self.random.choice([500, 3_000, 20_000])

    def decide(self, site: Site, key: Key, question: str) -> None:
        """Answers the open question, or what is none; now and then another person decides otherwise."""
        decision = {"kind": "ok", "decision": self.random.choice(["yes", "no"])}
        call = self.history.asked(key, "submit", question, decision)
        told = site.chat.answer(key.thread, question, decision, wait_ms=0)
        self.history.told(key, call, told)
        messages = self.world.truth.thread(key.thread).messages.values()
        stored = [m for m in messages if m.message_id == question and told.message_id == question]
        if isinstance(told, Queued) and any(m.policy != ANSWER for m in stored):
            self.flaw(f"{question} was answered while it was not open")

    def verify(self, site: Site) -> None:
        for breach in site.chat.verify().breaches:
            self.flaw(f"verify: {breach.invariant}: {breach.text} ({breach.thread})")
