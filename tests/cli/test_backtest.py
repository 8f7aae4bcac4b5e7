"""`chatlock windows backtest`: what other margins would have done to recorded runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chatlock.backtest import Tried, backtest
from chatlock.ops.runs import Run
from chatlock.protocol import Limits
from tests.cli.scene import DAY_MS, START_MS

if TYPE_CHECKING:
    from tests.cli.scene import Scene

MINUTE = 60_000
LIMITS = Limits(window_runs_min=2, window_floor_ms=1_000)


def runs(*lengths_ms: int, apart_ms: int = 10 * MINUTE, agent: str = "a", start_ms: int = 100 * DAY_MS) -> list[Run]:
    starts = [start_ms + number * apart_ms for number in range(len(lengths_ms))]
    return [Run(agent, at, at + length) for at, length in zip(starts, lengths_ms, strict=True)]


def tried(found: list[Tried]) -> list[tuple[int, int, int]]:
    return [(one.margin, one.false_reclaims, one.delay_max_ms) for one in found]


def test_a_small_margin_reclaims_what_a_large_one_waits_for() -> None:
    recorded = runs(10_000, 10_000, 25_000, 10_000)
    found = backtest(recorded, (2, 3), LIMITS)
    assert [(one.margin, one.runs, one.false_reclaims) for one in found] == [(2, 4, 1), (3, 4, 0)]
    assert found[0].false_rate == 0.25
    # until two runs had ended the default was in force; then 2 x 10 s, and after the long run 2 x 25 s
    assert (found[0].delay_median_ms, found[0].delay_p95_ms, found[0].delay_max_ms) == (50_000, 600_000, 600_000)


def test_a_run_is_judged_by_what_had_ended_before_it_began() -> None:
    long_one = Run("a", 100 * DAY_MS, 100 * DAY_MS + 8 * MINUTE)
    meanwhile = runs(1_000, 1_000, 5_000, apart_ms=MINUTE, start_ms=100 * DAY_MS + 1)
    ((_, too_early, _),) = tried(backtest([long_one, *meanwhile], (3,), LIMITS))
    assert too_early == 1  # 5 s against 3 x 1 s: the long run had not ended yet


def test_what_is_older_than_the_window_s_days_is_forgotten() -> None:
    old = runs(60_000, 60_000)
    later = runs(10_000, 10_000, 90_000, start_ms=108 * DAY_MS)
    found = backtest([*old, *later], (3,), LIMITS)
    assert tried(found) == [(3, 1, 600_000)]  # 90 s against 3 x 10 s; with the old ones it were 3 x 60 s


def test_floor_and_cap_hold_for_every_margin() -> None:
    limits = Limits(window_runs_min=1, window_floor_ms=50_000, window_cap_ms=62_000, window_default_ms=60_000)
    found = backtest(runs(1_000, 40_000, 65_000), (2, 100), limits)
    assert tried(found) == [(2, 1, 62_000), (100, 1, 62_000)]


def test_agents_are_judged_apart_and_none_is_fine() -> None:
    found = backtest([*runs(1_000), *runs(2_000, agent="b")], (3,), LIMITS)
    assert [(one.agent, one.runs) for one in found] == [("a", 1), ("b", 1)]
    assert backtest([], (3,), LIMITS) == []


@pytest.mark.parametrize(("arguments", "expected"), [((), 2), (("--agent", "b"), 1), (("--since", "1m"), 0)])
def test_the_command_takes_done_runs_and_late_ones_of_an_agent(
    fresh: Scene, arguments: tuple[str, ...], expected: int
) -> None:
    rows = [
        ("a", "done", None, 100_000, None),
        ("b", "reclaimed", "window", 200_000, START_MS - 90_000),
        ("b", "reclaimed", "silent", 200_000, START_MS - 90_000),
        ("b", "reclaimed", "window", 200_000, None),
        ("b", "failed", "ValueError", 200_000, None),
    ]
    for token, (agent, state, error, ago, late) in enumerate(rows, 1):
        to_seq = 1 if state == "done" else "NULL"
        fresh.execute(
            "INSERT INTO chatlock_turns(tenant, thread_id, incarnation, token, claim_id, agent, from_seq, to_seq,"
            f" state, error, started_at, ended_at, late_ended_at) VALUES ('acme', 't{token}', 1, {token}, 'c',"
            f" '{agent}', 0, {to_seq}, '{state}', {'NULL' if error is None else repr(error)}, {START_MS - ago},"
            f" {START_MS - 95_000}, {late or 'NULL'})"
        )
    found = fresh.json("windows", "backtest", "--margin", "3", *arguments, tenant=None)
    assert sum(line["runs"] for line in found) == expected
