"""Every weakened variant of the model has its test in the product, or waits for a feature."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from chatlock_model import MUTANTS
from mutants import BUILT, TABLE, Feature, Row

from tests.support import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def misplaced(table: list[Row]) -> list[str]:
    """The variants that the table lacks or repeats, and the names that are no variants."""
    rows = Counter(row.variant for row in table)
    return sorted(name for name in MUTANTS.keys() | rows.keys() if rows[name] != (name in MUTANTS))


def defined_tests(path: Path) -> set[str]:
    """The tests in a file, "test_x" or "TestY::test_x", read without running it."""

    def functions(body: Iterable[ast.stmt]) -> set[str]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return {node.name for node in body if isinstance(node, kinds) and node.name[:4] == "test"}

    module = ast.parse(path.read_text())
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    methods = {f"{node.name}::{name}" for node in classes for name in functions(node.body)}
    return functions(module.body) | methods


def not_tests(table: list[Row], root: Path) -> list[str]:
    """The node ids of the table that name no test of the product."""
    found = []
    for node_id in (node_id for row in table for node_id in row.caught_by):
        file, _, name = node_id.partition("::")
        of_product = file.startswith("tests/") and not file.startswith("tests/model/")
        path = root / file
        if not of_product or not path.is_file() or name not in defined_tests(path):
            found.append(node_id)
    return found


def uncaught(table: list[Row], built: frozenset[Feature]) -> list[str]:
    """The variants of built features that no test of the product catches."""
    return [row.variant for row in table if row.applies in built and not row.caught_by]


def test_table_holds_each_variant_once() -> None:
    assert misplaced(TABLE) == []


def test_table_names_tests_that_exist() -> None:
    assert not_tests(TABLE, ROOT) == []


def test_each_variant_is_caught_or_waits_for_its_feature() -> None:
    missing = uncaught(TABLE, BUILT)
    assert not missing, "\n".join(missing)


def test_misplaced_variants_are_reported() -> None:
    lacking = TABLE[1:]
    assert misplaced(lacking) == [TABLE[0].variant]
    assert misplaced([*TABLE, TABLE[0]]) == [TABLE[0].variant]
    assert misplaced([*TABLE, Row("no_such_variant", Feature.CORE, [])]) == ["no_such_variant"]


SAMPLE = """
def helper(): ...
def test_plain(): ...
async def test_async(): ...
class TestGroup:
    def test_method(self): ...
def outer():
    def test_nested(): ...
"""


@pytest.mark.parametrize(
    ("node_id", "exists"),
    [
        ("tests/races/test_sample.py::test_plain", True),
        ("tests/races/test_sample.py::test_async", True),
        ("tests/races/test_sample.py::TestGroup::test_method", True),
        ("tests/races/test_sample.py::test_plain[sqlite]", False),
        ("tests/races/test_sample.py::test_method", False),
        ("tests/races/test_sample.py::test_nested", False),
        ("tests/races/test_sample.py::helper", False),
        ("tests/races/test_sample.py", False),
        ("tests/races/test_other.py::test_plain", False),
        ("tests/model/test_sample.py::test_plain", False),
        ("test_plain", False),
    ],
)
def test_only_tests_of_the_product_are_accepted(node_id: str, exists: bool, tmp_path: Path) -> None:
    for directory in ("races", "model"):
        file = tmp_path / "tests" / directory / "test_sample.py"
        file.parent.mkdir(parents=True)
        file.write_text(SAMPLE)
    refused = not_tests([Row("claim_read_then_write", Feature.CORE, [node_id])], tmp_path)
    assert refused == ([] if exists else [node_id])


def test_uncaught_variant_of_a_built_feature_is_reported() -> None:
    table = [
        Row("claim_read_then_write", Feature.CORE, ["tests/races/test_claim.py::test_one_wins"]),
        Row("finish_unconditional", Feature.CORE, []),
        Row("rollback_is_a_request", Feature.ROLLBACK, []),
    ]
    assert uncaught(table, frozenset({Feature.CORE})) == ["finish_unconditional"]
    assert uncaught(table, frozenset(Feature)) == ["finish_unconditional", "rollback_is_a_request"]
