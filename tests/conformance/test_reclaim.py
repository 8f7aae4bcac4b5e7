"""Reclaim by the sweep: two observations, one conditional update, charged by what the turn surely had."""

from __future__ import annotations

from typing import Any

import pytest

from chatlock import ClaimLost, Dead, Limits, Queued
from tests.conformance import rows
from tests.conformance.clocks import Sweeper, now
from tests.conformance.conftest import NewChat
from tests.support.databases import Database
from tests.support.waiting import until


@pytest.fixture
def quiet(new_chat: NewChat) -> Any:
    """A client whose turns beat only when the test says so."""
    return new_chat(heartbeat=False)


def stale_turn(chat: Any, database: Database, *, beats: int = 0, thread: str = "c1") -> Any:
    """A turn of a process that died: its lease has passed."""
    turn = chat.begin(thread, 1, message_id="m1", wait_ms=0)
    rows.execute(database, f"UPDATE chatlock_threads SET beat = {beats}, expires_at = 1 WHERE thread_id = '{thread}'")
    return turn


def test_stale_turn_that_was_seen_twice_is_reclaimed(quiet: Any, database: Database) -> None:
    turn = stale_turn(quiet, database)
    assert Sweeper(quiet).reclaim() == 1
    row = rows.thread_row(database)
    assert (row["status"], row["token"], row["claim_id"]) == ("idle", turn.token + 1, None)
    assert [(r["state"], r["error"]) for r in rows.turns(database)] == [("reclaimed", "silent")]
    assert rows.dispositions(database) == ["pending"]
    assert rows.table(database, "chatlock_due")[0]["due_at"] == row["not_before"] > now(database)


def test_stale_turn_that_was_seen_once_is_left(quiet: Any, database: Database) -> None:
    stale_turn(quiet, database)
    assert Sweeper(quiet).after(1_000_000) == 0
    assert rows.thread_row(database)["status"] == "running"


@pytest.mark.parametrize(("gap_s", "reclaimed"), [(6.9, 0), (7.0, 1)])
def test_observations_must_be_two_beats_and_a_second_apart(
    quiet: Any, database: Database, gap_s: float, reclaimed: int
) -> None:
    stale_turn(quiet, database)
    sweeper = Sweeper(quiet)
    sweeper.after(0)
    assert sweeper.after(gap_s) == reclaimed


def test_turn_that_beat_between_two_observations_is_left(quiet: Any, database: Database) -> None:
    stale_turn(quiet, database)
    sweeper = Sweeper(quiet)
    sweeper.after(0)
    rows.execute(database, "UPDATE chatlock_threads SET beat = beat + 1")
    assert sweeper.after(7) == 0
    assert sweeper.after(7) == 1


def test_turn_whose_lease_runs_is_left(quiet: Any) -> None:
    turn = quiet.begin("c1", 1)
    assert Sweeper(quiet).reclaim() == 0
    turn.finish("ok")


def test_outage_of_the_database_reclaims_nobody_at_once(quiet: Any, database: Database) -> None:
    """Every lease passed while nobody could beat: who beats again in time keeps its turn."""
    turns = [stale_turn(quiet, database, thread=f"c{n}") for n in range(5)]
    sweeper = Sweeper(quiet)
    assert sweeper.after(0) == 0
    rows.execute(database, f"UPDATE chatlock_threads SET beat = 1, expires_at = {now(database) + 60_000}")
    assert sweeper.after(7) == 0
    for turn in turns:
        turn.finish("ok")


def test_each_sweeper_sees_for_itself(quiet: Any, database: Database) -> None:
    stale_turn(quiet, database)
    first, second = Sweeper(quiet), Sweeper(quiet)
    first.after(0)
    assert second.after(7) == 0
    assert first.after(7) == 1
    assert second.after(7) == 0


def test_next_turn_of_a_thread_is_another_sighting(quiet: Any, database: Database) -> None:
    first = stale_turn(quiet, database)
    sweeper = Sweeper(quiet)
    sweeper.after(0)
    first.release()
    stale_turn(quiet, database)
    assert sweeper.after(7) == 0
    assert sweeper.after(7) == 1


@pytest.mark.parametrize(("beats", "charged"), [(0, (0, 1)), (1, (1, 0))])
def test_first_fetch_that_rode_in_the_claim_is_proof_only_with_a_beat(
    quiet: Any, database: Database, beats: int, charged: tuple[int, int]
) -> None:
    stale_turn(quiet, database, beats=beats)
    Sweeper(quiet).reclaim()
    row = rows.thread_row(database)
    assert (row["attempts"], row["stalls"]) == charged


