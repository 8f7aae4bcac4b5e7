"""Which product test catches each weakened variant of the protocol model.

One row for each variant. `applies` is the feature of the product that the weakened rule belongs to;
`caught_by` names the tests that go red when the product weakens that rule, as
"tests/DIRECTORY/test_FILE.py::test_NAME" (without parameters). A variant of a built feature must
have one; a feature that is not built yet adds its tests, and itself to BUILT, when it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Feature(StrEnum):
    """What of the product a weakened rule belongs to."""

    CORE = "the core serializer"
    OTHER_STORE = "fences in another store"
    RQ_DISPATCH = "dispatch to RQ workers"
    LATEST = "policy latest"
    ROLLBACK = "policy rollback"
    STOP = "interrupt and stop"
    QUESTION = "waiting for a human"


BUILT = frozenset(Feature)


@dataclass(frozen=True)
class Row:
    """One weakened variant of the model."""

    variant: str
    applies: Feature
    caught_by: list[str]


TABLE = [
    Row("claim_read_then_write", Feature.CORE, ["tests/races/test_pairs.py::test_pair"]),
    Row("finish_unconditional", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row("release_unconditional", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row(
        "answered_on_fetched",
        Feature.CORE,
        ["tests/races/test_recovery.py::test_message_in_a_turn_is_not_told_answered"],
    ),
    Row(
        "fetched_not_reset",
        Feature.CORE,
        ["tests/races/test_recovery.py::test_oldest_message_is_taken_alone_after_a_failure"],
    ),
    Row("fetch_select_then_update", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row("finish_implicit_upto", Feature.CORE, ["tests/races/test_pairs.py::test_pair"]),
    Row("fence_token_only", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row(
        "fence_not_established",
        Feature.OTHER_STORE,
        ["tests/races/test_other_store.py::test_takeover_that_fences_before_it_reads_loses_no_update"],
    ),
    Row(
        "fence_check_then_write",
        Feature.OTHER_STORE,
        ["tests/races/test_other_store.py::test_fence_is_held_until_what_follows_it_commits"],
    ),
    Row("fence_select_without_lock", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row("delete_resets_token", Feature.CORE, ["tests/races/test_pairs.py::test_pair"]),
    Row(
        "check_then_claim",
        Feature.CORE,
        ["tests/races/test_recovery.py::test_waiter_whose_message_was_answered_gets_no_turn"],
    ),
    Row(
        "attempts_only_on_fail",
        Feature.CORE,
        ["tests/races/test_recovery.py::test_message_that_kills_its_process_is_dead_after_its_attempts"],
    ),
    Row("dup_bumps_seq", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row("seq_outside_lock", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row("ack_lost_means_failed", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row(
        "orphan_heartbeat",
        Feature.CORE,
        ["tests/races/test_told.py::test_turn_whose_caller_is_gone_is_beaten_for_no_more"],
    ),
    Row("heartbeat_unconditional", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row(
        "dead_letter_to_last_seq",
        Feature.CORE,
        ["tests/races/test_recovery.py::test_attempts_used_up_kill_the_oldest_message_alone"],
    ),
    Row(
        "watermark_means_answered",
        Feature.CORE,
        ["tests/races/test_recovery.py::test_attempts_used_up_kill_the_oldest_message_alone"],
    ),
    Row("init_select_then_insert", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row(
        "reply_before_finish",
        Feature.CORE,
        ["tests/races/test_told.py::test_caller_whose_turn_was_taken_is_told_the_reply_that_was_stored"],
    ),
    Row(
        "check_then_subscribe",
        Feature.CORE,
        ["tests/races/test_told.py::test_wake_between_the_store_and_the_sleep_is_kept"],
    ),
    Row("claim_before_insert", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row(
        "wake_one_no_recheck",
        Feature.CORE,
        ["tests/races/test_told.py::test_waiter_that_leaves_before_it_claims_is_followed_by_another"],
    ),
    Row(
        "dead_letter_whole_batch",
        Feature.CORE,
        ["tests/races/test_recovery.py::test_attempts_used_up_kill_the_oldest_message_alone"],
    ),
    Row(
        "one_attempt_counter",
        Feature.CORE,
        ["tests/races/test_recovery.py::test_turns_that_never_had_a_message_charge_the_thread"],
    ),
    Row(
        "no_window", Feature.CORE, ["tests/races/test_set_clock.py::test_hung_turn_that_still_beats_ends_at_its_window"]
    ),
    Row(
        "failover_without_epoch",
        Feature.CORE,
        ["tests/races/test_recovery.py::test_tokens_after_a_failover_are_above_all_that_were_given_out"],
    ),
    Row(
        "dispatch_without_lease",
        Feature.RQ_DISPATCH,
        [
            "tests/acceptance/service/test_passes.py::test_dispatch_lease_keeps_a_thread_from_being_sent_twice_and_passes",
            "tests/acceptance/on_rq/test_wake_ups.py::test_flushed_redis_costs_one_dispatch_lease",
        ],
    ),
    Row(
        "dispatch_deletes_due",
        Feature.RQ_DISPATCH,
        ["tests/races/test_recovery.py::test_due_thread_is_left_to_one_worker_until_the_lease_lapses"],
    ),
    Row(
        "lease_without_test",
        Feature.RQ_DISPATCH,
        ["tests/races/test_recovery.py::test_due_thread_is_left_to_one_worker_until_the_lease_lapses"],
    ),
    Row(
        "due_keeps_lease",
        Feature.RQ_DISPATCH,
        ["tests/races/test_recovery.py::test_turn_that_leaves_messages_ends_the_dispatch_lease"],
    ),
    Row(
        "own_turn_means_answered",
        Feature.CORE,
        ["tests/races/test_told.py::test_caller_whose_turn_answered_others_only_goes_on_to_its_own_message"],
    ),
    Row(
        "abort_forgets_message",
        Feature.CORE,
        ["tests/races/test_told.py::test_caller_whose_turn_was_taken_is_told_the_reply_that_was_stored"],
    ),
    Row("due_not_in_finish", Feature.CORE, ["tests/races/test_pairs.py::test_pair"]),
    Row("due_not_in_reclaim", Feature.CORE, ["tests/races/test_pairs.py::test_pair"]),
    Row("due_not_in_resume", Feature.CORE, ["tests/races/test_pairs.py::test_pair"]),
    Row("due_not_in_lazy_submit", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row("due_not_in_rollback", Feature.ROLLBACK, ["tests/races/test_stops.py::test_pair_of_a_stop"]),
    Row("due_deleted_without_lock", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row("due_from_unlocked_last_seq", Feature.CORE, ["tests/races/test_pairs.py::test_pair"]),
    Row("due_deleted_after_claim", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row(
        "ride_charges_attempt",
        Feature.CORE,
        ["tests/races/test_recovery.py::test_turn_that_never_beat_charges_the_thread"],
    ),
    Row("handoff_same_token", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row("mid_done_not_advanced", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row("mid_finish_no_skip", Feature.CORE, ["tests/races/test_pairs.py::test_pair"]),
    Row("mid_cancel_of_fetched", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row(
        "mid_attempts_kept",
        Feature.CORE,
        ["tests/races/test_recovery.py::test_cancel_of_the_head_gives_its_successor_a_fresh_start"],
    ),
    Row("head_cancelled_before_fetch", Feature.CORE, ["tests/races/test_listed.py::test_listed"]),
    Row(
        "mid_dead_no_skip",
        Feature.CORE,
        ["tests/races/test_recovery.py::test_dead_head_takes_resolved_successors_along"],
    ),
    Row(
        "latest_supersedes_fetched",
        Feature.LATEST,
        ["tests/races/test_recovery.py::test_latest_leaves_what_the_running_turn_holds"],
    ),
    Row(
        "mid_finish_counts_rows",
        Feature.CORE,
        ["tests/races/test_recovery.py::test_finish_passes_over_what_was_cancelled_in_its_range"],
    ),
    Row("rollback_is_a_request", Feature.ROLLBACK, ["tests/races/test_stops.py::test_pair_of_a_stop"]),
    Row("stop_is_a_flag", Feature.STOP, ["tests/races/test_stops.py::test_stop_of_the_turn_before_is_void"]),
    Row("force_without_token", Feature.STOP, ["tests/races/test_stops.py::test_stop_of_the_turn_before_is_void"]),
    Row("force_charges", Feature.STOP, ["tests/races/test_stops.py::test_forced_release_charges_nothing"]),
    Row("due_not_in_force", Feature.STOP, ["tests/races/test_stops.py::test_pair_of_a_stop"]),
    Row("interrupts_without_end", Feature.STOP, ["tests/races/test_stops.py::test_interrupts_of_one_message_end"]),
    Row("stop_cancels_what_is_held", Feature.STOP, ["tests/races/test_stops.py::test_pair_of_a_stop"]),
    Row(
        "stop_cancels_what_comes_later",
        Feature.STOP,
        ["tests/races/test_stops.py::test_what_comes_after_a_stop_is_not_part_of_it"],
    ),
    Row(
        "question_holds_nothing",
        Feature.QUESTION,
        ["tests/conformance/test_questions.py::test_held_messages_wait_for_the_answer"],
    ),
    Row(
        "answer_leaves_question_open",
        Feature.QUESTION,
        ["tests/conformance/test_questions.py::test_answer_is_a_message_that_says_what_it_answers"],
    ),
    Row(
        "answer_without_question",
        Feature.QUESTION,
        ["tests/conformance/test_questions.py::test_cancelling_rule_closes_the_question"],
    ),
    Row(
        "answer_without_due",
        Feature.QUESTION,
        ["tests/conformance/test_questions.py::test_answer_that_does_not_claim_is_due"],
    ),
    Row(
        "question_survives_delete",
        Feature.QUESTION,
        ["tests/conformance/test_questions.py::test_deleted_thread_has_no_question"],
    ),
]
