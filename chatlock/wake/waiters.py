"""The waiters of one process share one look: at most one query a second for all of them, plus one per wake.

That look is at the rows of threads; messages are looked at where a thread stands otherwise than before, or was woken.
A waiter subscribes before its message is stored, so a wake between its commit and its sleep is kept.  It is judged
by its message's disposition, never by fetched_seq.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import islice

from chatlock.errors import Closed, StoreUnavailable
from chatlock.inputs import Key, key_hash
from chatlock.io import Signal
from chatlock.ops.inspect import LOOK_MAX, STANDINGS_MAX, Look, Standing, Waited

log = logging.getLogger("chatlock")

LOOK_EVERY_S = 1.0

Looker = Callable[[list[Waited]], dict[Waited, Look]]
Stander = Callable[[list[Key]], dict[Key, Standing]]


class Waiter:
    """One caller that waits for its message.  `look` is what the shared look last told it, `pending_at` how its thread
    stood when its message was last seen pending.
    """

    def __init__(self, key: Key, signal: Signal, claims: bool) -> None:
        self.key, self.signal, self.claims = key, signal, claims
        self.waited: Waited | None = None
        self.look: Look | None = None
        self.pending_at: Standing | None = None
        self.missed = False
        self.closed = False


class Waiters:
    """The registry and its OS thread, which lives only while someone waits."""

    def __init__(self, looker: Looker, stander: Stander) -> None:
        self._looker, self._stander = looker, stander
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._by_key: dict[Key, set[Waiter]] = defaultdict(set)
        self._named: dict[str, Key] = {}
        self._woken: set[Key] = set()
        self._os_thread: threading.Thread | None = None
        self.closed = False

    after_fork = _reset

    def __len__(self) -> int:
        return sum(len(waiters) for waiters in self._by_key.values())

    def subscribe(self, key: Key, signal: Signal, *, claims: bool) -> Waiter:
        """Registers a waiter before its message is stored.  claims: it will run the turn itself when it can."""
        waiter = Waiter(key, signal, claims)
        with self._lock:
            if self.closed:
                raise Closed
            self._by_key[key].add(waiter)
            self._named[key_hash(key)] = key
        return waiter

    def arm(self, waiter: Waiter, waited: Waited) -> None:
        """Names the stored message that the waiter waits for; from now on the shared look includes it."""
        with self._lock:
            waiter.waited, waiter.look, waiter.pending_at = waited, None, None
            if waiter.missed:  # a wake between its message's commit and now is kept
                waiter.missed = False
                self._woken.add(waiter.key)
            if self.closed:
                waiter.closed = True
                waiter.signal.set()
            elif self._os_thread is None:
                os_thread = threading.Thread(target=self._run, name="chatlock-look", daemon=True)
                os_thread.start()
                self._os_thread = os_thread
            else:
                self._changed.notify_all()

    def disarm(self, waiter: Waiter) -> None:
        """The waiter has a turn now: it neither looks nor claims until it is armed again."""
        with self._lock:
            waiter.waited = waiter.look = None

    def unsubscribe(self, waiter: Waiter) -> None:
        """Forgets the waiter.  If it was the one that should claim, the next look chooses another."""
        with self._lock:
            waiters = self._by_key.get(waiter.key)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._by_key[waiter.key]
                    del self._named[key_hash(waiter.key)]
                    self._woken.discard(waiter.key)
                elif waiter.look is not None and waiter.look.claimable:
                    self._woken.add(waiter.key)
            self._changed.notify_all()

    def wake(self, key: Key) -> None:
        """A hint that the thread changed."""
        with self._lock:
            if key in self._by_key:
                self._wake(key)
                self._changed.notify_all()

    def _wake(self, key: Key) -> None:
        self._woken.add(key)
        for waiter in self._by_key[key]:
            waiter.missed = waiter.missed or waiter.waited is None

    def will_claim(self, key: Key) -> bool:
        """Whether someone here waits to run a turn of this thread."""
        with self._lock:
            return any(waiter.claims and waiter.waited for waiter in self._by_key.get(key, ()))

    def wake_named(self, name: str | None) -> None:
        """A hint from another process, by the key's hash; None: any thread may have changed."""
        with self._lock:
            for key in list(self._by_key) if name is None else filter(None, [self._named.get(name)]):
                self._wake(key)
            self._changed.notify_all()

    def close(self) -> None:
        """Wakes every waiter to be told that the client is closed."""
        with self._lock:
            self.closed = True
            for waiters in self._by_key.values():
                for waiter in waiters:
                    waiter.closed = True
                    waiter.signal.set()
            self._changed.notify_all()
            os_thread = self._os_thread
        if os_thread is not None and os_thread is not threading.current_thread():
            os_thread.join(5)

    # -- the shared look, in its own OS thread -----------------------------------------------------------------------
    def _run(self) -> None:
        next_look = time.monotonic() + LOOK_EVERY_S
        while True:
            with self._lock:
                while not self.closed and self._by_key and not self._woken and time.monotonic() < next_look:
                    self._changed.wait(max(0.001, next_look - time.monotonic()))
                if self.closed or not self._by_key:
                    self._os_thread = None
                    return
                everyone = time.monotonic() >= next_look
                keys = list(self._by_key) if everyone else [k for k in self._woken if k in self._by_key]
                self._woken.clear()
                chosen = [w for key in keys for w in self._by_key[key] if w.waited is not None]
            if everyone:
                next_look = time.monotonic() + LOOK_EVERY_S
            try:
                self._look(self._unsettled(chosen) if everyone else chosen)
            except StoreUnavailable as error:
                log.warning("look.failed", extra={"waiters": len(chosen), "error": type(error).__name__})
            except Exception:  # the next look may succeed; without this OS thread nobody would be told anything
                log.exception("look.failed", extra={"waiters": len(chosen)})

    def _unsettled(self, chosen: list[Waiter]) -> list[Waiter]:
        """Those whose thread stands otherwise than when their message was seen pending, or can be claimed."""
        standings: dict[Key, Standing] = {}
        keys = iter({waiter.key for waiter in chosen})
        while batch := list(islice(keys, STANDINGS_MAX)):
            standings |= self._stander(batch)
        settled = {key: standing for key, standing in standings.items() if standing.settled}
        return [w for w in chosen if w.pending_at is None or w.pending_at != settled.get(w.key)]

    def _look(self, chosen: list[Waiter]) -> None:
        by_message: dict[Waited, list[Waiter]] = defaultdict(list)
        for waiter in chosen:
            if waiter.waited is not None:
                by_message[waiter.waited].append(waiter)
        names = iter(by_message)
        while batch := list(islice(names, LOOK_MAX)):
            self._tell({name: by_message[name] for name in batch}, self._looker(batch))

    def _tell(self, waiting: dict[Waited, list[Waiter]], seen: dict[Waited, Look]) -> None:
        """Wakes everyone whose message is resolved, and of each claimable thread the one that waits longest."""
        claimers: dict[Key, tuple[int, Waiter]] = {}
        for name, waiters in waiting.items():
            found = seen.get(name) or Look(resolved=True, claimable=False)
            for waiter in waiters:
                waiter.pending_at = None if found.resolved else found.standing
                if found.resolved:
                    waiter.look = found
                    waiter.signal.set()
                elif (
                    found.claimable
                    and waiter.claims
                    and (waiter.key not in claimers or name[3] < claimers[waiter.key][0])
                ):
                    claimers[waiter.key] = (name[3], waiter)
        for _, waiter in claimers.values():
            waiter.look = Look(resolved=False, claimable=True)
            waiter.signal.set()
