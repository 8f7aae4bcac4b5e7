"""Negative controls: for each weakened rule a named race or check goes red on PostgreSQL.

The first part weakens the product as the variants of the protocol model are weakened; `tests/model/mutants.py` names
the tests that catch them, and the last test here holds it to that. The second part weakens what no variant does: locks,
and rules that stand twice.
"""

from __future__ import annotations

import inspect as signatures
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from sqlalchemy.exc import InvalidRequestError

from chatlock.charging import charge, received, starts_at
from chatlock.executor import Executor
from chatlock.flows import Flows
from chatlock.heart import Heart
from chatlock.ops import (
    claim,
    due,
    epoch,
    fetch,
    finish,
    heartbeat,
    inspect,
    operate,
    resolve,
    stop,
    submit,
    unanswered,
)
from chatlock.place import Place
from chatlock.testing import point
from chatlock.turn_core import TurnCore
from chatlock.wake.waiters import Waiters
from tests.model.mutants import TABLE, Feature
from tests.races import test_listed as schedules
from tests.races import test_pairs as pairs
from tests.races import test_recovery as recovery
from tests.races import test_set_clock as set_clock
from tests.races import test_stops as stops
from tests.races import test_told as told
from tests.races.weaken import Weakening, weakening
from tests.support import ROOT

if TYPE_CHECKING:
    from tests.races.arena import Arena
    from tests.support.databases import Database

LISTED = {listed.title: listed for listed in schedules.parsed(schedules.SCHEDULES)}
SEQS = count(100)
OF_TOKEN = " AND chatlock_threads.token = %(b_token)s::BIGINT"
OF_STATUS = " AND chatlock_threads.status = %(status_1)s::VARCHAR"
OF_STATE = " AND chatlock_turns.state = %(state_1)s::VARCHAR"
LOCKING = " FOR NO KEY UPDATE"
CANNOT_RUN = (NameError, TypeError, InvalidRequestError)
"""What a weakening that no longer fits the product raises: that shows nothing."""
NEW_TOKEN = "token=(chatlock_threads.token + %(token_1)s::BIGINT)"
WALL = "(extract(epoch FROM clock_timestamp())*1000)::bigint"


class Control(NamedTuple):
    """How the product is weakened, and the test that then fails."""

    weaken: Callable[[Weakening], None]
    red: Callable[..., None]

    def node_id(self) -> str:
        """The test as pytest names it, without parameters."""
        test = self.red.func if isinstance(self.red, partial) else self.red
        path = signatures.getfile(test).removeprefix(f"{ROOT}/")
        return f"{path}::{test.__name__}"


VARIANTS: dict[str, Control] = {}
"""By the names of the model's variants."""
GUARDS: dict[str, Control] = {}


def listed(title: str) -> Callable[..., None]:
    return partial(schedules.test_listed, LISTED[title])


def pair(*moves: str) -> Callable[..., None]:
    return partial(pairs.test_pair, moves)


def variant(red: Callable[..., None]) -> Callable[[Callable[[Weakening], None]], None]:
    return partial(_register, VARIANTS, red)


def guard(red: Callable[..., None]) -> Callable[[Callable[[Weakening], None]], None]:
    return partial(_register, GUARDS, red)


def _register(controls: dict[str, Control], red: Callable[..., None], weaken: Callable[[Weakening], None]) -> None:
    controls[weaken.__name__] = Control(weaken, red)


def locked_path_only(weak: Weakening) -> None:
    weak.attribute(Executor, "hot", lambda self, name, op: None)


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


# -- submit --
@variant(listed("one message three times"))
def dup_bumps_seq(weak: Weakening) -> None:
    moved = "incarnation=row.incarnation, seq=row.last_seq + 1, agent=row.agent, priority=row.priority"
    counted = f"run(conn, ADVANCE_LAST, key, {moved})"
    weak.source(submit.submit, ("        seq = int(known.seq)", f"        seq = int(known.seq)\n        {counted}"))


