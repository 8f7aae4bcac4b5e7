"""What the nemesis tells every process, and what each counts, in memory that they share: it outlives whom it kills."""

from __future__ import annotations

import mmap
import struct
import threading
from random import Random

TOLD = ("storm", "ended", "held", "offset_ms", "full", "generation")
"""storm: things go wrong.  ended: processes are to close.  held: no new bursts.  full: the disk has no page left."""

COUNTS = (
    "accepted",
    "began",
    "lost_claim",
    "refused_fence",
    "refused_finish",
    "cut_committed",
    "cut_not_committed",
    "already_answered",
    "alone_after_failure",
    "unknown",
    "store_unavailable",
    "at_point",
    "left_early",
)
ORDERS = ("point", "act")
TURN_POINTS = ("claim_due", "fetch", "finish_hot", "finish", "fail")
POINTS_OF = {
    role: tuple(f"{op}.{where}" for op in ops for where in ("begin", "commit")) + ("agent.fence",) * fences
    for role, (fences, ops) in {
        "submitter": (0, ("submit_hot", "submit")),
        "worker": (4, (*TURN_POINTS, "reclaim")),
        "caller": (4, ("submit_hot", "submit", "claim", "fetch", "finish_hot", "finish", "release")),
        "async": (4, ("submit_hot", "submit", "claim", "fetch", "finish_hot", "finish", "release")),
        "service": (4, (*TURN_POINTS, "reclaim")),
        "rq": (4, TURN_POINTS),
        "web": (4, ("submit_hot", "submit", "claim_due", "finish_hot", "finish", "release")),
        "visitor": (1, ()),
    }.items()
}
"""Where a process of each role is killed or stopped."""

PLACES = {name: number for number, name in enumerate((*COUNTS, *ORDERS))}
CODES = {
    name: number for number, name in enumerate(sorted({point for points in POINTS_OF.values() for point in points}), 1)
}
KILL, STOP = 1, 2
CELL = struct.calcsize("q")


class Weather:
    """Whole numbers by name, shared with every process that is forked from here on."""

    def __init__(self, slots: int) -> None:
        self._row = len(COUNTS) + len(ORDERS)
        self._cells = memoryview(mmap.mmap(-1, CELL * (len(TOLD) + slots * self._row))).cast("q")
        self.slots = slots

    def __getitem__(self, name: str) -> int:
        return self._cells[TOLD.index(name)]

    def __setitem__(self, name: str, value: int) -> None:
        self._cells[TOLD.index(name)] = value

    def slot(self, number: int) -> Slot:
        """The part of one process; its successor goes on counting there."""
        first = len(TOLD) + number * self._row
        return Slot(self._cells[first : first + self._row])

    def total(self, count: str) -> int:
        """The sum over all processes."""
        return sum(self.slot(number)[count] for number in range(self.slots))


class Slot:
    """Counts of one process, and what it is to do to itself at a named point."""

    def __init__(self, cells: memoryview) -> None:
        self._cells = cells
        self._adding = threading.Lock()

    def __getitem__(self, name: str) -> int:
        return int(self._cells[PLACES[name]])

    def add(self, count: str) -> None:
        """One more."""
        with self._adding:
            self._cells[PLACES[count]] += 1

    def arm(self, point: str, act: int) -> None:
        """The process is to do this when it next comes to the point."""
        self._cells[PLACES["act"]] = act
        self._cells[PLACES["point"]] = CODES[point]

    def disarm(self) -> None:
        """It is not to do it any more."""
        self._cells[PLACES["point"]] = 0

    def take(self, point: str) -> int:
        """What to do at this point now; it is ordered once."""
        if CODES.get(point, -1) != self._cells[PLACES["point"]]:
            return 0
        with self._adding:
            if not self._cells[PLACES["point"]]:
                return 0
            self.disarm()
            self._cells[PLACES["at_point"]] += 1
        return self["act"]


def soon(random: Random, mean_s: float) -> float:
    """How long until something happens that happens every mean_s."""
    return random.expovariate(1 / mean_s)
