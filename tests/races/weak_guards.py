"""The product weakened where no variant of the model is: locks, and rules that stand twice."""

from __future__ import annotations

from chatlock.charging import starts_at
from chatlock.ops import claim, finish, operate, unanswered
from tests.races import test_recovery as recovery
from tests.races import test_set_clock as set_clock
from tests.races.control import LOCKING, guard, listed, pair
from tests.races.weak_messages import oldest_not_taken_alone_by
from tests.races.weaken import Weakening


@guard(pair("submit", "submit"))
def thread_is_not_locked(weak: Weakening) -> None:
    weak.sql("thread.lock", (LOCKING, ""))


@guard(pair("submit_hot", "submit_hot"))
def hot_submit_does_not_lock(weak: Weakening) -> None:
    weak.hot("S1_POSTGRESQL", ("     FOR NO KEY UPDATE),\ni AS", "),\ni AS"))


@guard(pair("finish_hot", "reclaim"))
def hot_finish_does_not_lock(weak: Weakening) -> None:
    weak.hot("S2_POSTGRESQL", ("     FOR NO KEY UPDATE),\nm AS", "),\nm AS"))


@guard(listed("reclaim during a finish"))
def reclaim_does_not_lock(weak: Weakening) -> None:
    weak.sql("reclaim.lock_stale", (f"{LOCKING} SKIP LOCKED", ""))


@guard(listed("poller passes by a finish"))
def poller_waits_for_a_lock(weak: Weakening) -> None:
    weak.sql("thread.lock_or_skip", (" SKIP LOCKED", ""))


@guard(recovery.test_oldest_message_is_taken_alone_after_a_failure)
def oldest_not_taken_alone(weak: Weakening) -> None:
    oldest_not_taken_alone_by(weak)


@guard(recovery.test_finish_of_what_was_not_fetched_is_refused)
def finish_beyond_what_was_fetched(weak: Weakening) -> None:
    weak.source(finish.finish, (" <= row.fetched_seq:", ":"))


@guard(recovery.test_finish_of_what_was_not_fetched_is_refused)
def finish_from_elsewhere(weak: Weakening) -> None:
    weak.source(finish.finish, ("if not claim.from_seq == row.done_seq <", "if not row.done_seq <"))


@guard(recovery.test_finish_of_what_was_not_fetched_is_refused)
def finish_of_nothing(weak: Weakening) -> None:
    weak.source(finish.finish, ("row.done_seq < what.upto <= row.fetched_seq:", "row.done_seq <= row.fetched_seq:"))


@guard(recovery.test_finish_of_other_messages_than_the_pending_ones_is_refused)
def finish_does_not_count(weak: Weakening) -> None:
    weak.source(finish._resolve, ("answered != what.held or answered == 0", "answered == 0"))


@guard(listed("late failure after the next claim"))
def fail_unconditional(weak: Weakening) -> None:
    weak.source(unanswered.fail, ("if row is None or not holds(row, claim):", "if row is None:"))


@guard(listed("park of the turn before"))
def park_of_any_turn(weak: Weakening) -> None:
    weak.source(operate.park, ("if token != row.token:", "if False:"))


@guard(listed("free of the turn before"))
def free_of_any_turn(weak: Weakening) -> None:
    weak.source(unanswered.free, ("if row.token != token:", "if False:"))


@guard(listed("unforced free of a live turn"))
def free_of_a_live_turn(weak: Weakening) -> None:
    weak.source(unanswered.free, ("if not row.stale and not force:", "if False:"))


@guard(recovery.test_waiter_of_a_former_life_gets_no_turn)
def claim_in_any_life(weak: Weakening) -> None:
    weak.source(claim.claim_for, (" or row.incarnation != incarnation", ""))


@guard(set_clock.test_backoff_outlives_a_step_back_by_no_more_than_a_sweep)
def backoff_whatever_the_clock_did(weak: Weakening) -> None:
    weak.source(starts_at, ("not_before if not_before <= now + backoff_max_ms else 0", "not_before"))


@guard(set_clock.test_quiet_time_outlives_a_step_back_by_no_more_than_the_longest_debounce)
def quiet_whatever_the_clock_did(weak: Weakening) -> None:
    weak.source(starts_at, ("quiet_until if quiet_until <= now + QUIET_MAX_MS else 0", "quiet_until"))
