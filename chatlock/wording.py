"""How durations and counts are worded for people, in the command line, the web view and errors."""

from __future__ import annotations

UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def span(ms: int) -> str:
    """A duration for people, in its largest unit of which it has two or more."""
    for size, unit in UNITS:
        if ms >= 2 * size:
            return f"{ms // size} {unit}"
    return f"{max(0, ms)} ms"


def counted(count: int, one: str, many: str | None = None) -> str:
    """A count with the words that agree with it: "1 turn runs", "2 turns run".  many: `one` and an s, if not given."""
    words = one if count == 1 else many or f"{one}s"
    return f"{count} {words}"
