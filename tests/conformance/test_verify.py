"""verify: silent on every healthy state, and each of its checks red on a database corrupted for it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from chatlock import Chatlock, Limits
from chatlock.ops.verify import CHECKS, EXAMPLES_MAX, verify
from tests.conformance import rows
from tests.support.databases import Database

ANSWERED = "thread_id = 'answered'"
RUNNING = "thread_id = 'running'"
PENDING = "thread_id = 'pending'"
NO_CLAIM = "claim_id = NULL, owner = NULL, claimed_at = NULL, expires_at = NULL, window_ends_at = NULL, lease_ms = NULL"
FAR = 9_000_000_000_000

# name -> the statements that break it alone, or with the checks named after them
CORRUPTIONS: dict[str, list[str]] = {
    "S.one_running_turn": [
        f"UPDATE chatlock_turns SET state = 'released', ended_at = started_at WHERE {RUNNING} AND ended_at IS NULL"
    ],
    "S.turn_without_claim": [
        f"UPDATE chatlock_threads SET status = 'idle', {NO_CLAIM} WHERE {RUNNING}",
        "INSERT INTO chatlock_due(tenant, thread_id, due_at) VALUES ('t', 'running', 1)",
    ],
    "S.stop": [f"UPDATE chatlock_threads SET cancel_token = token - 1, cancel_until = 1 WHERE {RUNNING}"],
    "T.token": [f"UPDATE chatlock_threads SET token = 1 WHERE {ANSWERED}"],
    "T.order": [
        f"UPDATE chatlock_threads SET token = 9 WHERE {ANSWERED}",
        f"UPDATE chatlock_turns SET token = 9 WHERE {ANSWERED} AND from_seq = 0",
        f"UPDATE chatlock_messages SET turn_token = 9 WHERE {ANSWERED} AND seq <= 2",
    ],
    "R.tiles": [f"UPDATE chatlock_turns SET from_seq = 1 WHERE {ANSWERED} AND from_seq = 2"],
    "R.pending_below": [
        f"UPDATE chatlock_messages SET disposition = 'pending', turn_token = NULL WHERE {ANSWERED} AND seq = 1"
    ],
    "R.answered": [f"UPDATE chatlock_messages SET turn_token = 2 WHERE {ANSWERED} AND seq = 1"],
    "R.superseded_by": [f"UPDATE chatlock_messages SET superseded_by = 9 WHERE {ANSWERED} AND seq = 1"],
    "R.empty_turn": [
        f"UPDATE chatlock_messages SET disposition = 'cancelled', turn_token = NULL WHERE {ANSWERED} AND seq <= 2"
    ],
    "R.each_seq_once": [f"DELETE FROM chatlock_messages WHERE {ANSWERED} AND seq = 1"],
    "H.head_pending": [
        f"UPDATE chatlock_messages SET disposition = 'cancelled' WHERE {PENDING} AND seq = 2",
        f"UPDATE chatlock_threads SET holes = 1 WHERE {PENDING}",
    ],
    "H.holes": [f"UPDATE chatlock_threads SET holes = 1 WHERE {PENDING}"],
    "D.class": [f"UPDATE chatlock_due SET priority = 20 WHERE {PENDING}"],
    "D.due": [f"UPDATE chatlock_due SET due_at = {FAR} WHERE {PENDING}"],
    "A.held": [f"UPDATE chatlock_threads SET awaiting_rule = 'hold' WHERE {RUNNING}"],
    "A.asked": ["UPDATE chatlock_turns SET question = NULL WHERE thread_id = 'asking'"],
}
MORE: list[tuple[str, str]] = [
    ("D.due", f"DELETE FROM chatlock_due WHERE {PENDING}"),
    ("S.stop", f"UPDATE chatlock_threads SET cancel_token = token WHERE {RUNNING}"),
    ("S.stop", f"UPDATE chatlock_threads SET cancel_token = token, cancel_until = 1 WHERE {PENDING}"),
    ("R.answered", f"UPDATE chatlock_messages SET disposition = 'dead' WHERE {ANSWERED} AND seq = 1"),
    ("R.answered", "UPDATE chatlock_messages SET disposition = 'answered' WHERE thread_id = 'dead' AND seq = 1"),
    ("R.answered", f"UPDATE chatlock_messages SET turn_token = 99 WHERE {ANSWERED} AND seq = 2"),
    ("H.holes", "UPDATE chatlock_threads SET holes = 0 WHERE thread_id = 'holes'"),
    ("S.one_running_turn", f"UPDATE chatlock_threads SET token = token + 1 WHERE {RUNNING}"),
    ("D.due", "UPDATE chatlock_threads SET awaiting_rule = 'run' WHERE thread_id = 'asking'"),
    (
        "A.asked",
        "UPDATE chatlock_messages SET message_id = (SELECT awaiting FROM chatlock_threads WHERE thread_id = 'asking')"
        " WHERE thread_id = 'asking' AND seq = 2",
    ),
]


def fill(chat: Any) -> None:
    """Threads in every state: answered in two turns, running, pending, dead, with holes, parked, deleted, recreated,
    and held by a question.
    """
    chat.submit("answered", 1, wait_ms=0)
    chat.begin("answered", 2).finish("ok")
    chat.begin("answered", 3).finish("ok")
    chat.begin("pending", 1).finish("ok")
    chat.submit("pending", 2, wait_ms=0)
    chat.submit("pending", 3, wait_ms=0)
    with suppress(RuntimeError), chat.turn("dead", 1):
        raise RuntimeError("not today")
    for n in (1, 2, 3):
        chat.submit("holes", n, message_id=f"m{n}", wait_ms=0)
    chat.cancel("holes", "m2")
    chat.submit("parked", 1, wait_ms=0)
    chat.park("parked")
    chat.begin("deleted", 1).finish("ok")
    chat.delete("deleted")
    chat.begin("again", 1).finish("ok")
    chat.delete("again")
    chat.begin("again", 1, recreate=True).finish("ok")
    chat.begin("asking", 1).suspend("go on?")
    chat.submit("asking", 2, wait_ms=0)
    chat.begin("running", 0).suspend("go on?", awaiting="run")
    chat.held = chat.begin("running", 1)


@pytest.fixture
def corrupted(database: Database) -> Any:
    """A filled database whose constraints let the test write anything; the clients are closed without a turn's end."""
    with Chatlock(database.url, tenant="t", poller=False, heartbeat=False, limits=Limits(attempts_max=1)) as chat:
        fill(chat)
        assert chat.verify().ok
        lift_constraints(database)
        yield chat


