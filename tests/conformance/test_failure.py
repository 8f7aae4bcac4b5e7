"""What failures cost: attempts, stalls, backoff, isolation, dead letters, parking, and what starts afresh."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from chatlock import AlreadyAnswered, Dead, Limits, Parked, Queued
from tests.conformance import rows
from tests.conformance.clocks import Sweeper, now
from tests.conformance.conftest import NewChat
from tests.support.databases import Database


def queue(chat: Any, *payloads: object) -> None:
    for payload in payloads:
        chat.submit("c1", payload, message_id=f"m{payload}", wait_ms=0)


def fail(chat: Any, database: Database, message: int = 1, times: int = 1) -> None:
    """Failed turns over the head of c1, each after its backoff."""
    for _ in range(times):
        rows.pass_backoff(database)
        with suppress(RuntimeError), chat.turn("c1", message, message_id=f"m{message}", wait_ms=0):
            raise RuntimeError("not today")


def counters(database: Database) -> tuple[int, int]:
    row = rows.thread_row(database)
    return row["attempts"], row["stalls"]


def held(turn: Any) -> list[Any]:
    return [message.payload for message in turn.messages]


# -- attempts and backoff ----------------------------------------------------------------------------------------------
def test_each_failure_is_one_attempt(chat: Any, database: Database) -> None:
    for attempts in (1, 2, 3):
        fail(chat, database)
        assert counters(database) == (attempts, 0)
        assert rows.dispositions(database) == ["pending"]


@pytest.mark.parametrize(("attempts", "backoff_ms"), [(1, 1000), (2, 2000), (3, 4000), (4, 5000)])
def test_backoff_doubles_to_its_maximum_within_its_jitter(
    new_chat: NewChat, database: Database, attempts: int, backoff_ms: int
) -> None:
    chat = new_chat(limits=Limits(backoff_ms=1000, backoff_max_ms=5000))
    fail(chat, database, times=attempts - 1)
    before = now(database)
    fail(chat, database)
    not_before = rows.thread_row(database)["not_before"]
    assert before + backoff_ms // 2 <= not_before <= now(database) + backoff_ms


def test_thread_in_backoff_is_due_at_its_end(chat: Any, database: Database) -> None:
    fail(chat, database)
    (due,) = rows.table(database, "chatlock_due")
    assert due["due_at"] == rows.thread_row(database)["not_before"] > now(database)


def test_thread_in_backoff_grants_no_claim(chat: Any, database: Database) -> None:
    fail(chat, database)
    chat.handler()(lambda turn: "ok")
    assert chat.submit("c1", 2, wait_ms=0).position == 1
    rows.execute(database, "UPDATE chatlock_due SET due_at = 0")  # too early: the thread decides, and stays due
    assert chat.sweep_once().turns == 0
    assert len(rows.table(database, "chatlock_due")) == 1
    assert rows.thread_row(database)["status"] == "idle"
    rows.pass_backoff(database)
    assert chat.sweep_once().turns == 1


def test_new_message_does_not_hurry_a_failed_one(chat: Any, database: Database) -> None:
    fail(chat, database)
    before = rows.thread_row(database)["not_before"]
    chat.submit("c1", 2, wait_ms=0)
    assert rows.thread_row(database)["not_before"] == before
    assert rows.table(database, "chatlock_due")[0]["due_at"] == before


@pytest.mark.parametrize("column", ["chatlock_threads SET not_before", "chatlock_due SET due_at"])
def test_backoff_beyond_its_maximum_counts_as_due(chat: Any, database: Database, column: str) -> None:
    """The database's clock has stepped back since it was written."""
    fail(chat, database)
    rows.pass_backoff(database)
    rows.execute(database, f"UPDATE {column} = {now(database) + 3_600_000}")
    chat.handler()(lambda turn: "ok")
    assert chat.sweep_once().turns == 1


def test_release_is_not_charged_and_clears_no_charge(chat: Any, database: Database) -> None:
    fail(chat, database, times=2)
    rows.pass_backoff(database)
    with chat.turn("c1", 1, message_id="m1", wait_ms=0) as turn:
        turn.release()
    assert counters(database) == (2, 0)
    assert rows.thread_row(database)["not_before"] == 0
    assert rows.table(database, "chatlock_due")[0]["due_at"] <= now(database)


# -- isolation and dead letters ----------------------------------------------------------------------------------------
def test_after_a_failure_the_oldest_message_runs_alone(chat: Any, database: Database) -> None:
    queue(chat, 1, 2, 3)
    fail(chat, database)
    rows.pass_backoff(database)
    with chat.turn("c1", 1, message_id="m1", wait_ms=0) as turn:
        assert held(turn) == [1]
        assert turn.fetch() == []
        turn.finish("alone")
    with chat.turn("c1", 2, message_id="m2", wait_ms=0) as turn:
        assert held(turn) == [2, 3]
        turn.finish("the rest")


def test_isolated_message_comes_in_a_fetch_of_its_own(chat: Any, database: Database) -> None:
    """That fetch is the proof of receipt: a turn that dies before it has cost no attempt."""
    fail(chat, database)
    rows.pass_backoff(database)
    seen: list[str] = []
    chat._executor.points = seen.append
    with chat.turn("c1", 1, message_id="m1", wait_ms=0) as turn:
        turn.finish("ok")
    assert seen.index("submit.commit") < seen.index("fetch.begin")