@variant(listed("a late commit and a quick turn"))
def seq_outside_lock(weak: Weakening) -> None:
    def from_a_sequence(conn: Any, submission: Any, row: Any) -> Any:
        values = {name: getattr(submission, name) for name in ("message_id", "payload", "payload_hash", "policy")}
        seq = row.last_seq + 1 + (next(SEQS) % 2)
        values |= {"redrive_of": None, "trace": None, "expire_ms": None}
        what = {**values, "incarnation": row.incarnation, "seq": seq, "now": row.now}
        submit.run(conn, submit.STORE, submission.key, **what)
        point("submit.stored")
        ahead = {"tenant": submission.key.tenant, "thread": submission.key.thread, "seq": seq}
        conn.exec_driver_sql(
            "UPDATE chatlock_threads SET last_seq = greatest(last_seq, %(seq)s)"
            " WHERE tenant = %(tenant)s AND thread_id = %(thread)s",
            ahead,
        )
        return type(row)(**{**row.__dict__, "last_seq": seq})

    locked_path_only(weak)
    weak.sql("thread.lock", (LOCKING, ""))
    weak.instead(submit.store, from_a_sequence)


@variant(listed("three first messages"))
def init_select_then_insert(weak: Weakening) -> None:
    afresh = "status='idle', token=0, last_seq=0, fetched_seq=0, done_seq=0, claim_id=NULL, expires_at=NULL"
    replaced = f"ON CONFLICT (tenant, thread_id) DO UPDATE SET {afresh}, window_ends_at=NULL"
    weak.hot("INIT_POSTGRESQL", ("ON CONFLICT DO NOTHING", replaced))


@variant(listed("three first messages"))
def claim_before_insert(weak: Weakening) -> None:
    """The claim is tried while the message is not there, and finds nothing."""
    weak.hot("S1_POSTGRESQL", ("(%(may_claim)s AND l.status='idle'", "(false AND %(may_claim)s AND l.status='idle'"))


# -- charges and dead messages --
@variant(recovery.test_message_that_kills_its_process_is_dead_after_its_attempts)
def attempts_only_on_fail(weak: Weakening) -> None:
    counted = "charge(limits, row.attempts, row.stalls, received=had, jitter=jitter)"
    weak.source(unanswered._end_stale, (counted, "uncharged(row)"))


@variant(recovery.test_turns_that_never_had_a_message_charge_the_thread)
def one_attempt_counter(weak: Weakening) -> None:
    weak.source(charge, ("if received else", "if True else"))


@variant(recovery.test_turn_that_never_beat_charges_the_thread)
def ride_charges_attempt(weak: Weakening) -> None:
    weak.source(received, (" and (attempts + stalls > 0 or beat > 0)", ""))


def dead_up_to(weak: Weakening, last: str) -> None:
    weak.sql("unanswered.head_dead", ("chatlock_messages.seq = %(b_head)s", "chatlock_messages.seq <= %(b_head)s"))
    weak.source(
        unanswered.end_unanswered,
        ("TurnState.GAVE_UP, row.done_seq + 1", f"TurnState.GAVE_UP, {last}"),
        ("head=done).all()) != 1", "head=done).all()) < 1"),
    )


@variant(recovery.test_attempts_used_up_kill_the_oldest_message_alone)
def dead_letter_to_last_seq(weak: Weakening) -> None:
    dead_up_to(weak, "row.last_seq")


@variant(recovery.test_attempts_used_up_kill_the_oldest_message_alone)
def dead_letter_whole_batch(weak: Weakening) -> None:
    """The batch is more than one message only if that is not taken alone."""
    oldest_not_taken_alone_by(weak)
    dead_up_to(weak, "row.fetched_seq")


def oldest_not_taken_alone_by(weak: Weakening) -> None:
    weak.source(fetch.take_batch, ("row.last_seq if row.attempts == 0 else row.done_seq + 1", "row.last_seq"))


# -- resolved messages --
@variant(listed("claim during a cancel of the head"))
def mid_done_not_advanced(weak: Weakening) -> None:
    weak.source(resolve._settle, ("if row.status != Status.RUNNING:", "if False:"))


@variant(recovery.test_latest_leaves_what_the_running_turn_holds)
def latest_supersedes_fetched(weak: Weakening) -> None:
    weak.source(submit._take_in, ("above = held_upto(row)", "above = row.done_seq"))


