"""M: meters of what handlers did, across processes and kills, and of what reached the world outside."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from chatlock import Turn


@dataclass(frozen=True)
class Entry:
    """One line of a journal.  what: enter or leave."""

    what: str
    thread: str
    token: int
    ids: tuple[str, ...]
    pid: int


class Journal:
    """M: what handlers did, in one order, across OS threads, processes and kills.

    Each entry is one append to one file, so an entry that was written survives the death of its process, and the order
    of the lines is the order in which things happened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def write(self, what: str, turn: Turn) -> None:
        """Adds an entry."""
        line = json.dumps([what, turn.key.thread, turn.token, [m.message_id for m in turn.messages], os.getpid()])
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{line}\n".encode())

    def entries(self, what: str | None = None, thread: str | None = None) -> list[Entry]:
        """The entries of a kind, of a thread, or all."""
        read = (json.loads(line) for line in self.path.read_text().splitlines())
        every = (Entry(kind, name, token, tuple(ids), pid) for kind, name, token, ids, pid in read)
        return [e for e in every if what in (None, e.what) and thread in (None, e.thread)]

    def enters(self, thread: str | None = None) -> list[Entry]:
        """Every time that a handler began."""
        return self.entries("enter", thread)

    def wait_enters(self, count: int, thread: str | None = None) -> list[Entry]:
        """Returns once so many handlers have begun."""
        until(lambda: len(self.enters(thread)) >= count, what=f"handler number {count}")
        return self.enters(thread)

    def overlap(self, thread: str) -> int:
        """The overlap meter: the most handlers that were inside the thread at once."""
        inside = most = 0
        for entry in self.entries(thread=thread):
            inside += {"enter": 1, "leave": -1}.get(entry.what, 0)
            most = max(most, inside)
        return most


class EffectSink:
    """M: the world outside, which remembers every effect, and refuses one under a stale token if it was told to."""

    def __init__(self, *, fenced: bool = False) -> None:
        self.effects: list[tuple[str, Any, int]] = []
        self.refused: list[tuple[str, Any, int]] = []
        self._fenced = fenced
        self._lock = threading.Lock()

    def apply(self, key: str, payload: Any, token: int) -> bool:
        """Whether the effect was applied."""
        with self._lock:
            highest = max((seen for _, _, seen in self.effects), default=0)
            stale = self._fenced and token < highest
            (self.refused if stale else self.effects).append((key, payload, token))
            return not stale
