"""First use: many come at once to a thread that is not there yet (B01 to B03)."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from chatlock import (
    AlreadyAnswered,
    Answered,
    Chatlock,
    ClaimLost,
    Limits,
    StoreUnavailable,
    TurnNotGranted,
    dialects,
    executor,
)
from chatlock.ops import fence, hot
from chatlock.ops.base import b
from chatlock.schema import sessions
from tests.acceptance.cases.support import (
    SECONDS_MAX,
    TENANT,
    Points,
    age_claim,
    assert_invariants,
    message_rows,
    quiesce,
    reclaim_aged,
    rows,
    skip_backoff,
    turn_rows,
    until,
    wait_blocked,
)
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.acceptance.cases.support import Agent, Callers
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]
    Keep = Callable[[Child], Child]

WORKERS = 8
PROCESSES = 2
FORK = multiprocessing.get_context("fork")


# -- B01: concurrent first use of one thread ---------------------------------------------------------------------------
class Creations:
    """The external service of B01: makes conversations, holds the first until all have come, and may fail it."""

    def __init__(self, database: Database, *, first_fails: bool) -> None:
        self._database, self._first_fails = database, first_fails
        self._begun = FORK.Value("i", 0)

    @property
    def begun(self) -> int:
        """How many conversations were begun, in all processes."""
        return int(self._begun.value)

    def create(self, step_key: str) -> str:
        """Makes a conversation."""
        with self._begun.get_lock():
            self._begun.value += 1
            number = self._begun.value
        assert not rows(self._database, "SELECT 1 FROM chatlock_sessions"), "half-made, or made twice"
        if number == 1:
            until(lambda: len(message_rows(self._database, "new")) == WORKERS, what="the others' messages")
            if self._first_fails:
                raise RuntimeError("the service is down")
        return f"conversation-{number}"


def first_users(database: Database, creations: Creations, barrier: Any, process: int) -> None:
    """One process of B01: its workers come to the new thread together, and print what each of them got."""

    def come(worker: int) -> dict[str, Any]:
        barrier.wait(SECONDS_MAX)
        message_id = f"m-{process}-{worker}"
        try:
            with chat.turn("new", "hello", message_id=message_id, wait_ms=None) as turn:
                turn.finish(turn.session("conversation", creations.create))
            return {"id": message_id, "got": "turn"}
        except TurnNotGranted as refused:
            got = refused.outcome
            assert isinstance(got, AlreadyAnswered), got
            return {"id": message_id, "got": "reply", "reply": got.reply}
        except RuntimeError as error:
            return {"id": message_id, "got": "error", "error": str(error)}

    with (
        Chatlock(database.url, tenant=TENANT, poller=False, limits=Limits(backoff_ms=1)) as chat,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        for told in pool.map(come, range(WORKERS // PROCESSES)):
            print("told", json.dumps(told))


@pytest.mark.parametrize("first_fails", [False, True], ids=["made", "first_creator_fails"])
def test_concurrent_first_use_keeps_one_conversation(
    database: Database, client: Client, child: Keep, first_fails: bool
) -> None:
    """B01: eight first messages in two processes, one conversation; a creator that fails is followed by one other."""
    creations, barrier = Creations(database, first_fails=first_fails), FORK.Barrier(WORKERS)
    users = [
        child(Child.fork(lambda process=n: first_users(database, creations, barrier, process)))
        for n in range(PROCESSES)
    ]
    assert [user.wait() for user in users] == [0] * PROCESSES, [user.text for user in users]
    told = [json.loads(line[5:]) for user in users for line in user.text.splitlines() if line.startswith("told")]

    made = f"conversation-{1 + first_fails}"
    assert creations.begun == 1 + first_fails
    assert [row["value"] for row in rows(database, "SELECT value FROM chatlock_sessions")] == [made]
    assert len(rows(database, "SELECT 1 FROM chatlock_threads")) == 1
    assert {one["reply"] for one in told if one["got"] == "reply"} <= {made}
    errors = [one for one in told if one["got"] == "error"]
    assert [one["error"] for one in errors] == ["the service is down"] * first_fails
    done = [turn for turn in turn_rows(database, "new") if turn["state"] == "done"]
    assert {json.loads(turn["reply"]) for turn in done} == {made}
    chat = client(database)
    quiesce(chat, database)
    assert len(message_rows(database, "new")) == WORKERS
    assert_invariants(database, chat)


def session_after_a_takeover(database: Database, chat: Chatlock, callers: Callers) -> tuple[str, BaseException | None]:
    """What is retained when a creator comes back after its claim was lost, and how its call ended."""
    stale = chat.begin("new", "first")
    ended: list[BaseException] = []

    def take_over() -> None:
        with chat.turn("new", "second", wait_ms=None) as turn:
            turn.finish(turn.session("conversation", lambda key: "taken-over"))

    def create_too_slowly(step_key: str) -> str:
        age_claim(database, "new")
        assert reclaim_aged(chat) == 1
        skip_backoff(database)
        callers.call(take_over).result(SECONDS_MAX)
        return "too-late"

    try:
        stale.session("conversation", create_too_slowly)  # type: ignore[union-attr]
    except ClaimLost as error:
        ended.append(error)
    (kept,) = rows(database, "SELECT value FROM chatlock_sessions")
    return kept["value"], ended[0] if ended else None


def test_creator_whose_claim_was_lost_keeps_nothing(database: Database, client: Client, callers: Callers) -> None:
    """B01: the slow creator of a reclaimed turn is refused; what its successor made stays."""
    kept, ended = session_after_a_takeover(database, client(database, heartbeat=False), callers)
    assert (kept, type(ended)) == ("taken-over", ClaimLost)


def test_control_without_the_claim_and_the_insert_a_late_creator_wins(
    database: Database, client: Client, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of B01: check-then-create without a claim replaces the conversation."""

    def overwrite(insert: Any) -> Any:
        new = insert(sessions).values(
            tenant=b("tenant"), thread_id=b("thread"), name=b("name"), value=b("value"), token=b("token")
        )
        key = [sessions.c.tenant, sessions.c.thread_id, sessions.c.name]
        return new.on_conflict_do_update(index_elements=key, set_={"value": new.excluded.value})

    monkeypatch.setattr(fence, "mine", lambda conn, claim: None)
    monkeypatch.setattr(fence, "KEEP", dialects.per_dialect(overwrite))
    kept, ended = session_after_a_takeover(database, client(database, heartbeat=False), callers)
    assert (kept, ended) == ("too-late", None)


