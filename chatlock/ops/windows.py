"""windows: the runs of each agent and day: the longest, from which the window in force is set, and their mean."""

from __future__ import annotations

from typing import Any

from sqlalchemy import case, func, or_, select, update
from sqlalchemy.engine import Connection

from chatlock.dialects import greatest, per_dialect, stable_ms, wall_ms
from chatlock.ops.base import b, named, run
from chatlock.protocol import Limits
from chatlock.schema import meta, turns, windows

DAY_MS = 86_400_000
SETTLE_MS = 10_000
"""A turn's end is counted once it is this old: its transaction may commit a moment after the time it wrote."""

THROUGH = named("windows.through", select(meta.c.value, stable_ms()).where(meta.c.name == "windows_through"))
ADVANCE = named(
    "windows.advance",
    update(meta)
    .where(meta.c.name == "windows_through", meta.c.value == b("since"))
    .values(value=b("until"))
    .returning(meta.c.value),
)
_end = case((turns.c.state == "reclaimed", turns.c.late_ended_at), else_=turns.c.ended_at)
_run_ms = _end - turns.c.started_at
# a silent run (suspended machine) is no evidence of how long a healthy one takes; a late report of a beating one is
OBSERVED = named(
    "windows.observed",
    select(turns.c.agent, func.max(_run_ms), func.sum(_run_ms), func.count())
    .where(
        or_(
            (turns.c.state == "done")
            & turns.c.error.is_(None)
            & (turns.c.ended_at > b("since"))
            & (turns.c.ended_at <= b("until")),
            (turns.c.state == "reclaimed")
            & (turns.c.error == "window")
            & (turns.c.late_ended_at > b("since"))
            & (turns.c.late_ended_at <= b("until")),
        ),
        _end >= turns.c.started_at,
    )
    .group_by(turns.c.agent),
)


def _upsert(insert: Any) -> Any:
    new = insert(windows).values(
        agent=b("agent"), day=b("day"), longest_ms=b("longest"), total_ms=b("total"), runs=b("runs")
    )
    return new.on_conflict_do_update(
        index_elements=[windows.c.agent, windows.c.day],
        set_={
            "longest_ms": greatest(windows.c.longest_ms, new.excluded.longest_ms),
            "total_ms": windows.c.total_ms + new.excluded.total_ms,
            "runs": windows.c.runs + new.excluded.runs,
        },
    )


RECORD = named("windows.record", per_dialect(_upsert))
IN_FORCE = named(
    "windows.in_force",
    select(windows.c.agent, func.max(windows.c.longest_ms), func.sum(windows.c.runs))
    .where(windows.c.day > wall_ms() / DAY_MS - b("days"))
    .group_by(windows.c.agent),
)


def observe_runs(conn: Connection) -> int:
    """Adds the runs that ended since the last call to their agents' days; returns how many.

    Guard: a conditional update of the watermark, so that of several sweepers each run is counted by one.  A watermark
    ahead of the clock means that the clock stepped: it begins anew, now.
    """
    row = run(conn, THROUGH).one_or_none()
    if row is None:
        return 0
    since, now = int(row[0]), int(row[1])
    until = now - SETTLE_MS
    if until <= since <= now or not run(conn, ADVANCE, since=since, until=until).all():
        return 0
    counted = 0
    for agent, longest, total, runs in run(conn, OBSERVED, since=since, until=until).all():
        run(conn, RECORD, agent=agent, day=until // DAY_MS, longest=longest, total=int(total), runs=runs)
        counted += int(runs)
    return counted


def windows_in_force(conn: Connection, limits: Limits) -> dict[str, int]:
    """The window in ms of every agent that has history; an agent without any has limits.window_default_ms."""
    rows = run(conn, IN_FORCE, days=limits.window_days)
    return {agent: limits.window_ms(int(longest), int(runs)) for agent, longest, runs in rows}
