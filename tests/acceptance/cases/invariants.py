"""A, Q: claims and messages that are aged, sweeps until nothing is left, and what is true then."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from chatlock import AlreadyAnswered, Answered, Busy, Conflict, Dead, Queued
from tests.acceptance.cases.meters import Journal
from tests.acceptance.cases.rows import TENANT, rows

if TYPE_CHECKING:
    from chatlock import Chatlock, Outcome
    from tests.support.databases import Database

SWEEPS_MAX = 100


# -- A: age ------------------------------------------------------------------------------------------------------------
def age_claim(database: Database, thread: str, past: str = "lease", tenant: str = TENANT) -> None:
    """A: moves the times of a running claim back, past its lease or past its window.

    Use it with a client that does not beat meanwhile (heartbeat=False, a long beat_ms, or a process that was killed).
    """
    lease = "expires_at = expires_at - 2 * lease_ms, claimed_at = claimed_at - 2 * lease_ms"
    span = "2 * (window_ends_at - claimed_at)"
    window = (
        f"expires_at = expires_at - {span}, window_ends_at = window_ends_at - {span}, claimed_at = claimed_at - {span}"
    )
    moved = rows(
        database,
        f"UPDATE chatlock_threads SET {lease if past == 'lease' else window}"
        " WHERE tenant = :tenant AND thread_id = :thread AND status = 'running' RETURNING token",
        tenant=tenant,
        thread=thread,
    )
    assert len(moved) == 1, "no running claim to age"


def age_message(database: Database, message_id: str, ms: int) -> None:
    """A: moves a message's arrival back."""
    moved = rows(
        database,
        "UPDATE chatlock_messages SET received_at = received_at - :ms WHERE message_id = :id RETURNING seq",
        ms=ms,
        id=message_id,
    )
    assert len(moved) == 1, "no such message to age"


