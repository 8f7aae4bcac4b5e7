"""HTML as values: whatever is not Markup is text, and is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from chatlock.cli.output import visible

VOID = {"meta", "circle", "line", "path", "rect"}


class Markup(str):
    """HTML that is safe as it is."""

    __slots__ = ()


Part: TypeAlias = "str | int | Iterable[Part] | None"
"""Text, HTML, nothing, or several of them."""


def tag(name: str, /, *parts: Part, **attributes: str | float | None) -> Markup:
    """An element.  A trailing underscore in an attribute's name is dropped (class_), others become dashes."""
    given = "".join(
        f' {key.removesuffix("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID and not parts:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{joined(parts)}</{name}>")


def joined(parts: Part) -> Markup:
    """The parts one after another."""
    if parts is None:
        return Markup("")
    if isinstance(parts, Markup):
        return parts
    if isinstance(parts, str | int):
        return Markup(html.escape(visible(str(parts))))
    return Markup("".join(joined(part) for part in parts))


def table(header: Sequence[str], rows: Sequence[Sequence[Part]], empty: str) -> Markup:
    """A table, or a line that says that there is nothing in it."""
    if not rows:
        return tag("p", empty, class_="empty")
    head = tag("tr", [tag("th", name) for name in header])
    body = [tag("tr", [tag("td", "-" if cell is None else cell) for cell in row]) for row in rows]
    return tag("div", tag("table", tag("thead", head), tag("tbody", body)), class_="scroll")
