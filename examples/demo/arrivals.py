"""The recorded arrival times, and how soon people write again."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "data" / "arrivals.csv"
GAP_MAX_S = 60
GAPS_SHOWN_S = (5, 15, 30, 60)


@dataclass(frozen=True)
class Arrival:
    """One message: the person in a log is a thread, the log is its tenant."""

    at_s: int
    log: str
    person: str
    message_id: str
    chars: int


def recorded() -> dict[str, list[Arrival]]:
    """Each log's messages at their own times."""
    logs: dict[str, list[Arrival]] = defaultdict(list)
    with FILE.open(newline="") as file:
        for row in csv.DictReader(file):
            log = row["log"]
            message_id = f"{log}-{len(logs[log])}"
            logs[log].append(Arrival(int(row["offset_s"]), log, row["thread"], message_id, int(row["chars"])))
    return logs


def replayed(per_log: int | None = None) -> list[Arrival]:
    """The first `per_log` messages of every log, side by side; longer pauses cut to a minute."""
    arrivals = []
    for log in recorded().values():
        at_s, previous_s = 0, log[0].at_s
        for a in log[:per_log]:
            at_s += min(a.at_s - previous_s, GAP_MAX_S)
            previous_s = a.at_s
            arrivals.append(Arrival(at_s, a.log, a.person, a.message_id, a.chars))
    return sorted(arrivals, key=lambda a: a.at_s)


def follow_ups(log: list[Arrival]) -> list[int]:
    """For every message but a person's first: the seconds since that person's previous one."""
    last: dict[str, int] = {}
    gaps = []
    for a in log:
        if a.person in last:
            gaps.append(a.at_s - last[a.person])
        last[a.person] = a.at_s
    return gaps


def share_within(gaps: list[int], limit_s: int) -> float:
    """The percentage of `gaps` that are at most `limit_s`."""
    return 100 * sum(gap <= limit_s for gap in gaps) / len(gaps)
