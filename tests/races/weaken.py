"""Weakens one rule of the product, for one test: what then stays green proves nothing.

A rule that is SQL is weakened in the statement's text on its way to PostgreSQL, a rule that is Python in the function's
source. A change that does not fit the text any more fails, so no control goes quiet.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.dialects.postgresql import psycopg

from chatlock.ops import hot
from chatlock.ops.base import CATALOG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Change = tuple[str, str]
"""A part of a text that stands in it once, and what takes its place."""


class Weakening:
    """What is weakened as long as the block of `weakening` runs."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._texts: dict[str, str] = {}

    def sql(self, name: str, *changes: Change) -> None:
        """A catalogued statement; its parameters are called b_.. there."""
        statement = getattr(CATALOG[name], "postgresql", CATALOG[name])
        text = _normal(str(statement.compile(dialect=psycopg.dialect())))
        self._texts[text] = _changed(name, text, changes)

    def hot(self, name: str, *changes: Change) -> None:
        """A text of the hot path."""
        self._patch.setattr(hot, name, _changed(name, getattr(hot, name), changes))

    def source(self, function: Callable[..., Any], *changes: Change) -> None:
        """A function of the product, or of one of its classes, wherever it is known by its name."""
        assert isinstance(function, FunctionType)
        name = function.__qualname__
        source = _changed(name, textwrap.dedent(inspect.getsource(function)), changes)
        made: dict[str, Any] = {}
        exec(compile(source, f"<weakened {name}>", "exec", dont_inherit=True), function.__globals__, made)
        owner, _, _ = name.rpartition(".")
        if owner:
            self._patch.setattr(function.__globals__[owner], function.__name__, made[function.__name__])
        else:
            self.instead(function, made[function.__name__])

    def instead(self, original: Any, weaker: Any) -> None:
        """`weaker` wherever a module of chatlock knows `original`."""
        known = [
            (module, name)
            for module_name, module in sorted(sys.modules.items())
            if module_name.startswith("chatlock")
            for name, value in vars(module).items()
            if value is original
        ]
        assert known, f"no module of chatlock knows {original}"
        for module, name in known:
            self._patch.setattr(module, name, weaker)

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """A method or a constant."""
        self._patch.setattr(owner, name, value)

    def _send(self, conn: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> tuple[str, Any]:
        return self._texts.get(_normal(statement), statement), parameters


@contextmanager
def weakening() -> Iterator[Weakening]:
    """The rules that the block weakens are whole again after it."""
    with pytest.MonkeyPatch.context() as patch:
        weak = Weakening(patch)
        event.listen(Engine, "before_cursor_execute", weak._send, retval=True)
        try:
            yield weak
        finally:
            event.remove(Engine, "before_cursor_execute", weak._send)


def _normal(text: str) -> str:
    return " ".join(text.split())


def _changed(name: str, text: str, changes: tuple[Change, ...]) -> str:
    for old, new in changes:
        assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
        text = text.replace(old, new)
    return text
