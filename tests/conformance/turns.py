"""What a turn's next heartbeat brings, and its end without an answer."""

from __future__ import annotations

from typing import Any

from chatlock.ops.heartbeat import heartbeat
from tests.conformance import rows
from tests.support.databases import Database


def core_of(turn: Any) -> Any:
    return getattr(turn, "turn", turn)._core


def beat(chat: Any, turn: Any) -> Any:
    """What the turn's next heartbeat brings."""
    return chat._executor.beat(lambda c: heartbeat(c, core_of(turn).claim))


def end_by(how: str, chat: Any, turn: Any, database: Database) -> None:
    """Ends the turn without an answer."""
    match how:
        case "release":
            turn.release()
        case "fail":
            turn.fail("broke")
        case "die":
            rows.pass_lease(database)
            chat._sweep._gap_s = -1.0
            assert chat._sweep.reclaim_stale() == 1
        case "force":
            rows.pass_grace(database)
            chat._sweep.reclaim_stale()
    rows.pass_backoff(database)
