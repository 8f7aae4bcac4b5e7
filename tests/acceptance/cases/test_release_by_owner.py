"""Only the owner ends a turn, and no row of a thread is out of reach of recovery."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import psycopg
import pytest

from chatlock import AlreadyAnswered, Chatlock, ChatlockError, Gone, Turn
from chatlock.ops import unanswered
from chatlock.ops.base import lock
from chatlock.protocol import TurnState
from tests.acceptance.cases.recovery import dispositions, dump, turn_states
from tests.acceptance.cases.support import (
    SECONDS_MAX,
    TENANT,
    age_claim,
    assert_invariants,
    quiesce,
    reclaim_aged,
    rows,
    skip_backoff,
    until,
)
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable

    from chatlock.inputs import Key
    from tests.acceptance.cases.support import Agent, Callers
    from tests.support.databases import Database

    Client = Callable[..., Chatlock]
    Keep = Callable[[Child], Child]


# -- B33: release by the wrong owner -----------------------------------------------------------------------------------
ENDINGS: dict[str, Callable[[Chatlock, Turn], object]] = {
    "release": lambda chat, turn: turn.release(),
    "fail": lambda chat, turn: turn.fail("late"),
    "finish": lambda chat, turn: turn.finish("late"),
    "close": lambda chat, turn: chat.close(),
}


def pause_in_turn(database: Database, ending: str) -> None:
    """A process that is paused inside its turn and, when it goes on, ends it."""
    chat = Chatlock(database.url, tenant=TENANT, poller=False)
    turn = chat.begin("thread", "one", message_id="m1")
    assert isinstance(turn, Turn)
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        print(f"ended with {ENDINGS[ending](chat, turn)!r}")
    except ChatlockError as error:
        print(f"ended with {type(error).__name__}")


@pytest.mark.parametrize("ending", ENDINGS)
def test_turn_that_was_paused_and_reclaimed_cannot_end_its_successor(
    database: Database, serving: Client, agent: Agent, callers: Callers, child: Keep, ending: str
) -> None:
    """B33: SIGSTOP inside turn 1; turn 2 holds the thread when turn 1 goes on and ends."""
    process = child(Child.fork(lambda: pause_in_turn(database, ending)))
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, what="a paused process")
    chat = serving(database)
    age_claim(database, "thread")
    assert reclaim_aged(chat) == 1
    gate = agent.hold("thread")
    skip_backoff(database)
    second = callers.submit(chat, "thread", "two", message_id="m2")
    gate.wait_entered()
    held = dump(database)
    process.send(signal.SIGCONT)
    refusals = {"release": "False", "fail": "ClaimLost", "finish": "ClaimLost", "close": "None"}
    assert process.wait_for("ended with") == f"ended with {refusals[ending]}"
    assert process.wait() == 0
    assert dump(database) == held
    gate.open()
    second.result(SECONDS_MAX)
    quiesce(chat, database)
    assert dispositions(database) == {"m1": "answered", "m2": "answered"}
    assert turn_states(database) == ["reclaimed", "done"]
    assert_invariants(database, chat, told=callers.told)


def release_whoever_holds(conn: Any, key: Key, claim_id: str) -> bool:
    """release without its guard: the claim_id."""
    row = lock(conn, key)
    assert row is not None
    unanswered.end_unanswered(conn, key, row, state=TurnState.RELEASED, charged=unanswered.uncharged(row))
    return True


def test_release_without_its_guard_is_found(
    pg_database: Database,
    serving: Client,
    agent: Agent,
    callers: Callers,
    child: Keep,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B33's control."""
    monkeypatch.setattr(unanswered, "release", release_whoever_holds)
    with pytest.raises(AssertionError, match="ended with True"):
        test_turn_that_was_paused_and_reclaimed_cannot_end_its_successor(
            pg_database, serving, agent, callers, child, "release"
        )


# -- B33: every combination of a thread's row --------------------------------------------------------------------------
TOKEN = 7


class Row(NamedTuple):
    """A thread's row, and whether its token has a running turn."""

    status: str
    claim_id: bool
    expires_at: bool
    turn: bool

    @property
    def thread(self) -> str:
        """The id of the thread that has this row."""
        return f"{self.status}, claim_id {self.claim_id}, expires_at {self.expires_at}, turn {self.turn}"


STATUSES = ("idle", "running", "parked", "deleted")
ROWS = [Row(*values) for values in itertools.product(STATUSES, *[(False, True)] * 3)]
REPORTED = "verify reports it"
FATES = {
    Row("idle", False, False, False): "answered",
    Row("idle", False, False, True): REPORTED,
    Row("running", True, True, False): REPORTED,
    Row("running", True, True, True): "answered",
    Row("parked", False, False, False): "answered",
    Row("parked", False, False, True): REPORTED,
    Row("deleted", False, False, False): "gone",
    Row("deleted", False, False, True): REPORTED,
}
"""What becomes of the message of each row that the constraints let in."""


def put(database: Database, row: Row) -> None:
    """Writes the row with one pending message, past the product; a constraint may refuse it."""
    names = {"tenant": TENANT, "thread": row.thread}
    rows(
        database,
        "INSERT INTO chatlock_threads"
        " (tenant, thread_id, status, token, claim_id, expires_at, window_ends_at, last_seq, created_at)"
        " VALUES (:tenant, :thread, :status, 7, :claim, :expires, :window, 1, 0)",
        status=row.status,
        claim="claim" if row.claim_id else None,
        expires=1 if row.expires_at else None,
        window=1 if row.status == "running" else None,
        **names,
    )
    rows(
        database,
        "INSERT INTO chatlock_messages"
        " (tenant, thread_id, incarnation, seq, message_id, payload, payload_hash, received_at)"
        " VALUES (:tenant, :thread, 1, 1, 'm1', '1', 'hash', 0)",
        **names,
    )
    if row.status == "idle":
        rows(database, "INSERT INTO chatlock_due VALUES (:tenant, :thread, 0, 0, 0)", **names)
    if row.turn:
        rows(
            database,
            "INSERT INTO chatlock_turns (tenant, thread_id, incarnation, token, claim_id, from_seq, started_at)"
            " VALUES (:tenant, :thread, 1, 7, 'claim', 0, 0)",
            **names,
        )


def fate(database: Database, chat: Chatlock, row: Row, reported: set[str]) -> str:
    """What became of the row's message after sweeps, and a resume where it was parked."""
    outcome = chat.status(row.thread, "m1")
    if isinstance(outcome, AlreadyAnswered):
        return "answered"
    if row.thread in reported:
        return REPORTED
    return "gone" if isinstance(outcome, Gone) else "silent"


def test_every_row_is_forbidden_served_or_reported(database: Database, serving: Client) -> None:
    """B33: of every combination a constraint forbids the row, or recovery serves its message, or verify names it.

    Only what two tables say together is left to verify: each operation writes both in one transaction, and a thread
    whose rows contradict each other keeps no sweep from serving the others.
    """
    chat = serving(database)
    admitted = []
    for row in ROWS:
        try:
            put(database, row)
        except (sqlite3.IntegrityError, psycopg.IntegrityError):
            continue
        admitted.append(row)
    reported = {breach.thread for breach in chat.verify().breaches}
    for row in admitted:
        if row.status == "parked":
            assert chat.resume(row.thread).done
    reclaim_aged(chat)
    quiesce(chat, database)
    assert {row: fate(database, chat, row, reported) for row in admitted} == FATES
