"""A turn that died is taken over once, its zombie writes nothing, and a healthy one is never hit by a late sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from sqlalchemy import select

from chatlock import Answered, Chatlock, ClaimLost, Queued, StoreUnavailable, Turn, sweep
from chatlock.dialects import BEGIN
from chatlock.ops import fence, unanswered
from chatlock.ops.base import of_thread
from chatlock.schema import threads
from tests.acceptance.cases.recovery import (
    LATE,
    STILL,
    beat,
    dispositions,
    dump,
    hundred_stale,
    no_message_to_blame,
    no_room_for_the_answer,
    statements_of,
    turn_states,
)
from tests.acceptance.cases.support import (
    SECONDS_MAX,
    TENANT,
    Points,
    SetClock,
    age_claim,
    assert_invariants,
    message_rows,
    quiesce,
    reclaim_aged,
    rows,
    skip_backoff,
    stop_here,
    thread_row,
    turn_rows,
)
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.acceptance.cases.support import Agent, Callers, Journal
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]
    Keep = Callable[[Child], Child]


# -- B34: stuck running after a crash ----------------------------------------------------------------------------------
def die_in_turn(database: Database, *, after_a_beat: bool) -> None:
    """A process whose handler stops where the test kills it."""
    chat = Chatlock(database.url, tenant=TENANT, poller=False)

    @chat.handler()
    def answer(turn: Turn) -> None:
        if after_a_beat:
            assert beat(chat, turn._core.claim)
        stop_here("handler")

    chat.submit("thread", "m1", message_id="m1")


@pytest.mark.parametrize(
    ("recovery", "after_a_beat"),
    [("a sweep", False), ("a sweep", True), ("a submit and the next sweep", False), ("free", True)],
)
def test_thread_of_a_killed_process_is_freed_once_and_served(
    database: Database,
    serving: Client,
    callers: Callers,
    journal: Journal,
    child: Keep,
    recovery: str,
    after_a_beat: bool,
) -> None:
    """B34: kill -9 inside the handler, with m2 queued behind it."""
    process = child(Child.fork(lambda: die_in_turn(database, after_a_beat=after_a_beat)))
    process.wait_for("stopped at handler")
    chat = serving(database)
    assert isinstance(callers.ask(chat, "thread", "m2", message_id="m2", wait_ms=0), Queued)
    process.kill()
    age_claim(database, "thread")
    expected = {"m1": "answered", "m2": "answered"}
    if recovery == "free":
        assert chat.free("thread", turn=1).reason == "freed"
        assert chat.free("thread", turn=1).reason == "not_running"
    else:
        if recovery == "a submit and the next sweep":
            assert isinstance(callers.ask(chat, "thread", "m3", message_id="m3", wait_ms=0), Queued)
            expected["m3"] = "answered"
        assert reclaim_aged(chat) == 1
        assert reclaim_aged(chat) == 0
    row = thread_row(database, "thread")
    assert (row["status"], row["token"]) == ("idle", 2)
    assert (row["attempts"], row["stalls"]) == ((1, 0) if after_a_beat else (0, 1))
    assert row["not_before"] > turn_rows(database, "thread")[0]["ended_at"]
    quiesce(chat, database)
    assert dispositions(database) == expected
    # after an attempt the oldest message is taken alone; a stall says nothing of the messages
    assert journal.enters()[0].ids == (("m1",) if after_a_beat else tuple(expected))
    assert_invariants(database, chat, journal=journal, told=callers.told)


def test_waiter_behind_a_killed_process_gets_its_answer(
    database: Database, serving: Client, callers: Callers, child: Keep
) -> None:
    """B34: the fresh submit waits through the crash, and runs the turn itself once the thread is free."""
    process = child(Child.fork(lambda: die_in_turn(database, after_a_beat=False)))
    process.wait_for("stopped at handler")
    process.kill()
    chat, sweeper = serving(database), serving(database)
    fresh = callers.submit(chat, "thread", "m2", message_id="m2")
    age_claim(database, "thread")
    assert reclaim_aged(sweeper) == 1
    skip_backoff(database)
    assert isinstance(fresh.result(SECONDS_MAX), Answered)
    quiesce(chat, database)
    assert_invariants(database, chat, told=callers.told)


def test_two_sweepers_free_a_dead_turn_once(database: Database, client: Client, callers: Callers) -> None:
    """B34: both saw it stale; one conditional update frees it, the other changes nothing."""
    client(database, limits=STILL).begin("thread", "one", message_id="m1")
    age_claim(database, "thread")
    first, second = client(database), client(database)
    held = Points(second).hold("reclaim.begin")
    late = callers.call(reclaim_aged, second)
    held.wait_entered()
    assert reclaim_aged(first) == 1
    freed = dump(database)
    held.open()
    assert late.result(SECONDS_MAX) == 0
    assert dump(database) == freed
    assert thread_row(database, "thread")["token"] == 2


def test_sweeps_of_a_thread_in_backoff_send_few_and_equal_statements(database: Database, serving: Client) -> None:
    """B34: no busy loop: after the reclaim every sweep asks the same few questions until the backoff has passed."""
    chat = serving(database)
    serving(database, limits=STILL).begin("thread", "one", message_id="m1")
    age_claim(database, "thread")
    assert reclaim_aged(chat) == 1
    rows(database, "UPDATE chatlock_threads SET not_before = not_before + 30000")
    rows(database, "UPDATE chatlock_due SET due_at = due_at + 30000")
    sent = []
    for _ in range(5):
        with statements_of(chat) as statements:
            assert chat._sweep.reclaim_stale() == 0
            assert chat._sweep.claim_due(["default"], 100) == []
        sent.append(len(statements))
    assert sent == [2] * 5


# -- B35: the claim ends before the turn does --------------------------------------------------------------------------
@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[sqlalchemy.Engine]:
    """The application's own engine, with a table of its own."""
    name = "database" if "database" in request.fixturenames else "pg_database"
    made = sqlalchemy.create_engine(request.getfixturevalue(name).url)
    with made.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE app_writes (token integer)")
    yield made
    made.dispose()


