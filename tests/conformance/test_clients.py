"""The two clients and the two turns are twins: the same names, the same parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from chatlock import AsyncChatlock, AsyncTurn, Chatlock, Turn

TWINS = [(Chatlock, AsyncChatlock), (Turn, AsyncTurn)]
AWAITED_ONLY = {"until_cancelled"}
"""What only an event loop can wait for; OS threads look at `cancelled`."""


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


def parameters(call: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(call).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in found]


@pytest.mark.parametrize(("sync", "twin"), TWINS)
def test_twins_have_the_same_names(sync: type, twin: type) -> None:
    assert public(sync).keys() == public(twin).keys() - AWAITED_ONLY


@pytest.mark.parametrize(("sync", "twin"), TWINS)
def test_twins_take_the_same_parameters(sync: type, twin: type) -> None:
    for name, call in public(sync).items():
        if callable(call):
            assert parameters(call) == parameters(public(twin)[name]), name


@pytest.mark.parametrize("kind", [kind for pair in TWINS for kind in pair])
def test_every_public_name_is_described(kind: type) -> None:
    assert [name for name, value in public(kind).items() if not inspect.getdoc(value)] == []
