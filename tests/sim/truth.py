"""The truth of a simulation: the tables, read past the product, and what may never happen to them."""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

THREADS = """
SELECT thread_id, status, token, incarnation, last_seq > done_seq AS pending, not_before, attempts + stalls AS charged,
       fetched_seq - done_seq AS fetched, awaiting, awaiting IS NOT NULL AND awaiting_rule = 'hold' AS held
  FROM chatlock_threads ORDER BY thread_id
"""
RESOLVED = """
SELECT thread_id, incarnation, seq, disposition, turn_token FROM chatlock_messages WHERE disposition <> 'pending'
"""
NOT_DUE = """
SELECT t.thread_id FROM chatlock_threads t WHERE t.status = 'idle' AND t.last_seq > t.done_seq
   AND (t.awaiting IS NULL OR t.awaiting_rule <> 'hold')
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
ASKED_WRONGLY = """
SELECT thread_id FROM chatlock_threads
 WHERE cancel_token IS NOT NULL AND NOT (status = 'running' AND cancel_token = token AND cancel_until IS NOT NULL)
"""
ROLLED_BACK = """
SELECT token FROM chatlock_turns
 WHERE thread_id = ?1 AND incarnation = ?2 AND token < ?3 AND state = 'released' AND error = 'rolled back'
   AND token > COALESCE((SELECT max(token) FROM chatlock_turns
                          WHERE thread_id = ?1 AND incarnation = ?2 AND token < ?3 AND state = 'done'), 0)
 ORDER BY token
"""
PENDING_IDS = """
SELECT message_id FROM chatlock_messages WHERE thread_id = ? AND disposition = 'pending' ORDER BY incarnation, seq
"""
PENDING = """
SELECT seq FROM chatlock_messages WHERE thread_id = ? AND incarnation = ? AND disposition = 'pending' ORDER BY seq
"""


class Thread(NamedTuple):
    """A thread's row, as far as the simulation looks at it."""

    thread: str
    status: str = "absent"
    token: int = 0
    incarnation: int = 1
    pending: bool = False
    not_before: int = 0
    charged: int = 0
    fetched: int = 0
    awaiting: str | None = None
    held: bool = False


class Truth:
    """A connection of the simulation's own, which no fault meets."""

    def __init__(self, conn: sqlite3.Connection, backoff_max_ms: int) -> None:
        self._conn, self._backoff_max_ms = conn, backoff_max_ms
        self._before: dict[str, Thread] = {}
        self._resolved: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def threads(self) -> list[Thread]:
        """Every thread, as the tables have it now."""
        return [Thread(*row) for row in self._conn.execute(THREADS)]

    def token_of(self, thread: str) -> int:
        return next((row.token for row in self.threads() if row.thread == thread), 0)

    def awaiting(self, thread: str) -> str:
        """The question that is open in it, or what is none."""
        return next((row.awaiting for row in self.threads() if row.thread == thread and row.awaiting), "no-question")

    def pending_in(self, thread: str, token: int) -> tuple[list[int] | None, int]:
        """The pending messages of a thread that runs under this token, and its attempts; None: it does not."""
        held = self._conn.execute(HELD, (thread, token)).fetchone()
        if held is None:
            return None, 0
        return [seq for (seq,) in self._conn.execute(PENDING, (thread, held[0]))], held[1]

    def rolled_back(self, thread: str, token: int) -> list[int] | None:
        """The turns that were rolled back since the last one that was done, if this one runs; None: it does not."""
        held = self._conn.execute(HELD, (thread, token)).fetchone()
        if held is None:
            return None
        return [before for (before,) in self._conn.execute(ROLLED_BACK, (thread, held[0], token))]

    def pending_ids(self, thread: str) -> list[str]:
        """The ids of the messages that wait in it, in any turn or none."""
        return [message_id for (message_id,) in self._conn.execute(PENDING_IDS, (thread,))]

    def look(self, now_ms: int) -> list[str]:
        """After every commit: what happened that never may."""
        found = []
        for row in self.threads():
            found += self._moved(self._before.get(row.thread, Thread(row.thread)), row, now_ms)
            self._before[row.thread] = row
        for *place, disposition, turn in self._conn.execute(RESOLVED):
            before = self._resolved.setdefault(tuple(place), (disposition, turn))
            if before != (disposition, turn):
                found.append(f"message {place} was {before} and became {(disposition, turn)}")
        found += [f"{thread} waits, and is not due" for (thread,) in self._conn.execute(NOT_DUE)]
        found += [f"{thread} keeps a stop of no running turn" for (thread,) in self._conn.execute(ASKED_WRONGLY)]
        found += [f"{thread} counts its holes wrong" for (thread,) in self._conn.execute(WRONG_HOLES)]
        return found

    def _moved(self, before: Thread, row: Thread, now_ms: int) -> list[str]:
        """What is wrong with one thread's step."""
        found, due_at = [], before.not_before
        if row.token < before.token or row.incarnation < before.incarnation:
            found.append(f"the token of {row.thread} fell from {before.token} to {row.token}")
        if row.status != "running" or before.status != "idle":
            return found
        if row.token == before.token:
            found.append(f"{row.thread} was claimed again under token {row.token}")
        if now_ms < due_at <= now_ms + self._backoff_max_ms:
            found.append(f"{row.thread} was claimed {due_at - now_ms} ms before its backoff was over")
        if before.held and row.held:
            found.append(f"{row.thread} was claimed while a question held it")
        if before.charged and row.fetched:
            found.append(f"a fetch rode in the claim of {row.thread} after a charge: it proves no receipt")
        return found
