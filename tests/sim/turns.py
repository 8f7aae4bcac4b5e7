"""What a handler does with its turn in a simulation, by the dice, and what must be true of it meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection

from chatlock import ClaimLost, Outcome, Turn, TurnNotFinished, TurnNotGranted
from chatlock.inputs import Key
from chatlock.policies import AWAITING_RULES
from tests.sim.cast import EXPECTED, TENANT, Cast, Poisoned, Site

HANG_S = 45.0
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
        self._must_begin_right()
        if self.site.handles:
            self._must_have_undone()
        for _ in range(self.random.choice([0, 0, 1, 1, 2, 4])):
            self._step()
        kinds = [message.payload["kind"] for message in turn.messages]
        if "poison" in kinds:
            raise Poisoned
        if "exit" in kinds and not cast.healed and cast.likes("exit"):
            self.scheduler.later(lambda: self.scheduler.kill(self.site.process))
            self.scheduler.pause("exit")
        return self._end()

    def _must_begin_right(self) -> None:
        """A turn begins with the oldest pending messages, and with one alone after a failure."""
        turn = self.turn
        held = [message.seq for message in turn.messages]
        pending, attempts = self.cast.world.truth.pending_in(turn.key.thread, turn.token)
        if pending is not None and (held != pending[: len(held)] or (attempts and len(held) > 1)):
            self.cast.flaw(f"turn {turn.token} began with {held} of {pending} after {attempts} attempts")

    def _must_have_undone(self) -> None:
        """The hook ran for every turn that was rolled back since the last one that was done."""
        turn = self.turn
        tokens, undone = self.cast.world.truth.rolled_back(turn.key.thread, turn.token), self.cast.undone
        if tokens is not None and undone.get((turn.key.thread, turn.token), []) != tokens:
            self.cast.flaw(f"turn {turn.token} runs over {tokens}, which were rolled back and not undone")

    # -- steps -------------------------------------------------------------------------------------------------------
    def _step(self) -> None:
        cast, turn = self.cast, self.turn
        match self.random.choice(["work", "work", "fetch", "mark", "session", "fence", "check", "inner", "look"]):
            case "work":
                self.scheduler.sleep(self.random.choice([0.0, 0.1, 1.0, 5.0]))
            case "fetch":
                self.history.fetched(turn, turn.fetch())
            case "mark":
                self._effect(lambda: turn.mark(turn.token))
            case "session":
                kept = turn.session("mail", lambda key: f"{turn.token}:{key}")
                if turn.session("mail", lambda key: "another") != kept:
                    cast.flaw("a session's value changed")
            case "fence":
                self._effect(self._fenced_write)
            case "check":
                turn.check()
            case "inner" if cast.likes("inner"):
                cast.submit(self.site, turn.key.thread, f"inner-{turn.token}", {"kind": "ok"}, 30_000)
            case "look":
                cast.verify(self.site)

    def _effect(self, make: Callable[[], object]) -> None:
        effect = f"{self.scheduler.steps}"
        self.history.effecting(self.turn, effect)
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
    def _end(self) -> Any:
        cast, turn = self.cast, self.turn
        if turn.waiting:
            self.history.fetched(turn, turn.fetch())
        if turn.cancelled and not turn.lost and cast.likes("obey"):
            turn.release()
            self.history.over(turn.key, turn.token, "stopped")
            return None
        reply = {"turn": turn.token, "answers": [message.message_id for message in turn.messages]}
        ways = ["return"] * 5 + ["finish", "upto", "commit", "rollback", "raise", "fail", "release"]
        ways += ["hang"] if cast.likes("hang") else []
        ways += ["ask"] * 6 if cast.likes("ask") else []
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
                self.history.finishing(turn, reply)
                self.history.asking(turn, turn.suspend(reply, awaiting=rule), rule)
                self.history.finished(turn)
            case "commit" | "rollback":
                self._finish_in(reply, commit=way == "commit")
            case "raise":
                raise Poisoned
            case "fail":
                turn.fail("no")
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