def product_write(chat: Any, turn: Turn, engine: sqlalchemy.Engine) -> None:
    """What an application writes under the fence, in its own transaction."""
    with engine.begin() as conn:
        turn.fence(conn)
        conn.exec_driver_sql(f"INSERT INTO app_writes VALUES ({turn.token})")


def try_everything(database: Database, chat: Any, turn: Turn, engine: sqlalchemy.Engine) -> None:
    """Every write that a stale turn may try is refused, and no row changes."""
    before, claim = dump(database), turn._core.claim
    with pytest.raises(ClaimLost):
        product_write(chat, turn, engine)
    for name, write in LATE.items():
        try:
            taken = write(chat, claim)
        except ClaimLost:
            taken = None
        assert not taken, name
    with pytest.raises(ClaimLost), engine.begin() as conn:
        turn.finish("late", conn=conn)
    with pytest.raises(ClaimLost):
        turn.finish("late")
    assert turn.lost
    assert turn.release() is False
    assert dump(database) == before


@pytest.mark.parametrize("first_to_end", ["the stale turn", "the new turn"])
def test_stale_turn_beside_its_successor_writes_nothing(
    database: Database,
    client: Client,
    agent: Agent,
    serving: Client,
    callers: Callers,
    engine: sqlalchemy.Engine,
    first_to_end: str,
) -> None:
    """B35: a lease that passed during a slow turn; a second worker took over and is inside its turn."""
    slow, second = client(database, limits=STILL), serving(database, limits=STILL)
    stale = slow.begin("thread", "one", message_id="m1")
    assert isinstance(stale, Turn)
    age_claim(database, "thread")
    assert reclaim_aged(second) == 1
    gate = agent.hold("thread")
    skip_backoff(database)
    swept = callers.call(second.sweep_once)
    gate.wait_entered()
    if first_to_end == "the stale turn":
        try_everything(database, slow, stale, engine)
    gate.open()
    assert swept.result(SECONDS_MAX).turns == 1
    if first_to_end == "the new turn":
        try_everything(database, slow, stale, engine)
    assert rows(database, "SELECT * FROM app_writes") == []
    assert turn_states(database) == ["reclaimed", "done"]
    (message,) = message_rows(database, "thread")
    assert (message["disposition"], message["turn_token"]) == ("answered", 3)
    assert [turn["token"] for turn in turn_rows(database, "thread") if turn["reply"] is not None] == [3]
    quiesce(second, database)
    assert_invariants(database, second)


