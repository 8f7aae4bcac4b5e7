"""The plot of an agent: each observed run by when it began and how long it took, and the window then in force."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from chatlock.backtest import Judged
from chatlock.cli.output import rfc3339
from chatlock.service.ui.markup import Markup, tag
from chatlock.wording import counted

WIDTH, HEIGHT = 1180, 250
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 10, 26
TIMES = 7
LENGTHS = {
    1: "1 ms", 10: "10 ms", 100: "100 ms", 1_000: "1 s", 10_000: "10 s", 60_000: "1 min", 600_000: "10 min",
    3_600_000: "1 h", 36_000_000: "10 h",
}  # fmt: skip
MARGIN = 0.12
"""Beyond the shortest and the longest, in powers of ten."""


class Scales:
    """Where a time and a length are in the picture; lengths on a logarithmic scale, so that windows and short runs are
    both seen.
    """

    def __init__(self, runs: Sequence[Judged]) -> None:
        self.first, self.last = runs[0].started_at, max(runs[-1].started_at, runs[0].started_at + 1)
        self.low = math.log10(max(1, min(run.run_ms for run in runs))) - MARGIN
        self.high = math.log10(max(max(run.run_ms, run.window_ms) for run in runs)) + MARGIN

    def x(self, at_ms: int) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (at_ms - self.first) / (self.last - self.first), 1)

    def y(self, ms: int) -> float:
        share = (self.high - math.log10(max(1, ms))) / (self.high - self.low)
        return round(TOP + (HEIGHT - TOP - BOTTOM) * share, 1)


def plot(runs: Sequence[Judged]) -> Markup:
    """Guard: there is a run, and they are in order of their starts."""
    scales = Scales(runs)
    # one dot for a place: a week of runs is no larger than the picture
    dots = {(round(scales.x(r.started_at)), round(scales.y(r.run_ms)), r.run_ms > r.window_ms) for r in runs}
    return tag(
        "svg",
        [_length(ms, scales) for ms in LENGTHS if scales.low <= math.log10(ms) <= scales.high],
        [_time(scales.first + (scales.last - scales.first) * n // (TIMES - 1), n, scales) for n in range(TIMES)],
        [tag("circle", cx=x, cy=y, r=2.5, class_="run over" if over else "run") for x, y, over in sorted(dots)],
        tag("path", d=_window(runs, scales), class_="window"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{counted(len(runs), 'run')} and the window in force",
    )


def _window(runs: Sequence[Judged], scales: Scales) -> str:
    """A step wherever a run found another window than the one before it."""
    steps = [f"M{LEFT},{scales.y(runs[0].window_ms)}"]
    for before, run in pairwise(runs):
        if run.window_ms != before.window_ms:
            steps.append(f"H{scales.x(run.started_at)}V{scales.y(run.window_ms)}")
    return "".join([*steps, f"H{WIDTH - RIGHT}"])


def _length(ms: int, scales: Scales) -> list[Markup]:
    at = scales.y(ms)
    return [
        tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"),
        tag("text", LENGTHS[ms], x=LEFT - 8, y=at + 4, text_anchor="end"),
    ]


def _time(at_ms: int, number: int, scales: Scales) -> Markup:
    anchor = {0: "start", TIMES - 1: "end"}.get(number, "middle")
    shown = (rfc3339(at_ms) or "")[5:16].replace("T", " ")
    return tag("text", shown, x=scales.x(at_ms), y=HEIGHT - 6, text_anchor=anchor)
