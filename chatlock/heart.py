"""The heartbeat: one OS thread per client on a connection of its own walks the live turns.

A blocked event loop does not stop it; an entry dies with its turn's task or OS thread.  Each beat is an autocommit
statement of its own.  The token protects writes, not the heartbeat: it only keeps a healthy turn from being reclaimed.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from chatlock.errors import ChatlockError
from chatlock.ops.base import Claim
from chatlock.ops.heartbeat import Beat, Pulse

log = logging.getLogger("chatlock")


BUSY_SHARE = 0.1
"""After which part of a beat a turn whose row was locked is tried again."""


class Beating(Protocol):
    """What the heart needs of a live turn."""

    claim: Claim

    def alive(self) -> bool:
        """Whether the turn is open and its task or OS thread lives."""
        ...

    def beaten(self, sent_at: float) -> None:
        """The lease was extended by a beat that was sent then, on the monotonic clock."""
        ...

    def told(self, *, cancelled: bool = False, steered: int = 0) -> None:
        """It is asked to stop; there is a message of this seq to fetch."""
        ...

    def set_lost(self) -> None:
        """The claim is gone."""
        ...


class Heart:
    """The live turns of one client and the OS thread that beats for them; it lives only while there are any."""

    def __init__(self, beat: Callable[[Claim], Pulse], beat_ms: int) -> None:
        self._beat, self._every_s = beat, beat_ms / 1000
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._turns: dict[str, tuple[weakref.ref[Beating], float]] = {}
        self._os_thread: threading.Thread | None = None
        self.closed = False

    after_fork = _reset

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, turn: Beating) -> None:
        """Beats for the turn from now on, if it does not already."""
        with self._lock:
            if self.closed or turn.claim.claim_id in self._turns:
                return
            self._turns[turn.claim.claim_id] = (weakref.ref(turn), time.monotonic() + self._every_s)
            if self._os_thread is None:
                os_thread = threading.Thread(target=self._run, name="chatlock-heart", daemon=True)
                os_thread.start()
                self._os_thread = os_thread
            # one that runs sleeps until an earlier beat than this turn's first

    def remove(self, claim_id: str) -> bool:
        """The turn ends.  Whether the heart beat for it."""
        with self._lock:
            return self._turns.pop(claim_id, None) is not None

    def close(self) -> None:
        """Beats for no one any more."""
        with self._lock:
            self.closed = True
            self._turns.clear()
            self._changed.notify_all()
            os_thread = self._os_thread
        if os_thread is not None and os_thread is not threading.current_thread():
            os_thread.join(5)

    def live(self) -> list[Beating]:
        """The turns that are open now."""
        with self._lock:
            turns = [ref() for ref, _ in self._turns.values()]
        return [turn for turn in turns if turn is not None]

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self.closed and self._turns and (pause := self._pause()) > 0:
                    self._changed.wait(pause)
                if self.closed or not self._turns:
                    self._os_thread = None
                    return
                due = self._take_due()
            while due:  # popped, so that no reference keeps a forgotten turn alive while this thread sleeps
                self._beat_once(due.pop())

    def _pause(self) -> float:
        return min(at for _, at in self._turns.values()) - time.monotonic()

    def _take_due(self) -> list[Beating]:
        now, due = time.monotonic(), []
        for claim_id, (ref, at) in list(self._turns.items()):
            turn = ref()
            if turn is None or not turn.alive():
                del self._turns[claim_id]
            elif at <= now:
                self._turns[claim_id] = (ref, now + self._every_s)
                due.append(turn)
        return due

    def soon(self, claim_id: str, share: float = 0.0) -> None:
        """The turn's next beat comes after that part of a beat: something may have happened to it."""
        with self._lock:
            if claim_id in self._turns:
                self._turns[claim_id] = (self._turns[claim_id][0], time.monotonic() + self._every_s * share)
                self._changed.notify_all()

    def _beat_once(self, turn: Beating) -> None:
        sent_at = time.monotonic()
        try:
            pulse = self._beat(turn.claim)
            match pulse.beat:
                case Beat.EXTENDED:
                    turn.beaten(sent_at)
                    turn.told(cancelled=pulse.cancelled, steered=pulse.steered)
                case Beat.BUSY:
                    self.soon(turn.claim.claim_id, BUSY_SHARE)
                case Beat.LOST:
                    if self.remove(turn.claim.claim_id):  # else its own end came first
                        turn.set_lost()
        except ChatlockError as error:
            log.warning("heartbeat.failed", extra={"claim_id": turn.claim.claim_id, "error": type(error).__name__})
        except (Exception, SystemExit):  # of an on_lost callback: the other turns need this OS thread
            log.exception("heartbeat.failed", extra={"claim_id": turn.claim.claim_id})
