"""A scripted agent: it reads a history, thinks for 20 seconds, and writes it back with a reply."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

THINK_S = 20

Thread = tuple[str, str]


@dataclass(frozen=True)
class Entry:
    """A line of a history: a message, or a reply with the ids of the messages it answers."""

    entry_id: str
    answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reply:
    """A reply and when the agent began and ended to work on it, in seconds of the replay."""

    thread: Thread
    entry: Entry
    began_s: float
    ended_s: float


class Histories:
    """The application's store: one document per thread, read whole and written whole."""

    def __init__(self) -> None:
        self._documents: dict[Thread, tuple[Entry, ...]] = {}

    def read(self, thread: Thread) -> tuple[Entry, ...]:
        """The thread's history."""
        return self._documents.get(thread, ())

    def write(self, thread: Thread, history: tuple[Entry, ...]) -> None:
        """Replace the thread's history; what someone else wrote since the read is gone."""
        self._documents[thread] = history


class Agent:
    """Answers every message that is open in the history it read.  Both passes run this code."""

    def __init__(self, histories: Histories, speed: float) -> None:
        self._histories = histories
        self._speed = speed
        self._began = 0.0
        self._replies = 0

    def start_clock(self) -> None:
        """Zero of the replay's seconds."""
        self._began = asyncio.get_running_loop().time()

    def now_s(self) -> float:
        """Seconds of the replay, which run `speed` times faster."""
        return (asyncio.get_running_loop().time() - self._began) * self._speed

    async def sleep_until(self, at_s: float) -> None:
        """Wait for a moment of the replay."""
        await asyncio.sleep(max(0.0, at_s - self.now_s()) / self._speed)

    async def turn(self, thread: Thread, new: list[str]) -> Reply:
        """Read, think, write."""
        began_s = self.now_s()
        history = self._histories.read(thread)
        history += tuple(Entry(message_id) for message_id in new if Entry(message_id) not in history)
        self._histories.write(thread, history)
        answered = {message_id for entry in history for message_id in entry.answers} - set(new)
        is_open = [e.entry_id for e in history if not e.answers and e.entry_id not in answered]
        await asyncio.sleep(THINK_S / self._speed)
        self._replies += 1
        entry = Entry(f"reply-{self._replies}", tuple(is_open))
        self._histories.write(thread, (*history, entry))
        return Reply(thread, entry, began_s, self.now_s())


class SentLog:
    """The agent's own record, a file beside every store: a line per reply that it sent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w", buffering=1)

    def sent(self, reply: Reply) -> None:
        """The reply went out to the person."""
        entry = reply.entry
        line = [*reply.thread, entry.entry_id, entry.answers, reply.began_s, reply.ended_s]
        self._file.write(json.dumps(line) + "\n")

    def read(self) -> Iterator[Reply]:
        """Every reply in the order it was sent."""
        with self._path.open() as file:
            for line in file:
                log, person, entry_id, answers, began_s, ended_s = json.loads(line)
                yield Reply((log, person), Entry(entry_id, tuple(answers)), began_s, ended_s)

    def close(self) -> None:
        """End the record."""
        self._file.close()
