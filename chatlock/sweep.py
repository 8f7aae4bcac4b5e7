"""sweep: one bounded pass over the database: reclaim what is stale, claim what is due, count the runs that ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from chatlock.dialects import Fault, fault_of
from chatlock.errors import SchemaMismatch, StoreUnavailable
from chatlock.executor import Executor
from chatlock.hooks import Hooks, TurnReclaimed
from chatlock.inputs import Key, key_hash
from chatlock.ops.base import SILENT
from chatlock.ops.claim import Granted, claim_due
from chatlock.ops.due import Dispatched, dispatch, list_due
from chatlock.ops.stop import force
from chatlock.ops.unanswered import Ended, Observed, observe_running, reclaim
from chatlock.ops.windows import observe_runs
from chatlock.protocol import Limits
from chatlock.store import jitter
from chatlock.window import Windows

log = logging.getLogger("chatlock")

T = TypeVar("T")

Sighting = tuple[Key, int, int]

LATER_S = 1.0
LATER_MAX_S = 60.0


class Sweep:
    """A sweeper.  It holds nothing but its sightings, so that any number of them, in any process, share the work.

    A turn is reclaimed only if this sweeper saw the same beat twice, at least two beats and a second apart on its own
    monotonic clock: an outage of the database or a step of its clock then does not reclaim every live turn at once.
    """

    def __init__(
        self,
        executor: Executor,
        limits: Limits,
        windows: Windows,
        hooks: Hooks,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        tenant_turns_max: int | None = None,
    ) -> None:
        self._executor, self._limits, self._windows = executor, limits, windows
        self._hooks, self._monotonic, self.tenant_turns_max = hooks, monotonic, tenant_turns_max
        self._first_seen: dict[Sighting, float] = {}
        self._later: dict[Key, tuple[float, float]] = {}
        self._gap_s = (2 * limits.beat_ms + 1000) / 1000

    def reclaim_stale(self) -> int:
        """Observes every running turn, releases those whose grace is over after they were asked to stop, and reclaims
        those that are stale and were seen twice; returns how many it reclaimed.
        """
        running = self._executor.read("observe", observe_running)
        now = self._monotonic()
        self._first_seen = {s: self._first_seen.get(s, now) for s in map(_sighting, running)}
        ripe = [seen for seen in running if seen.stale and now - self._first_seen[_sighting(seen)] >= self._gap_s]
        for seen in running:
            if seen.overdue:
                self._force(seen)
        return sum(self._reclaim(seen) for seen in ripe)

    def _force(self, seen: Observed) -> None:
        """One thread's fault never stops the others'."""
        try:
            ended = self._executor.transaction("force", _alone(lambda c: force(c, seen)))
        except (StoreUnavailable, SchemaMismatch):
            raise
        except Exception:
            log.exception("force.failed", extra={"thread_hash": key_hash(seen.key)[:12], "token": seen.token})
            return
        if ended is not None:
            log.warning("turn.forced", extra={"thread_hash": key_hash(seen.key)[:12], "token": seen.token})

    def _reclaim(self, seen: Observed) -> bool:
        """One thread's fault never stops the others'."""
        spread = jitter()
        ended: Ended | None = None
        try:
            ended = self._executor.transaction("reclaim", _alone(lambda c: reclaim(c, seen, self._limits, spread)))
        except (StoreUnavailable, SchemaMismatch):
            raise
        except Exception:
            log.exception("reclaim.failed", extra={"thread_hash": key_hash(seen.key)[:12], "token": seen.token})
        if ended is not None:
            fields = {"thread_hash": key_hash(seen.key)[:12], "token": seen.token, "parked": ended.charge.parked}
            log.warning("turn.reclaimed", extra=fields)
            if self._hooks.subscribers:
                self._hooks.tell(TurnReclaimed(seen.key, seen.token, "lease" if ended.error == SILENT else "window"))
        return ended is not None

    def claim_due(self, agents: Sequence[str], limit: int) -> list[Granted]:
        """Claims up to `limit` due threads of `agents`, shared out as `due` says."""
        claimed = (self.claim(key, agent) for key, agent in self.due(agents, limit))
        return [granted for granted in claimed if granted is not None]

    def due(self, agents: Sequence[str] | None, limit: int) -> list[tuple[Key, str]]:
        """Up to `limit` threads of `agents` (None: of any) that are due, each with its agent.

        People's come before background ones, the tenants take turns, and one that has tenant_turns_max is left out.
        """
        if limit <= 0:
            return []
        now, later, far = self._monotonic(), self._later, self._limits.backoff_max_ms
        most, wanted = self.tenant_turns_max, limit + len(later)
        found = self._executor.read("due", lambda c: list_due(c, agents, wanted, far, most))
        self._later = {key: later[key] for key, _ in found if key in later}
        return [(key, agent) for key, agent in found if key not in later or later[key][0] <= now][:limit]

    def later(self, key: Key) -> None:
        """Holds back a due thread that could not be served, for a pause that doubles as long as that goes on."""
        _, before = self._later.get(key, (0.0, LATER_S / 2))
        pause = min(LATER_MAX_S, 2 * before)
        self._later[key] = (self._monotonic() + pause, pause)

    def claim(self, key: Key, agent: str) -> Granted | None:
        """Claims a due thread.  None: it is not due any more, someone has its lock, or it could not be claimed."""
        if self._windows.stale:
            self._windows.refresh()
        request = self._windows.request(agent)
        return self._served(key, "claim_due", lambda c: claim_due(c, key, request))

    def dispatch(self, key: Key, lease_ms: int) -> Dispatched | None:
        """Leaves a due thread to a worker for lease_ms.  None: as for claim, or a worker has it."""
        far = self._limits.backoff_max_ms
        return self._served(key, "dispatch", lambda c: dispatch(c, key, lease_ms, far))

    def _served(self, key: Key, name: str, op: Callable[[Connection], T | None]) -> T | None:
        try:
            return self._executor.transaction(name, _alone(op))
        except (StoreUnavailable, SchemaMismatch):
            raise
        except Exception:
            log.exception("thread.not_served", extra={"op": name, "thread_hash": key_hash(key)[:12]})
            self.later(key)
            return None

    def observe_windows(self) -> None:
        """Counts the runs that ended, and reads the windows in force."""
        self._executor.transaction("windows.observe", observe_runs)
        self._windows.refresh()


def _alone(op: Callable[[Connection], T]) -> Callable[[Connection], T]:
    """`op`, where a constraint that its thread's rows break is that thread's fault, not one of the database."""

    def isolated(conn: Connection) -> T:
        try:
            return op(conn)
        except IntegrityError as error:
            if fault_of(error) is Fault.MOVED:
                raise
            raise AssertionError("a constraint refuses what this thread's rows ask for") from None

    return isolated


def _sighting(seen: Observed) -> Sighting:
    return (seen.key, seen.token, seen.beat)
