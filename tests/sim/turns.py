"""What a handler does with its turn in a simulation, by the dice, and what must be true of it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection

from chatlock import ClaimLost, Outcome, Turn, TurnNotFinished, TurnNotGranted
from chatlock.inputs import Key
from chatlock.policies import AWAITING_RULES
from chatlock.turn_core import QUESTION
from tests.sim.cast import EXPECTED, LIMITS, TENANT, Cast, Poisoned, Site

HANG_S = 45.0
GUARDED = ("fetch", "mark", "session", "fence", "late check")
STEPS = ("work", "work", "fetch", "mark", "session", "fence", "check", "inner", "look")
HELD = text("SELECT status, token, incarnation FROM chatlock_threads WHERE tenant = :tenant AND thread_id = :thread")
EFFECT = text("INSERT INTO sim_effects(thread_id, token) VALUES(:thread, :token)")


def handle(cast: Cast, site: Site, turn: Turn, call: str | None = None) -> Any:
    """Runs one turn.  call: that of the caller who runs it in a block of its own."""
    return Script(cast, site, turn).play(call)


def block(
    cast: Cast, site: Site, thread: str, message_id: str, payload: dict[str, Any], wait_ms: int
) -> Outcome | None:
    """The caller runs the turn itself, in a block or by hand."""
    key = Key(TENANT, thread)
    call = cast.history.asked(key, "submit", message_id, payload)
    try:
        with site.chat.turn(thread, payload, message_id=message_id, wait_ms=wait_ms) as turn:
            if cast.likes("drop"):
                site.chat._flows.heart.remove(turn.claim_id)
                cast.world.scheduler.sleep(HANG_S)
            reply = handle(cast, site, turn, call)
            if reply is not None:
                turn.finish(reply)
                cast.history.finished(turn)
    except TurnNotGranted as refused:
        cast.history.told(key, call, refused.outcome)
        return refused.outcome
    except (Poisoned, TurnNotFinished):
        pass
    return None


class Script:
    """One turn in the hands of a handler."""

    def __init__(self, cast: Cast, site: Site, turn: Turn) -> None:
        self.cast, self.site, self.turn = cast, site, turn
        self.history, self.random, self.scheduler = cast.history, cast.random, cast.world.scheduler
        self.began_at, self.fetches = self.scheduler.now, 0

    def play(self, call: str | None) -> Any:
        cast, turn = self.cast, self.turn
        cast.in_handler += 1
        try:
            return self._run(call)
        except ClaimLost:
            self.history.over(turn.key, turn.token, "lost")
            raise
        except EXPECTED:
            raise
        except Exception as error:
            cast.flaw(f"a turn's call raised {type(error).__name__}: {error}")
            raise
        finally:
            cast.in_handler -= 1

    def _run(self, call: str | None) -> Any:
        cast, turn = self.cast, self.turn
        self.history.began(turn, call)
        if turn.messages:
            cast.world.truth.received[turn.key.thread].add(turn.token)
        self._must_hold_the_oldest()
        self._must_run_for_a_pending_message()
        self._must_know_the_turn_before()
        if self.site.handles:
            self._must_have_undone()
        if not cast.healed and cast.likes("linger"):
            self._linger()
        for _ in range(self.random.choice([0, 0, 1, 1, 2, 4])):
            self._step(self.random.choice(STEPS))
        kinds = [message.payload["kind"] for message in turn.messages]
        if "poison" in kinds:
            raise self._poisoned()
        if "exit" in kinds and not cast.healed and cast.likes("exit"):
            self.scheduler.later(lambda: self.scheduler.kill(self.site.process))
            self.scheduler.pause("exit")
        return self._end()

    def _poisoned(self) -> Poisoned:
        """An error of which the product keeps whose it is."""
        name = f"Poisoned{self.turn.token}"
        return type(name, (Poisoned,), {})()  # type: ignore[no-any-return]

    def _must_hold_the_oldest(self) -> None:
        """A turn has the oldest pending messages, each once, and one alone after a failure."""
        turn = self.turn
        held = [message.seq for message in turn.messages]
        pending, attempts = self.cast.world.truth.pending_in(turn.key.thread, turn.token)
        if pending is not None and (held != pending[: len(held)] or (attempts and len(held) > 1)):
            self.cast.flaw(f"turn {turn.token} has {held} of {pending} after {attempts} attempts")

    def _must_run_for_a_pending_message(self) -> None:
        """Who waits for a message claims its thread only while it is pending, in the life that it was sent to."""
        core, own = self.turn._core, self.turn._core.own_id
        thread = self.cast.world.truth.thread(core.claim.key.thread)
        if own is None or (thread.row.incarnation, thread.row.token) != (core.claim.incarnation, core.claim.token):
            return
        if not any(m.message_id == own and seq > core.claim.from_seq for seq, m in thread.messages.items()):
            self.cast.flaw(f"turn {core.claim.token} was claimed for {own}, which is not behind {core.claim.from_seq}")

    def _must_know_the_turn_before(self) -> None:
        """previous_incomplete is the turn before over the same oldest message."""
        claim, told = self.turn._core.claim, self.turn.previous_incomplete
        turns = self.cast.world.truth.thread(claim.key.thread).turns
        before = max((token for token in turns if token < claim.token), default=0)
        incomplete = before if before and turns[before].from_seq == claim.from_seq else None
        if self._holds() and (told.token if told is not None else None) != incomplete:
            self.cast.flaw(f"turn {claim.token} is told of {told} before it, and {incomplete} did not complete")

    def _must_have_undone(self) -> None:
        """The hook ran for every turn that was rolled back since the last one that was done."""
        turn = self.turn
        tokens, undone = self.cast.world.truth.rolled_back(turn.key.thread, turn.token), self.cast.undone
        if tokens is not None and undone.get((turn.key.thread, turn.token), []) != tokens:
            self.cast.flaw(f"turn {turn.token} runs over {tokens}, which were rolled back and not undone")

    # -- steps -------------------------------------------------------------------------------------------------------
    def _step(self, what: str) -> None:
        cast, turn = self.cast, self.turn
        match what:
            case "work":
                self.scheduler.sleep(self.random.choice([0.0, 0.1, 1.0, 5.0]))
            case "fetch":
                self._fetch()
            case "mark":
                self._effect(lambda: turn.mark(turn.token))
            case "session":
                self._keep_session()
            case "fence":
                self._effect(self._fenced_write)
            case "check":
                self._check()
            case "late check":
                self.scheduler.sleep(LIMITS.lease_ms / 1000)
                self._check()
            case "inner" if cast.likes("inner"):
                cast.submit(self.site, turn.key.thread, f"inner-{turn.token}", {"kind": "ok"}, 30_000)
            case "look" if self.random.random() < 0.3:
                cast.verify(self.site)

    def _linger(self) -> None:
        """Stands still until another has the thread, and tries all that only the claim allows, untold of its loss."""
        turn, truth, scheduler = self.turn, self.cast.world.truth, self.scheduler
        if self.random.random() < 0.7:
            self.site.chat._flows.heart.remove(turn.claim_id)
        scheduler.wait_for(lambda: not self._holds(), "linger", scheduler.now + HANG_S)
        another = self.random.choice([0.0, 5.0, 5.0])
        scheduler.wait_for(lambda: truth.thread(turn.key.thread).row.running, "linger", scheduler.now + another)
        for what in self.random.sample(GUARDED, len(GUARDED)):
            with suppress(ClaimLost):
                self._step(what)
            turn._core.alarm.lost = False  # as if it had not been told

    def _holds(self) -> bool:
        return self.cast.world.truth.holds(self.turn.key.thread, self.turn.token)

    @contextmanager
    def _allowed(self, what: str) -> Iterator[None]:
        """What is let through must have been asked for while the turn had its claim."""
        over = not self._holds()
        yield
        if over:
            self.cast.flaw(f"{what} of turn {self.turn.token} was let through after its end")

    def _fetch(self) -> None:
        self.fetches += 1
        with self._allowed("a fetch") if self.turn._core._mid_fetches < LIMITS.mid_fetches_max else nullcontext():
            self.history.fetched(self.turn, self.turn.fetch())
        self._must_hold_the_oldest()

    def _keep_session(self) -> None:
        turn, name, made = self.turn, self.random.choice(["mail", f"mail{self.turn.token}"]), []
        over = not self._holds()
        kept = turn.session(name, lambda key: made.append(key) or f"{turn.token}:{key}")
        if made and over:
            self.cast.flaw(f"a session was made by turn {turn.token} after its end")
        if turn.session(name, lambda key: "another") != kept:
            self.cast.flaw("a session's value changed")

    def _check(self) -> None:
        """check lets nobody through whose claim has been over for as long as a lease."""
        over_at = self.cast.world.truth.over_at(self.turn.key.thread, self.turn.token)
        self.turn.check()
        if over_at is not None and self.scheduler.now >= over_at + self.turn._core.claim.lease_ms / 1000:
            self.cast.flaw(
                f"turn {self.turn.token} was over at {over_at}, and its check passed at {self.scheduler.now}"
            )

    def _effect(self, make: Callable[[], object]) -> None:
        effect = f"{self.scheduler.steps}"
        self.history.effecting(self.turn, effect)
        with self._allowed("an effect"):
            make()
        self.history.effected(self.turn, effect)

    def _fenced_write(self) -> None:
        turn = self.turn
        with self.cast.transaction(self.site) as conn:
            turn.fence(conn)
            self._must_hold(conn, "fence")
            conn.execute(EFFECT, {"thread": turn.key.thread, "token": turn.token})

    def _must_hold(self, conn: Connection, what: str) -> None:
        """The truth itself, read in the same transaction."""
        turn = self.turn
        held = tuple(conn.execute(HELD, {"tenant": TENANT, "thread": turn.key.thread}).one())
        if held != ("running", turn.token, turn._core.claim.incarnation):
            self.cast.flaw(f"{what} of turn {turn.token} was let through while the thread is {held}")

    # -- the end -----------------------------------------------------------------------------------------------------
    def _must_hear_of_what_is_so(self) -> None:
        """A turn is told to stop only if it was asked; and, where nobody falls silent, of what steers it soon."""
        turn, truth = self.turn, self.cast.world.truth
        thread = truth.thread(turn.key.thread)
        if not self._holds():
            return
        if turn.cancelled and not turn.lost and not thread.row.stopping:
            self.cast.flaw(f"turn {turn.token} is told to stop, and nobody asked it")
        heard_at = self.scheduler.now - 2 * LIMITS.beat_ms / 1000
        steering = [
            seq
            for seq, message in thread.messages.items()
            if message.policy == "steer" and message.pending and seq > thread.row.fetched_seq
            if truth.stored_at[turn.key.thread, thread.row.incarnation, seq] <= heard_at
        ]
        if self.cast.gentle and steering and self.began_at <= heard_at and not (turn.waiting or self.fetches):
            self.cast.flaw(f"turn {turn.token} was not told of the messages {steering}, which steer it")

    def _end(self) -> Any:
        cast, turn = self.cast, self.turn
        self._must_hear_of_what_is_so()
        if turn.waiting:
            self._fetch()
        if turn.cancelled and not turn.lost and cast.likes("obey"):
            turn.release()
            self.history.over(turn.key, turn.token, "stopped")
            return None
        reply = {"turn": turn.token, "answers": [message.message_id for message in turn.messages]}
        ways = ["return"] * 5 + ["finish", "upto", "commit", "rollback", "raise", "fail", "release"]
        ways += ["hang"] if cast.likes("hang") else []
        ways += ["ask"] * 12 if cast.likes("ask") else []
        ways += ["upto"] * 4 if turn.cancelled else []
        way = "return" if cast.calm else self.random.choice(ways)
        if way in ("return", "hang"):
            if way == "hang":
                self.scheduler.sleep(HANG_S)
            self.history.finishing(turn, reply)
            return reply
        self._end_by_hand(way, reply)
        return None

    def _end_by_hand(self, way: str, reply: Any) -> None:
        turn = self.turn
        match way:
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
                if self.random.random() < 0.2:  # and then the question's id is taken
                    self.cast.submit(self.site, turn.key.thread, turn.step_key(QUESTION), {"kind": "ok"}, 0)
                self.history.finishing(turn, reply)
                self.history.asking(turn, turn.suspend(reply, awaiting=rule), rule)
                self.history.finished(turn)
            case "commit" | "rollback":
                self._finish_in(reply, commit=way == "commit")
            case "raise":
                raise self._poisoned()
            case "fail":
                turn.fail(f"Poisoned{turn.token}")
                self.history.over(turn.key, turn.token, "failed")
            case "release":
                turn.release()
                self.history.over(turn.key, turn.token, "released")

    def _finish_in(self, reply: Any, *, commit: bool) -> None:
        turn = self.turn
        self.history.finishing(turn, reply)
        with self.cast.transaction(self.site) as conn:
            turn.finish(reply, conn=conn)
            conn.execute(EFFECT, {"thread": turn.key.thread, "token": turn.token})
            if not commit:
                conn.exec_driver_sql("ROLLBACK")
                return
        self.history.finished(turn)
