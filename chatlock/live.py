"""The open turns of one client, and the claims that are on their way to become one: what its end must give back."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Coroutine
from functools import partial
from typing import Any

from chatlock.errors import ChatlockError
from chatlock.inputs import Key
from chatlock.io import drive
from chatlock.store import Store
from chatlock.turn_core import TurnCore

log = logging.getLogger("chatlock")

HAND_BACK_S = 5.0


class Live:
    """Written and read from any OS thread."""

    def __init__(self) -> None:
        self.hurried = False
        self._reset()

    def _reset(self) -> None:
        self.expected: dict[str, Key] = {}
        self.turns: weakref.WeakValueDictionary[str, TurnCore] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def after_fork(self) -> None:
        """In a forked child: no turn of the parent is ours."""
        for core in list(self.turns.values()):
            core.ended = "it belongs to the process that was forked"
        self._reset()

    def expect(self, key: Key, claim_id: str) -> None:
        """A claim that is on its way to become an open turn here: the end of the client releases it too."""
        with self._lock:
            self.expected[claim_id] = key

    def forget(self, claim_id: str) -> Key | None:
        """The expected claim was not granted, or will not become a turn.  Its key if it was still expected."""
        with self._lock:
            self._changed.notify_all()
            return self.expected.pop(claim_id, None)

    def opened(self, core: TurnCore) -> None:
        """The turn is open."""
        with self._lock:
            self.expected.pop(core.claim.claim_id, None)
            self.turns[core.claim.claim_id] = core

    def of(self, key: Key, token: int) -> list[TurnCore]:
        """The open turn of that thread and token, if it runs here."""
        with self._lock:
            return [core for core in self.turns.values() if (core.claim.key, core.claim.token) == (key, token)]

    def ended(self, core: TurnCore) -> None:
        """The turn is open no more."""
        with self._lock:
            self.turns.pop(core.claim.claim_id, None)
            self._changed.notify_all()

    def hurry(self) -> None:
        """Whoever waits for running turns waits no longer."""
        with self._lock:
            self.hurried = True
            self._changed.notify_all()

    def drain(self, seconds: float) -> None:
        """Waits until nothing is open or expected, for up to so long."""
        deadline = time.monotonic() + seconds
        with self._lock:
            while (self.turns or self.expected) and not self.hurried and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def hand_all_back(self, store: Store) -> None:
        """Releases every claim that is or may be ours.  No other operation of this client runs any more."""
        with self._lock:
            cores, expected = list(self.turns.values()), list(self.expected.items())
        deadline = time.monotonic() + HAND_BACK_S
        for core in cores:
            core.set_lost()
        releases = [(core.claim.claim_id, partial(core.release, store)) for core in cores]
        releases += [(claim_id, partial(store.release, key, claim_id)) for claim_id, key in expected]
        for claim_id, release in releases:
            if time.monotonic() < deadline:  # what is left when the database is away is freed by its lease
                hand_back(claim_id, release())


def hand_back(claim_id: str, release: Coroutine[Any, Any, bool]) -> None:
    """Releases a claim in the calling OS thread, as far as it can be."""
    try:
        drive(release)
    except ChatlockError as error:  # the lease frees it
        log.warning("close.release_failed", extra={"claim_id": claim_id, "error": type(error).__name__})
    except Exception:
        log.exception("close.release_failed", extra={"claim_id": claim_id})
