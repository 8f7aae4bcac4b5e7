"""The in-process poller: an OS thread that sweeps every second and starts due turns of this client's agents."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from chatlock.errors import ChatlockError, Closed
from chatlock.ops.claim import Granted
from chatlock.sweep import Sweep

log = logging.getLogger("chatlock")

WINDOWS_EVERY_S = 60.0
BATCH = 100


class Poller:
    """Sweeps until closed.  `capacity` says how many more turns may be started now, `start` begins one elsewhere."""

    def __init__(
        self,
        sweep: Sweep,
        agents: Callable[[], list[str]],
        capacity: Callable[[], int],
        start: Callable[[Granted], None],
        every_ms: int,
    ) -> None:
        self._sweep, self._agents, self._capacity, self._start = sweep, agents, capacity, start
        self._every_s = every_ms / 1000
        self.also: Callable[[], None] = lambda: None
        self.after_fork()

    def after_fork(self) -> None:
        """Not running yet."""
        self._lock = threading.RLock()
        self._woken = threading.Condition(self._lock)
        self._nudged = False
        self._os_thread: threading.Thread | None = None
        self.closed = False

    def ensure(self) -> None:
        """Starts the OS thread, once."""
        with self._lock:
            if self._os_thread is None and not self.closed:
                os_thread = threading.Thread(target=self._run, name="chatlock-poller", daemon=True)
                os_thread.start()
                self._os_thread = os_thread

    def nudge(self) -> None:
        """A hint that a thread may be due now: the next pass starts at once."""
        with self._lock:
            self._nudged = True
            self._woken.notify_all()

    def close(self) -> None:
        """Ends the loop and waits for a pass that is under way."""
        with self._lock:
            self.closed = True
            self._woken.notify_all()
            os_thread = self._os_thread
        if os_thread is not None and os_thread is not threading.current_thread():
            os_thread.join(10)

    def _run(self) -> None:
        next_sweep = next_windows = time.monotonic()
        fault: type[ChatlockError] | None = None
        while True:
            with self._lock:
                while not self.closed and not self._nudged and (left := next_sweep - time.monotonic()) > 0:
                    self._woken.wait(left)
                if self.closed:
                    return
                self._nudged = False
            now = time.monotonic()
            try:
                if now >= next_sweep:
                    next_sweep = now + self._every_s
                    self._sweep.reclaim_stale()
                self.start_due()
                self.also()
                if now >= next_windows:
                    next_windows = now + WINDOWS_EVERY_S
                    self._sweep.observe_windows()
            except Closed:
                return
            except ChatlockError as error:
                if type(error) is not fault:  # told once, however long it lasts
                    log.warning("sweep.failed", extra={"error": f"{type(error).__name__}: {error}"})
                fault = type(error)
            except Exception:
                log.exception("sweep.failed")
            else:
                fault = None

    def start_due(self) -> int:
        """Claims what is due, as far as there is capacity, and starts it; returns how many turns it started."""
        granted = self._sweep.claim_due(self._agents(), min(BATCH, self._capacity()))
        for claim in granted:
            self._start(claim)
        return len(granted)
