"""Weakened rules of claims, fences, messages, charges, wake-ups and dispatch leases."""

from __future__ import annotations

from .mutant import D, mutant
from .words import Breach

CORE = {
    "claim_read_then_write": mutant("claim is SELECT status, then UPDATE with token=read+1", Breach.TOKEN_NOT_NEW),
    "finish_unconditional": mutant("finish has no token/status test", Breach.COMMIT_WITHOUT_CLAIM),
    "release_unconditional": mutant(
        "fail/finally releases without a token test", Breach.RELEASED_ANOTHERS_CLAIM, fail=1
    ),
    "answered_on_fetched": mutant("waiter says already_answered at seq <= fetched_seq", Breach.TOLD_ANSWERED),
    "fetched_not_reset": mutant(
        "claim keeps the old fetched_seq; finish sets done_seq = fetched_seq",
        Breach.ANSWERED_UNRECEIVED,
        nofetch=True,
    ),
    "fetch_select_then_update": mutant(
        "fetch selects, then writes fetched_seq=max(seq) (READ COMMITTED)",
        Breach.ANSWERED_UNRECEIVED,
        expire=0,
        crash=0,
    ),
    "finish_implicit_upto": mutant(
        "finish sets done_seq = fetched_seq of the row, not what the worker holds",
        Breach.ANSWERED_UNRECEIVED,
        acklost=1,
    ),
    "fence_token_only": mutant("reclaim keeps the token and the fence test ignores status", Breach.WRITE_AFTER_LOSS),
    "fence_not_established": mutant("new holder reads the other store before raising its fence", Breach.LOST_UPDATE),
    "fence_check_then_write": mutant("fence row checked, then written in a second step", Breach.WRITE_BEHIND_FENCE),
    "fence_select_without_lock": mutant("fence test is a plain SELECT (no FOR SHARE/UPDATE)", Breach.WRITE_AFTER_LOSS),
    "delete_resets_token": mutant(
        "delete removes the row; token and incarnation start again",
        Breach.ANSWERED_UNRECEIVED,
        delete=1,
    ),
    "check_then_claim": mutant(
        "waiter checks its seq, then claims on status alone",
        Breach.EMPTY_TURN_REPLIED,
        expire=0,
        crash=0,
    ),
    "attempts_only_on_fail": mutant(
        "reclaim does not count an attempt; poison kills the process",
        Breach.ENDLESS_RETRIES,
        poison=1,
        crash=0,
        expire=0,
        submitters=1,
    ),
    "dup_bumps_seq": mutant("duplicate message_id still moves last_seq", Breach.PHANTOM_SEQ, expire=0, max_attempts=9),
    "seq_outside_lock": mutant(
        "seq comes from a sequence; commits out of order",
        Breach.PASSED_UNCOMMITTED,
        expire=0,
        crash=0,
    ),
    "ack_lost_means_failed": mutant(
        "lost commit acknowledgement is reported as failure",
        Breach.TOLD_FAILED,
        acklost=1,
        expire=0,
        crash=0,
    ),
    "orphan_heartbeat": mutant(
        "heartbeat task outlives a cancelled turn",
        Breach.SUBMITTER_WAITS,
        cancel=1,
        expire=0,
        crash=0,
    ),
    "heartbeat_unconditional": mutant(
        "heartbeat without token test keeps a dead newer claim alive",
        Breach.DEAD_CLAIM_KEPT_ALIVE,
        pollers=2,
        fail=0,
    ),
    "dead_letter_to_last_seq": mutant(
        "dead-letter up to last_seq instead of what was fetched",
        Breach.DEAD_UNRECEIVED,
        expire=1,
        crash=1,
    ),
    "watermark_means_answered": mutant(
        "seq <= watermark is reported as answered even when dead-lettered", Breach.TOLD_ANSWERED
    ),
    "init_select_then_insert": mutant(
        "thread row: SELECT, then INSERT OR REPLACE", Breach.SECOND_INIT, expire=0, crash=0
    ),
    "reply_before_finish": mutant("reply is delivered before finish commits", Breach.REPLY_OF_A_LOSER),
    "check_then_subscribe": mutant(
        "waiter checks, then subscribes; no re-check, no poller",
        Breach.SUBMITTER_WAITS,
        pollers=0,
        notify_only=True,
        expire=0,
        crash=0,
    ),
    "claim_before_insert": mutant(
        "submit claims first, inserts in a second step; no re-check, no poller",
        Breach.SUBMITTER_WAITS,
        pollers=0,
        notify_only=True,
        expire=0,
        crash=0,
    ),
    "wake_one_no_recheck": mutant(
        "finish wakes one waiter, which dies; no re-check, no poller",
        Breach.SUBMITTER_WAITS,
        pollers=0,
        notify_only=True,
        submitters=3,
        expire=0,
        crash=1,
        extstore=False,
        retry=False,
    ),
    "dead_letter_whole_batch": mutant(
        "after max attempts the whole fetched batch is dead-lettered",
        Breach.DEAD_TOO_EARLY,
        poison=1,
        crash=0,
        expire=1,
    ),
    "one_attempt_counter": mutant(
        "failures before the first fetch count against the head message", Breach.DEAD_UNRECEIVED
    ),
    "no_window": mutant(
        "only the heartbeat ends a claim; a hung handler keeps beating",
        Breach.SUBMITTER_WAITS,
        hang=1,
        expire=0,
        crash=0,
    ),
    "failover_without_epoch": mutant(
        "standby lacks the last claim; tokens go on from the old value",
        Breach.TOKEN_NOT_NEW,
        lose=1,
        expire=0,
        crash=0,
    ),
    "dispatch_without_lease": mutant(
        "poller marks the due row dispatched, for ever; Redis is flushed", Breach.MESSAGE_UNRESOLVED, **D, flush=1
    ),
    "dispatch_deletes_due": mutant(
        "poller deletes the due row that it dispatches, and dies before it sends", Breach.MESSAGE_UNRESOLVED, **D
    ),
    "lease_without_test": mutant(
        "a second poller leases the due row that it saw before the first leased it", Breach.LEASED_TWICE, **D
    ),
    "due_keeps_lease": mutant(
        "a turn that leaves messages keeps the lease of the due row that is there",
        Breach.MESSAGE_UNRESOLVED,
        **{**D, "fail": 1, "backoff": True},
    ),
    "own_turn_means_answered": mutant(
        "caller takes its turn's reply as the answer although the batch stopped before its message",
        Breach.TOLD_ANSWERED,
    ),
    "abort_forgets_message": mutant("a submitter whose turn lost its claim reports failure", Breach.TOLD_FAILED),
    # the due table, the riding fetch, hand-off, resolve, latest, rollback
}
