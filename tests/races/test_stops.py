"""What stops a turn, against everything else that may happen to it at the same time, and against the turn after it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING

import pytest

from chatlock.ops import heartbeat, stop, unanswered
from chatlock.ops.claim import claim_due
from chatlock.ops.submit import submit
from chatlock.policies import Interrupt
from tests.races.arena import LIMITS, OF_THREAD, request, submission
from tests.races.judge import drain, play
from tests.races.moves import Actor, move_of
from tests.races.test_pairs import ORDERS

if TYPE_CHECKING:
    from tests.races.arena import Arena, Held

STOPS = ("interrupt", "roll_back", "stop", "force")
OTHERS = (
    *("submit", "claim_due", "fetch_more", "fetch_and_finish", "finish_hot", "hand_off", "fail", "release", "reclaim"),
    *("beat", "cancel", "park", "delete"),
)
PAIRS = [*combinations_with_replacement(STOPS, 2), *product(STOPS, OTHERS)]


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_pair_of_a_stop(pair: tuple[str, str], arena: Arena) -> None:
    """On SQLite, whose transactions cannot overlap, one after the other."""
    tenant, scene = f"stop-{'-'.join(pair)}", move_of(pair[0]).scene
    orders = ORDERS if arena.kind == "postgresql" else ["AABB", "BBAA"]
    for order, held in arena.build(scene, tenant, orders).items():
        play(arena, scene, held, pair, order)
    drain(arena, tenant)


def held_in(arena: Arena, scene: str, name: str) -> Held:
    return arena.build(scene, f"stops-{name}", ["t"])["t"]


def column(arena: Arena, held: Held, name: str) -> int:
    ((value,),) = arena.rows(f"SELECT {name} FROM chatlock_threads{OF_THREAD}", held.key.tenant, held.key.thread)
    return int(value)


def test_stop_of_the_turn_before_is_void(arena: Arena) -> None:
    """Also where its end left what it was asked, as one by the previous release does."""
    held = held_in(arena, "overdue", "before")
    asked = "UPDATE chatlock_threads SET cancel_token = ?, cancel_until = 1"
    arena.release(held.key, held.claim)
    granted = arena.home.transaction("claim_due", lambda c: claim_due(c, held.key, request("next")))
    assert granted is not None
    arena.rows(f"{asked}{OF_THREAD} RETURNING 1", held.claim.token, held.key.tenant, held.key.thread)
    assert arena.home.beat(lambda c: heartbeat.heartbeat(c, granted.claim)).cancelled is False
    seen = unanswered.Observed(held.key, held.claim.token, 0, stale=False, overdue=True)
    assert arena.home.transaction("force", lambda c: stop.force(c, seen)) is None
    assert column(arena, held, "token") == granted.claim.token
    arena.rows(
        f"UPDATE chatlock_threads SET cancel_token = NULL{OF_THREAD} RETURNING 1", held.key.tenant, held.key.thread
    )
    drain(arena, held.key.tenant)


def test_forced_release_charges_nothing(arena: Arena) -> None:
    held = held_in(arena, "overdue", "charge")
    assert move_of("force").make(Actor("A", arena.home, held)) is not None
    assert [column(arena, held, name) for name in ("attempts", "stalls", "not_before")] == [0, 0, 0]
    drain(arena, held.key.tenant)


def test_interrupts_of_one_message_end(arena: Arena) -> None:
    held = held_in(arena, "more", "often")
    bounds, claim = Interrupt(per_head_max=2), held.claim
    affected = []
    for number in range(3):
        what = replace(submission(held.key, f"i{number}"), policy="interrupt", interrupt=bounds)
        stored = arena.home.transaction("submit", lambda c, what=what: submit(c, what, None, LIMITS))
        affected.append(stored.affected is not None)
        arena.release(held.key, claim)
        granted = arena.home.transaction("claim_due", lambda c: claim_due(c, held.key, request("again")))
        assert granted is not None
        claim = granted.claim
    assert affected == [True, True, False]
    drain(arena, held.key.tenant)


def test_what_comes_after_a_stop_is_not_part_of_it(arena: Arena) -> None:
    held = held_in(arena, "more", "later")
    assert move_of("stop").make(Actor("A", arena.home, held)).done
    arena.submit(held.key, "m3")
    arena.release(held.key, held.claim)
    rows = arena.rows(
        f"SELECT message_id, disposition FROM chatlock_messages{OF_THREAD} AND seq > 1 ORDER BY seq",
        *(held.key.tenant, held.key.thread),
    )
    assert [tuple(row) for row in rows] == [("m1", "cancelled"), ("m2", "cancelled"), ("m3", "pending")]
    drain(arena, held.key.tenant)
