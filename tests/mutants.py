"""Seeded bugs: each weakens one rule of the core, and names the test that must go red.

    make mutants                     # every one, each in a copy of the tree; prints the table
    make mutants ARGS="finish"       # those whose name holds the word
    make mutants ARGS="--sim 100"    # those of code that the simulation runs, judged by so many seeds of it alone

`make test` looks whether every text is still found exactly once.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.forked import ROOT, compile_all, preload, run_pytest

SECONDS_MAX = 900
GREEN, RED = 0, 1
CAUGHT, SURVIVES, UNJUDGED = "red", "SURVIVES", "CANNOT BE JUDGED"
SIM = "tests/sim/test_sim.py"
NOT_IN_SIM = ("middleware/", "wake/redis.py")
CHUNK = 25
"""So many seeds are one case of the simulation's test."""
EXECUTOR = "tests/unit/test_executor.py"
GUARDS = "tests/races/test_guards.py -k"
OVERDUE = f"{GUARDS} lock_overdue"
DISPATCH = "tests/races/test_recovery.py -k lease"
LANGGRAPH_SAVER = "tests/frameworks/with_langgraph/test_saver.py"
LANGGRAPH_RUNS = "tests/frameworks/with_langgraph/test_runs.py"
AGENTS = "tests/frameworks/with_openai_agents/test_history.py"
SLACK = "tests/frameworks/test_slack.py"
TELEGRAM = "tests/frameworks/test_telegram.py"
OTEL = "tests/frameworks/test_otel.py -k 'turn_elsewhere or real_worker'"


def on_sqlite(file: str, words: str = "") -> str:
    """The tests of a conformance file whose names hold the words."""
    return f"tests/conformance/test_{file}.py -k " + (f"'sqlite and {words}'" if words else "sqlite")


POLICIES = on_sqlite("policies")
ASK = on_sqlite("questions")
EDIT = on_sqlite("edit")
STOP = on_sqlite("stop")
INTERRUPT = on_sqlite("interrupt")
ESTIMATES = on_sqlite("estimates", "does_not_wait")
HOOKS = on_sqlite("hooks", "trace")
SHARING = on_sqlite("sharing")
SEED = re.compile(r"seed (\d+) failed")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.*)", re.MULTILINE)


class Mutant(NamedTuple):
    """One weakened rule: in `file` of chatlock/, `text` becomes `instead`; `test` goes red."""

    name: str
    file: str
    text: str
    instead: str
    test: str


