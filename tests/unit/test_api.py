"""docs/api.md tells of every public name, and of all that each takes and holds."""

from __future__ import annotations

import re

import griffe

import chatlock
from chatlock import testing
from tests.support import ROOT
from tools import api, api_faults

CODE = '''
class Thing:
    """A thing.

    Args:
        size: How big.

    Other Parameters:
        key: Which one.
    """

    def __init__(self, size, colour): ...

    def told(self, key, how):
        """Tells.

        Args:
            how: In which words.
        """

    def asked(self, key, why):
        """Asks; the why is nowhere explained."""

    def silent(self): ...

    @property
    def weight(self): ...
'''


def test_every_public_name_has_a_heading() -> None:
    shown = set(re.findall(r"^### (\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))
    assert {*chatlock.__all__, *testing.__all__} <= shown


def test_every_parameter_and_field_is_explained() -> None:
    told = api_faults.faults(api.headings())
    assert not told, "\n".join(told)


def test_what_is_not_explained_is_reported() -> None:
    with griffe.temporary_visited_module(CODE) as module:
        assert api_faults.faults_of("Thing", module["Thing"]) == [
            "Thing.weight has no docstring",
            "Thing does not explain colour",
            "Thing.asked does not explain why",
            "Thing.silent has no docstring",
        ]
