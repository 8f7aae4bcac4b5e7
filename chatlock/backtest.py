"""What other margins would have done: recorded runs, replayed against the window that each would have had in force."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from chatlock.ops.runs import Run
from chatlock.ops.windows import DAY_MS
from chatlock.protocol import Limits


@dataclass(frozen=True)
class Judged:
    """A run, and the window that was in force when it started."""

    started_at: int
    run_ms: int
    window_ms: int


@dataclass(frozen=True)
class Tried:
    """One margin over an agent's runs.

    false_reclaims: healthy runs that would have been reclaimed.  delay_*_ms: how long a turn that hung from its start
    would have held its thread, which is the window in force at each run's start.
    """

    agent: str
    margin: int
    runs: int
    false_reclaims: int
    delay_median_ms: int
    delay_p95_ms: int
    delay_max_ms: int

    @property
    def false_rate(self) -> float:
        """The share of healthy runs that would have been reclaimed."""
        return self.false_reclaims / self.runs


def backtest(runs: Iterable[Run], margins: Sequence[int], limits: Limits) -> list[Tried]:
    """Every margin for every agent.  A run is judged by what had ended before it started, as in life."""
    by_agent: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_agent[run.agent].append(run)
    return [
        _tried(agent, list(_histories(of_agent, limits.window_days)), margin, limits)
        for agent, of_agent in sorted(by_agent.items())
        for margin in margins
    ]


def _tried(agent: str, histories: Sequence[tuple[int, int | None, int]], margin: int, limits: Limits) -> Tried:
    candidate = replace(limits, window_margin=margin)
    judged = [(run_ms, candidate.window_ms(longest_ms, count)) for run_ms, longest_ms, count in histories]
    windows = sorted(window for _, window in judged)
    return Tried(
        agent,
        margin,
        runs=len(judged),
        false_reclaims=sum(run_ms > window for run_ms, window in judged),
        delay_median_ms=at_share(windows, 0.5),
        delay_p95_ms=at_share(windows, 0.95),
        delay_max_ms=windows[-1],
    )


def judged(runs: Iterable[Run], limits: Limits) -> list[Judged]:
    """The runs of one agent in order of their starts, each by what had ended before it."""
    ordered = sorted(runs, key=lambda run: run.started_at)
    histories = _histories(ordered, limits.window_days)
    return [
        Judged(run.started_at, run_ms, limits.window_ms(longest_ms, count))
        for run, (run_ms, longest_ms, count) in zip(ordered, histories, strict=True)
    ]


def at_share(ordered: Sequence[int], share: float) -> int:
    """The least of the ordered values that so large a share of them does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _histories(runs: Iterable[Run], window_days: int) -> Iterator[tuple[int, int | None, int]]:
    """For each run its length, and the longest and the number of runs that had ended in the days before its start."""
    open_runs: list[tuple[int, int]] = []
    longest: dict[int, int] = {}
    counts: dict[int, int] = defaultdict(int)
    for run in sorted(runs, key=lambda run: run.started_at):
        while open_runs and open_runs[0][0] <= run.started_at:
            ended_at, run_ms = heapq.heappop(open_runs)
            day = ended_at // DAY_MS
            longest[day] = max(longest.get(day, 0), run_ms)
            counts[day] += 1
        first = run.started_at // DAY_MS - window_days
        for day in [day for day in longest if day <= first]:
            del longest[day], counts[day]
        yield run.ended_at - run.started_at, max(longest.values(), default=None), sum(counts.values())
        heapq.heappush(open_runs, (run.ended_at, run.ended_at - run.started_at))