# -- B02: two first writes ---------------------------------------------------------------------------------------------
def meet_at_the_row(
    database: Database, serving: Client, callers: Callers, *, first_rolls_back: bool
) -> tuple[Any, Any]:
    """A inserts the thread's row and is held before its commit; B comes and waits; A ends.  Both futures."""
    first, second = serving(database), serving(database)
    points = Points(first)
    gate = points.hold("submit_hot.commit")

    def end() -> None:
        if first_rolls_back:
            raise RuntimeError("rolled back by the test")

    inserted = callers.submit(first, "new", "one", message_id="m1")
    gate.wait_entered()
    points.on("submit_hot.commit", end)
    came = Points(second)
    waits = callers.submit(second, "new", "two", message_id="m2")
    wait_blocked(database, came, "submit_hot")
    assert not waits.done()
    gate.open()
    return inserted, waits


def test_second_first_message_waits_for_the_row_and_is_stored(
    database: Database, serving: Client, callers: Callers
) -> None:
    """B02: the loser of the insert reads the winner's row again: two of two messages, no error."""
    inserted, waits = meet_at_the_row(database, serving, callers, first_rolls_back=False)
    assert isinstance(inserted.result(SECONDS_MAX), Answered)
    assert isinstance(waits.result(SECONDS_MAX), Answered | AlreadyAnswered)
    assert [m["message_id"] for m in message_rows(database, "new")] == ["m1", "m2"]
    chat = serving(database)
    quiesce(chat, database)
    assert_invariants(database, chat, told=callers.told)


