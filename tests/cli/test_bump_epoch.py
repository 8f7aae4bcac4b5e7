"""After a failover that lost acknowledged commits, no token is given out twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import chatlock.epoch
from chatlock.epoch import Bumped, bump_epoch
from chatlock.executor import Executor
from chatlock.inputs import Key, payload_json
from chatlock.ops import operate
from chatlock.ops.audit import Act
from chatlock.ops.base import Claim, lock
from chatlock.ops.claim import Request, claim_for
from chatlock.ops.finish import Finish, finish
from chatlock.ops.submit import Submission, submit
from chatlock.ops.verify import verify
from chatlock.protocol import TOKENS_PER_EPOCH, Limits
from chatlock.store import submit_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.engine import Connection

    from chatlock.ops.base import ThreadRow
    from tests.support.databases import Database

LIMITS = Limits()
ACT = Act("test", "test", "test")


class CommitLost(Exception):
    """The primary acknowledged this commit, and its standby never got it."""


@pytest.fixture
def executor(database: Database) -> Iterator[Executor]:
    executor = Executor(database.url, pool_size=2, pooler=None)
    yield executor
    executor.close()


def bump(executor: Executor, progress: Callable[[int, int], object] | None = None) -> Bumped:
    return bump_epoch(executor, actor="olga", reason="failover", limits=LIMITS, progress=progress)


def send(executor: Executor, key: Key, *, claim: bool = False) -> Claim | None:
    """A new message; with `claim` its turn starts and holds it."""
    payload, payload_hash = payload_json("hello")
    before = row_of(executor, key)
    number = before.last_seq + 1 if before else 1
    message = Submission(key, f"m{number}", payload, payload_hash, "default")
    wanted = request(f"c{number}") if claim else None
    done = executor.transaction("submit", lambda conn: submit(conn, message, wanted, LIMITS))
    return done.granted.claim if done.granted else None


def request(claim_id: str) -> Request:
    return Request(claim_id, "test", LIMITS.lease_ms, LIMITS.window_default_ms, LIMITS)


def claim(conn: Connection, key: Key, claim_id: str) -> Claim:
    granted = claim_for(conn, key, request(claim_id), incarnation=1, seq=1)
    assert granted
    return granted.claim


def row_of(executor: Executor, key: Key) -> ThreadRow | None:
    return executor.transaction("look", lambda conn: lock(conn, key))


def query(database: Database, text: str) -> list[Any]:
    return list(database.connect().execute(text))


def lose_a_claim(executor: Executor, key: Key) -> Claim:
    """A claim that its holder saw committed, and that the new primary does not know."""
    held: list[Claim] = []

    def claim_and_lose(conn: Connection) -> None:
        held.append(claim(conn, key, "lost"))
        raise CommitLost

    with pytest.raises(CommitLost):
        executor.transaction("claim", claim_and_lose)
    return held[0]


def test_without_a_bump_a_lost_token_is_given_out_again(executor: Executor) -> None:
    key = Key("acme", "chat")
    send(executor, key)
    lost = lose_a_claim(executor, key)
    again = executor.transaction("claim", lambda conn: claim(conn, key, "new"))
    assert again.token == lost.token


def test_after_a_bump_no_lost_token_is_given_out_again(executor: Executor) -> None:
    key = Key("acme", "chat")
    send(executor, key)
    lost = lose_a_claim(executor, key)
    bump(executor)
    again = executor.transaction("claim", lambda conn: claim(conn, key, "new"))
    assert again.token == lost.token + TOKENS_PER_EPOCH


def test_a_running_turn_is_released_and_fenced_out(database: Database, executor: Executor) -> None:
    key = Key("acme", "chat")
    held = send(executor, key, claim=True)
    assert held
    bump(executor)
    row = row_of(executor, key)
    assert row
    assert (row.status, row.token, row.claim_id) == ("idle", held.token + TOKENS_PER_EPOCH, None)
    assert (row.attempts, row.stalls, row.not_before) == (0, 0, 0)
    late = Finish(held, upto=1, held=1, reply='"late"')
    assert executor.transaction("finish", lambda conn: finish(conn, late)) is None
    ended = query(database, "SELECT token, state, error FROM chatlock_turns")
    assert ended == [(held.token, "released", "epoch")]
    assert query(database, "SELECT thread_id, dispatched_until FROM chatlock_due") == [("chat", 0)]
    assert_sound(executor)


def test_threads_of_every_status_are_raised_and_keep_it(database: Database, executor: Executor) -> None:
    keys = {name: Key("acme", name) for name in ("answered", "pending", "parked", "deleted")}
    for key in keys.values():
        send(executor, key)
    held = executor.transaction("claim", lambda conn: claim(conn, keys["answered"], "c"))
    answer = Finish(held, upto=1, held=1, reply='"yes"')
    assert executor.transaction("finish", lambda conn: finish(conn, answer))
    executor.transaction("park", lambda conn: operate.park(conn, keys["parked"], None, ACT))
    executor.transaction("delete", lambda conn: operate.delete(conn, keys["deleted"], ACT))
    before = {name: row_of(executor, key) for name, key in keys.items()}

    assert bump(executor) == Bumped(epoch=1, threads=4)

    after = {name: row_of(executor, key) for name, key in keys.items()}
    for name, row in after.items():
        old = before[name]
        assert row
        assert old
        assert row.token == old.token + TOKENS_PER_EPOCH
        assert row.status == old.status
    waiting = {name for (name,) in query(database, "SELECT thread_id FROM chatlock_due")}
    assert "pending" in waiting
    assert waiting.isdisjoint({"parked", "deleted"})
    assert_sound(executor)


def test_a_dispatch_under_the_old_token_is_forgotten(database: Database, executor: Executor) -> None:
    send(executor, Key("acme", "chat"))
    database.connect().execute("UPDATE chatlock_due SET dispatched_until = 9000000000000")
    bump(executor)
    assert query(database, "SELECT dispatched_until FROM chatlock_due") == [(0,)]


def test_every_thread_is_raised_once_over_several_batches(
    database: Database, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chatlock.epoch, "BATCH", 2)
    keys = [Key(tenant, name) for tenant in ("Ä", "acme", "b") for name in ("1", "é", "Z")]
    for key in keys[:7]:
        send(executor, key)
    seen: list[tuple[int, int]] = []
    bump(executor, lambda done, of: seen.append((done, of)))
    assert seen == [(2, 7), (4, 7), (6, 7), (7, 7)]
    tokens = query(database, "SELECT DISTINCT token FROM chatlock_threads")
    assert tokens == [(TOKENS_PER_EPOCH,)]


def test_a_bump_that_was_cut_short_is_run_again(
    database: Database, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chatlock.epoch, "BATCH", 1)
    for name in ("one", "two", "three"):
        send(executor, Key("acme", name))

    def cut_short(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bump(executor, cut_short)
    assert bump(executor) == Bumped(epoch=2, threads=3)
    tokens = sorted(token for (token,) in query(database, "SELECT token FROM chatlock_threads"))
    assert tokens == [TOKENS_PER_EPOCH, TOKENS_PER_EPOCH, 2 * TOKENS_PER_EPOCH]
    audit = query(database, "SELECT action, actor, reason, token FROM chatlock_audit ORDER BY token")
    assert audit == [("bump_epoch", "olga", "failover", number) for number in (1, 2)]
    assert_sound(executor)


def assert_sound(executor: Executor) -> None:
    verified = executor.snapshot("verify", lambda conn: verify(conn, None))
    assert verified.ok, verified


@pytest.mark.parametrize("hot", [True, False])
def test_a_thread_whose_row_was_lost_begins_above_what_it_gave_out(
    database: Database, executor: Executor, hot: bool
) -> None:
    key = Key("t", "lost")
    before = send(executor, key, claim=True)
    connection = database.connect()
    for table in ("chatlock_threads", "chatlock_messages", "chatlock_turns"):
        connection.execute(f"DELETE FROM {table}")
    bump(executor)
    payload, payload_hash = payload_json("hello")
    message = Submission(key, "again", payload, payload_hash, "default")
    if hot:
        done = submit_once(executor, message, request("c9"), LIMITS)
    else:
        done = executor.transaction("submit", lambda conn: submit(conn, message, request("c9"), LIMITS))
    assert before
    assert done.granted
    assert done.granted.claim.token > before.token
