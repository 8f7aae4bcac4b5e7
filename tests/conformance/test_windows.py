"""The window of an agent: from the longest runs that its turns showed, and from nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import make_url

from chatlock import Chatlock, ClaimLost, Limits
from chatlock.ops.heartbeat import heartbeat
from chatlock.ops.windows import observe_runs
from tests.conformance import rows
from tests.conformance.clocks import Sweeper, now
from tests.conformance.conftest import NewChat
from tests.support.databases import Database

DAY_MS = 86_400_000
CLOCK_THAT_MOVES_WHEN_READ = """
CREATE SCHEMA moving;
CREATE SEQUENCE moving.seconds;
CREATE FUNCTION moving.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  $$ SELECT pg_catalog.statement_timestamp() + nextval('moving.seconds') * interval '1 second' $$;
"""


@pytest.fixture
def quiet(new_chat: NewChat, database: Database) -> Any:
    """A client without heartbeats; every run that ended in the last hour is still to be counted."""
    rows.execute(
        database, f"UPDATE chatlock_meta SET value = {now(database) - 3_600_000} WHERE name = 'windows_through'"
    )
    return new_chat(heartbeat=False, limits=Limits(window_runs_min=1, window_floor_ms=1))


def observe(chat: Any) -> int:
    """How many runs a sweeper counts; the client's windows are read again."""
    counted = chat._executor.transaction("windows.observe", observe_runs)
    chat._flows.windows.refresh()
    return int(counted)


def lasted(database: Database, ms: int, *, column: str = "ended_at", ago_ms: int = 60_000) -> None:
    """The newest turn ended a minute ago, after so long a run."""
    end = now(database) - ago_ms
    rows.execute(
        database,
        f"UPDATE chatlock_turns SET started_at = {end - ms}, {column} = {end}"
        " WHERE token = (SELECT max(token) FROM chatlock_turns)",
    )


def beat(chat: Any, turn: Any) -> str:
    """A beat of the turn, whatever its heart does."""
    claim = getattr(turn, "turn", turn)._core.claim
    return str(chat._executor.beat(lambda c: heartbeat(c, claim)).beat)


def ran(chat: Any, database: Database, ms: int, agent: str = "default") -> None:
    """A turn that was answered after so long a run."""
    chat.begin("c1", 1, agent=agent, wait_ms=0).finish("ok")
    lasted(database, ms)


def timed_out(chat: Any, database: Database, ms: int) -> None:
    """A turn that beat until its window passed, was reclaimed, and reported its end late."""
    turn = chat.begin("c1", 1, message_id="m1", wait_ms=0)
    rows.pass_window(database)
    assert Sweeper(chat).reclaim() == 1
    with pytest.raises(ClaimLost):
        turn.finish("late")
    lasted(database, ms, column="late_ended_at")


def test_agent_without_history_has_the_default(quiet: Any) -> None:
    assert observe(quiet) == 0
    assert quiet._flows.windows.of("default") == 600_000


def test_window_is_three_times_the_longest_run(quiet: Any, database: Database) -> None:
    for ms in (1_000, 50_000, 2_000):
        ran(quiet, database, ms)
    assert observe(quiet) == 3
    assert quiet._flows.windows.of("default") == 150_000


@pytest.mark.parametrize(("runs", "window_ms"), [(1, 600_000), (2, 300_000)])
def test_window_waits_for_enough_runs(
    new_chat: NewChat, quiet: Any, database: Database, runs: int, window_ms: int
) -> None:
    careful = new_chat(limits=Limits(window_runs_min=2))
    for _ in range(runs):
        ran(quiet, database, 100_000)
    assert observe(careful) == runs
    assert careful._flows.windows.of("default") == window_ms