TABLE = (
    # -- submit --------------------------------------------------------------------------------------------------
    Mutant(
        "submit_known_id_stored_again",
        "ops/submit.py",
        "if known is not None:",
        "if known is not None and 0:",
        on_sqlite("submit", "resubmission"),
    ),
    Mutant(
        "submit_conflict_ignored",
        "ops/submit.py",
        "if known.payload_hash != submission.payload_hash:",
        "if known.payload_hash == '':",
        on_sqlite("submit"),
    ),
    Mutant(
        "submit_without_due",
        "ops/submit.py",
        "    if granted is None and row.status == Status.IDLE:\n        put_due(",
        "    if granted is None and row.status == Status.ABSENT:\n        put_due(",
        SIM,
    ),
    Mutant(
        "submit_forgets_adopted_claim",
        "ops/submit.py",
        "granted = adopt(conn, key, row, request) or claim_and_fetch(conn, key, row, request, seq)",
        "granted = claim_and_fetch(conn, key, row, request, seq)",
        on_sqlite("transitions", "repeated_submit"),
    ),
    Mutant(
        "submit_to_deleted_thread_stored",
        "ops/submit.py",
        "    if row.status == Status.DELETED:\n        return Submitted(Gone",
        "    if row.status == Status.ABSENT:\n        return Submitted(Gone",
        on_sqlite("submit", "to_a_deleted_thread"),
    ),
    Mutant(
        "submit_reject_ignored",
        "ops/submit.py",
        'POLICIES[what.policy].store == "if_free":',
        'POLICIES[what.policy].store == "":',
        on_sqlite("submit"),
    ),
    Mutant(
        "recreate_token_kept",
        "ops/submit.py",
        "        token=threads.c.token + 1,\n        last_seq=0",
        "        last_seq=0",
        on_sqlite("counters"),
    ),
    Mutant(
        "recreate_seq_kept",
        "ops/submit.py",
        "        done_seq=0,\n",
        "        done_seq=threads.c.done_seq,\n",
        on_sqlite("submit", "recreate_starts"),
    ),
    # -- policies ------------------------------------------------------------------------------------------------
    Mutant("latest_takes_held", "ops/submit.py", "above = held_upto(row)\n", "above = row.done_seq\n", POLICIES),
    Mutant("cap_counts_held", "ops/submit.py", '"above": held_upto(row), "n', '"above": row.done_seq, "n', POLICIES),
    Mutant("if_idle_ignored", "ops/submit.py", "if what.if_idle and", "if not what.key and", POLICIES),
    Mutant("if_turn_is_any_turn", "ops/submit.py", "and what.if_turn != row.token", "and not row.token", POLICIES),
    Mutant("debounce_for_ever", "ops/submit.py", "oldest + times.max_wait_ms", "2**53", POLICIES),
    Mutant("expire_counts_turns", "ops/resolve.py", "last_end=last_end or 0", "last_end=0", POLICIES),
    Mutant("expire_of_held", "ops/resolve.py", '{"above": held_upto(row), "', '{"above": row.done_seq, "', POLICIES),
    Mutant("dropped_message_moves_the_start", "ops/submit.py", '!= "drop_newest"):', '!= "DROP_NEWEST"):', POLICIES),
    Mutant(
        "expired_message_gets_a_turn",
        "ops/claim.py",
        "claim = claim_locked(conn, key, row, request, seq)",
        "claim = claim_locked(conn, key, row, request)",
        POLICIES,
    ),
    # -- questions and edits -------------------------------------------------------------------------------------
    Mutant("question_holds_nothing", "ops/base.py", " and self.pending and not self.held", " and self.pending", ASK),
    Mutant("held_thread_is_due", "ops/due.py", "    if not row.held:\n", "    if row.token >= 0:\n", ASK),
    Mutant("any_question_is_answered", "ops/submit.py", "what.if_awaiting != row.awaiting", "not row.awaiting", ASK),
    Mutant("anyone_answers", "ops/submit.py", "== row.awaiting == submission.if_awaiting", "== row.awaiting", ASK),
    Mutant("answered_question_stays_open", "ops/submit.py", "(what.answers or row.aw", "(row.aw", ASK),
    Mutant(
        "cancel_rule_ignored", "ops/submit.py", '(what.answers or row.awaiting_rule == "cancel")', "what.answers", ASK
    ),
    Mutant("answer_meets_the_cap", "ops/submit.py", ", debounce=None, pending_max=None)", ", debounce=None)", ASK),
    Mutant("hot_submit_passes_question", "ops/hot.py", " or awaiting is not None or not (", " or not (", ASK),
    Mutant("taken_question_is_asked", "ops/finish.py", "message_id=question_id).all():", 'message_id="").all():', ASK),
    Mutant(
        "resume_forgets_question",
        "ops/operate.py",
        'status="idle", attempts=0',
        'status="idle", awaiting=None, attempts=0',
        ASK,
    ),
    Mutant("edit_of_held", "ops/edit.py", "if old.seq <= held_upto(row) else", "if old.seq < 0 else", EDIT),
    Mutant("edit_made_twice", "ops/edit.py", "    if known is not None:", "    if known is not None and 0:", EDIT),
    Mutant(
        "edit_conflict_ignored",
        "ops/edit.py",
        "known.payload_hash != what.payload_hash",
        "known.payload_hash == ''",
        EDIT,
    ),
    Mutant("edit_of_another", "ops/edit.py", " or old is None or old.superseded_by != known.seq", "", EDIT),
    Mutant("edit_of_resolved", "ops/edit.py", "old.disposition != Disposition.PENDING", "old.seq < 0", EDIT),
    Mutant("decision_edited", "ops/edit.py", "old.policy == ANSWER or what", "what", EDIT),
    # -- stop ----------------------------------------------------------------------------------------------------
    Mutant("stop_of_any_turn", "ops/stop.py", "    if row.token != token:\n", "    if row.token < 0:\n", STOP),
    Mutant("stop_takes_what_is_held", "ops/stop.py", "row, above=above, b", "row, above=row.done_seq, b", STOP),
    Mutant("stop_takes_what_comes_later", "ops/resolve.py", "upto=row.cancel_upto", "upto=row.last_seq", STOP),
    Mutant(
        "stop_forgets_what_was_held",
        "ops/unanswered.py",
        "holes += cancel_stopped(conn, key, row, done)\n    ",
        "",
        STOP,
    ),
    Mutant("stop_forgets_the_rest", "ops/finish.py", " + cancel_stopped(conn, claim.key, row, what.upto)", "", STOP),
    Mutant("stop_parks_nothing", "ops/finish.py", '"new_status": row.status_after', '"new_status": Status.IDLE', STOP),
    Mutant(
        "stop_reaches_the_next_turn",
        "ops/heartbeat.py",
        "beaten.cancel_token == claim.token",
        "beaten.cancel_token is not None",
        INTERRUPT,
    ),
    Mutant(
        "stopped_turn_is_charged",
        "ops/unanswered.py",
        "    if row.stopping:\n",
        "    if row.stopping and held < 0:\n",
        INTERRUPT,
    ),
    Mutant(
        "stopped_turn_finishes_hot",
        "ops/hot.py",
        'holes=0 AND cancel_token IS NULL"""\n_A',
        'holes=0"""\n_A',
        INTERRUPT,
    ),
    Mutant("force_without_grace", "ops/stop.py", "        threads.c.cancel_until < stable_ms(),\n", "", OVERDUE),
    Mutant(
        "force_of_any_turn",
        "ops/stop.py",
        '        threads.c.cancel_token == b("token"),\n        threads',
        "        threads",
        OVERDUE,
    ),
    Mutant(
        "interrupts_without_end",
        "ops/stop.py",
        "row.interrupts >= bounds.per_head_max",
        "row.interrupts < 0",
        INTERRUPT,
    ),
    Mutant(
        "interrupts_never_forgotten",
        "ops/hot.py",
        "not_before=0, interrupts=0, claim_id=NULL,\n",
        "not_before=0, claim_id=NULL,\n",
        INTERRUPT,
    ),
    Mutant(
        "rollback_keeps_the_token",
        "ops/stop.py",
        "bump=1,\n        error=ROLLED_BACK",
        "bump=0,\n        error=ROLLED_BACK",
        INTERRUPT,
    ),
    Mutant(
        "rollback_takes_what_waits",
        "ops/stop.py",
        '"upto": row.fetched_seq, "by"',
        '"upto": row.last_seq, "by"',
        INTERRUPT,
    ),
    Mutant(
        "rollback_keeps_the_messages",
        "ops/stop.py",
        '"upto": row.fetched_seq, "by"',
        '"upto": row.done_seq, "by"',
        INTERRUPT,
    ),
    Mutant(
        "undo_once",
        "ops/stop.py",
        "turns.c.token > func.coalesce(last_done, 0)",
        'turns.c.token == b("token") - 2',
        INTERRUPT,
    ),
    Mutant("steer_tells_nobody", "ops/heartbeat.py", "beaten.steered or 0", "0", INTERRUPT),
    Mutant(
        "dropped_message_stops_the_turn",
        "ops/submit.py",
        "        if not dropped:\n",
        "        if known is None:\n",
        INTERRUPT,
    ),
    Mutant("class_of_the_latest", "ops/base.py", "min(self.priority, priority) if self.pending else", "", SHARING),
    Mutant(
        "promote_keeps_quiet",
        "ops/operate.py",
        '.values(priority=b("priority"), quiet_until=0)',
        '.values(priority=b("priority"))',
        SHARING,
    ),
    Mutant(
        "attach_leads_to_itself",
        "middleware/endpoints.py",
        "below(path, refused.message_id)",
        "below(path, asked.message_id)",
        "tests/acceptance/test_rivals.py -k http",
    ),
    # -- what is told --------------------------------------------------------------------------------------------
    Mutant("hot_submit_tells_no_eta", "ops/hot.py", "position=position, eta_ms=eta)", "position=position)", ESTIMATES),
    Mutant("hot_submit_without_history", "ops/hot.py", "eta_ms(stored.typical_ms, s", "eta_ms(None, s", ESTIMATES),
    Mutant(
        "submit_tells_no_eta",
        "ops/inspect.py",
        "typical_ms(conn, row.agent), row.claimed_ms, in_turn=False",
        "None, row.claimed_ms, in_turn=False",
        ESTIMATES,
    ),
    # -- due -----------------------------------------------------------------------------------------------------
    Mutant(
        "hot_queue_goes_before_all_others",
        "ops/hot.py",
        "max(now, quiet, backoff)",
        "max(quiet, backoff)",
        on_sqlite("submit", "without_a_handler"),
    ),
    Mutant("oldest_alone_are_looked_at", "ops/due.py", "if len(rows) == looked_at:", "if not rows:", SHARING),
    Mutant(
        "background_with_all_others",
        "ops/due.py",
        'one.priority >= PRIORITIES["background"]',
        "False",
        "tests/unit/test_sharing.py",
    ),
    Mutant(
        "dispatch_deletes_due",
        "ops/due.py",
        "not run(conn, LEASE, key, lease=lease_ms).all()",
        "not run(conn, LEASE, key, lease=lease_ms).all() or drop_due(conn, key)",
        DISPATCH,
    ),
    Mutant(
        "lease_without_test",
        "ops/due.py",
        "    .where(of_thread(due), _not_dispatched)\n",
        "    .where(of_thread(due))\n",
        DISPATCH,
    ),
    Mutant(
        "due_keeps_lease",
        "ops/due.py",
        '"priority": new.excluded.priority, "dispatched_until": 0}',
        '"priority": new.excluded.priority}',
        DISPATCH,
    ),
    Mutant("tenant_limit_ignored", "ops/due.py", "max(0, tenant_turns_max - busy)", "limit", SHARING),
    Mutant("tenant_limit_counts_stale", "ops/due.py", "t.expires_at>={now}", "t.expires_at>=0", SHARING),
    # -- claim ---------------------------------------------------------------------------------------------------
    Mutant(
        "claim_token_kept",
        "ops/claim.py",
        "        token=threads.c.token + 1,\n        claim_id",
        "        claim_id",
        SIM,
    ),
    Mutant(
        "claim_fetched_not_reset",
        "ops/claim.py",
        "fetched_seq=threads.c.done_seq",
        "fetched_seq=threads.c.fetched_seq",
        on_sqlite("failure", "oldest_message_runs_alone"),
    ),
    Mutant(
        "claim_beat_not_reset",
        "ops/claim.py",
        "        beat=0,\n",
        "        beat=threads.c.beat,\n",
        on_sqlite("counters"),
    ),
    Mutant(
        "claim_hurries_backoff",
        "ops/claim.py",
        "row.starts_at(request.limits.backoff_max_ms) > row.now",
        "row.now < 0",
        SIM,
    ),
    Mutant(
        "claim_for_resolved_message",
        "ops/claim.py",
        "seq is not None and row.done_seq >= seq",
        "seq is not None and row.done_seq > seq + 99",
        "tests/races/test_recovery.py -k gets_no_turn",
    ),
    Mutant(
        "claim_in_other_incarnation",
        "ops/claim.py",
        "if row is None or row.incarnation != incarnation:",
        "if row is None:",
        "tests/races/test_recovery.py -k gets_no_turn",
    ),
    Mutant(
        "claim_fetch_rides_after_charge",
        "ops/claim.py",
        "    if row.attempts or row.stalls:\n        return Granted(claim)\n",
        "",
        SIM,
    ),
    Mutant(
        "claim_due_keeps_row",
        "ops/claim.py",
        "granted or not row.waits",
        "granted and False",
        on_sqlite("reclaim", "surplus"),
    ),
    Mutant(
        "claim_due_drops_waiting_row",
        "ops/claim.py",
        "granted or not row.waits",
        "True",
        on_sqlite("failure", "in_backoff_grants"),
    ),
    Mutant(
        "adopt_any_claim",
        "ops/claim.py",
        "if row.status != Status.RUNNING or row.claim_id != request.claim_id:",
        "if row.status != Status.RUNNING:",
        on_sqlite("transitions", "repeated_submit"),
    ),
    Mutant(
        "adopted_claim_is_told_less",
        "ops/claim.py",
        "Granted(_claim(conn, key, row, request, row.token))",
        "Granted(_claim(conn, key, row, request, 0))",
        on_sqlite("turn_memory", "asked_for_again"),
    ),
    Mutant(
        "look_breaks_the_quiet",
        "ops/inspect.py",
        "        or_(threads.c.quiet_until <= stable_ms(), threads.c.quiet_until > stable_ms() + QUIET_MAX_MS),\n",
        "",
        on_sqlite("waiting", "look_finds"),
    ),
    # -- fetch ---------------------------------------------------------------------------------------------------
    Mutant(
        "lock_of_any_claim",
        "ops/base.py",
        "    if row is None or not holds(row, claim):\n        raise ClaimLost",
        "    if row is None:\n        raise ClaimLost",
        on_sqlite("transitions", "stale and fetch"),
    ),
    Mutant(
        "fetch_all_after_failure",
        "ops/fetch.py",
        "bound = row.last_seq if row.attempts == 0 else row.done_seq + 1",
        "bound = row.last_seq",
        on_sqlite("failure", "oldest_message_runs_alone"),
    ),
    Mutant(
        "fetch_unbounded",
        "ops/fetch.py",
        "min(bound, row.done_seq + batch_max)",
        "bound",
        on_sqlite("turn"),
    ),
    Mutant(
        "fetch_takes_resolved",
        "ops/fetch.py",
        '        messages.c.seq <= b("fetched"),\n        messages.c.disposition == "pending",\n',
        '        messages.c.seq <= b("fetched"),\n',
        on_sqlite("turn", "passes_over_a_cancelled"),
    ),
    Mutant(
        "mark_without_claim",
        "ops/fetch.py",
        "    mine(conn, claim)\n    run(conn, MARK",
        "    run(conn, MARK",
        on_sqlite("turn_memory", "mark_after"),
    ),
    # -- finish --------------------------------------------------------------------------------------------------
    Mutant(
        "finish_answers_all",
        "ops/finish.py",
        'messages.c.seq <= b("upto"),',
        'messages.c.seq <= b("upto") + 99,',
        on_sqlite("turn", "finish_up_to"),
    ),
    Mutant(
        "finish_of_lost_claim_done",
        "ops/finish.py",
        "if row is None or found is None:",
        "if row is None:",
        on_sqlite("turn", "claim_was_taken"),
    ),
    Mutant(
        "finish_without_claim",
        "ops/finish.py",
        "if row is None or not holds(row, claim):",
        "if row is None:",
        on_sqlite("transitions", "stale and finish"),
    ),
    Mutant(
        "finish_without_due",
        "ops/finish.py",
        "    if granted is None and after.status == Status.IDLE:\n        put_due",
        "    if granted is None and after.status == Status.ABSENT:\n        put_due",
        on_sqlite("transitions", "what_it_holds"),
    ),
    Mutant(
        "finish_keeps_holes",
        "ops/finish.py",
        "holes = row.holes - (what.upto - claim.from_seq - answered)",
        "holes = row.holes",
        SIM,
    ),
    Mutant(
        "finish_prefix_not_moved",
        "ops/finish.py",
        "done, holes = resolved_prefix(conn, claim.key, row, what.upto, holes)",
        "done = what.upto",
        on_sqlite("turn", "cancelled_messages_behind"),
    ),
    Mutant(
        "finish_keeps_attempts",
        "ops/finish.py",
        "        attempts=0,\n        stalls=0,\n        not_before=0,",
        "        not_before=0,",
        on_sqlite("turn", "clears_what_was_charged"),
    ),
    Mutant(
        "finish_in_without_fence",
        "ops/finish.py",
        "    fence(conn, what.claim)\n    finished",
        "    finished",
        "tests/conformance/test_write_first.py",
    ),
    Mutant(
        "hand_off_forgets_adopted_claim",
        "ops/finish.py",
        "adopt(conn, claim.key, row, request) if request is not None else None",
        "None",
        on_sqlite("transitions", "repeated_hand_off"),
    ),
    # -- the hot path ----------------------------------------------------------------------------------------------
    Mutant(
        "hot_submit_takes_seqs_of_another_life",
        "ops/hot.py",
        "CASE WHEN g.go THEN g.seq ELSE l.fetched_seq END",
        "CASE WHEN g.go THEN g.seq ELSE t.fetched_seq END",
        "tests/races/test_told.py -k recreation",
    ),
    Mutant("hot_submit_claims_unquiet", "ops/hot.py", "max(not_before, quiet) <= now", "not_before <= now", POLICIES),
    Mutant(
        "hot_submit_claims_parked",
        "ops/hot.py",
        'free = status == "idle" and last == done',
        "free = last == done",
        on_sqlite("operate", "no_turn"),
    ),
    Mutant(
        "hot_submit_without_due",
        "ops/hot.py",
        '        if status == "idle":\n            backoff',
        '        if status == "absent":\n            backoff',
        on_sqlite("submit", "queued_and_due"),
    ),
    Mutant(
        "hot_submit_deleted_stored",
        "ops/hot.py",
        'if status == "deleted" or awaiting',
        "if awaiting",
        on_sqlite("submit", "to_a_deleted_thread"),
    ),
    Mutant(
        "hot_finish_ignores_holes",
        "ops/hot.py",
        'AND holes=0 AND cancel_token IS NULL"""\n_ANSWER',
        'AND cancel_token IS NULL"""\n_ANSWER',
        on_sqlite("turn", "finish_moves_over"),
    ),
    Mutant(
        "hot_finish_counts_nothing",
        "ops/hot.py",
        'if (len(answered), len(ended)) != (values["held"], 1):',
        "if len(ended) != 1:",
        on_sqlite("transitions", "other_messages"),
    ),
    Mutant(
        "hot_finish_without_due",
        "ops/hot.py",
        '    if last > values["upto"]:',
        '    if last > values["upto"] + 99:',
        on_sqlite("transitions", "what_it_holds"),
    ),
    # -- fail, release, reclaim, free --------------------------------------------------------------------------------
    Mutant(
        "head_dead_with_all",
        "ops/unanswered.py",
        'messages.c.seq == b("head"), messages.c.disposition',
        'messages.c.seq >= b("head"), messages.c.disposition',
        on_sqlite("failure", "only_the_oldest"),
    ),
    Mutant(
        "unanswered_without_due",
        "ops/unanswered.py",
        "if status == Status.IDLE and left:",
        "if status == Status.PARKED and left:",
        SIM,
    ),
    Mutant(
        "unanswered_prefix_not_moved",
        "ops/unanswered.py",
        "    done, holes = resolved_prefix(conn, key, row, done, holes)\n",
        "",
        on_sqlite("failure", "past_all"),
    ),
    Mutant(
        "fail_without_claim",
        "ops/unanswered.py",
        "    if row is None or not holds(row, claim):\n        if row is not None and _ended_itself",
        "    if row is None:\n        if row is not None and _ended_itself",
        on_sqlite("transitions", "stale and fail"),
    ),
    Mutant(
        "fail_repeated_is_lost",
        "ops/unanswered.py",
        "in (TurnState.FAILED, TurnState.GAVE_UP)",
        "in (TurnState.GAVE_UP,)",
        on_sqlite("transitions", "repeated_failure"),
    ),
    Mutant(
        "fail_repeated_is_not_looked_for",
        "ops/unanswered.py",
        "if row is not None and _ended_itself",
        "if row is None and _ended_itself",
        on_sqlite("transitions", "repeated_failure"),
    ),
    Mutant(
        "fail_repeated_only_of_stopped",
        "ops/unanswered.py",
        "TurnState.GAVE_UP) or row.error",
        "TurnState.GAVE_UP) and row.error",
        on_sqlite("transitions", "repeated_failure"),
    ),
    Mutant(
        "replaced_file_is_not_noticed",
        "dialects.py",
        'if record.info["file"] != _identity(self._path):',
        'if record.info["file"] != record.info["file"]:',
        "tests/acceptance/test_replaced_file.py",
    ),
    Mutant(
        "deleted_file_is_made_again",
        "dialects.py",
        "        if self._path:\n",
        "        if self._path is None:\n",
        "tests/acceptance/test_replaced_file.py",
    ),
    Mutant(
        "released_again_is_run_hot",
        "flows.py",
        'core.cancelled or core.ended != "released" or not core.claim.after_release',
        "core is not None",
        on_sqlite("waiting", "again_and_again"),
    ),
    Mutant(
        "asked_to_stop_wakes_nobody",
        "flows.py",
        'core.cancelled or core.ended != "released"',
        'core.ended != "released"',
        on_sqlite("waiting", "asked_to_stop"),
    ),
    Mutant(
        "release_of_any_claim",
        "ops/unanswered.py",
        "row.status != Status.RUNNING or row.claim_id != claim_id",
        "row.status != Status.RUNNING",
        on_sqlite("transitions", "stale and release"),
    ),
    Mutant(
        "reclaim_token_kept",
        "ops/unanswered.py",
        "state=TurnState.RECLAIMED, charged=charged, bump=1",
        "state=TurnState.RECLAIMED, charged=charged, bump=0",
        on_sqlite("reclaim", "seen_twice"),
    ),
    Mutant(
        "reclaim_without_expiry",
        "ops/unanswered.py",
        "        threads.c.expires_at < stable_ms(),\n        threads.c.token",
        "        threads.c.token",
        f"{GUARDS} lock_stale",
    ),
    Mutant(
        "reclaim_other_beat",
        "ops/unanswered.py",
        '        threads.c.token == b("token"),\n        threads.c.beat == b("beat"),\n',
        '        threads.c.token == b("token"),\n',
        f"{GUARDS} lock_stale",
    ),
    Mutant(
        "reclaim_charges_unreceived",
        "charging.py",
        "return fetched_seq > done_seq and (attempts + stalls > 0 or beat > 0)",
        "return fetched_seq > done_seq",
        on_sqlite("reclaim"),
    ),
    Mutant(
        "free_other_turn",
        "ops/unanswered.py",
        '    if row.token != token:\n        return Receipt(False, "other_turn", row.status)\n    if not row.stale',
        "    if not row.stale",
        on_sqlite("transitions", "stale and free"),
    ),
    Mutant(
        "free_live_holder",
        "ops/unanswered.py",
        "    if not row.stale and not force:\n",
        "    if not row.stale and not force and token < 0:\n",
        on_sqlite("operate", "live_holder"),
    ),
    Mutant(
        "charge_never_dead",
        "charging.py",
        "if attempts >= limits.attempts_max:",
        "if attempts > limits.attempts_max + 99:",
        on_sqlite("failure", "five_attempts"),
    ),
    Mutant(
        "charge_dead_early",
        "charging.py",
        "if attempts >= limits.attempts_max:",
        "if attempts >= limits.attempts_max - 1:",
        on_sqlite("failure", "five_attempts"),
    ),
    # -- operators -----------------------------------------------------------------------------------------------
    Mutant(
        "cancel_of_fetched_message",
        "ops/operate.py",
        "if known.seq <= held_upto(row):",
        "if row.status == Status.ABSENT:",
        on_sqlite("submit", "in_a_turn_cannot"),
    ),
    Mutant(
        "cancel_of_unfetched_head",
        "ops/resolve.py",
        "max(row.fetched_seq, row.done_seq + 1) if",
        "row.fetched_seq if",
        on_sqlite("transitions", "oldest_message"),
    ),
    Mutant(
        "cancel_keeps_attempts",
        "ops/resolve.py",
        'attempts=case((b("done") > threads.c.done_seq, 0), else_=threads.c.attempts)',
        "attempts=threads.c.attempts",
        on_sqlite("failure", "cancelled_head"),
    ),
    Mutant(
        "park_keeps_due",
        "ops/operate.py",
        "    run(conn, PARK, key).one()\n    drop_due(conn, key)\n",
        "    run(conn, PARK, key).one()\n",
        on_sqlite("counters"),
    ),
    Mutant(
        "resume_without_due",
        "ops/operate.py",
        "    run(conn, RESUME, key).one()\n    if row.pending:",
        "    run(conn, RESUME, key).one()\n    if row.pending and key is None:",
        on_sqlite("operate", "due_at_once"),
    ),
    Mutant(
        "delete_token_kept",
        "ops/operate.py",
        'status="deleted", token=threads.c.token + 1,',
        'status="deleted",',
        on_sqlite("operate", "delete"),
    ),
    Mutant(
        "delete_keeps_pending",
        "ops/operate.py",
        "    run(conn, DELETE_PENDING, key, incarnation=row.incarnation)\n",
        "",
        on_sqlite("operate", "tombstone"),
    ),
    Mutant(
        "purge_counts_what_is_not_there",
        "ops/purge.py",
        "    if row is None:\n        return 0\n",
        "    if row is None:\n        return 1\n",
        on_sqlite("retention", "not_there"),
    ),
    Mutant(
        "purge_drops_what_a_hook_is_to_see",
        "ops/purge.py",
        ", not_(_hook_may_need))",
        ")",
        on_sqlite("retention", "keeps_a_rolled_back"),
    ),
    Mutant(
        "receipt_shows_an_enum",
        "ops/audit.py",
        'object.__setattr__(self, "state", ',
        'object.__setattr__(self, "STATE", ',
        on_sqlite("operate", "plain_text"),
    ),
    # -- fence, heartbeat, state ---------------------------------------------------------------------------------------
    Mutant(
        "fence_without_token",
        "ops/fence.py",
        "update(threads).where(UNDER_CLAIM)",
        'update(threads).where(threads.c.thread_id == b("thread"), threads.c.status == "running")',
        on_sqlite("transitions", "stale"),
    ),
    Mutant(
        "fence_without_status",
        "ops/fence.py",
        "update(threads).where(UNDER_CLAIM)",
        'update(threads).where(threads.c.thread_id == b("thread"), threads.c.token == b("token"))',
        on_sqlite("transitions", "illegal and fence"),
    ),
    Mutant(
        "fetch_under_any_token", "ops/fetch.py", "(UNDER_CLAIM", "(of_incarnation(threads)", f"{GUARDS} fetch.advance"
    ),
    Mutant(
        "finish_under_any_token", "ops/finish.py", "(UNDER_CLAIM", "(of_incarnation(threads)", f"{GUARDS} finish.thread"
    ),
    Mutant("stop_under_any_token", "ops/stop.py", "(UNDER_CLAIM", "(of_incarnation(threads)", f"{GUARDS} stop.ask"),
    Mutant(
        "end_under_any_token",
        "ops/unanswered.py",
        "(UNDER_CLAIM",
        "(of_incarnation(threads)",
        f"{GUARDS} unanswered.thread",
    ),
    Mutant(
        "other_store_takes_older_token",
        "ops/fence.py",
        "where=fences.c.highest <= new.excluded.highest",
        "where=fences.c.highest <= fences.c.highest",
        "tests/races/test_other_store.py",
    ),
    Mutant(
        "session_without_claim",
        "ops/fence.py",
        "    mine(conn, claim)\n    run(conn, KEEP",
        "    run(conn, KEEP",
        on_sqlite("transitions", "stale and session"),
    ),
    Mutant(
        "heartbeat_past_window",
        "ops/heartbeat.py",
        "        wall_ms() < threads.c.window_ends_at,\n",
        "",
        f"{GUARDS} heartbeat",
    ),
    Mutant(
        "silence_forgotten_by_beat",
        "ops/heartbeat.py",
        "if row.silent and run(conn, NOTE_SILENCE, claim.key, **bound).all():",
        "if row.silent:",
        on_sqlite("windows", "silent"),
    ),
    Mutant(
        "silent_run_sets_window",
        "ops/windows.py",
        "            & turns.c.error.is_(None)\n",
        "",
        on_sqlite("windows", "silent"),
    ),
    Mutant(
        "heartbeat_of_other_token",
        "ops/heartbeat.py",
        ".where(UNDER_CLAIM)\n",
        '.where(of_incarnation(threads), threads.c.status == "running")\n',
        on_sqlite("transitions", "stale"),
    ),
    Mutant(
        "state_of_other_claim",
        "ops/base.py",
        "row is None or row.claim_id != claim.claim_id",
        "row is None",
        on_sqlite("counters"),
    ),
    Mutant(
        "prefix_beyond_pending",
        "ops/base.py",
        "moved = row.last_seq if first is None else first - 1",
        "moved = row.last_seq if first is None else first",
        on_sqlite("failure", "cancelled_head"),
    ),
    # -- executor ------------------------------------------------------------------------------------------------
    Mutant(
        "commit_never_unknown",
        "executor.py",
        "commit_unknown = commit_unknown or (attempt.committing and",
        "commit_unknown = commit_unknown or (False and",
        f"{EXECUTOR} -k may_have_arrived",
    ),
    Mutant(
        "no_retry_of_lost_connection",
        "executor.py",
        "again, pause = reconnects <= RECONNECTS_MAX,",
        "again, pause = reconnects <= 0,",
        f"{EXECUTOR} -k made_anew",
    ),
    Mutant(
        "failed_transaction_committed",
        "executor.py",
        '            execute("ROLLBACK")',
        '            execute("COMMIT")',
        f"{EXECUTOR} -k rolled_back",
    ),
    Mutant(
        "failed_transaction_left_open",
        "executor.py",
        '            execute("ROLLBACK")',
        "            pass",
        f"{EXECUTOR} -k go_back_to_the_pool",
    ),
    # -- flows, place --------------------------------------------------------------------------------------------
    Mutant(
        "stopped_caller_keeps_claim",
        "flows.py",
        "            await self.store.release(key, claim_id)\n",
        '            await self.store.release(key, "none")\n',
        on_sqlite("turn_end", "cancelled_while_it_claims"),
    ),
    Mutant(
        "failure_not_charged",
        "flows.py",
        "await core.fail(self.store, error if error is not None else TurnNotFinished())",
        "await core.release(self.store)",
        on_sqlite("failure", "each_failure"),
    ),
    Mutant(
        "rolled_back_finish_taken_for_done",
        "turn_core.py",
        '        if state == "done":\n            self.end("done")',
        '        if state in ("done", "running"):\n            self.end("done")',
        "tests/conformance/own_transaction/test_commit.py -k 'sqlite and rolled_back_finish'",
    ),
    Mutant(
        "answered_without_own_message",
        "turn_core.py",
        "any(m.message_id == message_id and m.seq <= self.upto for m in self.messages)",
        "True",
        on_sqlite("turn", "before_its_message"),
    ),
    Mutant(
        "hand_off_forgotten",
        "flows.py",
        "next_turn = await self.run_turn(core, handler, request)",
        "await self.run_turn(core, handler, request)",
        on_sqlite("hand_off", "next_one_at_once"),
    ),
    Mutant(
        "wake_only_elsewhere",
        "flows.py",
        "        self.waiters.wake(key)\n        if due",
        "        if due",
        "tests/unit/test_waiters.py",
    ),
    # -- waiters, heart, sweep, turn -------------------------------------------------------------------------------
    Mutant(
        "waiter_is_never_told",
        "ops/inspect.py",
        "resolved=not pending or standing.status in",
        "resolved=standing.status in",
        on_sqlite("waiting", "look_tells"),
    ),
    Mutant(
        "parked_thread_keeps_waiting",
        "ops/inspect.py",
        "resolved=not pending or standing.status in (Status.PARKED, Status.DELETED)",
        "resolved=not pending",
        on_sqlite("waiting", "look_tells"),
    ),
    Mutant(
        "waiter_missed_wake",
        "wake/waiters.py",
        "                waiter.missed = False\n                self._woken.add(waiter.key)",
        "                waiter.missed = False",
        "tests/unit/test_waiters.py",
    ),
    Mutant(
        "look_error_ends_looks",
        "wake/waiters.py",
        '                log.warning("look.failed", extra={"waiters": len(chosen), "error": type(error).__name__})',
        "                raise",
        "tests/unit/test_waiters.py",
    ),
    Mutant(
        "waiters_all_claim",
        "wake/waiters.py",
        "and (waiter.key not in claimers or name[3] < claimers[waiter.key][0])",
        "and waiter.key not in claimers",
        "tests/unit/test_waiters.py",
    ),
    Mutant(
        "look_overlooks_holes",
        "ops/inspect.py",
        "row.done_seq, row.holes, bool(row.may_start))",
        "row.done_seq, 0, bool(row.may_start))",
        "tests/conformance/test_waiting.py",
    ),
    Mutant(
        "free_thread_is_looked_at_once",
        "ops/inspect.py",
        "(self.status == Status.IDLE and not self.may_start)",
        "self.status == Status.IDLE",
        "tests/unit/test_waiters.py",
    ),
    Mutant(
        "new_waiter_is_not_looked_at",
        "wake/waiters.py",
        "if w.pending_at is None or w.pending_at != settled.get(w.key)",
        "if w.key not in settled",
        "tests/unit/test_waiters.py",
    ),
    Mutant(
        "silent_subscription_is_kept",
        "wake/redis.py",
        "health_check_response_counter > UNANSWERED_MAX",
        "health_check_response_counter < 0",
        "tests/acceptance/test_wake.py -k does_not_answer",
    ),
    Mutant(
        "heart_forgets_others",
        "heart.py",
        "self._turns.pop(claim_id, None) is not None",
        "bool(self._turns.clear())",
        "tests/unit/test_heart.py",
    ),
    Mutant(
        "heart_beats_once",
        "heart.py",
        "                self._turns[claim_id] = (ref, now + self._every_s)\n                due.append(turn)",
        "                del self._turns[claim_id]\n                due.append(turn)",
        "tests/unit/test_heart.py",
    ),
    Mutant(
        "heart_takes_busy_for_lost",
        "heart.py",
        "                    self.soon(turn.claim.claim_id, BUSY_SHARE)",
        "                    turn.set_lost()",
        "tests/unit/test_heart.py",
    ),
    Mutant(
        "sweep_reclaims_at_first_sight",
        "sweep.py",
        "self._gap_s = (2 * limits.beat_ms + 1000) / 1000",
        "self._gap_s = 0.0",
        "tests/races/test_set_clock.py -k sqlite",
    ),
    Mutant(
        "sweep_forgets_sightings",
        "sweep.py",
        "{s: self._first_seen.get(s, now) for s in map(_sighting, running)}",
        "{s: now for s in map(_sighting, running)}",
        on_sqlite("reclaim", "seen_twice"),
    ),
    Mutant(
        "sweep_stops_at_bad_thread",
        "sweep.py",
        '            log.exception("thread.not_served", extra={"op": name, "thread_hash": key_hash(key)[:12]})\n',
        "            raise\n",
        "tests/acceptance/service/test_passes.py -k bad_threads",
    ),
    Mutant(
        "check_ignores_lease",
        "turn_core.py",
        " or time.monotonic() >= self._valid_until",
        "",
        on_sqlite("lost", "check"),
    ),
    Mutant(
        "fetch_hands_out_twice",
        "turn_core.py",
        "after = self.messages[-1].seq if self.messages else self.claim.from_seq",
        "after = self.claim.from_seq",
        on_sqlite("turn", "fetch_takes_what"),
    ),
    Mutant(
        "finish_counts_all_held",
        "turn_core.py",
        "sum(seq <= upto for seq in held)",
        "len(held)",
        on_sqlite("turn", "finish_up_to"),
    ),
    Mutant(
        "step_key_of_token",
        "turn_core.py",
        "c.incarnation, seq or c.from_seq + 1, name)",
        "c.incarnation, seq or c.token, name)",
        on_sqlite("turn_memory"),
    ),
    Mutant(
        "step_key_of_oldest_message",
        "turn_core.py",
        "c.incarnation, seq or c.from_seq + 1, name)",
        "c.incarnation, c.from_seq + 1, name)",
        on_sqlite("turn_memory"),
    ),
    # -- traces --------------------------------------------------------------------------------------------------
    Mutant("trace_not_stored", "ops/submit.py", '"trace": submission.trace,', '"trace": None,', OTEL),
    Mutant(
        "trace_not_stored_on_locked_path",
        "ops/submit.py",
        "        trace=submission.trace,",
        "        trace=None,",
        HOOKS,
    ),
    Mutant("trace_not_handed_to_the_turn", "ops/fetch.py", "answers, row.trace)", "answers)", OTEL),
    Mutant(
        "trace_ends_with_the_work_horse",
        "middleware/otel.py",
        "                self._flush()",
        "                pass",
        OTEL,
    ),
    # -- adapters of agent frameworks ----------------------------------------------------------------------------
    Mutant(
        "langgraph_write_not_fenced",
        "middleware/langgraph_fences.py",
        "            await turn.fence(conn)\n",
        "",
        f"{LANGGRAPH_SAVER} -k 'late_write_is_refused and sqlite'",
    ),
    Mutant(
        "langgraph_sync_write_not_fenced",
        "middleware/langgraph_fences.py",
        "            turn.fence(conn)\n            yield",
        "            yield",
        f"{LANGGRAPH_SAVER} -k 'late_write_is_refused_in_sync and sqlite'",
    ),
    Mutant(
        "langgraph_late_token_kept_in_memory",
        "middleware/langgraph_fences.py",
        "if turn.token < self._highest.get(turn.key, 0):",
        "if turn.token < 0:",
        f"{LANGGRAPH_SAVER} -k 'late_write_is_refused and memory'",
    ),
    Mutant(
        "langgraph_always_resumes",
        "middleware/langgraph_runs.py",
        "if run and put_in <= last:",
        "if run:",
        f"{LANGGRAPH_RUNS} -k 'fewer and memory'",
    ),
    Mutant(
        "langgraph_never_resumes",
        "middleware/langgraph_runs.py",
        "if run and put_in <= last:",
        "if not run and last < 0:",
        f"{LANGGRAPH_RUNS} -k 'is_resumed and memory'",
    ),
    Mutant(
        "agents_history_apart_from_the_finish",
        "middleware/openai_sessions.py",
        "await self._turn.finish(reply, upto=upto, conn=conn)\n            await self._write(self._on(conn))",
        "await self._write(self._on(conn))\n        await self._turn.finish(reply, upto=upto)",
        f"{AGENTS} -k 'items_of_a_stale_turn and sqlite'",
    ),
    Mutant(
        "agents_history_before_the_finish",
        "middleware/openai_sessions.py",
        "await self._turn.finish(reply, upto=upto)\n        await self._write(self._session)",
        "await self._write(self._session)\n        await self._turn.finish(reply, upto=upto)",
        f"{AGENTS} -k another_store",
    ),
    Mutant(
        "agents_loss_does_not_stop_the_run",
        "middleware/openai_agents.py",
        "turn.on_lost(lambda: _soon(loop, task.cancel))",
        "turn.on_lost(lambda: None)",
        f"{AGENTS} -k hangs",
    ),
    Mutant(
        "inbox_confirms_what_is_not_stored",
        "middleware/inbox.py",
        "return await Submitting(self._turns, lambda on_stored: submit(on_stored=on_stored)).refused()",
        "return None if self._turns.start(submit()) else None",
        f"{SLACK} -k 'sends_again and async'",
    ),
    Mutant(
        "slack_message_is_another_by_its_delivery",
        "middleware/slack.py",
        'event["ts"], _payload(event))',
        'event["type"] + event["ts"], _payload(event))',
        f"{SLACK} -k 'over_kinds and sync'",
    ),
    Mutant(
        "telegram_chain_of_replies_is_a_topic",
        "middleware/telegram_updates.py",
        "message.message_thread_id if message.is_topic_message else None",
        "message.message_thread_id",
        f"{TELEGRAM} -k thread_is",
    ),
    Mutant(
        "aiogram_error_handler_hears_of_what_was_not_stored",
        "middleware/aiogram.py",
        "raise CancelHandler from error",
        "raise",
        f"{TELEGRAM} -k 'sends_again and aiogram'",
    ),
)