class SetClock:
    """A monotonic clock that only the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def reclaim_aged(chat: Any, clock: SetClock | None = None) -> int:
    """A: the two sweeps that the rule of two observations asks for, on a set clock; returns how many were reclaimed."""
    clock = clock or SetClock()
    chat._sweep._monotonic = clock
    reclaimed: int = chat._sweep.reclaim_stale()
    clock.now_s += chat._sweep._gap_s
    return reclaimed + int(chat._sweep.reclaim_stale())


def skip_backoff(database: Database) -> None:
    """A: every idle thread with pending messages is due now."""
    rows(database, "UPDATE chatlock_threads SET not_before = 0 WHERE status = 'idle'")
    rows(database, "UPDATE chatlock_due SET due_at = 0")


# -- Q: quiesce and the invariants -------------------------------------------------------------------------------------
def quiesce(chat: Chatlock, database: Database) -> None:
    """Q: sweeps until two in a row claim nothing; backoffs are skipped, so only a stuck thread keeps it from ending."""
    quiet = 0
    for _ in range(SWEEPS_MAX):
        skip_backoff(database)
        swept = chat.sweep_once()
        quiet = quiet + 1 if (swept.reclaimed, swept.turns) == (0, 0) else 0
        if quiet == 2:
            return
    raise AssertionError(f"not quiet after {SWEEPS_MAX} sweeps")


def assert_invariants(
    database: Database,
    chat: Chatlock,
    *,
    journal: Journal | None = None,
    told: list[tuple[str, Outcome]] | tuple[()] = (),
    tenant: str = TENANT,
) -> None:
    """N1 to N8 after Q, read from the tables alone; `told` pairs each thread with an outcome that a caller got."""
    verified = chat.verify()
    assert verified.ok, verified.breaches
    threads = {(r["tenant"], r["thread_id"]): r for r in rows(database, "SELECT * FROM chatlock_threads")}
    messages: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    turns: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows(database, "SELECT * FROM chatlock_messages ORDER BY incarnation, seq"):
        messages[row["tenant"], row["thread_id"]].append(row)
    for row in rows(database, "SELECT * FROM chatlock_turns ORDER BY token"):
        turns[row["tenant"], row["thread_id"]].append(row)
    assert messages.keys() | turns.keys() <= threads.keys(), "N6: a row without its own thread"
    for key, thread in threads.items():
        _assert_turns(thread, turns[key])
        _assert_messages(thread, messages[key], turns[key])
    for row in rows(database, "SELECT * FROM chatlock_due"):  # a surplus row is harmless
        thread = threads[row["tenant"], row["thread_id"]]
        assert thread["last_seq"] == thread["done_seq"], f"N7: {row['thread_id']} is left due"
    for thread_id, outcome in told:
        key = (tenant, thread_id)
        _assert_told(outcome, messages[key], turns[key])
    runners = [(t, o.turn) for t, o in told if isinstance(o, Answered)]
    assert len(runners) == len(set(runners)), "N8: two callers were told that they ran the same turn"
    if journal is not None:
        overlaps = {thread_id: journal.overlap(thread_id) for _, thread_id in threads}
        assert all(n <= 1 for n in overlaps.values()), f"N1: handlers overlapped: {overlaps}"


def _assert_turns(thread: dict[str, Any], turns: list[dict[str, Any]]) -> None:
    """N1, N4, N5, N7 of one thread."""
    assert thread["status"] in ("idle", "parked", "deleted"), f"N7: {thread['thread_id']} is {thread['status']}"
    done = [turn for turn in turns if turn["state"] == "done"]
    for before, after in itertools.pairwise(done):
        if before["incarnation"] == after["incarnation"]:
            assert before["to_seq"] <= after["from_seq"], "N4: turns committed against the order of seq"
        assert before["ended_at"] <= after["started_at"], "N1: two committed turns overlap"
    assert [turn["token"] for turn in turns] == sorted({turn["token"] for turn in turns}), "N5: a token came twice"
    assert all(turn["token"] <= thread["token"] for turn in turns), "N5: a turn above its thread's token"


def _assert_messages(thread: dict[str, Any], messages: list[dict[str, Any]], turns: list[dict[str, Any]]) -> None:
    """N2 and N3 of one thread."""
    by_token = {turn["token"]: turn for turn in turns}
    for message in messages:
        disposition, token = message["disposition"], message["turn_token"]
        where = f"{message['thread_id']}/{message['message_id']}"
        assert disposition != "pending" or thread["status"] == "parked", f"N2: {where} is still pending"
        if disposition == "answered":
            assert by_token[token]["state"] == "done", f"N2: {where} names a turn that did not commit"
            holding = [
                turn
                for turn in turns
                if turn["state"] == "done"
                and turn["incarnation"] == message["incarnation"]
                and turn["from_seq"] < message["seq"] <= turn["to_seq"]
            ]
            assert [turn["token"] for turn in holding] == [token], f"N3: {where} is in {len(holding)} committed turns"
        if disposition == "dead":
            assert by_token[token]["state"] == "gave_up", f"N2: {where} is dead without a reason"
            assert by_token[token]["error"], f"N2: {where} is dead without a reason"


def _assert_told(outcome: Outcome, messages: list[dict[str, Any]], turns: list[dict[str, Any]]) -> None:
    """N8 of one outcome."""
    stored = {message["message_id"]: message for message in messages}
    message = stored.get(outcome.message_id)
    match outcome:
        case Answered(reply=reply, turn=token) | AlreadyAnswered(reply=reply, turn=token):
            assert message is not None, f"N8: answered, but not stored: {outcome}"
            assert (message["disposition"], message["turn_token"]) == ("answered", token), f"N8: {outcome}"
            (turn,) = (turn for turn in turns if turn["token"] == token)
            assert json.loads(turn["reply"]) == reply, f"N8: another reply than the stored one: {outcome}"
        case Queued() | Conflict():
            assert message is not None, f"N8: not stored: {outcome}"
        case Dead():
            assert message is not None, f"N8: not stored: {outcome}"
            assert message["disposition"] == "dead", f"N8: {outcome}"
        case Busy():
            assert message is None, f"N8: refused as busy, and yet stored: {outcome}"
    if message is not None and outcome.seq is not None:
        assert message["seq"] == outcome.seq, f"N8: {outcome}"