def test_each_run_is_counted_once(quiet: Any, database: Database) -> None:
    ran(quiet, database, 1_000)
    assert observe(quiet) == 1
    assert observe(quiet) == 0
    ran(quiet, database, 3_000)
    rows.execute(
        database, f"UPDATE chatlock_meta SET value = {now(database) - 3_600_000} WHERE name = 'windows_through'"
    )
    rows.execute(database, "UPDATE chatlock_turns SET ended_at = 1 WHERE token = 1")
    assert observe(quiet) == 1
    (day,) = rows.table(database, "chatlock_windows")
    assert (day["runs"], day["total_ms"], day["longest_ms"]) == (2, 4_000, 3_000)


def test_run_that_has_just_ended_is_counted_later(quiet: Any, database: Database) -> None:
    """Its transaction may commit a moment after the time that it wrote."""
    quiet.begin("c1", 1).finish("ok")
    assert observe(quiet) == 0
    assert rows.table(database, "chatlock_windows") == []


def test_runs_are_counted_again_after_the_clock_was_ahead(quiet: Any, database: Database) -> None:
    """It stepped back by a year: what ends from now on counts, and nothing twice."""
    ahead = now(database) + 365 * DAY_MS
    rows.execute(database, f"UPDATE chatlock_meta SET value = {ahead} WHERE name = 'windows_through'")
    ran(quiet, database, 100_000)
    assert observe(quiet) == 0
    rows.execute(database, "UPDATE chatlock_meta SET value = value - 100000 WHERE name = 'windows_through'")
    assert observe(quiet) == 1
    assert quiet._flows.windows.of("default") == 300_000


def test_agents_have_windows_of_their_own(quiet: Any, database: Database) -> None:
    ran(quiet, database, 20_000, agent="quick")
    ran(quiet, database, 500_000, agent="slow")
    observe(quiet)
    assert (quiet._flows.windows.of("quick"), quiet._flows.windows.of("slow")) == (60_000, 1_500_000)
    assert quiet._flows.windows.of("default") == 600_000


def test_late_report_of_a_run_that_beat_counts(quiet: Any, database: Database) -> None:
    timed_out(quiet, database, 700_000)
    assert observe(quiet) == 1
    assert quiet._flows.windows.of("default") == 2_100_000


def test_late_report_of_a_silent_run_does_not_count(quiet: Any, database: Database) -> None:
    turn = quiet.begin("c1", 1, message_id="m1")
    rows.pass_lease(database)
    assert Sweeper(quiet).reclaim() == 1
    with pytest.raises(ClaimLost):
        turn.finish("late")
    lasted(database, 700_000, column="late_ended_at")
    assert observe(quiet) == 0


@pytest.mark.parametrize("beats_again", [True, False])
@pytest.mark.usefixtures("way")
def test_run_that_was_silent_in_the_middle_does_not_count(quiet: Any, database: Database, beats_again: bool) -> None:
    """Its machine was suspended, say; it was not reclaimed meanwhile, and finished after all."""
    turn = quiet.begin("c1", 1)
    rows.pass_lease(database)
    if beats_again:
        assert beat(quiet, turn) == "extended"
        assert rows.thread_row(database)["expires_at"] > now(database)
    turn.finish("ok")
    assert [(row["state"], row["error"]) for row in rows.turns(database)] == [("done", "silent")]
    lasted(database, 700_000)
    assert observe(quiet) == 0


@pytest.mark.usefixtures("way")
def test_run_that_outlived_its_window_and_finished_counts(quiet: Any, database: Database) -> None:
    """Without heartbeat the window is all that bounds it: nobody reclaimed it, and it was not silent."""
    turn = quiet.begin("c1", 1)
    rows.pass_window(database)
    turn.finish("ok")
    lasted(database, 700_000)
    assert observe(quiet) == 1


def test_beats_in_time_note_nothing(quiet: Any, database: Database) -> None:
    turn = quiet.begin("c1", 1)
    assert [beat(quiet, turn) for _ in range(2)] == ["extended"] * 2
    assert [(row["state"], row["error"]) for row in rows.turns(database)] == [("running", None)]
    turn.finish("ok")


