"""SIGTERM and SIGINT, heard by an OS thread of its own: code that keeps the main thread busy does not delay them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_END = b"\0"


class Termination:
    """Calls `first` at the first signal, in an OS thread of its own, and `again` at each later one.

    apart_s: a signal that follows so closely is the same one, sent to the process and to its group.  The block must be
    entered in the main thread.
    """

    def __init__(self, first: Callable[[], object], again: Callable[[], object], *, apart_s: float = 0) -> None:
        self._first, self._again, self._apart_s = first, again, apart_s
        self._came_at: float | None = None

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = {number: signal.signal(number, self._heard) for number in SIGNALS}
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._listener = threading.Thread(target=self._listen, name="chatlock-signals", daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *exc: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.write(self._writer, _END)
        self._listener.join()
        os.close(self._reader)
        os.close(self._writer)

    @staticmethod
    def _heard(number: int, frame: Any) -> None:
        """The interpreter has written the number to the pipe already."""

    def _listen(self) -> None:
        while (byte := os.read(self._reader, 1)) != _END:
            if byte[0] in SIGNALS:
                self._came()

    def _came(self) -> None:
        now = time.monotonic()
        if self._came_at is None:
            self._came_at = now
            threading.Thread(target=self._first, name="chatlock-drain", daemon=True).start()
        elif now - self._came_at >= self._apart_s:
            self._again()
