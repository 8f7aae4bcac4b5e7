"""Who may go on inside one process: one after another (SQLite has one writer), or nobody (a close, a fork)."""

from __future__ import annotations

import threading
import time
from collections import deque

from chatlock.errors import Closed


class _Ticket:
    """One visit to a turnstile.  An interrupted wait, entry or exit (Ctrl-C) leaves the line all the same."""

    def __init__(self, turnstile: Turnstile) -> None:
        self._turnstile, self._mine = turnstile, threading.Event()

    def __enter__(self) -> None:
        try:
            self._turnstile.join(self._mine)
            self._mine.wait()
        except BaseException:
            self._turnstile.leave(self._mine)
            raise

    def __exit__(self, *exc: object) -> None:
        try:
            self._turnstile.leave(self._mine)
        except BaseException:
            self._turnstile.leave(self._mine)
            raise


class Turnstile:
    """Lets one in at a time, in order of arrival, so that none of a process's OS threads starves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[threading.Event] = deque()

    def ticket(self) -> _Ticket:
        """A context manager: waits for its turn, and lets the next one in at its end."""
        return _Ticket(self)

    def join(self, mine: threading.Event) -> None:
        """Takes the last place in the line."""
        with self._lock:
            self._line.append(mine)
            self._line[0].set()

    def leave(self, mine: threading.Event) -> None:
        """Gives the place up, wherever it is; safe to repeat."""
        with self._lock:
            if mine in self._line:
                self._line.remove(mine)
            if self._line:
                self._line[0].set()


class Gate:
    """Counts who is inside.  A close lets in nobody but the OS thread that closes; a fork nobody, for its moment."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._held = False
        self._closer: int | None = None

    def __enter__(self) -> None:
        with self._changed:
            while self._held:
                self._changed.wait()
            if self._closed_to_me():
                raise Closed
            self._inside += 1

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def _closed_to_me(self) -> bool:
        return self._closer not in (None, threading.get_ident())

    def sleep(self, seconds: float) -> None:
        """A pause that a close cuts short, with Closed."""
        with self._changed:
            if self._changed.wait_for(self._closed_to_me, seconds):
                raise Closed

    def close(self) -> None:
        """From now on only the calling OS thread is let in."""
        with self._changed:
            self._closer = threading.get_ident()
            self._changed.notify_all()

    def hold(self) -> None:
        """Lets nobody in until let_go."""
        with self._changed:
            self._held = True

    def let_go(self) -> None:
        """Lets those in who came meanwhile."""
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def wait_empty(self, seconds: float) -> None:
        """Returns once nobody is inside, or when the time is up."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._inside and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