@pytest.mark.parametrize("end", ["fail", "release"])
def test_run_without_an_answer_does_not_count(quiet: Any, database: Database, end: str) -> None:
    turn = quiet.begin("c1", 1)
    turn.fail("not today") if end == "fail" else turn.release()
    lasted(database, 700_000)
    assert observe(quiet) == 0


def test_negative_duration_does_not_count(quiet: Any, database: Database) -> None:
    """The clock stepped back in the run."""
    ran(quiet, database, -5_000)
    ran(quiet, database, 10_000)
    assert observe(quiet) == 1
    assert quiet._flows.windows.of("default") == 30_000


def test_days_out_of_the_horizon_do_not_count(quiet: Any, database: Database) -> None:
    today = now(database) // DAY_MS
    for day, ms in ((today - 7, 900_000), (today - 6, 40_000)):
        rows.execute(
            database, f"INSERT INTO chatlock_windows(agent, day, longest_ms, runs) VALUES ('default', {day}, {ms}, 5)"
        )
    quiet._flows.windows.refresh()
    assert quiet._flows.windows.of("default") == 120_000


def test_claim_keeps_the_window_that_it_was_given(quiet: Any, database: Database) -> None:
    turn = quiet.begin("c1", 1)
    before = rows.thread_row(database)
    today = now(database) // DAY_MS
    rows.execute(
        database, f"INSERT INTO chatlock_windows(agent, day, longest_ms, runs) VALUES ('default', {today}, 1000, 50)"
    )
    quiet._flows.windows.refresh()
    turn.fetch()
    after = rows.thread_row(database)
    assert before["window_ends_at"] == after["window_ends_at"] == before["claimed_at"] + 600_000
    turn.finish("ok")
    next_turn = quiet.begin("c1", 2)
    row = rows.thread_row(database)
    assert row["window_ends_at"] == row["claimed_at"] + 3_000
    next_turn.finish("ok")


@pytest.mark.usefixtures("way")
def test_lease_never_outlasts_the_window(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(limits=Limits(lease_ms=10_000, window_default_ms=4_000))
    turn = chat.begin("c1", 1)
    row = rows.thread_row(database)
    assert row["expires_at"] == row["window_ends_at"] == row["claimed_at"] + 4_000
    turn.finish("ok")


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_claim_reads_the_clock_once(database: Database) -> None:
    """A lease that ends before its window is that of a turn with heartbeats, and what passes it has fallen silent."""
    rows.execute(database, CLOCK_THAT_MOVES_WHEN_READ)
    url = make_url(database.url).update_query_dict({"options": "-c search_path=moving,public,pg_catalog"})
    with Chatlock(url, tenant="t", poller=False, heartbeat=False) as chat:
        chat.submit("c1", 1, wait_ms=0)
        turn = chat.begin("c1", 2)
        row, (run,) = rows.thread_row(database), rows.turns(database)
        assert row["expires_at"] == row["window_ends_at"] == row["claimed_at"] + 600_000
        assert run["started_at"] == row["claimed_at"] == rows.messages(database)[-1]["received_at"]
        turn.finish("ok")


def test_sweep_counts_runs(quiet: Any, database: Database) -> None:
    ran(quiet, database, 1_000)
    quiet.sweep_once()
    assert [(row["agent"], row["longest_ms"]) for row in rows.table(database, "chatlock_windows")] == [
        ("default", 1_000)
    ]


def test_of_two_sweepers_one_counts_a_run(new_chat: NewChat, quiet: Any, database: Database) -> None:
    """Both read the watermark; it moves for one of them only."""
    other = new_chat(heartbeat=False)
    ran(quiet, database, 1_000)
    since = int(rows.select(database, "SELECT value FROM chatlock_meta WHERE name = 'windows_through'")[0][0])
    assert observe(quiet) == 1
    through = rows.select(database, "SELECT value FROM chatlock_meta WHERE name = 'windows_through'")[0][0]
    assert through > since
    assert observe(other) == 0
