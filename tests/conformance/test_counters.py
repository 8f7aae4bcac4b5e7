"""What every new claim, life and stop of a thread sets back or moves on, whatever was before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chatlock.ops.base import turn_state
from chatlock.ops.heartbeat import Beat, heartbeat
from tests.conformance import rows
from tests.support.databases import Database


def test_claim_starts_without_beats(chat: Any, database: Database) -> None:
    """Else the first fetch of a turn that died at once would pass for received, by the beats of the turn before."""
    turn = chat.begin("c1", 1, message_id="m1", wait_ms=0)
    assert chat._executor.beat(lambda conn: heartbeat(conn, turn._core.claim)).beat is Beat.EXTENDED
    turn.release()
    again = chat.begin("c1", 1, message_id="m1", wait_ms=0)
    assert (again.token, rows.thread_row(database)["beat"]) == (2, 0)


def test_recreation_is_a_step_of_the_token(chat: Any, database: Database) -> None:
    chat.submit("c1", 1, wait_ms=0)
    chat.delete("c1")
    deleted = rows.thread_row(database)["token"]
    chat.submit("c1", 2, wait_ms=0, recreate=True)
    assert rows.thread_row(database)["token"] == deleted + 1


def test_parked_thread_is_not_due(chat: Any, database: Database) -> None:
    chat.submit("c1", 1, wait_ms=0)
    assert len(rows.table(database, "chatlock_due")) == 1
    chat.park("c1")
    assert rows.table(database, "chatlock_due") == []


def test_turn_is_its_claims_alone(chat: Any) -> None:
    """After a failover that lost commits, another claim may stand under the same token."""
    claim = chat.begin("c1", 1, wait_ms=0)._core.claim
    read = lambda of: chat._executor.read("turn_state", lambda conn: turn_state(conn, of))  # noqa: E731
    assert read(claim) == "running"
    assert read(replace(claim, claim_id="another")) is None
