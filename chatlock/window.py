"""The window in force for each agent, cached from the longest runs that the sweeper observed."""

from __future__ import annotations

import time

from chatlock.executor import Executor
from chatlock.inputs import new_id
from chatlock.ops.claim import Request
from chatlock.ops.windows import windows_in_force
from chatlock.protocol import Limits

REFRESH_S = 60.0


class Windows:
    """Windows by agent; a claim stores the one it was given, so a shrinking window never ends a live turn early."""

    def __init__(self, executor: Executor, limits: Limits, owner: str, *, heartbeat: bool) -> None:
        self._executor, self._limits, self.owner, self._heartbeat = executor, limits, owner, heartbeat
        self._by_agent: dict[str, int] = {}
        self._read_at: float | None = None

    @property
    def stale(self) -> bool:
        """Whether the cache is older than a minute."""
        return self._read_at is None or time.monotonic() - self._read_at > REFRESH_S

    def refresh(self) -> None:
        """Reads the windows in force."""
        self._by_agent = self._executor.read("windows", lambda c: windows_in_force(c, self._limits))
        self._read_at = time.monotonic()

    def of(self, agent: str) -> int:
        """The window in ms for a turn of `agent` that is claimed now."""
        return self._by_agent.get(agent, self._limits.window_default_ms)

    def request(self, agent: str) -> Request:
        """A claim request with a fresh claim_id.  Without a heartbeat the lease is the window."""
        window = self.of(agent)
        lease = self._limits.lease_ms if self._heartbeat else window
        return Request(new_id(), self.owner, lease, window, self._limits, asked_at=time.monotonic())
