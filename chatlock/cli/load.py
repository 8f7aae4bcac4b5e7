"""`chatlock stats` and `chatlock top`: how much runs and waits, now and lately."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import click

from chatlock.cli.context import Context, with_limit, with_scope
from chatlock.cli.facts import (
    LOAD_HEADER,
    STUCK_HEADER,
    THREAD_HEADER,
    load_line,
    stuck_line,
    thread_line,
    top_facts,
)
from chatlock.cli.output import duration, echo, rfc3339
from chatlock.wording import counted

if TYPE_CHECKING:
    from chatlock.console import Console

CLEAR = "\x1b[H\x1b[2J"


@click.command()
@click.option("--since", type=duration, default="1h", show_default=True, help="Count the turns that ended since.")
@with_scope
def stats(context: Context, since: int) -> None:
    """Count by agent what runs, waits and ended lately; with --all-tenants by tenant too, the busiest first.

    STALE turns are past their lease, OLDEST is the longest that one could have started, SEND are replies
    not yet sent; of the turns that ended, OTHER are not done; MEAN and LONGEST are of those that are.

    \b
    Examples:
      chatlock stats --tenant acme
      chatlock stats --all-tenants --since 1d --json
    """
    with context.console() as console:
        loads = console.loads(context.scope(), since)
    lines = [load_line(load, all_tenants=context.all_tenants) for load in loads]
    context.show_lines(LOAD_HEADER, lines, "nothing runs or waits, and nothing ended")


@click.command()
@click.option("--once", is_flag=True, help="Print it once and end.")
@click.option("--every", type=duration, default="2s", show_default=True, help="How often to look.")
@with_limit
@with_scope
def top(context: Context, once: bool, every: int, limit: int) -> None:
    """Watch what runs, waits and is stuck, until Ctrl-C.

    \b
    Examples:
      chatlock top --all-tenants
      chatlock top --tenant acme --once
      chatlock top --all-tenants --every 10s --json
    """
    clear = CLEAR if sys.stdout.isatty() and not once and not context.as_json else ""
    with context.console() as console, nullcontext() if once else suppress(KeyboardInterrupt):
        while True:
            _show_top(context, console, limit, clear)
            if once:
                return
            time.sleep(every / 1000)


def _show_top(context: Context, console: Console, limit: int, clear: str) -> None:
    seen = console.top(context.scope(), limit)
    if context.as_json:
        context.show("", **top_facts(seen))
    else:
        everyone = context.all_tenants
        running, waiting = sum(load.running for load in seen.loads), sum(load.waiting for load in seen.loads)
        run, wait = counted(running, "turn runs", "turns run"), counted(waiting, "thread waits", "threads wait")
        stuck = counted(len(seen.stuck), "is stuck", "are stuck")
        echo(f"{clear}{rfc3339(seen.at)}: {run}, {wait}, {stuck}")
        parts: list[tuple[Any, list[Any]]] = [
            (LOAD_HEADER, [load_line(load, all_tenants=everyone) for load in seen.loads]),
            (THREAD_HEADER, [thread_line(thread, all_tenants=everyone) for thread in seen.running]),
            (STUCK_HEADER, [stuck_line(stuck, all_tenants=everyone) for stuck in seen.stuck]),
        ]
        for header, lines in parts:
            if lines:
                echo("")
                context.show_lines(header, lines, "")
    sys.stdout.flush()
