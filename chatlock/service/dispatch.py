"""Who runs what is due: this process (Inline), or workers elsewhere (Remote), reached over RQ or HTTP."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from chatlock.executor import Executor
from chatlock.hosting import Host
from chatlock.inputs import key_hash
from chatlock.ops.due import Dispatched
from chatlock.ops.intents import IntentId, ready_intents
from chatlock.polling import BATCH, Poller
from chatlock.sweep import Sweep

log = logging.getLogger("chatlock")


class Dispatcher(Protocol):
    """What the service asks of the way in which turns are handed out."""

    def open(self, nudge: Callable[[], None]) -> None:
        """Before the first pass.  nudge: asks for a pass now."""
        ...

    def dispatch_due(self) -> bool:
        """One bounded pass.  Whether there is more to do at once."""
        ...

    def maintain(self) -> None:
        """Once a minute."""
        ...

    def close(self, drain_ms: int) -> None:
        """After the last pass: what runs here gets drain_ms to end, the rest is released uncharged."""
        ...

    def hurry(self) -> None:
        """`close` waits no longer."""
        ...


class Inline:
    """Runs due turns, and sends replies, in this process, at most turns_max at once."""

    def __init__(self, host: Host, turns_max: int, tenant_turns_max: int | None) -> None:
        self._host, client = host, host.client
        client._turns_max, client._sweep.tenant_turns_max = turns_max, tenant_turns_max
        self._turns = Poller(client._sweep, client._agents, client._capacity, client._start, 0)

    def open(self, nudge: Callable[[], None]) -> None:
        """See Dispatcher."""
        self._host.open()
        self._host.client._flows.nudge = nudge

    def dispatch_due(self) -> bool:
        """See Dispatcher."""
        self._host.client._start_deliveries()
        started = self._turns.start_due()
        return started == BATCH

    def maintain(self) -> None:
        """Reads the windows in force, and tells of due threads whose agent has no handler here."""
        client = self._host.client
        client._flows.windows.refresh()
        served = set(client._agents())
        others = {agent for _, agent in client._sweep.due(None, BATCH)} - served
        if others:
            log.warning("due.no_handler_here", extra={"agents": sorted(others)})

    def close(self, drain_ms: int) -> None:
        """See Dispatcher."""
        self._host.close(drain_ms)

    def hurry(self) -> None:
        """See Dispatcher."""
        self._host.hurry()


class Sender(Protocol):
    """Carries wake-ups to workers."""

    def room(self) -> int:
        """How many wake-ups it takes now; 0 also where it cannot be reached."""
        ...

    def send(self, wake_up: Dispatched, purpose: str) -> None:
        """Hands one over.  purpose: turns or replies; what is lost is sent again after the dispatch lease.

        Raises ConnectionError where the rest of the pass had better wait.
        """
        ...

    def maintain(self) -> None:
        """Once a minute."""
        ...

    def close(self) -> None:
        """After the last pass."""
        ...


class Remote:
    """Leaves due threads to workers, each for a dispatch lease in SQL, and threads whose replies are to be sent."""

    def __init__(self, executor: Executor, sweep: Sweep, sender: Sender, lease_ms: int) -> None:
        self._executor, self._sweep, self._sender, self._lease_ms = executor, sweep, sender, lease_ms
        self._sent: dict[IntentId, float] = {}

    def open(self, nudge: Callable[[], None]) -> None:
        """See Dispatcher."""

    def dispatch_due(self) -> bool:
        """See Dispatcher."""
        room = min(BATCH, self._sender.room())
        try:
            handed_out = self._dispatch_turns(room)
            self._dispatch_replies(room - handed_out)
        except ConnectionError:  # told by the sender; what was leased is dispatched again after its lease
            return False
        return handed_out == BATCH

    def _dispatch_turns(self, room: int) -> int:
        wake_ups = (self._sweep.dispatch(key, self._lease_ms) for key, _ in self._sweep.due(None, room))
        return sum(self._send(wake_up, "turns") for wake_up in wake_ups if wake_up is not None)

    def _dispatch_replies(self, room: int) -> None:
        """A lease of its own, in memory: another poller's doubled wake-up finds the intent leased or sent."""
        now = time.monotonic()
        self._sent = {seen: until for seen, until in self._sent.items() if until > now}
        if room <= 0:
            return
        limit = room + len(self._sent)
        for seen in self._executor.read("intents.ready", lambda c: ready_intents(c, None, limit)):
            if seen not in self._sent:
                self._sent[seen] = now + self._lease_ms / 1000
                self._send(Dispatched(seen.key, seen.incarnation, seen.token), "replies")

    def _send(self, wake_up: Dispatched, purpose: str) -> bool:
        """One thread's fault never stops the others'; its dispatch lease is the pause before the next attempt."""
        try:
            self._sender.send(wake_up, purpose)
        except ConnectionError:
            raise
        except Exception:
            log.exception("dispatch.failed", extra={"thread_hash": key_hash(wake_up.key)[:12]})
            return False
        return True

    def maintain(self) -> None:
        """See Dispatcher."""
        self._sender.maintain()

    def close(self, drain_ms: int) -> None:
        """See Dispatcher.  Nothing runs here."""
        self._sender.close()

    def hurry(self) -> None:
        """See Dispatcher."""