@variant(pair("finish_hot", "cancel"))
def mid_finish_no_skip(weak: Weakening) -> None:
    weak.source(finish._resolve, ("resolved_prefix(conn, claim.key, row, what.upto, holes)", "(what.upto, holes)"))


@variant(listed("cancel during a fetch"))
def mid_cancel_of_fetched(weak: Weakening) -> None:
    weak.source(operate.cancel, ("known.seq <= held_upto(row)", "False"))


@variant(recovery.test_cancel_of_the_head_gives_its_successor_a_fresh_start)
def mid_attempts_kept(weak: Weakening) -> None:
    moved = "CASE WHEN (%(b_done)s > chatlock_threads.done_seq)"
    cleared = f"{moved} THEN %(param_1)s::INTEGER ELSE chatlock_threads.attempts END"
    weak.sql("resolve.thread", (cleared, "chatlock_threads.attempts"))


@variant(listed("cancel of the head before its fetch"))
def head_cancelled_before_fetch(weak: Weakening) -> None:
    weak.source(resolve.held_upto, ("max(row.fetched_seq, row.done_seq + 1)", "row.fetched_seq"))


@variant(recovery.test_dead_head_takes_resolved_successors_along)
def mid_dead_no_skip(weak: Weakening) -> None:
    weak.source(unanswered.end_unanswered, ("resolved_prefix(conn, key, row, done, holes)", "(done, holes)"))


@variant(recovery.test_finish_passes_over_what_was_cancelled_in_its_range)
def mid_finish_counts_rows(weak: Weakening) -> None:
    weak.source(finish._resolve, ("answered != what.held", "answered != what.upto - claim.from_seq"))


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


# -- due rows --
@variant(pair("submit_hot", "finish_hot"))
def due_not_in_finish(weak: Weakening) -> None:
    weak.hot("S2_POSTGRESQL", ("WHERE u.last_seq>%(upto)s", "WHERE false"))
    weak.source(finish._idle_or_next, ("if granted is None and after.status == Status.IDLE:", "if False:"))


@variant(pair("reclaim", "reclaim"))
def due_not_in_reclaim(weak: Weakening) -> None:
    weak.source(unanswered.end_unanswered, ("if status == Status.IDLE and left:", "if False:"))


@variant(pair("cancel", "resume"))
def due_not_in_resume(weak: Weakening) -> None:
    weak.source(operate.resume, ("if row.pending:", "if False:"))


@variant(listed("messages that nobody claims"))
def due_not_in_lazy_submit(weak: Weakening) -> None:
    weak.hot("S1_POSTGRESQL", ("WHERE NOT u.go AND u.status='idle'", "WHERE false"))
    weak.source(submit.submit, ("if granted is None and row.status == Status.IDLE:", "if False:"))


@variant(listed("poller drops a surplus due row"))
def due_deleted_without_lock(weak: Weakening) -> None:
    seen = "    from chatlock.testing import point\n    point('claim_due.seen')\n    if granted or not row.waits"
    weak.sql("thread.lock_or_skip", (f"{LOCKING} SKIP LOCKED", ""))
    weak.source(claim.claim_due, ("    if granted or not row.waits", seen))


@variant(pair("submit_hot", "finish_hot"))
def due_from_unlocked_last_seq(weak: Weakening) -> None:
    weak.hot(
        "S2_POSTGRESQL",
        ("     FOR NO KEY UPDATE),\nm AS", "),\nm AS"),
        ("WHERE u.last_seq>%(upto)s", "WHERE l.last_seq>%(upto)s"),
    )


@variant(listed("a claim is freed at once"))
def due_deleted_after_claim(weak: Weakening) -> None:
    claimed: list[Any] = []
    transaction = Executor.transaction

    def then_deleted(self: Executor, name: str, op: Callable[[Any], Any]) -> Any:
        result = transaction(self, name, op)
        if name == "claim_due" and claimed:
            key = claimed.pop()
            transaction(self, "due.delete", lambda c: due.drop_due(c, key))
        return result

    weak.attribute(claim, "drop_due", lambda conn, key: claimed.append(key))
    weak.attribute(Executor, "transaction", then_deleted)


