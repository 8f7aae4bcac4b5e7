"""Who may go on inside one process: one after another (SQLite has one writer), or nobody (a close, a fork).

A `with` enters the lock, never its Condition: entering that is Python code, and a Ctrl-C in it would leave it locked.
So it is wherever the caller's own OS thread may pass.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from chatlock.errors import Closed


class Ticket:
    """One visit to a turnstile.  An interrupted wait, entry or exit leaves the line all the same."""

    def __init__(self, turnstile: Turnstile) -> None:
        self._turnstile = turnstile
        self._door = threading.Lock()
        self._door.acquire()
        self.let_in = False

    def __enter__(self) -> None:
        try:
            self._turnstile.join(self)
            self._door.acquire()
        except BaseException:
            self._turnstile.leave(self)
            raise

    def __exit__(self, *exc: object) -> None:
        try:
            self._turnstile.leave(self)
        except BaseException:
            self._turnstile.leave(self)
            raise

    def open(self) -> None:
        """Lets its holder in; safe to repeat."""
        if not self.let_in:
            self.let_in = True
            self._door.release()


class Turnstile:
    """Lets one in at a time, in order of arrival, so that none of a process's OS threads starves."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._line: deque[Ticket] = deque()

    def ticket(self) -> Ticket:
        """A context manager: waits for its turn, and lets the next one in at its end."""
        return Ticket(self)

    def join(self, ticket: Ticket) -> None:
        """Takes the last place in the line."""
        with self._lock:
            self._line.append(ticket)
            self._line[0].open()

    def leave(self, ticket: Ticket) -> None:
        """Gives the place up, wherever it is; safe to repeat."""
        with self._lock:
            if ticket in self._line:
                self._line.remove(ticket)
            if self._line:
                self._line[0].open()


class Gate:
    """Counts who is inside.  A close lets in nobody but the OS thread that closes; a fork nobody, for its moment."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self._held = False
        self._closer: int | None = None

    def __enter__(self) -> None:
        entered = 0
        try:
            with self._lock:
                while self._held:
                    self._changed.wait()
                if self._closed_to_me():
                    raise Closed
                self._inside += 1
                entered = 1
        except BaseException:
            with self._lock:
                self._inside -= entered
            raise

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._inside -= 1
            self._changed.notify_all()

    def _closed_to_me(self) -> bool:
        return self._closer not in (None, threading.get_ident())

    def sleep(self, seconds: float) -> None:
        """A pause that a close cuts short, with Closed."""
        with self._lock:
            if self._changed.wait_for(self._closed_to_me, seconds):
                raise Closed

    def close(self) -> None:
        """From now on only the calling OS thread is let in."""
        with self._lock:
            self._closer = threading.get_ident()
            self._changed.notify_all()

    def hold(self) -> None:
        """Lets nobody in until let_go."""
        with self._lock:
            self._held = True

    def let_go(self) -> None:
        """Lets those in who came meanwhile."""
        with self._lock:
            self._held = False
            self._changed.notify_all()

    def wait_empty(self, seconds: float) -> None:
        """Returns once nobody is inside, or when the time is up."""
        deadline = time.monotonic() + seconds
        with self._lock:
            while self._inside and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
