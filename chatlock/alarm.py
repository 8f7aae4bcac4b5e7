"""What a running turn is told while its handler runs: that its claim is lost, or that it is to stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from chatlock.errors import place_of
from chatlock.inputs import check_callable
from chatlock.io import Signal

log = logging.getLogger("chatlock")


class Alarm:
    """Raised from any OS thread, also again.  Whoever waits is woken; callbacks run once, when the claim is lost."""

    def __init__(self, claim_id: str) -> None:
        self.lost = self.asked = False
        self._claim_id = claim_id
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self._signals: list[Signal] = []

    @property
    def raised(self) -> bool:
        """Whether the turn was asked to stop, or its claim is lost."""
        return self.asked or self.lost

    def ask(self) -> None:
        """The turn is to stop."""
        self.asked = True
        self.wake()

    def lose(self) -> None:
        """The claim is gone: the callbacks run, once, in the calling OS thread."""
        with self._lock:
            if self.lost:
                return
            self.lost = True
            callbacks, self._callbacks = self._callbacks, []
        self.wake()
        for callback in callbacks:
            self._call(callback)

    def on_lost(self, callback: Callable[[], object]) -> None:
        """Registers a callback; it runs at once if the claim is lost already."""
        check_callable(callback, "callback")
        with self._lock:
            lost = self.lost
            if not lost:
                self._callbacks.append(callback)
        if lost:
            self._call(callback)

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001  the callback's own; the others are still told
            log.error("turn.on_lost_failed: %s", place_of(error), extra={"claim_id": self._claim_id})

    def wake(self) -> None:
        """Wakes whoever waits: the alarm was raised, or the turn has ended."""
        with self._lock:
            signals, self._signals = self._signals, []
        for signal in signals:
            signal.set()

    async def wait(self, signal: Signal, ended: Callable[[], bool]) -> None:
        """Returns once the alarm is raised, or the turn has ended."""
        with self._lock:
            self._signals.append(signal)
        if not self.raised and not ended():
            await signal.wait(None)