def by_simulation(seeds: int) -> list[Mutant]:
    """The mutants of what the simulation runs, each judged by its first seeds and by no other test."""
    test = " ".join(f"{SIM}::test_seeds[{first}]" for first in range(0, seeds, CHUNK))
    return [mutant._replace(test=test) for mutant in TABLE if not mutant.file.startswith(NOT_IN_SIM)]


def text_faults(table: tuple[Mutant, ...] = TABLE) -> list[str]:
    """Mutants whose text is not in its file exactly once, or whose test is no file of the suite."""
    found = []
    for mutant in table:
        times = (ROOT / "chatlock" / mutant.file).read_text().count(mutant.text)
        if times != 1:
            found.append(f"{mutant.name}: its text is {times} times in chatlock/{mutant.file}")
        if not (ROOT / re.split("::| ", mutant.test)[0]).is_file():
            found.append(f"{mutant.name}: there is no {mutant.test}")
    return found


class Verdict(NamedTuple):
    """What the test said of a mutant: pytest's exit code, and how many seeds the simulation needed."""

    code: int
    seconds: float
    seeds: int | None
    output: str

    @property
    def failed(self) -> str:
        """What pytest says of the test that failed, or of what was looked at after it; empty if none did."""
        said = FAILED.search(self.output)
        return said[1] if said else ""

    @property
    def word(self) -> str:
        """red, SURVIVES, or neither: a test that could not run, or did not end, says nothing of the mutant."""
        if self.code == GREEN:
            return SURVIVES
        return CAUGHT if self.code == RED and self.failed else UNJUDGED