def test_second_first_message_is_stored_if_the_first_is_rolled_back(
    database: Database, serving: Client, callers: Callers
) -> None:
    """B02: the insert of the one that waited wins."""
    inserted, waits = meet_at_the_row(database, serving, callers, first_rolls_back=True)
    assert isinstance(inserted.exception(SECONDS_MAX), RuntimeError)
    assert isinstance(waits.result(SECONDS_MAX), Answered)
    assert [(m["message_id"], m["seq"]) for m in message_rows(database, "new")] == [("m2", 1)]
    assert_invariants(database, serving(database), told=callers.told)


def test_control_a_plain_insert_drops_the_second_first_message(
    pg_database: Database, serving: Client, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of B02: without ON CONFLICT the loser gets a constraint error, and its message is gone."""
    monkeypatch.setattr(hot, "INIT_POSTGRESQL", hot.INIT_POSTGRESQL.replace("ON CONFLICT DO NOTHING", ""))
    _, waits = meet_at_the_row(pg_database, serving, callers, first_rolls_back=False)
    assert isinstance(waits.exception(SECONDS_MAX), StoreUnavailable)
    assert [m["message_id"] for m in message_rows(pg_database, "new")] == ["m1"]


# -- B03: benign conflicts ---------------------------------------------------------------------------------------------
UNRELATED = ("priority = priority + 1", "created_at = created_at + 1", "beat = beat + 1", "owner = 'someone'")


class Conflicts:
    """A background writer: before each attempt of the product it bumps an unrelated column, and the attempt loses."""

    def __init__(self, database: Database, points: Points, times: int) -> None:
        self.lost, self._database, self._times = 0, database, times
        points.on("submit_hot.begin", self._bump)
        points.on("submit_hot.commit", self._lose)

    def _bump(self) -> None:
        column = UNRELATED[self.lost % len(UNRELATED)]
        rows(self._database, f"UPDATE chatlock_threads SET {column} WHERE status = 'idle'")

    def _lose(self) -> None:
        """Raises what the database says to the loser of a conflict."""
        if self.lost < self._times:
            self.lost += 1
            if self._database.kind == "postgresql":
                raise psycopg.errors.SerializationFailure("forced by the test")
            busy = sqlite3.OperationalError("forced by the test")
            busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise busy


def test_message_survives_every_conflict_that_it_loses(database: Database, serving: Client, callers: Callers) -> None:
    """B03: a first message, and a later one, that lose one to five times are still stored once and answered."""
    chat = serving(database)
    for times in range(1, 6):
        for payload in ("first", "later"):
            conflicts = Conflicts(database, Points(chat), times)
            assert isinstance(callers.ask(chat, f"thread-{times}", payload), Answered)
            assert conflicts.lost == times
    assert_invariants(database, chat, told=callers.told)


def test_control_without_retries_the_message_is_dropped(
    database: Database, serving: Client, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of B03: with no retry left a benign conflict refuses an honest message."""
    monkeypatch.setattr(executor, "CONFLICTS_MAX", 0)
    monkeypatch.setattr(executor, "BUSY_S", -1.0)
    chat = serving(database)
    Conflicts(database, Points(chat), 1)
    with pytest.raises(StoreUnavailable):
        callers.ask(chat, "new", "hello")
    assert not message_rows(database, "new")


def test_claim_is_not_invalidated_by_a_write_beside_it(
    database: Database, serving: Client, agent: Agent, callers: Callers
) -> None:
    """B03: another writer changes the row between the waiter's look and its claim; one attempt is enough."""
    chat = serving(database)
    points = Points(chat)
    for number, column in enumerate(UNRELATED, 1):
        gate = agent.hold("thread")
        first = callers.submit(chat, "thread", "one")
        gate.wait_entered()
        second = callers.submit(chat, "thread", "two")
        until(lambda stored=2 * number: len(message_rows(database, "thread")) == stored, what="the second message")
        bump = f"UPDATE chatlock_threads SET {column} WHERE status = 'idle'"
        points.on("claim.begin", lambda statement=bump: rows(database, statement))
        gate.open()
        assert isinstance(first.result(SECONDS_MAX), Answered)
        assert isinstance(second.result(SECONDS_MAX), Answered)
        assert points.passed.count("claim.begin") == number
    assert_invariants(database, chat, told=callers.told)
