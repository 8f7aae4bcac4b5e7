"""Weakened rules of the due table, riding fetches, hand-offs, resolved messages, questions, rollbacks and stops."""

from __future__ import annotations

from .mutant import B, mutant
from .words import CLOSE, Breach

FEATURES = {
    "due_not_in_finish": mutant(
        "finish leaves pending work without a due row", Breach.MESSAGE_UNRESOLVED, due=True, **B
    ),
    "due_not_in_reclaim": mutant(
        "reclaim leaves pending work without a due row", Breach.MESSAGE_UNRESOLVED, due=True, **B
    ),
    "due_not_in_resume": mutant(
        "resume of a parked thread writes no due row",
        Breach.MESSAGE_UNRESOLVED,
        due=True,
        park=1,
        lazy=True,
        **B,
    ),
    "due_not_in_lazy_submit": mutant(
        "a submit that does not claim writes no due row",
        Breach.MESSAGE_UNRESOLVED,
        due=True,
        lazy=True,
        **B,
    ),
    "due_not_in_rollback": mutant("rollback writes no due row", Breach.MESSAGE_UNRESOLVED, due=True, rollback=1, **B),
    "due_deleted_without_lock": mutant(
        "poller reads the thread, deletes the due row in another transaction",
        Breach.MESSAGE_UNRESOLVED,
        due=True,
        lazy=True,
        pollers=1,
        **B,
    ),
    "due_from_unlocked_last_seq": mutant(
        "finish computes last_seq > upto from a snapshot older than the lock",
        Breach.MESSAGE_UNRESOLVED,
        due=True,
        **B,
    ),
    "due_deleted_after_claim": mutant(
        "claimer deletes the backlog's due row in a later transaction",
        Breach.MESSAGE_UNRESOLVED,
        due=True,
        lazy=True,
        **B,
    ),
    "ride_charges_attempt": mutant(
        "first fetch always rides in the claim and reclaim then charges an attempt",
        Breach.DEAD_UNRECEIVED,
        ride=True,
        crash=2,
        expire=0,
        **B,
    ),
    "handoff_same_token": mutant(
        "hand-off keeps the token",
        Breach.REPLY_NEVER_STORED,
        handoff=1,
        acklost=1,
        submitters=3,
        expire=0,
        crash=0,
        lazy=True,
        due=True,
        **B,
    ),
    "mid_done_not_advanced": mutant(
        "cancel of the head does not advance done_seq",
        Breach.RESOLVED_TURN_REPLIED,
        midcancel=1,
        lazy=True,
        **B,
    ),
    "mid_finish_no_skip": mutant(
        "finish does not skip messages resolved during the run",
        Breach.RESOLVED_TURN_REPLIED,
        midcancel=1,
        **B,
    ),
    "mid_cancel_of_fetched": mutant(
        "cancel is allowed for a message a running turn holds",
        Breach.RESOLVED_TURN_REPLIED,
        midcancel=1,
        **B,
    ),
    "mid_attempts_kept": mutant(
        "head cancelled, attempts counter kept for the next message",
        Breach.DEAD_TOO_EARLY,
        midcancel=1,
        fail=2,
        crash=0,
        expire=1,
        lazy=True,
        **B,
    ),
    "head_cancelled_before_fetch": mutant(
        "only seq <= fetched_seq is protected: the head can be cancelled between claim and fetch",
        Breach.RESOLVED_TURN_REPLIED,
        midcancel=1,
        fail=2,
        crash=0,
        lazy=True,
        **B,
    ),
    "mid_dead_no_skip": mutant(
        "dead-letter of the head does not skip resolved successors",
        Breach.RESOLVED_TURN_REPLIED,
        midcancel=1,
        fail=2,
        crash=0,
        lazy=True,
        **B,
    ),
    "latest_supersedes_fetched": mutant(
        "policy latest supersedes what the running turn holds",
        Breach.RESOLVED_TURN_REPLIED,
        latest=True,
        **B,
    ),
    "mid_finish_counts_rows": mutant(
        "finish asserts rows = upto - from",
        Breach.NEVER_FINISHES,
        midcancel=1,
        submitters=3,
        lazy=True,
        crash=0,
        expire=0,
        **B,
    ),
    # an open question
    "question_holds_nothing": mutant(
        "a claim does not ask for an open question",
        Breach.CLAIMED_WHILE_HELD,
        **{**B, "submitters": 3, "crash": 0, "expire": 0, "suspend": 1, "due": True},
    ),
    "answer_leaves_question_open": mutant(
        "the answer does not close the question", Breach.SUBMITTER_WAITS, suspend=1, due=True, extstore=False
    ),
    "answer_without_question": mutant(
        "an answer is stored although another message closed its question",
        Breach.DECIDED_WHAT_IS_CLOSED,
        **{**B, "submitters": 3, "crash": 0, "expire": 0, "suspend": 1, "awaiting": CLOSE, "due": True},
    ),
    "answer_without_due": mutant(
        "the answer closes the question and writes no due row where it does not claim",
        Breach.MESSAGE_UNRESOLVED,
        suspend=1,
        due=True,
        lazy=True,
        **B,
    ),
    "question_survives_delete": mutant(
        "a deleted thread keeps its question, which the next life answers",
        Breach.DECIDED_WHAT_IS_CLOSED,
        suspend=1,
        delete=1,
        due=True,
        **B,
    ),
    "rollback_is_a_request": mutant(
        "rollback marks messages superseded but lets the turn finish",
        Breach.RESOLVED_TURN_REPLIED,
        rollback=1,
        **B,
    ),
    # a turn is asked to stop, and released by force once its grace is over
    "stop_is_a_flag": mutant(
        "a stop is a flag of the thread that names no token",
        Breach.STOPPED_UNASKED,
        interrupt=1,
        expire=0,
        crash=0,
        **B,
    ),
    "force_without_token": mutant(
        "the sweep observes that a grace is over, then releases whatever turn runs",
        Breach.STOPPED_UNASKED,
        interrupt=1,
        expire=0,
        crash=0,
        **B,
    ),
    "force_charges": mutant(
        "a forced release is charged as a failure",
        Breach.DEAD_UNRECEIVED,
        interrupt=2,
        max_interrupts=2,
        submitters=1,
        expire=0,
        crash=0,
        **B,
    ),
    "due_not_in_force": mutant(
        "a forced release writes no due row", Breach.MESSAGE_UNRESOLVED, due=True, interrupt=1, crash=0, **B
    ),
    "interrupts_without_end": mutant(
        "interrupts of one oldest message are not counted",
        Breach.STOPPED_TOO_OFTEN,
        interrupt=2,
        submitters=1,
        expire=0,
        crash=0,
        **B,
    ),
    "stop_cancels_what_is_held": mutant(
        "a stop cancels the messages that the turn has at once",
        Breach.RESOLVED_TURN_REPLIED,
        stop=1,
        expire=0,
        crash=0,
        **B,
    ),
    "stop_cancels_what_comes_later": mutant(
        "the end of a stopped turn cancels whatever is pending",
        Breach.CANCELLED_UNASKED,
        stop=1,
        expire=0,
        crash=0,
        **B,
    ),
}
