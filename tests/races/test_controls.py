"""Negative controls: for each weakened rule a named race or check goes red on PostgreSQL.

The product is weakened as the variants of the protocol model are; `tests/model/mutants.py` names the tests that catch
them, and the last test here holds it to that. It is weakened elsewhere too: in locks, and in rules that stand twice.
"""

from __future__ import annotations

import inspect as signatures
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.model.mutants import TABLE, Feature
from tests.races import test_set_clock as set_clock
from tests.races import test_told as told
from tests.races import weak_guards, weak_messages, weak_turns
from tests.races.control import CANNOT_RUN, GUARDS, VARIANTS, Control
from tests.races.weaken import weakening

if TYPE_CHECKING:
    from tests.races.arena import Arena
    from tests.support.databases import Database

WEAKENED = (weak_turns, weak_messages, weak_guards)
"""They enter their controls in VARIANTS and GUARDS."""


@pytest.fixture(scope="module")
def prepared(pg_arena: Arena) -> Arena:
    pg_arena.prepare()
    return pg_arena


def passes(control: Control, arena: Arena, database: Callable[[], Database]) -> bool:
    """Runs the control's test, with what it asks for."""
    needed = signatures.signature(control.red).parameters
    given: dict[str, Any] = {"arena": arena}
    if "database" in needed:
        given["database"] = database()
    if "times" in needed:
        given["times"] = set_clock.Times(database())
    try:
        control.red(**{name: given[name] for name in needed})
    except (Exception, pytest.fail.Exception) as failed:
        if isinstance(getattr(failed, "orig", failed), CANNOT_RUN):
            raise
        return False
    finally:
        if "times" in given:
            given["times"].close()
        arena.clear()
    return True


def run(control: Control, arena: Arena, request: pytest.FixtureRequest) -> bool:
    return passes(control, arena, lambda: request.getfixturevalue("pg_database"))


ALL = {**VARIANTS, **GUARDS}


@pytest.mark.parametrize("name", ALL)
def test_weakened_product_goes_red(
    name: str, prepared: Arena, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told.waiters_module, "LOOK_EVERY_S", told.HOUR_S)
    with weakening() as weak:
        ALL[name].weaken(weak)
        assert not run(ALL[name], prepared, request), f"nothing failed although {name}"


def test_model_table_names_the_tests_that_catch_its_variants() -> None:
    raced = (Feature.CORE, Feature.LATEST, Feature.ROLLBACK, Feature.STOP)
    core = {row.variant: row.caught_by for row in TABLE if row.applies in raced}
    assert core.keys() == VARIANTS.keys()
    assert [name for name, control in VARIANTS.items() if control.node_id() not in core[name]] == []
