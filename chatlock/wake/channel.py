"""What carries wakes between processes: a sender and a listener in OS threads of their own; no caller waits for them.

A wake is a lossy hint.  What is lost costs at most one poll interval, so errors are logged once and never raised.
"""

from __future__ import annotations

import logging
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

log = logging.getLogger("chatlock")

QUEUE_MAX = 10_000
RETRY_S = 1.0
RETRY_MAX_S = 15.0
FLUSH_S = 1.0
LISTEN_S = 0.5

OnWake = Callable[[str | None], None]
"""Called with the key_hash of a thread that may have changed, or None: any may have (the channel was interrupted)."""


class Channel(ABC):
    """The frame of a wake: subclasses say how to send names and how to listen until something breaks."""

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: the parent's OS threads and connections are not ours."""
        self._changed = threading.Condition()
        self._to_send: dict[str, None] = {}
        self._sending = False
        self._os_threads: list[threading.Thread] = []
        self._on_wake: OnWake | None = None
        self._broken: set[str] = set()
        self._pause_s = RETRY_S
        self.closed = False

    def open(self, on_wake: OnWake) -> None:
        """Starts to listen and to send, once."""
        with self._changed:
            if self._os_threads or self.closed:
                return
            self._on_wake = on_wake
            for name, work in (("chatlock-wake-send", self._send_loop), ("chatlock-wake-listen", self._listen_loop)):
                self._os_threads.append(threading.Thread(target=work, name=name, daemon=True))
            for os_thread in self._os_threads:
                os_thread.start()

    def send(self, name: str) -> None:
        """Hands a name to the sender.  Never blocks; a full queue drops it."""
        with self._changed:
            if len(self._to_send) < QUEUE_MAX:
                self._to_send[name] = None
                self._changed.notify_all()

    def flush(self) -> None:
        """Waits, for a second at most, until what is queued was sent: for a process that ends without close."""
        with self._changed:
            self._changed.wait_for(lambda: not self._to_send and not self._sending, FLUSH_S)

    def close(self) -> None:
        """Sends what is queued, ends both OS threads and closes their connections."""
        with self._changed:
            self.closed = True
            os_threads = list(self._os_threads)
            self._changed.notify_all()
        for os_thread in os_threads:
            if os_thread is not threading.current_thread():
                os_thread.join(5)

    def _send_loop(self) -> None:
        while True:
            with self._changed:
                self._sending = False
                self._changed.notify_all()
                while not self._to_send and not self.closed:
                    self._changed.wait()
                names, self._to_send = list(self._to_send), {}
                if not names:
                    break
                self._sending = True
            self._safely("send", partial(self._send, names))
        self._disconnect()

    def _listen_loop(self) -> None:
        while not self.closed:
            self._safely("listen", self._listen)
            pause, self._pause_s = self._pause_s, min(RETRY_MAX_S, 2 * self._pause_s)
            with self._changed:  # spread, so that a server that comes back does not meet every listener at once
                self._changed.wait_for(lambda: self.closed, random.uniform(0.5, 1.0) * pause)

    def _safely(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
            self._broken.discard(what)
        except Exception as error:  # noqa: BLE001  a hint: whatever broke, the poll interval decides
            if self.closed or what in self._broken:
                return
            self._broken.add(what)
            log.warning("wake.interrupted", extra={"direction": what, "error": type(error).__name__})

    def _listening(self) -> None:
        """The listener is subscribed again: what happened meanwhile is found by a full look."""
        self._broken.discard("listen")
        self._pause_s = RETRY_S
        self._woken(None)

    def _woken(self, name: str | None) -> None:
        if self._on_wake is not None:
            self._on_wake(name)

    @abstractmethod
    def _send(self, names: list[str]) -> None:
        """Publishes the names, connecting first where needed."""

    @abstractmethod
    def _listen(self) -> None:
        """Subscribes, calls _listening(), then _woken() for each name, until broken or, seen every LISTEN_S, closed."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Closes the sender's connection."""
