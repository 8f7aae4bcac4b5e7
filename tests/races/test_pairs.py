"""Every pair of operations, in every order of their begins and commits, from scenes in which one of them finds work.

`make test` plays every pair in all six orders on both databases; on SQLite, whose transactions cannot overlap, from one
of its scenes. `make test-long` plays all scenes on both.
"""

from __future__ import annotations

from itertools import combinations_with_replacement, permutations
from typing import TYPE_CHECKING

import pytest

from tests.races.judge import drain, play
from tests.races.moves import MOVES
from tests.support import scaled

if TYPE_CHECKING:
    from tests.races.arena import Arena

ORDERS = sorted({"".join(order) for order in permutations("AABB")})
PAIRS = list(combinations_with_replacement(MOVES, 2))


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_pair(pair: tuple[str, str], arena: Arena) -> None:
    scenes = sorted({MOVES[name].scene for name in pair})
    for scene in scenes if arena.kind == "postgresql" else scenes[: scaled(1, 2)]:
        tenant = f"{'-'.join(pair)}-{scene}"
        for order, held in arena.build(scene, tenant, ORDERS).items():
            play(arena, scene, held, pair, order)
        drain(arena, tenant)
