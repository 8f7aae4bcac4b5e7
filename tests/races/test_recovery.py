"""What a turn leaves to the next one: charges, isolation, dead heads, holes, and tokens after a failover."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from chatlock import AlreadyAnswered, Cancelled, Dead, Queued, Superseded
from chatlock.epoch import bump_epoch
from chatlock.ops import claim, due, fetch, inspect, operate, unanswered
from chatlock.ops.heartbeat import Beat, heartbeat
from chatlock.store import finish_once, submit_once
from tests.races.arena import LIMITS, OF_THREAD, Arena, finish_of, request, submission
from tests.races.judge import answer, verified
from tests.races.moves import FIRST_LIFE, M2_SEQ

if TYPE_CHECKING:
    from chatlock.ops.base import Claim, Message
    from chatlock.ops.claim import Granted
    from chatlock.protocol import Outcome
    from tests.races.arena import Held
    from tests.support.databases import Database

NEXT = count()
LEASE_MS = 15_000


class Life:
    """One thread in a scene, and what is done to it, one transaction after another."""

    def __init__(self, arena: Arena, scene: str) -> None:
        self.arena = arena
        self.tenant = f"life-{next(NEXT)}"
        self.held: Held = arena.build(scene, self.tenant, ["t"])["t"]
        self.key = self.held.key

    def claim(self) -> Granted:
        granted = self.arena.home.transaction("claim_due", lambda c: claim.claim_due(c, self.key, request("life")))
        assert granted is not None
        return granted

    def dispatch(self) -> bool:
        """As a dispatcher does that has just seen the due row: whether it may send."""
        leased = self.arena.home.transaction(
            "dispatch", lambda c: due.dispatch(c, self.key, LEASE_MS, LIMITS.backoff_max_ms)
        )
        return leased is not None

    def takes_job(self) -> Granted | None:
        """As a worker does with a job that was sent, however late."""
        return self.arena.home.transaction(
            "claim_due", lambda c: claim.claim_due(c, self.key, request("worker"), skip_locked=False)
        )

    def due_rows(self) -> int:
        return len(self.arena.rows(f"SELECT 1 FROM chatlock_due{OF_THREAD}", *self.of))

    def fetch(self, held: Claim) -> tuple[Message, ...]:
        return self.arena.home.transaction("fetch", lambda c: fetch.fetch(c, held, held.from_seq, LIMITS))

    def fail(self, held: Claim, count: int) -> None:
        ended = self.arena.home.transaction(
            "fail", lambda c: unanswered.fail(c, held, held=count, error="broke", limits=LIMITS, jitter=1.0)
        )
        assert ended is not None

    def beat(self, held: Claim) -> None:
        assert self.arena.home.beat(lambda c: heartbeat(c, held)).beat == Beat.EXTENDED

    def reclaim(self, held: Claim, beat: int) -> None:
        self.arena.rows(f"UPDATE chatlock_threads SET expires_at = 1{OF_THREAD} RETURNING 1", *self.of)
        seen = unanswered.Observed(self.key, held.token, beat, stale=True)
        assert self.arena.home.transaction("reclaim", lambda c: unanswered.reclaim(c, seen, LIMITS, 1.0)) is not None

    def cancel(self, message_id: str) -> Outcome:
        return self.arena.home.transaction(
            "cancel", lambda c: operate.cancel(c, self.key, message_id, LIMITS.backoff_max_ms)
        )

    def outcome(self, message_id: str) -> Outcome:
        return self.arena.home.read("status", lambda c: inspect.outcome_of(c, self.key, message_id))

    def row(self, *columns: str) -> tuple[Any, ...]:
        (row,) = self.arena.rows(f"SELECT {', '.join(columns)} FROM chatlock_threads{OF_THREAD}", *self.of)
        return tuple(row)

    @property
    def of(self) -> tuple[str, str]:
        return (self.key.tenant, self.key.thread)

    def verified(self) -> None:
        verified(self.arena, self.tenant)


def names(messages: tuple[Message, ...]) -> list[str]:
    return [message.message_id for message in messages]


# -- dispatch leases --
def test_due_thread_is_left_to_one_worker_until_the_lease_lapses(arena: Arena) -> None:
    """The second dispatcher saw the due row before the first leased it; both jobs are taken in the end."""
    life = Life(arena, "pending")
    assert [life.dispatch(), life.dispatch()] == [True, False]
    arena.rows(f"UPDATE chatlock_due SET dispatched_until = 1{OF_THREAD} RETURNING 1", *life.of)
    assert [life.dispatch(), life.dispatch()] == [True, False]
    first, late = life.takes_job(), life.takes_job()
    assert first is not None
    assert late is None
    assert life.due_rows() == 0
    answer(arena, first)
    assert life.takes_job() is None
    life.verified()


def test_turn_that_leaves_messages_ends_the_dispatch_lease(arena: Arena) -> None:
    """A waiter claims what was left to a worker, and gives it back: nobody waits for the lease."""
    life = Life(arena, "pending")
    assert life.dispatch()
    seen = life.row("incarnation")[0]
    waiting = arena.home.transaction("claim", lambda c: claim.claim_for(c, life.key, request("waiter"), seen, M2_SEQ))
    assert waiting is not None
    arena.release(life.key, waiting.claim)
    assert life.dispatch()
    life.verified()


# -- charges --
def test_oldest_message_is_taken_alone_after_a_failure(arena: Arena) -> None:
    life = Life(arena, "charged")
    granted = life.claim()
    assert granted.messages == ()
    assert names(life.fetch(granted.claim)) == ["m1"]
    life.verified()


def test_attempts_used_up_kill_the_oldest_message_alone(arena: Arena) -> None:
    life = Life(arena, "charged")
    for _ in range(LIMITS.attempts_max - 1):
        granted = life.claim()
        life.fail(granted.claim, len(life.fetch(granted.claim)))
    assert isinstance(life.outcome("m1"), Dead)
    assert isinstance(life.outcome("m2"), Queued)
    assert life.row("attempts", "stalls", "not_before") == (0, 0, 0)
    life.verified()
    answer(arena, life.claim())
    assert isinstance(life.outcome("m2"), AlreadyAnswered)


def test_message_that_kills_its_process_is_dead_after_its_attempts(arena: Arena) -> None:
    """Nobody is there to fail: it is reclaim that counts."""
    life = Life(arena, "pending")
    for attempt in range(LIMITS.attempts_max):
        granted = life.claim()
        if attempt:
            life.fetch(granted.claim)
        life.beat(granted.claim)
        life.reclaim(granted.claim, beat=1)
    assert isinstance(life.outcome("m1"), Dead)
    life.verified()


def test_turns_that_never_had_a_message_charge_the_thread(arena: Arena) -> None:
    life = Life(arena, "charged")
    for _ in range(LIMITS.attempts_max):
        life.fail(life.claim().claim, 0)
    assert life.row("attempts", "stalls") == (1, LIMITS.attempts_max)
    assert isinstance(life.outcome("m1"), Queued)
    life.verified()


def test_turn_that_never_beat_charges_the_thread(arena: Arena) -> None:
    """Its messages rode in the claim, whose answer may never have reached a process."""
    life = Life(arena, "pending")
    granted = life.claim()
    assert names(granted.messages) == ["m1", "m2"]
    life.reclaim(granted.claim, beat=0)
    assert life.row("attempts", "stalls") == (0, 1)
    life.verified()


# -- resolved messages --
def test_cancel_of_the_head_gives_its_successor_a_fresh_start(arena: Arena) -> None:
    life = Life(arena, "charged")
    assert isinstance(life.cancel("m1"), Cancelled)
    assert life.row("attempts", "stalls", "not_before") == (0, 0, 0)
    assert names(life.claim().messages) == ["m2"]
    life.verified()


def test_dead_head_takes_resolved_successors_along(arena: Arena) -> None:
    life = Life(arena, "charged")
    assert isinstance(life.cancel("m2"), Cancelled)
    arena.submit(life.key, "m3")
    for _ in range(LIMITS.attempts_max - 1):
        granted = life.claim()
        life.fail(granted.claim, len(life.fetch(granted.claim)))
    assert isinstance(life.outcome("m1"), Dead)
    life.verified()
    assert names(life.claim().messages) == ["m3"]


def test_latest_leaves_what_the_running_turn_holds(arena: Arena) -> None:
    life = Life(arena, "more")
    what = replace(submission(life.key, "m3"), policy="latest")
    assert submit_once(arena.home, what, None, LIMITS).superseding
    assert isinstance(life.outcome("m1"), Queued)
    assert life.outcome("m2") == Superseded(message_id="m2", seq=life.outcome("m2").seq, by=life.outcome("m3").seq)
    assert finish_once(arena.home, finish_of(life.held.claim, life.held.hand, "one"), None)
    assert isinstance(life.outcome("m1"), AlreadyAnswered)
    assert life.row("last_seq - done_seq", "holes") == (1, 0)
    life.verified()


def test_finish_passes_over_what_was_cancelled_in_its_range(arena: Arena) -> None:
    life = Life(arena, "pending")
    arena.submit(life.key, "m3")
    assert isinstance(life.cancel("m2"), Cancelled)
    granted = life.claim()
    assert names(granted.messages) == ["m1", "m3"]
    assert finish_once(arena.home, finish_of(granted.claim, granted.messages, "both"), None)
    assert life.row("done_seq", "holes") == (4, 0)
    life.verified()


def test_finish_of_what_was_not_fetched_is_refused(arena: Arena) -> None:
    """Also when the numbers fit: m2 is pending, but the turn never fetched it."""
    life = Life(arena, "more")
    what = finish_of(life.held.claim, life.held.hand, "too much")
    assert finish_once(arena.home, replace(what, upto=what.upto + 1, held=2), None) is None
    assert finish_once(arena.home, replace(what, upto=what.upto - 1, held=0), None) is None
    earlier = replace(what.claim, from_seq=what.claim.from_seq - 1)
    assert finish_once(arena.home, replace(what, claim=earlier), None) is None
    assert isinstance(life.outcome("m2"), Queued)
    life.verified()


def test_finish_of_other_messages_than_the_pending_ones_is_refused(arena: Arena) -> None:
    """The turn fetched two and says that it answers two in their range, but counts one: nothing is written."""
    life = Life(arena, "more")
    claimed = life.held.claim
    assert names(life.fetch(claimed)) == ["m1", "m2"]
    what = finish_of(claimed, life.held.hand, "miscounted")
    with pytest.raises(AssertionError, match="not those that the turn held"):
        finish_once(arena.home, replace(what, upto=what.upto + 1), None)
    assert isinstance(life.outcome("m1"), Queued)
    life.verified()


def test_message_in_a_turn_is_not_told_answered(arena: Arena) -> None:
    life = Life(arena, "running")
    assert life.outcome("m1") == Queued(message_id="m1", seq=2, position=0, turn=life.held.claim.token)


def test_waiter_whose_message_was_answered_gets_no_turn(arena: Arena) -> None:
    life = Life(arena, "pending")
    answer(arena, life.claim())
    arena.submit(life.key, "m3")
    late = arena.home.transaction("claim", lambda c: claim.claim_for(c, life.key, request("late"), FIRST_LIFE, M2_SEQ))
    assert late is None
    life.verified()


def test_waiter_of_a_former_life_gets_no_turn(arena: Arena) -> None:
    life = Life(arena, "deleted")
    again = replace(submission(life.key, "again"), recreate=True)
    stored = submit_once(arena.home, again, None, LIMITS)
    assert stored.incarnation == FIRST_LIFE + 1
    wanted = request("late")
    late = arena.home.transaction("claim", lambda c: claim.claim_for(c, life.key, wanted, FIRST_LIFE, stored.seq or 0))
    assert late is None
    life.verified()


# -- failover --
def test_tokens_after_a_failover_are_above_all_that_were_given_out(database: Database) -> None:
    """The standby lacks the last claim; the holder of its token is still out there."""
    with Arena(database) as arena:
        life = Life(arena, "pending")
        given_out = life.claim().claim.token
        arena.rows(
            f"UPDATE chatlock_threads SET status = 'idle', token = {given_out - 1}, claim_id = NULL, expires_at = NULL,"
            f" window_ends_at = NULL, fetched_seq = done_seq{OF_THREAD} RETURNING 1",
            *life.of,
        )
        arena.rows(f"DELETE FROM chatlock_turns{OF_THREAD} AND token = {given_out} RETURNING 1", *life.of)
        bump_epoch(arena.home, actor="test", reason="failover", limits=LIMITS)
        assert life.claim().claim.token > given_out
        life.verified()
