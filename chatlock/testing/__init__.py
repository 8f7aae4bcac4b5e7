"""Tools for tests of what runs on chatlock: schedules that force an order, and clocks that a test sets.

Nothing here is imported by the product, and a client that no schedule or clock is attached to runs as in production.
"""

from __future__ import annotations

from chatlock.testing.cases import Case, DrillFailed
from chatlock.testing.checker import check
from chatlock.testing.clock import DatabaseClock, MonotonicClock
from chatlock.testing.drill import Drill
from chatlock.testing.history import History
from chatlock.testing.schedule import Played, Schedule, ScheduleFailed, Step, point

__all__ = [
    "Case",
    "DatabaseClock",
    "Drill",
    "DrillFailed",
    "History",
    "MonotonicClock",
    "Played",
    "Schedule",
    "ScheduleFailed",
    "Step",
    "check",
    "point",
]