def test_fence_that_forgets_the_token_is_found(
    pg_database: Database,
    client: Client,
    agent: Agent,
    serving: Client,
    callers: Callers,
    engine: sqlalchemy.Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B35's control."""
    unfenced = select(threads.c.token).where(of_thread(threads), threads.c.status == "running").with_for_update()
    monkeypatch.setattr(fence, "FENCE_PG", unfenced)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_stale_turn_beside_its_successor_writes_nothing(
            pg_database, client, agent, serving, callers, engine, "the stale turn"
        )


# -- B40: the sweep comes late -----------------------------------------------------------------------------------------
def finished(chat: Chatlock, turn: Turn, database: Database) -> None:
    """The run finished after all."""
    turn.finish("answer")


def replaced(chat: Chatlock, turn: Turn, database: Database) -> None:
    """It finished, and a new turn runs."""
    turn.finish("answer")
    assert isinstance(chat.begin("thread", "two", message_id="m2"), Turn)


def replaced_and_stale(chat: Chatlock, turn: Turn, database: Database) -> None:
    """It finished, and a new turn runs and is stale already: that one was not observed."""
    replaced(chat, turn, database)
    age_claim(database, "thread")


def beaten(chat: Chatlock, turn: Turn, database: Database) -> None:
    """A heartbeat came."""
    assert beat(chat, turn._core.claim)


def beaten_and_stale(chat: Chatlock, turn: Turn, database: Database) -> None:
    """A heartbeat came, and its lease has passed too: that beat was observed once at most."""
    beaten(chat, turn, database)
    age_claim(database, "thread")


@pytest.mark.parametrize("between", [finished, replaced, replaced_and_stale, beaten, beaten_and_stale])
def test_sweep_that_comes_late_changes_nothing(
    database: Database, client: Client, callers: Callers, between: Callable[[Chatlock, Turn, Database], None]
) -> None:
    """B40: something happened between the sweep's reading of its candidates and its update."""
    chat, sweeper = client(database, limits=STILL), client(database)
    turn = chat.begin("thread", "one", message_id="m1")
    assert isinstance(turn, Turn)
    age_claim(database, "thread")
    held = Points(sweeper).hold("reclaim.begin")
    swept = callers.call(reclaim_aged, sweeper)
    held.wait_entered()
    between(chat, turn, database)
    before = dump(database)
    held.open()
    assert swept.result(SECONDS_MAX) == 0
    assert dump(database) == before


@pytest.mark.parametrize("between", [replaced, beaten])
def test_reclaim_that_trusts_its_reading_is_found(
    database: Database,
    client: Client,
    callers: Callers,
    monkeypatch: pytest.MonkeyPatch,
    between: Callable[[Chatlock, Turn, Database], None],
) -> None:
    """B40's control: the update judges nothing by itself."""
    trusting = select((threads.c.window_ends_at <= threads.c.expires_at).label("at_window")).where(
        of_thread(threads), threads.c.status == "running"
    )
    monkeypatch.setattr(unanswered, "STALE", trusting)
    with pytest.raises(AssertionError):
        test_sweep_that_comes_late_changes_nothing(database, client, callers, between)


def test_sweep_beside_a_claim_that_is_being_written_touches_nothing(
    database: Database, client: Client, serving: Client, callers: Callers
) -> None:
    """B40: the claim's update is done and not committed: no sweep frees it, and none claims beside it."""
    assert isinstance(client(database).submit("thread", "one", message_id="m1", wait_ms=0), Queued)
    claiming, sweeper = client(database), serving(database)
    held = Points(claiming).hold("submit.commit")
    begun = callers.call(claiming.begin, "thread", "one", message_id="m1")
    held.wait_entered()
    clock = SetClock()
    assert reclaim_aged(sweeper, clock) == 0
    swept = callers.call(sweeper.sweep_once)
    if database.kind == "postgresql":  # a locked thread is left alone; SQLite's only writer is waited for
        swept.result(SECONDS_MAX)
    held.open()
    turn = begun.result(SECONDS_MAX)
    assert isinstance(turn, Turn)
    assert (swept.result(SECONDS_MAX).reclaimed, swept.result(SECONDS_MAX).turns) == (0, 0)
    assert reclaim_aged(sweeper, clock) == 0
    assert turn_states(database) == ["running"]
    assert [turn["token"] for turn in turn_rows(database, "thread")] == [1]
    turn.finish("answer")
    quiesce(sweeper, database)
    assert_invariants(database, sweeper)


def test_statement_that_judges_a_claim_stale_locks_its_row(database: Database, client: Client) -> None:
    """B40: within one transaction the judgement comes first and holds the row until the update is committed."""
    chat, sweeper = client(database, limits=STILL), client(database)
    chat.begin("thread", "one", message_id="m1")
    age_claim(database, "thread")
    clock = SetClock()
    sweeper._sweep._monotonic = clock
    assert sweeper._sweep.reclaim_stale() == 0
    clock.now_s += sweeper._sweep._gap_s
    with statements_of(sweeper) as sent:
        assert sweeper._sweep.reclaim_stale() == 1
    start = sent.index(BEGIN[database.kind])
    assert sent.count(BEGIN[database.kind]) == sent.count("COMMIT") == 1
    judging = sent[start + 1]
    assert "expires_at <" in judging
    assert database.kind == "sqlite" or judging.rstrip().endswith("FOR NO KEY UPDATE SKIP LOCKED")
    writing = [text for text in sent if text.startswith("UPDATE chatlock_threads")]
    assert len(writing) == 1
    assert start < sent.index(writing[0]) < sent.index("COMMIT")


def test_threads_that_cannot_be_recovered_stop_no_other(
    database: Database, client: Client, serving: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """B42: a hundred stale threads, and the recovery of two of them raises; the others need one sweep and no SQL."""
    hundred_stale(database, client)
    no_room_for_the_answer(database, "t37")
    no_message_to_blame(database, "t73")
    sweeper = serving(database)
    assert reclaim_aged(sweeper) == 98
    reports = [record for record in caplog.records if record.message == "reclaim.failed"]
    assert [report.levelname for report in reports] == ["ERROR"] * 2
    skip_backoff(database)
    assert sweeper.sweep_once().turns == 98
    left = rows(
        database,
        "SELECT DISTINCT thread_id FROM chatlock_messages WHERE disposition <> 'answered' ORDER BY thread_id",
    )
    assert [row["thread_id"] for row in left] == ["t37", "t73"]


def test_recovery_that_is_not_isolated_is_found(
    sqlite_database: Database,
    client: Client,
    serving: Client,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B42's control."""
    monkeypatch.setattr(sweep, "_alone", lambda op: op)
    with pytest.raises(StoreUnavailable):
        test_threads_that_cannot_be_recovered_stop_no_other(sqlite_database, client, serving, caplog)
