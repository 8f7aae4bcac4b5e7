"""The product weakened as the model's variants are: claims, ends, fences, heartbeats and stops of turns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from chatlock.heart import Heart
from chatlock.ops import claim, epoch, fetch, finish, heartbeat, resolve, stop, submit, unanswered
from chatlock.testing import point
from tests.races import test_recovery as recovery
from tests.races import test_set_clock as set_clock
from tests.races import test_stops as stops
from tests.races import test_told as told
from tests.races.control import (
    LOCKING,
    NEW_TOKEN,
    OF_STATE,
    OF_STATUS,
    OF_TOKEN,
    WALL,
    listed,
    locked_path_only,
    pair,
    variant,
)
from tests.races.weaken import Weakening


# -- the model's variants: claims and ends --
@variant(pair("claim_for", "claim_for"))
def claim_read_then_write(weak: Weakening) -> None:
    weak.sql("thread.lock", (LOCKING, ""))
    weak.sql("claim.update", (OF_TOKEN, ""), (OF_STATUS, ""))


@variant(listed("late finish after reclaim"))
def finish_unconditional(weak: Weakening) -> None:
    weak.source(finish.finish, ("if row is None or not holds(row, claim):", "if row is None:"))
    weak.sql("finish.thread", (OF_TOKEN, ""), (OF_STATUS, ""))
    weak.sql("finish.turn", (OF_STATE, ""))


@variant(listed("late release after the next claim"))
def release_unconditional(weak: Weakening) -> None:
    weak.source(unanswered.release, (" or row.claim_id != claim_id", ""))


@variant(recovery.test_oldest_message_is_taken_alone_after_a_failure)
def fetched_not_reset(weak: Weakening) -> None:
    weak.sql("claim.update", (", fetched_seq=chatlock_threads.done_seq", ""))


@variant(listed("submit during a fetch before a finish"))
def fetch_select_then_update(weak: Weakening) -> None:
    def selected_first(conn: Any, held: Any, after: int, limits: Any) -> Any:
        bound = {"incarnation": held.incarnation, "after": after, "fetched": after + limits.batch_max}
        rows = fetch.run(conn, fetch.BATCH, held.key, **bound).all()
        point("fetch.selected")
        row = fetch.mine(conn, held)
        fetch.run(conn, fetch.ADVANCE, held.key, incarnation=held.incarnation, token=held.token, fetched=row.last_seq)
        return tuple(fetch.message_of(found) for found in rows)

    weak.instead(fetch.fetch, selected_first)
    finish_implicit_upto_of(weak)


def finish_implicit_upto_of(weak: Weakening) -> None:
    implicit = "    what = type(what)(what.claim, row.fetched_seq, what.held, what.reply)\n    if not claim.from_seq"
    locked_path_only(weak)
    weak.source(finish.finish, ("    if not claim.from_seq", implicit))
    weak.source(finish._resolve, ("answered != what.held or ", ""))


@variant(pair("fetch_more", "finish_hot"))
def finish_implicit_upto(weak: Weakening) -> None:
    finish_implicit_upto_of(weak)


@variant(recovery.test_waiter_whose_message_was_answered_gets_no_turn)
def check_then_claim(weak: Weakening) -> None:
    weak.source(claim._may_claim, ("row.done_seq >= seq", "False"))


@variant(listed("hand-off then submit then poller"))
def handoff_same_token(weak: Weakening) -> None:
    weak.sql("claim.update", (NEW_TOKEN, "token=chatlock_threads.token"))


@variant(pair("finish_hot", "delete"))
def delete_resets_token(weak: Weakening) -> None:
    weak.sql("delete.thread", (NEW_TOKEN, "token=0"))


@variant(recovery.test_tokens_after_a_failover_are_above_all_that_were_given_out)
def failover_without_epoch(weak: Weakening) -> None:
    weak.attribute(epoch, "raise_token", lambda conn, key, backoff_max_ms: None)


# -- fences and heartbeats --
@variant(listed("fenced write during a reclaim"))
def fence_token_only(weak: Weakening) -> None:
    weak.source(unanswered._end_stale, ("bump=1", "bump=0"))
    weak.sql("fence.lock", (OF_STATUS, ""))


@variant(listed("free during a fenced write"))
def fence_select_without_lock(weak: Weakening) -> None:
    weak.sql("fence.lock", (LOCKING, ""))


@variant(listed("late heartbeat after the next claim"))
def heartbeat_unconditional(weak: Weakening) -> None:
    weak.sql("heartbeat.beat", (OF_TOKEN, ""))


@variant(told.test_turn_whose_caller_is_gone_is_beaten_for_no_more)
def orphan_heartbeat(weak: Weakening) -> None:
    weak.source(Heart._take_due, (" or not turn.alive()", ""))


@variant(set_clock.test_hung_turn_that_still_beats_ends_at_its_window)
def no_window(weak: Weakening) -> None:
    extended = f"{WALL} + chatlock_threads.lease_ms"
    weak.sql(
        "heartbeat.beat",
        (f" AND {WALL} < chatlock_threads.window_ends_at", ""),
        (f"least({extended}, chatlock_threads.window_ends_at)", extended),
    )


# -- stops --
def stopped_pair(*moves: str) -> Callable[..., None]:
    return partial(stops.test_pair_of_a_stop, moves)


@variant(stopped_pair("roll_back", "finish_hot"))
def rollback_is_a_request(weak: Weakening) -> None:
    weak.source(stop.roll_back, ("    end_unanswered(", "    return row\n    end_unanswered("))


@variant(stopped_pair("roll_back", "beat"))
def due_not_in_rollback(weak: Weakening) -> None:
    weak.source(unanswered.end_unanswered, ("if status == Status.IDLE and left:", "if False:"))
    weak.source(submit.submit, ("if granted is None and row.status == Status.IDLE:", "if False:"))


@variant(stops.test_stop_of_the_turn_before_is_void)
def stop_is_a_flag(weak: Weakening) -> None:
    weak.source(heartbeat._extended, ("beaten.cancel_token == claim.token", "beaten.cancel_token is not None"))


@variant(stops.test_stop_of_the_turn_before_is_void)
def force_without_token(weak: Weakening) -> None:
    weak.sql("stop.lock_overdue", (OF_TOKEN, ""))


@variant(stops.test_forced_release_charges_nothing)
def force_charges(weak: Weakening) -> None:
    weak.source(stop.force, ("charged=uncharged(row)", "charged=uncharged(row)._replace(attempts=row.attempts + 1)"))


@variant(stopped_pair("force", "beat"))
def due_not_in_force(weak: Weakening) -> None:
    weak.source(unanswered.end_unanswered, ("if status == Status.IDLE and left:", "if False:"))


@variant(stops.test_interrupts_of_one_message_end)
def interrupts_without_end(weak: Weakening) -> None:
    weak.source(stop.interrupt, ("row.interrupts >= bounds.per_head_max", "False"))


@variant(stopped_pair("stop", "finish_hot"))
def stop_cancels_what_is_held(weak: Weakening) -> None:
    weak.source(stop.stop, ("above = held_upto(row)", "above = row.done_seq"))


@variant(stops.test_what_comes_after_a_stop_is_not_part_of_it)
def stop_cancels_what_comes_later(weak: Weakening) -> None:
    weak.source(resolve.cancel_stopped, ("upto=row.cancel_upto", "upto=row.last_seq"))
