"""The protocol holds in every explored configuration, and every weakened variant is caught."""

from __future__ import annotations

import pytest
from chatlock_model import (
    ANSWERED,
    END,
    FIN,
    IDLE,
    MUTANTS,
    OTHER,
    PC,
    PENDING,
    RINC,
    RUN,
    SEEN,
    TOK,
    UPTO,
    WORK,
    Breach,
    Config,
    Layout,
    System,
    Violation,
    make,
)
from explore import CONFIGS, QUICK, StatesExceeded, explore, explore_config, explore_mutant

from tests.support import LONG


@pytest.mark.parametrize("name", CONFIGS if LONG else [config.name for config in QUICK])
def test_protocol_holds(name: str) -> None:
    _, seen = explore_config(name)
    assert seen.breach is None, "\n".join(seen.trace)
    assert seen.at_rest > 0


@pytest.mark.parametrize("name", MUTANTS)
def test_weakened_variant_is_caught_for_its_own_reason(name: str) -> None:
    _, seen = explore_mutant(name)
    assert seen.breach is MUTANTS[name].breaks, f"{MUTANTS[name].weakens}: {seen.breach}"
    assert seen.steps > 0


# A thread with two pending messages and every actor gone home: (field, offset) -> value.
SETTLED = {
    ("ST", 0): IDLE,
    ("INC", 0): 1,
    ("TOK", 0): 1,
    ("MAXT", 0): 1,
    ("LAST", 0): 2,
    ("SM", 1): 1,
    ("SM", 2): 2,
    ("MS", 1): PENDING,
    ("MS", 2): PENDING,
    ("DUE", 0): 1,
}
# Its first actor is a turn that may finish both messages, with the state still unchanged by it.
FINISHING = {
    ("ST", 0): RUN,
    ("OWN", 0): 1,
    ("FET", 0): 2,
    ("A", PC): FIN,
    ("A", TOK): 1,
    ("A", RINC): 1,
    ("A", UPTO): 2,
    ("A", SEEN): 0b110,
}
CORRUPT = Config("corrupt", due=True, extstore=False)


def corrupt_state(changes: dict[tuple[str, int], int]) -> bytes:
    layout = Layout(CORRUPT)
    state = bytearray(make(CORRUPT).initial)
    for actor in range(layout.nact):
        state[layout.A + actor * layout.asz + PC] = END
    for (name, offset), value in {**SETTLED, **changes}.items():
        state[getattr(layout, name) + offset] = value
    return bytes(state)


SECOND_ACTOR = Layout(CORRUPT).asz
BAD_STATES = {
    Breach.S_ORDER: {("DONE", 0): 3},
    Breach.TWO_HOLDERS: {
        ("ST", 0): RUN,
        ("A", PC): WORK,
        ("A", TOK): 1,
        ("A", RINC): 1,
        ("A", SECOND_ACTOR + PC): WORK,
        ("A", SECOND_ACTOR + TOK): 1,
        ("A", SECOND_ACTOR + RINC): 1,
    },
    Breach.SEQ_WITHOUT_MESSAGE: {("SM", 1): 0},
    Breach.PASSED_PENDING: {("DONE", 0): 1},
    Breach.RESOLVED_ABOVE_DONE: {("MS", 2): ANSWERED},
    Breach.H_HEAD: {("MS", 1): OTHER},
    Breach.D_DUE_ROW: {("DUE", 0): 0},
    Breach.TOKEN_ABOVE_LARGEST: {("TOK", 0): 2},
}
BAD_STEPS = {
    Breach.ANSWERED_TWICE: {**FINISHING, ("MS", 1): ANSWERED},
    Breach.RESOLVED_YET_ANSWERED: {**FINISHING, ("MS", 1): OTHER},
    Breach.RESOLVED_YET_DEAD: {
        ("ST", 0): RUN,
        ("FET", 0): 1,
        ("FETC", 0): 0b010,
        ("ATT", 0): CORRUPT.max_attempts - 1,
        ("MS", 1): OTHER,
    },
}


def test_sound_states_pass_the_checks() -> None:
    system = make(CORRUPT)
    for changes in ({}, FINISHING):
        state = corrupt_state(changes)
        system.check(state)
        system.successors(state)


@pytest.mark.parametrize("breach", BAD_STATES)
def test_bad_state_is_refused(breach: Breach) -> None:
    with pytest.raises(Violation) as refused:
        make(CORRUPT).check(corrupt_state(BAD_STATES[breach]))
    assert refused.value.breach is breach


@pytest.mark.parametrize("breach", BAD_STEPS)
def test_bad_step_is_refused(breach: Breach) -> None:
    with pytest.raises(Violation) as refused:
        make(CORRUPT).successors(corrupt_state(BAD_STEPS[breach]))
    assert refused.value.breach is breach


def test_claim_that_nobody_ends_is_refused() -> None:
    assert make(CORRUPT).rest_error(corrupt_state({("ST", 0): RUN})) is Breach.CLAIMED_FOREVER


def test_every_breach_is_seen_somewhere() -> None:
    by_mutants = {mutant.breaks for mutant in MUTANTS.values()}
    by_hand = {*BAD_STATES, *BAD_STEPS, Breach.CLAIMED_FOREVER, Breach.CYCLE}
    assert set(Breach) == by_mutants | by_hand


def toy(
    steps: dict[int, list[int]],
    faults: frozenset[tuple[int, int]] = frozenset(),
    bad: int | None = None,
    stuck: int | None = None,
) -> System:
    """A system of numbered states, to test the explorer itself."""

    def check(state: bytes) -> None:
        if state[0] == bad:
            raise Violation(Breach.TWO_HOLDERS)

    return System(
        initial=bytes([0]),
        successors=lambda state: [
            (f"to {target}", bytes([target]), (state[0], target) in faults) for target in steps.get(state[0], [])
        ],
        check=check,
        rest_error=lambda state: Breach.CLAIMED_FOREVER if state[0] == stuck else None,
        show=lambda state: str(state[0]),
    )


def test_explorer_visits_each_state_once() -> None:
    seen = explore(toy({0: [1, 2], 1: [3], 2: [3], 3: [4]}))
    assert (seen.breach, seen.states, seen.transitions, seen.at_rest) == (None, 5, 5, 1)


@pytest.mark.parametrize("steps", [{0: [0]}, {0: [1], 1: [2], 2: [1, 3]}])
def test_explorer_finds_a_run_that_need_not_end(steps: dict[int, list[int]]) -> None:
    assert explore(toy(steps)).breach is Breach.CYCLE


def test_explorer_shows_a_shortest_way() -> None:
    seen = explore(toy({0: [1, 2], 1: [3], 3: [4], 2: [4]}, bad=4))
    assert seen.breach is Breach.TWO_HOLDERS
    assert seen.trace == ["start: 0", "to 2   -> 2", "to 4   -> 4"]


def test_explorer_asks_for_rest_where_only_faults_remain() -> None:
    steps = {0: [1], 1: [2]}
    assert explore(toy(steps, stuck=1)).breach is None
    only_a_fault = frozenset({(1, 2)})
    assert explore(toy(steps, faults=only_a_fault, stuck=1)).breach is Breach.CLAIMED_FOREVER


def test_explorer_gives_no_verdict_on_a_part() -> None:
    chain = toy({state: [state + 1] for state in range(9)})
    assert explore(chain, states_max=10).states == 10
    with pytest.raises(StatesExceeded):
        explore(chain, states_max=9)
