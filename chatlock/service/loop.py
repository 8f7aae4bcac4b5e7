"""An OS thread that does its work every interval."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from chatlock.errors import ChatlockError

log = logging.getLogger("chatlock")

EARLY_S = 0.02


class Loop:
    """Does `work` every interval, sooner when nudged, and again at once while it returns True (there is more to do).

    Nothing that it raises ends the loop: an error is logged when it begins and when it is over.
    """

    def __init__(self, name: str, every_ms: int, work: Callable[[], bool]) -> None:
        self._name, self._every_s, self._work = name, every_ms / 1000, work
        self._changed = threading.Condition()
        self._nudged = self._stopped = False
        self._fault: str | None = None
        self._os_thread = threading.Thread(target=self._run, name=f"chatlock-{name}", daemon=True)
        self.passes = 0
        self.passed_at = time.monotonic()

    @property
    def healthy(self) -> bool:
        """Whether the last pass ended without an error."""
        return self.passes > 0 and self._fault is None

    def start(self) -> None:
        """Begins with a pass at once."""
        self._os_thread.start()

    def nudge(self) -> None:
        """A hint that there is something to do now."""
        with self._changed:
            self._nudged = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Lets a pass that is under way end, and begins no other."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._os_thread.is_alive():
            self._os_thread.join()

    def _run(self) -> None:
        while not self._stopped:
            more = self._pass()
            self.passes, self.passed_at = self.passes + 1, time.monotonic()
            with self._changed:
                if not more:
                    self._rest()
                self._nudged = False

    def _rest(self) -> None:
        """Until the next pass.  After a fault no nudge shortens it."""
        end = self.passed_at + self._every_s
        self._changed.wait_for(lambda: self._stopped, EARLY_S)
        self._changed.wait_for(
            lambda: self._stopped or (self._nudged and self._fault is None), max(0.0, end - time.monotonic())
        )

    def _pass(self) -> bool:
        try:
            more = self._work()
        except Exception as error:  # noqa: BLE001  logged; the next pass decides
            self._failed(error)
            return False
        if self._fault is not None:
            log.warning("%s.recovered", self._name)
            self._fault = None
        return more

    def _failed(self, error: Exception) -> None:
        fault = type(error).__name__
        if fault != self._fault and isinstance(error, ChatlockError):
            log.error("%s.failed", self._name, extra={"error": f"{fault}: {error}"})
        elif fault != self._fault:
            log.error("%s.failed", self._name, exc_info=error)
        self._fault = fault
