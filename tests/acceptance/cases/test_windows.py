"""How long a healthy turn may run: counted from its claim, against the window that it was given, from observed runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from chatlock import AlreadyAnswered, Chatlock, ClaimLost, Limits, Queued, Turn
from chatlock.ops import windows
from chatlock.testing import DatabaseClock
from tests.acceptance.cases.recovery import HOUR_MS, MINUTE_MS, STILL, beat, turn_states
from tests.acceptance.cases.support import (
    TENANT,
    assert_invariants,
    quiesce,
    reclaim_aged,
    rows,
    thread_row,
    turn_rows,
)
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.databases import Database

    Client = Callable[..., Chatlock]
    Keep = Callable[[Child], Child]

SECOND_MS = 1_000
LEASE_MS = STILL.lease_ms
LONGEST_MS = 40 * MINUTE_MS
WINDOW_MS = 2 * HOUR_MS
"""What three times the longest run comes to."""


@pytest.fixture
def clock(database: Database) -> DatabaseClock:
    """The database's clock, which only the test moves."""
    return DatabaseClock.install(database.url)


@pytest.fixture
def clocked(client: Client, database: Database, clock: DatabaseClock) -> Client:
    """As `client`, on the set clock, without a heartbeat of its own."""

    def make(**options: Any) -> Chatlock:
        chat = client(database, limits=STILL, **options)
        clock.attach(chat)
        return chat

    return make


def record(database: Database, clock: DatabaseClock, longest_ms: int, runs: int = 10, agent: str = "default") -> None:
    """Replaces the agent's history."""
    rows(database, "DELETE FROM chatlock_windows WHERE agent = :agent", agent=agent)
    rows(
        database,
        "INSERT INTO chatlock_windows(agent, day, longest_ms, runs) VALUES (:agent, :day, :longest, :runs)",
        agent=agent,
        day=clock.now_ms // windows.DAY_MS,
        longest=longest_ms,
        runs=runs,
    )


def begin(chat: Chatlock, thread: str = "thread", agent: str = "default") -> Turn:
    """A turn that the test holds."""
    turn = chat.begin(thread, "one", message_id="m1", agent=agent)
    assert isinstance(turn, Turn)
    return turn


# -- B36: a long and healthy run ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("history", ["a run of 40 minutes", "none"])
def test_beating_run_is_freed_only_past_its_window(
    database: Database, clocked: Client, clock: DatabaseClock, history: str
) -> None:
    """B36: whatever a sweeper's own idea of a long run is; without history the window is 10 minutes."""
    window_ms = STILL.window_default_ms
    if history != "none":
        record(database, clock, LONGEST_MS)
        window_ms = WINDOW_MS
    chat, sweeper = clocked(), clocked()
    turn = begin(chat)
    claim = turn._core.claim
    start = clock.now_ms
    for at_ms in (41 * MINUTE_MS, window_ms - SECOND_MS):
        if at_ms < window_ms:
            clock.set(start + at_ms)
            assert beat(chat, claim)
            assert reclaim_aged(sweeper) == 0
    clock.set(start + window_ms + SECOND_MS)
    assert not beat(chat, claim)
    assert reclaim_aged(sweeper) == 1
    assert rows(database, "SELECT error FROM chatlock_turns") == [{"error": "window"}]
    with pytest.raises(ClaimLost):
        turn.finish("late")
    assert thread_row(database, "thread")["status"] == "idle"
    assert turn_rows(database, "thread")[0]["late_ended_at"] == clock.now_ms
    sweeper.handler()(lambda turn: "answer")
    clock.advance(MINUTE_MS)
    quiesce(sweeper, database)
    assert isinstance(sweeper.status("thread", "m1"), AlreadyAnswered)
    assert_invariants(database, sweeper)


def test_silent_run_is_freed_after_its_lease_whatever_its_window(
    database: Database, clocked: Client, clock: DatabaseClock
) -> None:
    """B36's control: without the heartbeats above the same run is freed."""
    record(database, clock, LONGEST_MS)
    chat, sweeper = clocked(), clocked()
    begin(chat)
    clock.advance(LEASE_MS)
    assert reclaim_aged(sweeper) == 0
    clock.advance(1)
    assert reclaim_aged(sweeper) == 1
    assert rows(database, "SELECT error FROM chatlock_turns") == [{"error": "silent"}]


