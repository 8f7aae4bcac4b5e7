"""Time as a test sets it: a monotonic clock for a sweeper, and the sweeper that saw a turn twice."""

from __future__ import annotations

from typing import Any

from chatlock.sweep import Sweep
from tests.conformance import rows
from tests.support.databases import Database

NOW = {
    "sqlite": "SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)",
    "postgresql": "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint",
}


def now(database: Database) -> int:
    """The database's clock in milliseconds."""
    return int(rows.select(database, NOW[database.kind])[0][0])


class Clock:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


class Sweeper:
    """A sweep of a client's database on a clock of the test's own."""

    def __init__(self, chat: Any) -> None:
        self.clock = Clock()
        self.sweep = Sweep(
            chat._executor, chat._flows.config.limits, chat._flows.windows, chat._flows.hooks, self.clock
        )

    def after(self, seconds: float) -> int:
        """One observation, so much later than the one before; how many turns it reclaimed."""
        self.clock.s += seconds
        return self.sweep.reclaim_stale()

    def reclaim(self) -> int:
        """Two observations, far enough apart."""
        assert self.after(0) == 0
        return self.after(7)