class Record:
    """What came of each row of the table, kept in a file from run to run, whichever rows a run chooses."""

    def __init__(self, path: Path | None, table: Sequence[Mutant] = TABLE, command: str = "make mutants") -> None:
        kept = json.loads(path.read_text())["rows"] if path is not None and path.exists() else {}
        self._path, self._command = path, command
        self._table = {mutant.name: mutant for mutant in table}
        self._rows = {
            name: row for name, row in kept.items() if name in self._table and row["as"] == _as_it_is(self._table[name])
        }

    @property
    def caught(self) -> set[str]:
        """The names of those that are caught in their present words."""
        return {name for name, row in self._rows.items() if row["verdict"] == CAUGHT}

    def add(self, mutant: Mutant, verdict: Verdict) -> None:
        self._rows[mutant.name] = {
            "verdict": verdict.word,
            "failed": verdict.failed,
            **({} if verdict.seeds is None else {"seeds": verdict.seeds}),
            "seconds": round(verdict.seconds),
            "as": _as_it_is(mutant),
        }
        if self._path is not None:
            summary = {
                "command": self._command,
                "date": time.strftime("%Y-%m-%d"),
                "mutants": len(self._table),
                "files": len({mutant.file for mutant in self._table.values()}),
                "caught": len(self.caught),
                "others": {name: row["verdict"] for name, row in self._rows.items() if row["verdict"] != CAUGHT},
                "rows": {name: self._rows[name] for name in self._table if name in self._rows},
            }
            self._path.write_text(json.dumps(summary, indent=1) + "\n")


