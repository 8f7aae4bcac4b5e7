"""The truth of a simulation: the tables, read past the product, and what may never happen to them."""

from __future__ import annotations

import sqlite3
from typing import Any

THREADS = """
SELECT thread_id, status, token, incarnation, last_seq > done_seq, not_before FROM chatlock_threads ORDER BY thread_id
"""
RESOLVED = """
SELECT thread_id, incarnation, seq, disposition, turn_token FROM chatlock_messages WHERE disposition <> 'pending'
"""
NOT_DUE = """
SELECT t.thread_id FROM chatlock_threads t WHERE t.status = 'idle' AND t.last_seq > t.done_seq
   AND NOT EXISTS (SELECT 1 FROM chatlock_due d WHERE d.tenant = t.tenant AND d.thread_id = t.thread_id)
"""
WRONG_HOLES = """
SELECT t.thread_id FROM chatlock_threads t WHERE t.status <> 'deleted' AND t.holes <> (
    SELECT count(*) FROM chatlock_messages m
     WHERE m.tenant = t.tenant AND m.thread_id = t.thread_id AND m.incarnation = t.incarnation AND m.seq > t.done_seq
       AND m.disposition <> 'pending')
"""
HELD = """
SELECT incarnation, attempts FROM chatlock_threads WHERE thread_id = ? AND token = ? AND status = 'running'
"""
PENDING = """
SELECT seq FROM chatlock_messages WHERE thread_id = ? AND incarnation = ? AND disposition = 'pending' ORDER BY seq
"""


class Truth:
    """A connection of the simulation's own, which no fault meets."""

    def __init__(self, conn: sqlite3.Connection, backoff_max_ms: int) -> None:
        self._conn, self._backoff_max_ms = conn, backoff_max_ms
        self._before: dict[str, tuple[Any, ...]] = {}
        self._resolved: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def threads(self) -> list[tuple[Any, ...]]:
        """(thread, status, token, incarnation, whether messages are pending, not_before) of every thread."""
        return self._conn.execute(THREADS).fetchall()

    def token_of(self, thread: str) -> int:
        return next((row[2] for row in self.threads() if row[0] == thread), 0)

    def pending_in(self, thread: str, token: int) -> tuple[list[int] | None, int]:
        """The pending messages of a thread that runs under this token, and its attempts; None: it does not."""
        held = self._conn.execute(HELD, (thread, token)).fetchone()
        if held is None:
            return None, 0
        return [seq for (seq,) in self._conn.execute(PENDING, (thread, held[0]))], held[1]

    def look(self, now_ms: int) -> list[str]:
        """After every commit: what happened that never may."""
        found = []
        for thread, status, token, incarnation, _, not_before in self.threads():
            _, status_before, token_before, incarnation_before, _, due_at = self._before.get(
                thread, (thread, "absent", 0, 1, 0, 0)
            )
            if (incarnation, token) < (incarnation_before, token_before) or token < token_before:
                found.append(f"the token of {thread} fell from {token_before} to {token}")
            if status == "running" and (token, status_before) == (token_before, "idle"):
                found.append(f"{thread} was claimed again under token {token}")
            if status == "running" and status_before == "idle" and now_ms < due_at <= now_ms + self._backoff_max_ms:
                found.append(f"{thread} was claimed {due_at - now_ms} ms before its backoff was over")
            self._before[thread] = (thread, status, token, incarnation, 0, not_before)
        for *place, disposition, turn in self._conn.execute(RESOLVED):
            before = self._resolved.setdefault(tuple(place), (disposition, turn))
            if before != (disposition, turn):
                found.append(f"message {place} was {before} and became {(disposition, turn)}")
        found += [f"{thread} waits, and is not due" for (thread,) in self._conn.execute(NOT_DUE)]
        found += [f"{thread} counts its holes wrong" for (thread,) in self._conn.execute(WRONG_HOLES)]
        return found
