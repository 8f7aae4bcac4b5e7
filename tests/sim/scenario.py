"""Who acts in a simulation: users who send and ask again, handlers with a script, operators; and what is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, PendingRollbackError

from chatlock import Chatlock, ClaimLost, Interrupt, Limits, Outcome, Turn, TurnNotFinished, TurnNotGranted, dialects
from chatlock.errors import ChatlockError
from chatlock.inputs import Key
from chatlock.policies import AWAITING_RULES
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
HANG_S = 45.0
CALM_AFTER_S = 300.0
FINAL = ("Answered", "AlreadyAnswered", "Cancelled", "Superseded", "Dead", "Gone", "Conflict")
TOUCHING = ("steer", "interrupt", "roll_back")
"""Features that touch the running turn."""
HELD = text("SELECT status, token, incarnation FROM chatlock_threads WHERE tenant = :tenant AND thread_id = :thread")
EFFECT = text("INSERT INTO sim_effects(thread_id, token) VALUES(:thread, :token)")


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
    """The actors of one run, and their common record."""

    world: World
    history: History
    url: str
    features: dict[str, float]
    acts: list[str]
    sites: list[Site] = field(default_factory=list)
    gentle: bool = False
    sending: int = 0
    in_handler: int = 0
    undone: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    healed: bool = False
    calm: bool = False

    @property
    def random(self) -> Random:
        return self.world.random

    def likes(self, feature: str) -> bool:
        return self.random.random() < self.features.get(feature, 0.0)

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
        chat._executor.points = process.point
        chat._sweep._monotonic = world.scheduler.time.monotonic
        site = Site(process, chat, handles, polls)
        if handles:
            chat.handler()(lambda turn: self.handle(site, turn))
            chat.on_rollback()(self._undo)
        self.sites.append(site)
        if polls:
            self.call(site, "open", lambda: chat.status("none", "none"))
        return site

    def living(self, *, handles: bool = False) -> list[Site]:
        return [site for site in self.sites if not site.process.dead and (site.handles or not handles)]

    def call(self, site: Site, name: str, work: Callable[[], Any]) -> Fiber:
        """Something that one OS thread of the process does; an interrupt may hit it."""

        def expected() -> Any:
            try:
                return work()
            except (KeyboardInterrupt, *EXPECTED) as error:
                if "refused the operation" in str(error):
                    self.world.flaws.append(f"{name}: {error}")
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

    # -- users -------------------------------------------------------------------------------------------------------
    def user(self, thread: str, messages: list[tuple[str, dict[str, Any]]]) -> None:
        """Sends its messages one after another, each until it is told that it was accepted."""
        for message_id, payload in messages:
            self.world.scheduler.sleep(self.random.choice([0.0, 0.0, 0.3, 3.0]))
            self.deliver(thread, message_id, payload, until=("Queued", "Parked", "Busy", *FINAL))
        self.sending -= 1
        self.world.scheduler.wait_for(lambda: self.healed, "heal")
        for message_id, payload in messages:
            self.deliver(thread, message_id, payload, until=FINAL)

    def deliver(self, thread: str, message_id: str, payload: dict[str, Any], until: tuple[str, ...]) -> None:
        """Sends one message, again after a crash or an error, and now and then twice at once."""
        while True:
            self.world.scheduler.wait_for(lambda: bool(self.living()), "process")
            site = self.random.choice(self.living())
            if self.likes("twice"):
                self.call(site, "again", partial(self.submit, site, thread, message_id, payload, 0))
            wait_ms = self.random.choice([0, 0, 0, 400, 4_000, 30_000])
            told = self.wait(self.call(site, "submit", self._way(site, thread, message_id, payload, wait_ms)))
            if type(told).__name__ in until:
                return
            self.world.scheduler.sleep(self.random.choice([0.1, 1.0, 5.0]))

    def _way(self, site: Site, thread: str, message_id: str, payload: dict[str, Any], wait_ms: int) -> Any:
        if self.likes("block") and not self.healed:
            return lambda: self.block(site, thread, message_id, payload, wait_ms)
        if self.likes("caller"):
            return lambda: self.submit_in(site, thread, message_id, payload)
        return lambda: self.submit(site, thread, message_id, payload, wait_ms)

    def submit(self, site: Site, thread: str, message_id: str, payload: dict[str, Any], wait_ms: int) -> Outcome:
        key = Key(TENANT, thread)
        call = self.history.asked(key, "submit", message_id, payload)
        policy: Any = "reject" if self.likes("reject") and not self.healed else "enqueue"
        for feature in TOUCHING if "steer" in self.features and not self.healed else ():
            if self.likes(feature):
                policy = {"roll_back": "rollback", "interrupt": Interrupt(grace_ms=self._grace())}.get(feature, feature)
        told = site.chat.submit(
            thread,
            payload,
            message_id=message_id,
            wait_ms=wait_ms,
            policy=policy,
            priority=self.random.choice(["user", "resume", "background"]),
            recreate=self.likes("recreate"),
        )
        self.history.told(key, call, told)
        return told

    def _grace(self) -> int:
        return self.random.choice([500, 3_000, 20_000])

    def submit_in(self, site: Site, thread: str, message_id: str, payload: dict[str, Any]) -> Outcome | None:
        key = Key(TENANT, thread)
        call = self.history.asked(key, "submit", message_id, payload)
        with self.transaction(site) as conn:
            told = site.chat.submit(thread, payload, message_id=message_id, conn=conn)
            if self.likes("rollback"):
                conn.exec_driver_sql("ROLLBACK")
                return None
        self.history.told(key, call, told)
        return told

    def block(self, site: Site, thread: str, message_id: str, payload: dict[str, Any], wait_ms: int) -> Outcome | None:
        """The caller runs the turn itself, in a block or by hand."""
        key = Key(TENANT, thread)
        call = self.history.asked(key, "submit", message_id, payload)
        try:
            with site.chat.turn(thread, payload, message_id=message_id, wait_ms=wait_ms) as turn:
                if self.likes("drop"):
                    site.chat._flows.heart.remove(turn.claim_id)
                    self.world.scheduler.sleep(HANG_S)
                reply = self.handle(site, turn, call)
                if reply is not None:
                    turn.finish(reply)
                    self.history.finished(turn)
        except TurnNotGranted as refused:
            self.history.told(key, call, refused.outcome)
            return refused.outcome
        except (Poisoned, TurnNotFinished):
            pass
        return None

    # -- handlers ----------------------------------------------------------------------------------------------------
    def handle(self, site: Site, turn: Turn, call: str | None = None) -> Any:
        self.in_handler += 1
        try:
            return self._run(site, turn, call)
        except ClaimLost:
            self.history.over(turn.key, turn.token, "lost")
            raise
        except EXPECTED:
            raise
        except Exception as error:
            self.world.flaws.append(f"a turn's call raised {type(error).__name__}: {error}")
            raise
        finally:
            self.in_handler -= 1

    def _undo(self, turn: Turn, tokens: list[int]) -> None:
        self.undone[turn.key.thread, turn.token] = tokens

    def _must_have_undone(self, turn: Turn) -> None:
        """The hook ran for every turn that was rolled back since the last one that was done."""
        tokens, undone = self.world.truth.rolled_back(turn.key.thread, turn.token), self.undone
        if tokens is not None and undone.get((turn.key.thread, turn.token), []) != tokens:
            self.world.flaws.append(f"turn {turn.token} runs over {tokens}, which were rolled back and not undone")

    def _run(self, site: Site, turn: Turn, call: str | None) -> Any:
        scheduler = self.world.scheduler
        self.history.began(turn, call)
        self._must_begin_right(turn)
        if site.handles:
            self._must_have_undone(turn)
        for _ in range(self.random.choice([0, 0, 1, 1, 2, 4])):
            self._step(site, turn)
        kinds = [message.payload["kind"] for message in turn.messages]
        if "poison" in kinds:
            raise Poisoned
        if "exit" in kinds and not self.healed and self.likes("exit"):
            self.world.scheduler.later(lambda: self.world.scheduler.kill(site.process))
            scheduler.pause("exit")
        return self._end(site, turn)

    def _must_begin_right(self, turn: Turn) -> None:
        """A turn begins with the oldest pending messages, and with one alone after a failure."""
        held = [message.seq for message in turn.messages]
        pending, attempts = self.world.truth.pending_in(turn.key.thread, turn.token)
        if pending is not None and (held != pending[: len(held)] or (attempts and len(held) > 1)):
            self.world.flaws.append(f"turn {turn.token} began with {held} of {pending} after {attempts} attempts")

    def _step(self, site: Site, turn: Turn) -> None:
        scheduler = self.world.scheduler
        match self.random.choice(["work", "work", "fetch", "mark", "session", "fence", "check", "inner", "look"]):
            case "work":
                scheduler.sleep(self.random.choice([0.0, 0.1, 1.0, 5.0]))
            case "fetch":
                self.history.fetched(turn, turn.fetch())
            case "mark":
                self._effect(turn, lambda: turn.mark(turn.token))
            case "session":
                kept = turn.session("mail", lambda key: f"{turn.token}:{key}")
                if turn.session("mail", lambda key: "another") != kept:
                    self.world.flaws.append("a session's value changed")
            case "fence":
                self._effect(turn, lambda: self._fenced_write(site, turn))
            case "check":
                turn.check()
            case "inner" if self.likes("inner"):
                self.submit(site, turn.key.thread, f"inner-{turn.token}", {"kind": "ok"}, 30_000)
            case "look":
                self.verify(site)

    def _effect(self, turn: Turn, make: Callable[[], object]) -> None:
        effect = f"{self.world.scheduler.steps}"
        self.history.effecting(turn, effect)
        make()
        self.history.effected(turn, effect)

    def _fenced_write(self, site: Site, turn: Turn) -> None:
        with self.transaction(site) as conn:
            turn.fence(conn)
            self._must_hold(conn, turn, "fence")
            conn.execute(EFFECT, {"thread": turn.key.thread, "token": turn.token})

    def _must_hold(self, conn: Connection, turn: Turn, what: str) -> None:
        """The truth itself, read in the same transaction."""
        held = tuple(conn.execute(HELD, {"tenant": TENANT, "thread": turn.key.thread}).one())
        if held != ("running", turn.token, turn._core.claim.incarnation):
            self.world.flaws.append(f"{what} of turn {turn.token} was let through while the thread is {held}")

    def _end(self, site: Site, turn: Turn) -> Any:
        if turn.waiting:
            self.history.fetched(turn, turn.fetch())
        if turn.cancelled and not turn.lost and self.likes("obey"):
            turn.release()
            self.history.over(turn.key, turn.token, "stopped")
            return None
        reply = {"turn": turn.token, "answers": [message.message_id for message in turn.messages]}
        ways = ["return"] * 5 + ["finish", "upto", "commit", "rollback", "raise", "fail", "release"]
        ways += ["hang"] if self.likes("hang") else []
        ways += ["ask"] * 6 if self.likes("ask") else []
        match "return" if self.calm else self.random.choice(ways):
            case "return":
                self.history.finishing(turn, reply)
                return reply
            case "finish":
                self.history.finishing(turn, reply)
                turn.finish(reply)
                self.history.finished(turn)
            case "upto":
                first = turn.messages[0].seq
                self.history.finishing(turn, reply, first)
                turn.finish(reply, upto=first)
                self.history.finished(turn)
            case "ask":
                rule = self.random.choice(list(AWAITING_RULES))
                self.history.finishing(turn, reply)
                self.history.asking(turn, turn.suspend(reply, awaiting=rule), rule)
                self.history.finished(turn)
            case "commit" | "rollback" as way:
                self._finish_in(site, turn, reply, commit=way == "commit")
            case "raise":
                raise Poisoned
            case "fail":
                turn.fail("no")
                self.history.over(turn.key, turn.token, "failed")
            case "release":
                turn.release()
                self.history.over(turn.key, turn.token, "released")
            case "hang":
                self.world.scheduler.sleep(HANG_S)
                self.history.finishing(turn, reply)
                return reply
        return None

    def _finish_in(self, site: Site, turn: Turn, reply: Any, *, commit: bool) -> None:
        self.history.finishing(turn, reply)
        with self.transaction(site) as conn:
            turn.finish(reply, conn=conn)
            conn.execute(EFFECT, {"thread": turn.key.thread, "token": turn.token})
            if not commit:
                conn.exec_driver_sql("ROLLBACK")
                return
        self.history.finished(turn)

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

    # -- operators ---------------------------------------------------------------------------------------------------
    def operator(self, thread: str, message_ids: list[str], acts: int) -> None:
        """Does something to the thread now and then, whatever its state."""
        for _ in range(acts):
            scheduler = self.world.scheduler
            scheduler.sleep(self.random.choice([0.0, 0.5, 2.0, 9.0]))
            if self.random.random() < 0.5:
                scheduler.wait_for(lambda: self.in_handler > 0, "turn", scheduler.now + 5.0)
            if self.healed or not self.living():
                return
            site, message_id = self.random.choice(self.living()), self.random.choice(message_ids)
            act, waiting = self.random.choice(self.acts), self.world.truth.pending_ids(thread)
            if waiting and self.random.random() < 0.7:
                message_id = self.random.choice(waiting)
            self.wait(self.call(site, act, partial(self.operate, site, thread, act, message_id)))

    def operate(self, site: Site, thread: str, act: str, message_id: str) -> None:
        key, token = Key(TENANT, thread), self.world.truth.token_of(thread)
        call = self.history.asked(key, act, message_id)
        match act:
            case "cancel":
                self.history.told(key, call, site.chat.cancel(thread, message_id))
            case "answer":
                self._decide(site, key, self.world.truth.awaiting(thread))
            case "edit":
                edit_id = f"edit-{message_id}-{self.random.choice([1, 2])}"
                edited = self.history.asked(key, "submit", edit_id, edit_id)
                self.history.told(key, edited, site.chat.edit(thread, message_id, {"kind": "ok"}, edit_id))
            case "status":
                self.history.told(key, call, site.chat.status(thread, message_id))
            case "promote":
                site.chat.promote(thread)
            case "redrive":
                site.chat.redrive(thread, message_id)
            case "park":
                turn = self.random.choice([None, token])
                if site.chat.park(thread, turn=turn, actor="op").done and turn is not None:
                    self.history.over(key, turn, "parked")
            case "free":
                if site.chat.free(thread, turn=token, force=self.random.random() < 0.5, actor="op").done:
                    self.history.over(key, token, "freed")
            case "stop":
                queued = self.random.choice(["keep", "cancel", "park"])
                self.history.stopping(key, token, queued)
                self.history.stopped(key, site.chat.cancel(thread, turn=token, queued=queued, grace_ms=self._grace()))
            case "resume":
                site.chat.resume(thread, actor="op")
            case "delete":
                site.chat.delete(thread, actor="op")

    def _decide(self, site: Site, key: Key, question: str) -> None:
        """Answers the open question, or what is none; now and then another person decides otherwise."""
        decision = {"kind": "ok", "decision": self.random.choice(["yes", "no"])}
        call = self.history.asked(key, "submit", question, decision)
        self.history.told(key, call, site.chat.answer(key.thread, question, decision, wait_ms=0))

    def verify(self, site: Site) -> None:
        for breach in site.chat.verify().breaches:
            self.world.flaws.append(f"verify: {breach.invariant}: {breach.text} ({breach.thread})")

    # -- the end -----------------------------------------------------------------------------------------------------
    def direct(self, users: list[Fiber], seconds: float) -> None:
        """Lets things go wrong for a while, heals the world, and waits until nothing is left to do."""
        world, scheduler = self.world, self.world.scheduler
        scheduler.wait_for(lambda: self.sending == 0, "users", scheduler.now + seconds)
        world.heal()
        self.healed = True
        last = self.start(handles=True, polls=True)
        self._drain(last)
        while not all(user.ended for user in users):
            scheduler.sleep(2.0)
            self._drain(last)
        self.calm = True
        scheduler.wait_for(lambda: self.in_handler == 0, "late turns")
        self._drain(last)
        self.verify(last)
        self.history.tables(last.chat, drained=True)
        for site in self.living():
            self.wait(self.call(site, "close", site.chat.close))
        for _ in range(100):
            if self.left_over():
                scheduler.sleep(1.0)
        if self.left_over():
            world.flaws.append(f"still running long after close: {self.left_over()}")

    def left_over(self) -> list[str]:
        """Fibers of the product that have not ended."""
        return [fiber.name for fiber in self.world.scheduler.living if fiber.home is not self.world]

    def _drain(self, site: Site) -> None:
        while not self._settled(site):
            self.world.scheduler.sleep(0.5)
            self.calm = self.calm or self.world.scheduler.now > CALM_AFTER_S

    def _settled(self, site: Site) -> bool:
        """Nothing is pending; parked threads are put back into service on the way."""
        for row in self.world.truth.threads():
            if row.status == "parked":
                self.wait(self.call(site, "resume", partial(site.chat.resume, row.thread, actor="op")))
            if row.held and row.pending and row.awaiting is not None:
                decide = partial(self._decide, site, Key(TENANT, row.thread), row.awaiting)
                self.wait(self.call(site, "answer", decide))
            if row.status == "running" or (row.pending and row.status != "deleted"):
                return False
        return True