def _as_it_is(mutant: Mutant) -> str:
    """Tells a row that was changed from what was judged under its name."""
    return hashlib.sha256(repr(mutant).encode()).hexdigest()[:12]


def copied(directory: Path) -> Path:
    """A copy of the working tree, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
    return directory


def judged(tree: Path, test: str) -> Verdict:
    """Runs a test on a copy, with the copy's chatlock."""
    began = time.monotonic()
    code, output = run_pytest(tree, ["-x", "-q", "-p", "no:cacheprovider", *shlex.split(test)], SECONDS_MAX)
    seed = SEED.search(output)
    seeds = int(seed[1]) + 1 if seed else None
    return Verdict(code, time.monotonic() - began, seeds, output)


def mutate(tree: Path, mutant: Mutant) -> Verdict:
    """Applies one mutant to the copy, runs its test, and puts the file back."""
    path = tree / "chatlock" / mutant.file
    source = path.read_text()
    path.write_text(source.replace(mutant.text, mutant.instead))
    try:
        return judged(tree, mutant.test)
    finally:
        path.write_text(source)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("word", nargs="?", default="", help="only mutants whose name holds it")
    parser.add_argument("--json", type=Path, help="keep what came of each in this file, and go on with the others")
    parser.add_argument("--sim", type=int, metavar="SEEDS", help="judge each by so many seeds of the simulation alone")
    asked = parser.parse_args()
    if faults := text_faults():
        print("\n".join(faults))
        return 1
    table = TABLE if asked.sim is None else by_simulation(asked.sim)
    chosen = [mutant for mutant in table if asked.word in mutant.name]
    command = "make mutants" if asked.sim is None else f'make mutants ARGS="--sim {asked.sim}"'
    record = Record(asked.json, table, command)
    left = [mutant for mutant in chosen if mutant.name not in record.caught]
    left.sort(key=lambda mutant: (mutant.test == SIM, mutant.test))  # the simulation takes longest
    with tempfile.TemporaryDirectory(prefix="chatlock-mutants-") as directory:
        tree = copied(Path(directory))
        compile_all(tree)
        preload({mutant.test for mutant in left})
        for test, mutants in itertools.groupby(left, key=lambda mutant: mutant.test):
            green = judged(tree, test)
            if green.code != GREEN:
                print(f"{test} is not green without any mutant:\n{green.output[-3000:]}")
                return 1
            print(f"{'(nothing)':<36} {test} is green in {green.seconds:.0f} s", flush=True)
            for mutant in mutants:
                verdict = mutate(tree, mutant)
                after = f" after {verdict.seeds} seeds" if verdict.seeds else ""
                print(
                    f"{mutant.name:<36} {mutant.file:<18} {verdict.word}{after} in {verdict.seconds:.0f} s", flush=True
                )
                record.add(mutant, verdict)
    caught = sum(mutant.name in record.caught for mutant in chosen)
    print(f"{caught} of {len(chosen)} mutants are caught")
    return int(caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