# -- what callers are told --
@variant(recovery.test_message_in_a_turn_is_not_told_answered)
def answered_on_fetched(weak: Weakening) -> None:
    answered = "AlreadyAnswered(**ids, reply=None, turn=row.token)"
    told_so = f"    if in_turn:\n        return {answered}\n    return Queued("
    weak.source(inspect._told, ("    return Queued(", told_so))


@variant(recovery.test_attempts_used_up_kill_the_oldest_message_alone)
def watermark_means_answered(weak: Weakening) -> None:
    answered = "AlreadyAnswered(**ids, reply=None, turn=row.turn_token)"
    weak.source(inspect._told, ('Dead(**ids, reason=row.error or "attempts")', answered))


@variant(listed("finish told twice"))
def ack_lost_means_failed(weak: Weakening) -> None:
    weak.source(finish.finish, ("row is None or found is None", "True"))


@variant(told.test_caller_whose_turn_answered_others_only_goes_on_to_its_own_message)
def own_turn_means_answered(weak: Weakening) -> None:
    covers = " and any(m.message_id == message_id and m.seq <= self.upto for m in self.messages)"
    weak.source(TurnCore.answers, (covers, ""))


@variant(told.test_caller_whose_turn_was_taken_is_told_the_reply_that_was_stored)
def abort_forgets_message(weak: Weakening) -> None:
    weak.source(Flows._submit, ("got = await place.next()", "raise RuntimeError('the turn was lost')"))


@variant(told.test_caller_whose_turn_was_taken_is_told_the_reply_that_was_stored)
def reply_before_finish(weak: Weakening) -> None:
    weak.source(Flows._submit, ("if got.answers(what.message_id):", "if True:"))


@variant(told.test_wake_between_the_store_and_the_sleep_is_kept)
def check_then_subscribe(weak: Weakening) -> None:
    late = (
        "    waiters = self._flows.waiters\n"
        "    waiters.unsubscribe(self._waiter)\n"
        "    self._waiter = waiters.subscribe(self._what.key, self._waiter.signal, claims=self._claims)\n"
        "    store, waiter ="
    )
    weak.source(Place.next, ("    store, waiter =", late))


@variant(told.test_waiter_that_leaves_before_it_claims_is_followed_by_another)
def wake_one_no_recheck(weak: Weakening) -> None:
    weak.source(Waiters.unsubscribe, ("elif waiter.look is not None and waiter.look.claimable:", "elif False:"))


# -- guards that no variant weakens --
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


# -- the runs --
@pytest.fixture(scope="module")
def prepared(pg_arena: Arena) -> Arena:
    pg_arena.prepare()
    return pg_arena


def passes(control: Control, arena: Arena, database: Callable[[], Database]) -> bool:
    """Runs the control's test, with what it asks for."""
    needed = signatures.signature(control.red).parameters
    given: dict[str, Any] = {"arena": arena}
    if "database" in needed:
        given["database"] = database()
    if "times" in needed:
        given["times"] = set_clock.Times(database())
    try:
        control.red(**{name: given[name] for name in needed})
    except (Exception, pytest.fail.Exception) as failed:
        if isinstance(getattr(failed, "orig", failed), CANNOT_RUN):
            raise
        return False
    finally:
        if "times" in given:
            given["times"].close()
        arena.clear()
    return True


def run(control: Control, arena: Arena, request: pytest.FixtureRequest) -> bool:
    return passes(control, arena, lambda: request.getfixturevalue("pg_database"))


ALL = {**VARIANTS, **GUARDS}


@pytest.mark.parametrize("name", ALL)
def test_weakened_product_goes_red(
    name: str, prepared: Arena, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told.waiters_module, "LOOK_EVERY_S", told.HOUR_S)
    with weakening() as weak:
        ALL[name].weaken(weak)
        assert not run(ALL[name], prepared, request), f"nothing failed although {name}"


def test_model_table_names_the_tests_that_catch_its_variants() -> None:
    raced = (Feature.CORE, Feature.LATEST, Feature.ROLLBACK, Feature.STOP)
    core = {row.variant: row.caught_by for row in TABLE if row.applies in raced}
    assert core.keys() == VARIANTS.keys()
    assert [name for name, control in VARIANTS.items() if control.node_id() not in core[name]] == []
