"""The page of compatibility: what the runner said is read, and what failed is shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import ROOT
from tools import compat

if TYPE_CHECKING:
    from pathlib import Path

OUTPUT = """[1/2] tests/conformance/test_submit.py  40 passed in 3.1 s
[2/2] tests/frameworks/test_slack.py  2 FAILED, 16 passed in 6.9 s

==== tests/frameworks/test_slack.py
2 failed, 16 passed in 5.00s

area            passed  failed  seconds
total 12.6 s
56 passed, 2 failed
"""


def test_counts_of_each_file_are_read() -> None:
    assert compat.summary(OUTPUT) == {
        "seconds": 13,
        "files": {"tests/conformance/test_submit.py": [40, 0], "tests/frameworks/test_slack.py": [16, 2]},
    }


@pytest.mark.parametrize("output", ["", "total 0.1 s\n", OUTPUT.split("total")[0]])
def test_run_that_broke_off_is_no_run(output: str) -> None:
    with pytest.raises(SystemExit):
        compat.summary(output)


def test_what_failed_is_shown_for_its_packages_alone(tmp_path: Path) -> None:
    everything = {test: [5, 0] for tests in compat.SHOWN_BY.values() for test in tests}
    run: dict[str, Any] = {
        "postgresql": "17.10",
        "sqlite": "3.40",
        "python": "3.11",
        "pins": dict.fromkeys(compat.SHOWN_BY, ">=1"),
        "suite": dict.fromkeys(compat.SHOWN_BY, "2"),
        "venvs": [
            {
                "packages": dict.fromkeys(compat.SHOWN_BY, "1"),
                "seconds": 1,
                "files": everything | {"tests/frameworks/test_slack.py": [3, 2]},
            }
        ],
    }
    (tmp_path / "postgresql-17.json").write_text(json.dumps(run))

    failed = [line for line in compat.page(tmp_path).splitlines() if "failed" in line]
    assert failed == [
        f"| PostgreSQL 17.10, SQLite 3.40 | 3.11 | {5 * len(everything) - 2} passed, **2 failed** | 1 |",
        "| slack-bolt | `>=1` | 1 | 2 | `frameworks/test_slack.py` | 3 passed, **2 failed** |",
    ]


def test_every_package_is_pinned_and_shown_by_tests_that_a_venv_runs() -> None:
    pins = compat.pinned()
    run = {test for venv in compat.VENVS for test in venv.tests}
    assert {name for venv in compat.VENVS for name in venv.shows} == set(compat.SHOWN_BY)
    for name, tests in compat.SHOWN_BY.items():
        assert pins[name].specifier, name
        for test in tests:
            assert (ROOT / test).exists(), test
            assert run & {test, test.rpartition("/")[0]}, test