def test_fetch_in_a_transaction_of_its_own_is_proof_without_a_beat(quiet: Any, database: Database) -> None:
    stale_turn(quiet, database)
    Sweeper(quiet).reclaim()
    rows.pass_backoff(database)
    stale_turn(quiet, database)
    Sweeper(quiet).reclaim()
    row = rows.thread_row(database)
    assert (row["attempts"], row["stalls"]) == (1, 1)


def test_turn_that_beat_past_its_window_is_reclaimed_for_it(quiet: Any, database: Database) -> None:
    quiet.begin("c1", 1)
    rows.pass_window(database)
    assert Sweeper(quiet).reclaim() == 1
    assert [(row["state"], row["error"]) for row in rows.turns(database)] == [("reclaimed", "window")]


def test_heartbeat_stops_at_the_window(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(limits=Limits(beat_ms=10))
    turn = chat.begin("c1", 1)
    rows.execute(database, "UPDATE chatlock_threads SET window_ends_at = 1")
    lost: list[bool] = []
    turn.on_lost(lambda: lost.append(True))
    until(lambda: lost)
    with pytest.raises(ClaimLost):
        turn.check()


def test_message_whose_turns_all_died_is_dead_with_the_reason(new_chat: NewChat, database: Database) -> None:
    quiet = new_chat(heartbeat=False, limits=Limits(attempts_max=1))
    stale_turn(quiet, database, beats=1)
    Sweeper(quiet).reclaim()
    assert quiet.status("c1", "m1") == Dead(message_id="m1", seq=1, reason="silent")


def test_late_finish_of_a_reclaimed_turn_is_refused_and_its_end_is_noted(quiet: Any, database: Database) -> None:
    turn = stale_turn(quiet, database)
    Sweeper(quiet).reclaim()
    with pytest.raises(ClaimLost):
        turn.finish("late")
    (row,) = rows.turns(database)
    assert row["state"] == "reclaimed"
    assert row["late_ended_at"] >= row["ended_at"]
    assert isinstance(quiet.status("c1", "m1"), Queued)


def test_submit_does_not_take_over_a_stale_claim(quiet: Any, database: Database) -> None:
    stale_turn(quiet, database)
    quiet.handler()(lambda turn: "ok")
    before = rows.thread_row(database)
    assert isinstance(quiet.submit("c1", 2, wait_ms=0), Queued)
    after = rows.thread_row(database)
    assert (after["status"], after["token"]) == ("running", before["token"])


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_locked_thread_is_left_to_the_next_sweep(quiet: Any, database: Database) -> None:
    for thread in ("c1", "c2"):
        stale_turn(quiet, database, thread=thread)
    sweeper = Sweeper(quiet)
    sweeper.after(0)
    holder = database.connect()
    holder.execute("BEGIN")
    holder.execute("SELECT 1 FROM chatlock_threads WHERE thread_id = 'c1' FOR UPDATE")
    assert sweeper.after(7) == 1
    holder.execute("COMMIT")
    assert sweeper.after(1) == 1


def test_one_sweep_runs_what_is_due_in_this_client(quiet: Any, database: Database) -> None:
    for n in range(3):
        quiet.submit(f"c{n}", n, message_id="m", wait_ms=0)
    quiet.submit("elsewhere", 1, agent="other", wait_ms=0)
    quiet.handler()(lambda turn: turn.messages[0].payload)
    swept = quiet.sweep_once()
    assert (swept.reclaimed, swept.turns) == (0, 3)
    assert [quiet.status(f"c{n}", "m").reply for n in range(3)] == [0, 1, 2]
    assert quiet.sweep_once().turns == 0


def test_surplus_due_rows_are_deleted_and_hold_up_nobody(quiet: Any, database: Database) -> None:
    quiet.submit("c1", 1, wait_ms=0)
    quiet.begin("c1", 2).finish("ok")
    quiet.submit("c2", 1, message_id="m1", wait_ms=0)
    rows.execute(database, "UPDATE chatlock_due SET due_at = 1 WHERE thread_id = 'c1'")
    assert len(rows.table(database, "chatlock_due")) == 2
    quiet.handler()(lambda turn: "ok")
    assert quiet.sweep_once().turns == 1
    assert rows.table(database, "chatlock_due") == []
