"""How the commands print: text that cannot take over a terminal, times, durations, tables."""

from __future__ import annotations

import re
import shlex
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from chatlock.inputs import INTEGER_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

LAST_MS = 253_402_300_799_999  # the end of year 9999, where datetime ends
UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def visible(text: str) -> str:
    """User data for a terminal: control, bidi and other invisible characters as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shell_quoted(word: str) -> str:
    """A word of a command that can be pasted into a shell, whatever it holds."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = visible(word.replace("\\", "\\\\").replace("'", "\\'"))
    return f"$'{escaped}'"


def command(*words: str, thread: str | None = None) -> str:
    """A chatlock command to paste; a thread that looks like an option comes after `--`."""
    if thread is not None:
        words = (*words, "--", thread) if thread.startswith("-") else (*words, thread)
    return " ".join(["chatlock", *map(shell_quoted, words)])


def rfc3339(at_ms: int | None) -> str | None:
    """A time of the database's clock in UTC; None for none."""
    if at_ms is None:
        return None
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(at_ms, LAST_MS))
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def shown_time(at_ms: int | None) -> str:
    """A time for people, to the second; a dash for none."""
    text = rfc3339(at_ms)
    return "-" if text is None else f"{text[:10]} {text[11:19]}"


def duration(text: str) -> int:
    """Milliseconds from a duration such as 90s, 5m, 2h or 7d: the type of an option."""
    match = re.fullmatch(r"([0-9]{1,12})(ms|s|m|h|d)", text.strip())
    if match is None or int(match[1]) * UNITS_MS[match[2]] > INTEGER_MAX:
        raise click.BadParameter(f"{text!r} is no duration: a number and ms, s, m, h or d, such as 5m")
    return int(match[1]) * UNITS_MS[match[2]]


def show_progress(text: str) -> None:
    """How far a long command is, for whoever watches it at a terminal."""
    if _watched():
        echo(text, err=True)


def _watched() -> bool:
    return sys.stderr.isatty()


def echo(text: str, *, err: bool = False) -> None:
    """Prints a line, with escapes for what the stream's encoding cannot carry."""
    stream = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: rich's, where it is installed and someone looks; else columns of plain text."""
    cells = [[visible(cell) for cell in row] for row in rows]
    if not (sys.stdout.isatty() and _print_rich(header, cells)):
        widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
        for line in (header, *cells):
            echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_rich(header: Sequence[str], cells: Sequence[Sequence[str]]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        return False
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(Text(name), overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))  # Text takes no markup
    Console(file=sys.stdout, highlight=False).print(table)
    return True
