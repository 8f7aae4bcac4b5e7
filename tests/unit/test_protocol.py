"""The state machine as data: complete, closed, and its pure decisions within their bounds."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatlock import ops, protocol
from chatlock.charging import UNCHARGED, Charge, charge, received, starts_at
from chatlock.policies import POLICIES, QUIET_MAX_MS
from chatlock.protocol import INVARIANTS, TRANSITIONS, Event, Limits, Outcome, Status, conformance_cases, targets

LIMITS = Limits()
MODULES = {module.name: import_module(f"chatlock.ops.{module.name}") for module in pkgutil.iter_modules(ops.__path__)}
FUNCTIONS = {name for module in MODULES.values() for name, _ in inspect.getmembers(module, inspect.isfunction)}
STATEMENTS = {name.split(".")[0] for name, _ in ops.catalog()}


# -- the table ---------------------------------------------------------------------------------------------------------
def test_every_pair_of_status_and_event_is_one_conformance_case() -> None:
    cases = [(source, event) for source, event, _ in conformance_cases()]
    assert sorted(cases) == sorted((source, event) for source in Status for event in Event)


def test_no_edge_is_listed_twice() -> None:
    edges = [(edge.source, edge.event, edge.target) for edge in TRANSITIONS]
    assert len(edges) == len(set(edges))


def test_every_event_and_every_status_is_in_the_table() -> None:
    assert {edge.event for edge in TRANSITIONS} == set(Event)
    assert {edge.source for edge in TRANSITIONS} | {edge.target for edge in TRANSITIONS} == set(Status)


@pytest.mark.parametrize("edge", TRANSITIONS, ids=lambda edge: f"{edge.source}-{edge.event}-{edge.target}")
def test_edge_names_its_guard_and_an_operation_that_exists(edge: protocol.Transition) -> None:
    assert edge.guard
    assert edge.op in MODULES.keys() | FUNCTIONS | STATEMENTS


def test_targets_are_those_of_the_table_alone() -> None:
    assert targets(Status.RUNNING, Event.FAIL) == {Status.IDLE, Status.PARKED}
    assert targets(Status.PARKED, Event.CLAIM) == frozenset()


def test_only_a_claim_begins_a_turn_and_every_way_out_of_running_ends_it() -> None:
    into = {edge.event for edge in TRANSITIONS if edge.target is Status.RUNNING and edge.source is not Status.RUNNING}
    assert into == {Event.CLAIM}
    assert {edge.source for edge in TRANSITIONS if edge.event is Event.CLAIM} == {Status.IDLE}


def test_deleted_thread_comes_back_only_where_asked_for() -> None:
    assert {edge.event for edge in TRANSITIONS if edge.source is Status.DELETED} == {Event.RECREATE}


def test_nothing_leads_back_to_absent() -> None:
    assert Status.ABSENT not in {edge.target for edge in TRANSITIONS}


def test_every_invariant_and_policy_says_what_it_is() -> None:
    assert all(text for text in INVARIANTS.values())
    assert all(policy.text for policy in POLICIES.values())


# -- outcomes ----------------------------------------------------------------------------------------------------------
OUTCOMES = [kind for kind in vars(protocol).values() if isinstance(kind, type) and issubclass(kind, Outcome)]


@pytest.mark.parametrize("kind", OUTCOMES)
def test_outcome_is_frozen_and_names_its_message(kind: Any) -> None:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    assert {"message_id", "seq"} <= fields.keys()
    made = kind(**{name: "x" for name, field in fields.items() if field.default is dataclasses.MISSING})
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.message_id = "other"


# -- limits and the window ---------------------------------------------------------------------------------------------
def test_three_beats_fit_in_a_lease_and_a_lease_in_a_window() -> None:
    assert 3 * LIMITS.beat_ms <= LIMITS.lease_ms <= LIMITS.window_floor_ms <= LIMITS.window_cap_ms


def test_dead_process_is_followed_within_fifteen_seconds() -> None:
    assert LIMITS.lease_ms + 2 * LIMITS.sweep_ms + LIMITS.backoff_ms <= 15_000
    assert 2 * LIMITS.beat_ms + 1_000 <= LIMITS.lease_ms


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_window_is_within_floor_and_cap_or_the_default(longest_ms: int, runs: int) -> None:
    window = LIMITS.window_ms(longest_ms, runs)
    if runs < LIMITS.window_runs_min:
        assert window == LIMITS.window_default_ms
    else:
        assert LIMITS.window_floor_ms <= window <= LIMITS.window_cap_ms
        assert window in (LIMITS.window_floor_ms, LIMITS.window_cap_ms, 3 * longest_ms)


def test_window_without_a_longest_run_is_the_default() -> None:
    assert LIMITS.window_ms(None, 1_000) == LIMITS.window_default_ms


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_longer_run_never_makes_a_shorter_window(one: int, other: int) -> None:
    shorter, longer = sorted((one, other))
    assert LIMITS.window_ms(shorter, 100) <= LIMITS.window_ms(longer, 100)


# -- what a turn costs that ends without an answer ---------------------------------------------------------------------
counts = st.integers(0, 50)
jitters = st.floats(0.5, 1.0)


@given(counts, counts, st.booleans(), jitters)
def test_charge_counts_one_of_the_two(attempts: int, stalls: int, had: bool, jitter: float) -> None:
    charged = charge(LIMITS, attempts, stalls, received=had, jitter=jitter)
    if charged.head_dead:
        assert charged == Charge(0, 0, 0, True, False)
        assert attempts + had >= LIMITS.attempts_max
    else:
        assert (charged.attempts, charged.stalls) == ((attempts + 1, stalls) if had else (attempts, stalls + 1))
        assert charged.parked == (charged.stalls >= LIMITS.stalls_max)


@given(st.integers(0, 4), st.integers(0, 19), st.booleans(), jitters)
def test_backoff_is_the_jittered_doubling_up_to_its_maximum(
    attempts: int, stalls: int, had: bool, jitter: float
) -> None:
    charged = charge(LIMITS, attempts, stalls, received=had, jitter=jitter)
    full = min(LIMITS.backoff_max_ms, LIMITS.backoff_ms * 2 ** (attempts + stalls))
    expected = 0 if charged.head_dead or charged.parked else int(full * jitter)
    assert charged.delay_ms == expected
    assert expected == 0 or full // 2 <= expected <= full


def test_huge_count_of_failures_keeps_the_backoff_at_its_maximum() -> None:
    endless = Limits(attempts_max=10**9, stalls_max=10**9)
    assert charge(endless, 10**6, 0, received=True, jitter=1.0).delay_ms == endless.backoff_max_ms


def test_release_costs_nothing() -> None:
    assert Charge(0, 0, 0, False, False) == UNCHARGED


@given(st.integers(0, 10**13), st.integers(0, 10**13), st.integers(0, 10**13))
def test_thread_starts_after_its_backoff_and_its_quiet_time_unless_the_clock_stepped(
    not_before: int, quiet: int, now: int
) -> None:
    start = starts_at(not_before, quiet, now, LIMITS.backoff_max_ms)
    believable = not_before if not_before <= now + LIMITS.backoff_max_ms else 0
    assert start == max(believable, quiet if quiet <= now + QUIET_MAX_MS else 0)


@pytest.mark.parametrize(
    ("fetched", "beat", "charged_before", "proof"),
    [
        (False, 5, 5, False),
        (True, 0, 0, False),
        (True, 1, 0, True),
        (True, 0, 1, True),
        (True, 1, 1, True),
    ],
)
def test_messages_were_surely_had_only_with_a_proof(fetched: bool, beat: int, charged_before: int, proof: bool) -> None:
    for attempts, stalls in ((charged_before, 0), (0, charged_before)):
        had = received(fetched_seq=3 + fetched, done_seq=3, beat=beat, attempts=attempts, stalls=stalls)
        assert had is proof
