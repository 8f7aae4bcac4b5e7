"""The truth of a simulation: the tables, read past the product after every commit, and what is wrong with a step."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from chatlock.protocol import Limits
from tests.sim.steps import Clock, Step, wrong
from tests.sim.tables import Row, Thread, read

RESOLVED = """
SELECT thread_id, incarnation, seq, disposition, turn_token FROM chatlock_messages WHERE disposition <> 'pending'
"""
ROLLED_BACK = """
SELECT token FROM chatlock_turns
 WHERE thread_id = ?1 AND incarnation = ?2 AND token < ?3 AND state = 'released' AND error = 'rolled back'
   AND token > COALESCE((SELECT max(token) FROM chatlock_turns
                          WHERE thread_id = ?1 AND incarnation = ?2 AND token < ?3 AND state = 'done'), 0)
 ORDER BY token
"""


class Truth:
    """A connection of the simulation's own, which no fault meets."""

    def __init__(self, conn: sqlite3.Connection, limits: Limits, now: Callable[[], float]) -> None:
        self._conn, self._limits, self._now = conn, limits, now
        self._threads: dict[str, Thread] = {}
        self._over_at: dict[tuple[str, int], float] = {}
        self.stored_at: dict[tuple[str, int, int], float] = {}
        """When each message was first seen, by thread, life and seq."""
        self._resolved: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.received: dict[str, set[int]] = defaultdict(set)
        """The turns of each thread that a handler began with messages in hand."""

    # -- what the actors ask -----------------------------------------------------------------------------------------
    def threads(self) -> dict[str, Thread]:
        """Every thread, as the last commit left it."""
        return self._threads

    def rows(self) -> Sequence[Row]:
        """Their own rows."""
        return [thread.row for thread in self._threads.values()]

    def thread(self, name: str) -> Thread:
        return self._threads.get(name) or Thread(Row(name))

    def holds(self, thread: str, token: int) -> bool:
        """Whether the thread runs under this token."""
        row = self.thread(thread).row
        return row.running and row.token == token

    def over_at(self, thread: str, token: int) -> float | None:
        """When a turn's claim was over; None: it is not."""
        return self._over_at.get((thread, token))

    def pending_in(self, thread: str, token: int) -> tuple[list[int] | None, int]:
        """The pending messages of a thread that runs under this token, and its attempts; None: it does not."""
        if not self.holds(thread, token):
            return None, 0
        found = self.thread(thread)
        return sorted(seq for seq, message in found.messages.items() if message.pending), found.row.attempts

    def pending_ids(self, thread: str) -> list[str]:
        """The ids of the messages that wait in it, in any turn or none."""
        return [message.message_id for _, message in sorted(self.thread(thread).messages.items()) if message.pending]

    def rolled_back(self, thread: str, token: int) -> list[int] | None:
        """The turns that were rolled back since the last one that was done, if this one runs; None: it does not."""
        if not self.holds(thread, token):
            return None
        bound = (thread, self.thread(thread).row.incarnation, token)
        return [before for (before,) in self._conn.execute(ROLLED_BACK, bound)]

    # -- after every commit ------------------------------------------------------------------------------------------
    def look(self, op: str, owner: str | None, clock: Clock) -> list[str]:
        """What this commit did that it never may."""
        found, before = [], self._threads
        self._threads = read(self._conn)
        if self._threads == before:
            return []
        for name, after in self._threads.items():
            was = before.get(name) or Thread(Row(name))
            if after != was:
                found += wrong(Step(op, owner, was, after, clock, self._limits, self.received[name]))
            for seq in after.messages:
                self.stored_at.setdefault((name, after.row.incarnation, seq), self._now())
            if was.row.running and not self.holds(name, was.row.token):
                self._over_at[name, was.row.token] = self._now()
        for *place, disposition, turn in self._conn.execute(RESOLVED):
            was_so = self._resolved.setdefault(tuple(place), (disposition, turn))
            if was_so != (disposition, turn):
                found.append(f"message {place} was {was_so} and became {(disposition, turn)}")
        return found