def lift_constraints(database: Database) -> None:
    if database.kind == "sqlite":
        rows.execute(database, "PRAGMA ignore_check_constraints = ON")
        return
    checks = "SELECT conname, conrelid::regclass FROM pg_constraint WHERE contype = 'c' AND conname LIKE 'chatlock_%'"
    for name, table in rows.select(database, checks):
        rows.execute(database, f"ALTER TABLE {table} DROP CONSTRAINT {name}")


def found(chat: Any, *, recent: bool = False, tenant: str | None = None) -> set[str]:
    since = 3_600_000 if recent else None
    verified = chat._executor.snapshot("verify", lambda c: verify(c, tenant, since))
    return {breach.invariant for breach in verified.breaches}


def test_every_check_has_a_corruption() -> None:
    assert CORRUPTIONS.keys() == CHECKS.keys()


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption_is_found_by_its_check_alone(corrupted: Any, database: Database, name: str) -> None:
    for statement in CORRUPTIONS[name]:
        rows.execute(database, statement)
    assert found(corrupted) == {name}
    assert found(corrupted, recent=True) == {name}
    assert found(corrupted, tenant="t") == {name}
    assert found(corrupted, tenant="other") == set()


@pytest.mark.parametrize(("name", "statement"), MORE)
def test_other_corruption_is_found_by_its_check(corrupted: Any, database: Database, name: str, statement: str) -> None:
    rows.execute(database, statement)
    assert name in found(corrupted)


def test_running_thread_without_any_turn_is_found_among_recent_ones_too(corrupted: Any, database: Database) -> None:
    rows.execute(database, f"DELETE FROM chatlock_turns WHERE {RUNNING}")
    assert found(corrupted, recent=True) == {"S.one_running_turn"}


def test_breach_names_its_thread_and_says_what_is_wrong(corrupted: Any, database: Database) -> None:
    rows.execute(database, CORRUPTIONS["H.holes"][0])
    verified = corrupted.verify()
    assert not verified.ok
    (breach,) = verified.breaches
    assert (breach.invariant, breach.tenant, breach.thread) == ("H.holes", "t", "pending")
    assert breach.text == CHECKS["H.holes"].text


def test_verify_counts_messages_and_turns(corrupted: Any) -> None:
    verified = corrupted.verify()
    assert verified.messages == {"answered": 9, "pending": 7, "dead": 1, "cancelled": 1}
    assert verified.turns == {"done": 8, "gave_up": 1, "running": 1}
    assert corrupted.verify(tenant="other").messages == {}


def test_verify_names_at_most_so_many_threads_of_a_kind(corrupted: Any, database: Database) -> None:
    for n in range(EXAMPLES_MAX + 5):
        corrupted.submit(f"more{n}", 1, wait_ms=0)
    rows.execute(database, "DELETE FROM chatlock_due")
    assert len(corrupted.verify().breaches) == EXAMPLES_MAX


def test_verify_writes_nothing(corrupted: Any, database: Database) -> None:
    before = rows.dump(database)
    corrupted.verify()
    assert rows.dump(database) == before
