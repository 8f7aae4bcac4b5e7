"""The application: what its agent does with a turn, its own log of replies, its own tables."""

from __future__ import annotations

import os
import threading
from typing import Any

from sqlalchemy import text

from chatlock import ClaimLost, Turn
from chatlock.inputs import new_id
from chatlock.policies import AwaitingRule
from soak.life import EXIT_CODE, EXPECTED, Life, Poisoned

EFFECT = text("INSERT INTO soak_effects(thread, token) VALUES(:thread, :token)")
REPLY = text("INSERT INTO soak_replies(thread, token, nonce) VALUES(:thread, :token, :nonce)")
HANG_S = 9.0


class Agent:
    """Runs the turns of one process, and notes each step before it is taken and after it was accepted."""

    def __init__(self, life: Life) -> None:
        self._life, self._random, self._history = life, life.random, life.history
        self._call = threading.local()

    def calling(self, call: str | None) -> None:
        """Turns that this OS thread runs from now on are run by this submit."""
        self._call.name = call

    def __call__(self, turn: Turn) -> Any:
        self._life.slot.add("began")
        self._history.began(turn, getattr(self._call, "name", None))
        if turn.previous_incomplete is not None and len(turn.messages) == 1:
            self._life.slot.add("alone_after_failure")
        try:
            return self._run(turn)
        except ClaimLost:
            self._history.over(turn.key, turn.token, "lost")
            self._life.slot.add("lost_claim")
            raise
        except EXPECTED:
            raise
        except Exception as error:
            self._life.flaw(f"a turn's call raised {type(error).__name__}: {error}")
            raise

    def _run(self, turn: Turn) -> Any:
        kinds = {message.payload["kind"] for message in turn.messages}
        for _ in range(self._random.choice([0, 0, 1, 1, 2])):
            self._step(turn)
        if "poison" in kinds:
            raise Poisoned
        if self._life.weather["storm"]:
            if "exit" in kinds:
                os._exit(EXIT_CODE)
            if "hang" in kinds:
                self._life.work_for(HANG_S)
        return self._end(turn)

    # -- on the way --------------------------------------------------------------------------------------------------
    def _step(self, turn: Turn) -> None:
        match self._random.choice(["work", "work", "work", "fetch", "fence", "fence", "mark", "session", "check"]):
            case "work":
                self._life.work_for(self._random.choice([0.001, 0.01, 0.05, 0.3, 1.2]))
            case "fetch":
                self._history.fetched(turn, turn.fetch())
            case "fence":
                self._life.work_for(self._random.choice([0.0, 0.05, 0.2]))
                self._fenced_write(turn)
            case "mark":
                effect = self._effecting(turn)
                turn.mark(turn.token)
                self._history.effected(turn, effect)
            case "session":
                if turn.session("mail", lambda key: key) != turn.session("mail", lambda key: "another"):
                    self._life.flaw("a session's value changed")
            case "check":
                turn.check()

    def _effecting(self, turn: Turn) -> str:
        effect = new_id()
        self._history.effecting(turn, effect)
        return effect

    def _fenced_write(self, turn: Turn) -> None:
        effect, known = self._effecting(turn), turn.lost
        self._life.point("agent.fence")
        try:
            with self._life.application.begin() as conn:
                turn.fence(conn)
                conn.execute(EFFECT, {"thread": turn.key.thread, "token": turn.token})
        except ClaimLost:
            self._refused("refused_fence", known)
            raise
        self._history.effected(turn, effect)

    def _refused(self, what: str, known: bool) -> None:
        if not known:  # the tables refused it, not the memory of this process
            self._life.slot.add(what)

    # -- the end -----------------------------------------------------------------------------------------------------
    def _end(self, turn: Turn) -> Any:
        if turn.waiting:
            self._history.fetched(turn, turn.fetch())
        ways = {"return": 55, "conn": 25, "finish": 10, "upto": 5, "raise": 1, "release": 2}
        if self._life.weather["storm"] and "-c" in turn.key.thread:
            ways["suspend"] = 10
        way = self._random.choices(list(ways), list(ways.values()))[0]
        if turn.cancelled and not turn.lost and self._random.random() < 0.5:
            way = "release"
        if way == "raise":
            raise Poisoned
        if way == "release":
            turn.release()
            self._history.over(turn.key, turn.token, "released")
            return None
        upto = turn.messages[0].seq if way == "upto" else turn.messages[-1].seq
        reply = {"nonce": new_id(), "turn": turn.token, "way": way}
        seqs = [message.seq for message in turn.messages if message.seq <= upto]
        self._history.finishing(turn, reply, upto)
        self._life.log.write(log="given", thread=turn.key.thread, token=turn.token, nonce=reply["nonce"], seqs=seqs)
        if way == "return":
            return reply
        known = turn.lost
        try:
            self._finish(turn, reply, upto, way)
        except ClaimLost:
            self._refused("refused_finish", known)
            raise
        self._history.finished(turn)
        return None

    def _finish(self, turn: Turn, reply: dict[str, Any], upto: int, way: str) -> None:
        if way == "suspend":
            rule: AwaitingRule = self._random.choice(["hold", "run", "cancel"])
            self._history.asking(turn, turn.suspend(reply, awaiting=rule), rule)
            return
        if way != "conn":
            turn.finish(reply, upto=upto)
            return
        with self._life.application.begin() as conn:
            turn.finish(reply, conn=conn)
            conn.execute(REPLY, {"thread": turn.key.thread, "token": turn.token, "nonce": reply["nonce"]})