def test_time_in_the_queue_is_no_time_of_the_run(database: Database, clocked: Client, clock: DatabaseClock) -> None:
    """B36: queued for three hours, claimed a second ago."""
    chat, sweeper = clocked(), clocked()
    assert isinstance(chat.submit("thread", "one", message_id="m1", wait_ms=0), Queued)
    clock.advance(3 * HOUR_MS)
    turn = begin(chat)
    clock.advance(SECOND_MS)
    assert reclaim_aged(sweeper) == 0
    row = thread_row(database, "thread")
    assert (row["claimed_at"], row["window_ends_at"] - row["claimed_at"]) == (
        clock.now_ms - SECOND_MS,
        STILL.window_default_ms,
    )
    turn.finish("answer")


def test_sweeper_in_another_process_judges_by_the_claim(
    database: Database, clocked: Client, clock: DatabaseClock, child: Keep
) -> None:
    """B36: it knows nothing of the runner but the row."""

    def sweep() -> None:
        chat = Chatlock(database.url, tenant=TENANT, poller=False)
        clock.attach(chat)
        print(f"reclaimed {reclaim_aged(chat)}")

    record(database, clock, LONGEST_MS)
    chat = clocked()
    turn = begin(chat)
    for past_ms, reclaimed in ((41 * MINUTE_MS, 0), (WINDOW_MS - 42 * MINUTE_MS, 0), (2 * MINUTE_MS, 1)):
        clock.advance(past_ms)
        assert beat(chat, turn._core.claim) is not reclaimed
        process = child(Child.fork(sweep))
        assert process.wait_for("reclaimed") == f"reclaimed {reclaimed}"
        assert process.wait() == 0


def test_window_that_shrinks_frees_no_run_that_is_under_way(
    database: Database, clocked: Client, clock: DatabaseClock
) -> None:
    """B36: the claim keeps the window it was given; the next one gets the new window."""
    record(database, clock, LONGEST_MS)
    chat, sweeper = clocked(), clocked()
    turn = begin(chat)
    record(database, clock, 10 * SECOND_MS)
    for client in (chat, sweeper):
        client._sweep.observe_windows()
    clock.advance(41 * MINUTE_MS)
    assert beat(chat, turn._core.claim)
    assert reclaim_aged(sweeper) == 0
    turn.finish("answer")
    begin(chat, "next")
    row = thread_row(database, "next")
    assert row["window_ends_at"] - row["claimed_at"] == STILL.window_floor_ms


def test_poller_that_has_just_started_gives_the_window_of_the_history(
    database: Database, clocked: Client, clock: DatabaseClock
) -> None:
    """B36: the first turn that a new process takes from the queue is not given the default."""
    record(database, clock, LONGEST_MS)
    assert isinstance(clocked().submit("thread", "one", message_id="m1", wait_ms=0), Queued)
    new = clocked()
    given = []

    @new.handler()
    def answer(turn: Turn) -> str:
        row = thread_row(database, "thread")
        given.append(row["window_ends_at"] - row["claimed_at"])
        return "answer"

    assert new.sweep_once().turns == 1
    assert given == [WINDOW_MS]


# -- B37: one outlier --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("longest_ms", "runs", "window_ms"),
    [
        (None, 0, 10 * MINUTE_MS),
        (10 * SECOND_MS, 9, 10 * MINUTE_MS),
        (10 * SECOND_MS, 10, MINUTE_MS),
        (5 * MINUTE_MS, 10, 15 * MINUTE_MS),
        (6 * HOUR_MS, 101, 2 * HOUR_MS),
    ],
)
def test_window_is_three_times_the_longest_run_between_floor_and_cap(
    longest_ms: int | None, runs: int, window_ms: int
) -> None:
    """B37: the function that docs/recovery.md describes."""
    assert Limits().window_ms(longest_ms, runs) == window_ms


