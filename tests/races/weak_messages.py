"""The product weakened as the model's variants are: what is stored, charged, resolved, due and told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chatlock.charging import charge, received
from chatlock.executor import Executor
from chatlock.flows import Flows
from chatlock.ops import claim, due, fetch, finish, inspect, operate, resolve, submit, unanswered
from chatlock.place import Place
from chatlock.testing import point
from chatlock.turn_core import TurnCore
from chatlock.wake.waiters import Waiters
from tests.races import test_recovery as recovery
from tests.races import test_told as told
from tests.races.control import LOCKING, SEQS, listed, locked_path_only, pair, variant
from tests.races.weaken import Weakening


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