def test_only_the_oldest_message_becomes_dead(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(limits=Limits(attempts_max=2))
    queue(chat, 1, 2, 3)
    fail(chat, database, times=2)
    assert rows.dispositions(database) == ["dead", "pending", "pending"]
    assert chat.status("c1", "m1") == Dead(message_id="m1", seq=1, reason="RuntimeError")
    assert isinstance(chat.status("c1", "m2"), Queued)
    turn = rows.turns(database)[-1]
    assert (turn["state"], turn["from_seq"], turn["to_seq"]) == ("gave_up", 0, 1)


def test_successor_of_a_dead_message_starts_afresh(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(limits=Limits(attempts_max=2))
    queue(chat, 1, 2, 3)
    fail(chat, database, times=2)
    row = rows.thread_row(database)
    assert (row["attempts"], row["stalls"], row["not_before"], row["done_seq"]) == (0, 0, 0, 1)
    assert rows.table(database, "chatlock_due")[0]["due_at"] <= now(database)
    with chat.turn("c1", 2, message_id="m2", wait_ms=0) as turn:
        assert held(turn) == [2, 3]
        assert turn.previous_incomplete is None
        turn.finish("ok")


def test_dead_message_before_cancelled_ones_moves_the_thread_past_all(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(limits=Limits(attempts_max=1))
    queue(chat, 1, 2, 3)
    chat.cancel("c1", "m2")
    fail(chat, database)
    row = rows.thread_row(database)
    assert (row["done_seq"], row["holes"]) == (2, 0)
    assert rows.dispositions(database) == ["dead", "cancelled", "pending"]


def test_five_attempts_are_the_default(chat: Any, database: Database) -> None:
    fail(chat, database, times=4)
    assert rows.dispositions(database) == ["pending"]
    fail(chat, database)
    assert rows.dispositions(database) == ["dead"]


def test_cancelled_head_takes_its_charges_and_backoff_along(chat: Any, database: Database) -> None:
    queue(chat, 1, 2, 3)
    fail(chat, database, times=2)
    chat.cancel("c1", "m1")
    assert counters(database) == (0, 0)
    assert rows.thread_row(database)["not_before"] == 0
    assert rows.table(database, "chatlock_due")[0]["due_at"] <= now(database)
    with chat.turn("c1", 2, message_id="m2", wait_ms=0) as turn:
        assert held(turn) == [2, 3]
        turn.finish("ok")


def test_cancelled_follower_changes_no_charge_of_the_head(chat: Any, database: Database) -> None:
    queue(chat, 1, 2)
    fail(chat, database)
    before = rows.thread_row(database)
    chat.cancel("c1", "m2")
    after = rows.thread_row(database)
    assert (after["attempts"], after["not_before"]) == (before["attempts"], before["not_before"])


# -- stalls and parking ------------------------------------------------------------------------------------------------
def stall(chat: Any, database: Database, times: int = 1) -> None:
    """Turns over the head of c1 that died before anything proved that they had it."""
    for _ in range(times):
        rows.pass_backoff(database)
        turn = chat.begin("c1", 1, message_id="m1", wait_ms=0)
        rows.execute(database, "UPDATE chatlock_threads SET fetched_seq = done_seq WHERE status = 'running'")
        rows.pass_lease(database)
        assert Sweeper(chat).reclaim() == 1
        turn._core.end("left")


def test_turn_that_died_without_proof_of_receipt_is_a_stall(chat: Any, database: Database) -> None:
    stall(chat, database, times=2)
    assert counters(database) == (0, 2)
    assert rows.thread_row(database)["not_before"] > now(database)


def test_stalls_at_their_maximum_park_the_thread_and_lose_nothing(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(limits=Limits(stalls_max=2))
    queue(chat, 1, 2)
    stall(chat, database, times=2)
    assert rows.thread_row(database)["status"] == "parked"
    assert rows.dispositions(database) == ["pending", "pending"]
    assert chat.status("c1", "m1") == Parked(message_id="m1", seq=1)
    chat.handler()(lambda turn: "ok")
    assert chat.sweep_once().turns == 0
    assert rows.table(database, "chatlock_due") == []


def test_resumed_thread_starts_afresh(new_chat: NewChat, database: Database) -> None:
    chat = new_chat(limits=Limits(stalls_max=2))
    stall(chat, database, times=2)
    assert chat.resume("c1").done
    assert counters(database) == (0, 0)
    chat.handler()(lambda turn: "ok")
    assert chat.sweep_once().turns == 1
    assert isinstance(chat.status("c1", "m1"), AlreadyAnswered)


def test_twenty_stalls_are_the_default() -> None:
    assert Limits().stalls_max == 20


def test_stall_does_not_isolate(chat: Any, database: Database) -> None:
    queue(chat, 1, 2)
    stall(chat, database)
    rows.pass_backoff(database)
    with chat.turn("c1", 1, message_id="m1", wait_ms=0) as turn:
        assert held(turn) == [1, 2]
        turn.finish("ok")