def short_runs(database: Database, clock: DatabaseClock, agent: str) -> None:
    """A hundred runs of 10 s that ended a while ago."""
    rows(
        database,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)"
        " INSERT INTO chatlock_turns (tenant, thread_id, incarnation, token, claim_id, agent, from_seq, to_seq, state,"
        " started_at, ended_at)"
        " SELECT 'history', :agent, 1, i, 'claim', :agent, i - 1, i, 'done', :start, :start + 10000 FROM n",
        agent=agent,
        start=clock.now_ms,
    )
    clock.advance(10 * SECOND_MS)


def overslept(chat: Chatlock, clock: DatabaseClock, turn: Turn) -> None:
    """Six hours without a beat (the laptop slept), finished before any sweep."""
    clock.advance(6 * HOUR_MS)
    turn.finish("answer")


def backwards(chat: Chatlock, clock: DatabaseClock, turn: Turn) -> None:
    """The clock stepped back while it ran."""
    clock.advance(-5 * SECOND_MS)
    turn.finish("answer")
    clock.advance(5 * SECOND_MS)


def silent(chat: Chatlock, clock: DatabaseClock, turn: Turn) -> None:
    """Reclaimed while silent; it reports its end an hour late."""
    clock.advance(LEASE_MS + 1)
    assert reclaim_aged(chat) == 1
    clock.advance(HOUR_MS)
    with pytest.raises(ClaimLost):
        turn.finish("late")


def too_slow(chat: Chatlock, clock: DatabaseClock, turn: Turn) -> None:
    """Reclaimed while it beat, past its window of 10 minutes; it reports its end after 15."""
    clock.advance(10 * MINUTE_MS - 1)
    assert beat(chat, turn._core.claim)
    clock.advance(2)
    assert reclaim_aged(chat) == 1
    clock.advance(5 * MINUTE_MS - 1)
    with pytest.raises(ClaimLost):
        turn.finish("late")


def freed(chat: Chatlock, clock: DatabaseClock, turn: Turn) -> None:
    """Ended by an operator's force; it reports its end an hour later."""
    assert chat.free(turn.key.thread, turn=turn.token, force=True).done
    clock.advance(HOUR_MS)
    with pytest.raises(ClaimLost):
        turn.finish("late")


OUTLIERS: dict[Callable[[Chatlock, DatabaseClock, Turn], None], tuple[int, int]] = {
    overslept: (10 * SECOND_MS, MINUTE_MS),
    too_slow: (15 * MINUTE_MS, 45 * MINUTE_MS),
    backwards: (10 * SECOND_MS, MINUTE_MS),
    silent: (10 * SECOND_MS, MINUTE_MS),
    freed: (10 * SECOND_MS, MINUTE_MS),
}
"""The longest run that each leaves in the history of its agent, and the window that follows."""


def test_outlier_stays_within_its_agent_and_the_cap(database: Database, clocked: Client, clock: DatabaseClock) -> None:
    """B37: after 100 runs of 10 s each agent sees one odd run; what was no healthy run does not count."""
    chat = clocked()
    for outlier in OUTLIERS:
        agent = outlier.__name__
        turn = begin(chat, agent, agent)
        outlier(chat, clock, turn)
    for outlier in OUTLIERS:
        short_runs(database, clock, outlier.__name__)
    short_runs(database, clock, "calm")
    clock.advance(windows.SETTLE_MS)
    chat._sweep.observe_windows()
    kept = rows(database, "SELECT agent, max(longest_ms) AS longest FROM chatlock_windows GROUP BY agent")
    given = {row["agent"]: (row["longest"], chat._flows.windows.of(row["agent"])) for row in kept}
    expected = {outlier.__name__: figures for outlier, figures in OUTLIERS.items()}
    assert given == {**expected, "calm": (10 * SECOND_MS, MINUTE_MS)}


def test_killed_run_is_recovered_without_waiting_for_a_long_window(
    database: Database, clocked: Client, clock: DatabaseClock
) -> None:
    """B37: the outlier holds no dead thread back: silence is judged by the lease."""
    record(database, clock, 6 * HOUR_MS, runs=101)
    chat, sweeper = clocked(), clocked()
    begin(chat)
    row = thread_row(database, "thread")
    assert row["window_ends_at"] - row["claimed_at"] == STILL.window_cap_ms
    clock.advance(LEASE_MS + 1)
    assert reclaim_aged(sweeper) == 1
    assert turn_states(database) == ["reclaimed"]
