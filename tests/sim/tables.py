"""A simulation's tables as they are after a commit, thread by thread, read past the product."""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import dataclass, field
from typing import NamedTuple

from chatlock.protocol import Disposition, Status, TurnState, held

OF_TURN = re.compile(r"Poisoned(\d+)$")
"""The error of a turn whose handler failed, which names the turn."""


class Row(NamedTuple):
    """A thread's own row."""

    thread: str
    status: str = Status.ABSENT
    token: int = 0
    incarnation: int = 1
    last_seq: int = 0
    fetched_seq: int = 0
    done_seq: int = 0
    holes: int = 0
    attempts: int = 0
    stalls: int = 0
    not_before: int = 0
    quiet_until: int = 0
    beat: int = 0
    awaiting: str | None = None
    awaiting_rule: str | None = None
    cancel_token: int | None = None
    cancel_until: int | None = None
    cancel_queued: str | None = None
    cancel_upto: int | None = None
    interrupts: int = 0
    expires_at: int | None = None

    @property
    def running(self) -> bool:
        return self.status == Status.RUNNING

    @property
    def pending(self) -> bool:
        return self.last_seq > self.done_seq

    @property
    def held(self) -> bool:
        """A question keeps turns from beginning."""
        return held(self.awaiting, self.awaiting_rule)

    @property
    def waits(self) -> bool:
        """A turn may begin, now or later."""
        return self.status == Status.IDLE and self.pending and not self.held

    @property
    def stopping(self) -> bool:
        return self.running and self.cancel_token == self.token

    @property
    def held_upto(self) -> int:
        """The running turn has the messages up to this seq, or is about to."""
        return max(self.fetched_seq, self.done_seq + 1) if self.running else self.done_seq

    @property
    def charges(self) -> tuple[int, int]:
        return self.attempts, self.stalls


class Message(NamedTuple):
    message_id: str
    disposition: str
    turn: int | None
    policy: str

    @property
    def pending(self) -> bool:
        return self.disposition == Disposition.PENDING


class Turn(NamedTuple):
    state: str
    from_seq: int
    to_seq: int | None
    reply: str | None
    question: str | None
    owner: str | None
    error: str | None

    @property
    def running(self) -> bool:
        return self.state == TurnState.RUNNING

    def speaks_for(self, token: int) -> bool:
        """Whether its reply, or the error of its handler, names this turn."""
        if self.reply is not None:
            return json.loads(self.reply)["turn"] == token
        named = OF_TURN.match(self.error or "")
        return named is None or int(named[1]) == token


@dataclass
class Thread:
    """A thread in all tables.  messages and turns: of its present life, by seq and by token."""

    row: Row
    messages: dict[int, Message] = field(default_factory=dict)
    turns: dict[int, Turn] = field(default_factory=dict)
    due_at: int | None = None


THREADS = f"SELECT thread_id, {', '.join(Row._fields[1:])} FROM chatlock_threads ORDER BY thread_id"
MESSAGES = """
SELECT m.thread_id, m.seq, m.message_id, m.disposition, m.turn_token, m.policy
  FROM chatlock_messages m JOIN chatlock_threads t USING (tenant, thread_id, incarnation)"""
TURNS = """
SELECT u.thread_id, u.token, u.state, u.from_seq, u.to_seq, u.reply, u.question, u.owner, u.error
  FROM chatlock_turns u JOIN chatlock_threads t USING (tenant, thread_id, incarnation)"""
DUE = "SELECT thread_id, due_at FROM chatlock_due"


def read(conn: sqlite3.Connection) -> dict[str, Thread]:
    """Every thread, in the order of their names."""
    found = {row[0]: Thread(Row(*row)) for row in conn.execute(THREADS)}
    for thread, seq, *message in conn.execute(MESSAGES):
        found[thread].messages[seq] = Message(*message)
    for thread, token, *turn in conn.execute(TURNS):
        found[thread].turns[token] = Turn(*turn)
    for thread, due_at in conn.execute(DUE):
        found[thread].due_at = due_at
    return found
