"""runs: the recorded runs of agents and the windows that came from them, for those who set or doubt a window."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Text, and_, bindparam, case, cast, func, or_, select
from sqlalchemy.engine import Connection

from chatlock.dialects import stable_ms
from chatlock.ops.base import b, named, run
from chatlock.ops.windows import DAY_MS
from chatlock.schema import turns, windows

_agent = cast(bindparam("b_agent"), Text)
_late = and_(turns.c.state == "reclaimed", turns.c.error == "window", turns.c.late_ended_at.is_not(None))
_end = case((turns.c.state == "reclaimed", turns.c.late_ended_at), else_=turns.c.ended_at)

DAYS = named(
    "runs.days",
    select(windows.c.agent, windows.c.day, windows.c.longest_ms, windows.c.runs)
    .where(or_(_agent.is_(None), windows.c.agent == _agent), windows.c.day > stable_ms() / DAY_MS - b("days"))
    .order_by(windows.c.agent, windows.c.day.desc()),
)
# as the sweeper counts them: what was answered, and a beating run that its window cut off and that ended later
RECORDED = named(
    "runs.recorded",
    select(turns.c.agent, turns.c.started_at, _end)
    .where(
        turns.c.ended_at >= stable_ms() - b("since"),
        or_(and_(turns.c.state == "done", turns.c.error.is_(None)), _late),
        or_(_agent.is_(None), turns.c.agent == _agent),
        _end >= turns.c.started_at,
    )
    .order_by(turns.c.started_at),
)
CUT_OFF = named(
    "runs.cut_off",
    select(turns.c.agent, func.count(), func.max(turns.c.late_ended_at - turns.c.started_at))
    .where(turns.c.late_ended_at >= stable_ms() - b("since"), _late)
    .group_by(turns.c.agent)
    .order_by(turns.c.agent),
)


@dataclass(frozen=True)
class Day:
    """The runs of an agent that ended on one day, in days since 1970-01-01 UTC."""

    agent: str
    day: int
    longest_ms: int
    runs: int


@dataclass(frozen=True)
class Run:
    """One run that was healthy, as its end showed; times in ms."""

    agent: str
    started_at: int
    ended_at: int


@dataclass(frozen=True)
class CutOff:
    """Healthy runs of an agent that were reclaimed at their window and ended later."""

    agent: str
    runs: int
    longest_ms: int


def list_days(conn: Connection, agent: str | None, days: int) -> list[Day]:
    """What the window in force stands on, by agent (None: all), the latest day first."""
    return [Day(*row) for row in run(conn, DAYS, None, agent=agent, days=days)]


def list_runs(conn: Connection, agent: str | None, since_ms: int) -> list[Run]:
    """The healthy runs that ended in the last since_ms, in order of their starts."""
    return [Run(*row) for row in run(conn, RECORDED, None, agent=agent, since=since_ms)]


def list_cut_off(conn: Connection, since_ms: int) -> list[CutOff]:
    """By agent, how many healthy runs of the last since_ms a window cut off."""
    return [CutOff(*row) for row in run(conn, CUT_OFF, None, since=since_ms)]
