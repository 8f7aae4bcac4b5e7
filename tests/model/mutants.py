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
    RQ_DISPATCH = "dispatch to RQ workers"
    LATEST = "policy latest"
    ROLLBACK = "policy rollback"


BUILT = frozenset({Feature.CORE, Feature.RQ_DISPATCH})


@dataclass(frozen=True)
class Row:
    """One weakened variant of the model."""

    variant: str
    applies: Feature
    caught_by: list[str]


TABLE = [
    Row("claim_read_then_write", Feature.CORE, []),
    Row("finish_unconditional", Feature.CORE, []),
    Row("release_unconditional", Feature.CORE, []),
    Row("answered_on_fetched", Feature.CORE, []),
    Row("fetched_not_reset", Feature.CORE, []),
    Row("fetch_select_then_update", Feature.CORE, []),
    Row("finish_implicit_upto", Feature.CORE, []),
    Row("fence_token_only", Feature.CORE, []),
    Row("fence_not_established", Feature.CORE, []),
    Row("fence_check_then_write", Feature.CORE, []),
    Row("fence_select_without_lock", Feature.CORE, []),
    Row("delete_resets_token", Feature.CORE, []),
    Row("check_then_claim", Feature.CORE, []),
    Row("attempts_only_on_fail", Feature.CORE, []),
    Row("dup_bumps_seq", Feature.CORE, []),
    Row("seq_outside_lock", Feature.CORE, []),
    Row("ack_lost_means_failed", Feature.CORE, []),
    Row("orphan_heartbeat", Feature.CORE, []),
    Row("heartbeat_unconditional", Feature.CORE, []),
    Row("dead_letter_to_last_seq", Feature.CORE, []),
    Row("watermark_means_answered", Feature.CORE, []),
    Row("init_select_then_insert", Feature.CORE, []),
    Row("reply_before_finish", Feature.CORE, []),
    Row("check_then_subscribe", Feature.CORE, []),
    Row("claim_before_insert", Feature.CORE, []),
    Row("wake_one_no_recheck", Feature.CORE, []),
    Row("dead_letter_whole_batch", Feature.CORE, []),
    Row("one_attempt_counter", Feature.CORE, []),
    Row("no_window", Feature.CORE, []),
    Row("failover_without_epoch", Feature.CORE, []),
    Row(
        "dispatch_without_lease",
        Feature.RQ_DISPATCH,
        [
            "tests/acceptance/test_service.py::test_dispatch_lease_keeps_a_thread_from_being_sent_twice_and_passes",
            "tests/acceptance/test_rq.py::test_flushed_redis_costs_one_dispatch_lease",
        ],
    ),
    Row("own_turn_means_answered", Feature.CORE, []),
    Row("abort_forgets_message", Feature.CORE, []),
    Row("due_not_in_finish", Feature.CORE, []),
    Row("due_not_in_reclaim", Feature.CORE, []),
    Row("due_not_in_resume", Feature.CORE, []),
    Row("due_not_in_lazy_submit", Feature.CORE, []),
    Row("due_not_in_rollback", Feature.ROLLBACK, []),
    Row("due_deleted_without_lock", Feature.CORE, []),
    Row("due_from_unlocked_last_seq", Feature.CORE, []),
    Row("due_deleted_after_claim", Feature.CORE, []),
    Row("ride_charges_attempt", Feature.CORE, []),
    Row("handoff_same_token", Feature.CORE, []),
    Row("mid_done_not_advanced", Feature.CORE, []),
    Row("mid_finish_no_skip", Feature.CORE, []),
    Row("mid_cancel_of_fetched", Feature.CORE, []),
    Row("mid_attempts_kept", Feature.CORE, []),
    Row("head_cancelled_before_fetch", Feature.CORE, []),
    Row("mid_dead_no_skip", Feature.CORE, []),
    Row("latest_supersedes_fetched", Feature.LATEST, []),
    Row("mid_finish_counts_rows", Feature.CORE, []),
    Row("rollback_is_a_request", Feature.ROLLBACK, []),
]
