"""`chatlock verify`, `doctor` and `windows`: is all as it should be, and are windows set well?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chatlock.cli.context import Context, Refused, with_database, with_scope, without_password
from chatlock.cli.facts import TRIED_HEADER, WINDOW_HEADER, Line, tried_line, window_line
from chatlock.cli.output import duration, echo, show_progress, visible
from chatlock.doctor import Level, examine
from chatlock.wording import counted

if TYPE_CHECKING:
    from chatlock import Verified

MARGINS = (2, 3, 4, 5)


@click.command()
@click.option(
    "--since", type=duration, help="Only threads where a turn ended since, runs, or is due; indexes find them."
)
@with_scope
def verify(context: Context, since: int | None) -> None:
    """Prove every invariant on the live database, in one read-only snapshot.

    Every accepted message has one disposition or is pending, turns tile, tokens rise, no due thread
    is forgotten. Exit code 1 names each breach. It takes no locks; a terminal is shown its progress.

    \b
    Examples:
      chatlock verify --all-tenants
      chatlock verify --tenant acme --since 1d --json
    """
    with context.console() as console:
        verified = console.verify(context.scope().tenant, since, _show_progress)
    _show_verified(context, verified)
    if not verified.ok:
        raise Refused(counted(len(verified.breaches), "breach", "breaches"))


def _show_verified(context: Context, verified: Verified) -> None:
    breaches = [vars(breach) for breach in verified.breaches]
    counts = {"messages": dict(sorted(verified.messages.items())), "turns": dict(sorted(verified.turns.items()))}
    if context.as_json:
        context.show("", ok=verified.ok, **counts, breaches=breaches)
        return
    for name, of in counts.items():
        echo(f"{name}: {', '.join(f'{count} {word}' for word, count in of.items()) or 'none'}")
    lines = [Line({}, [b.tenant, b.thread, b.invariant, b.text]) for b in verified.breaches]
    if not context.all_tenants:
        lines = [Line({}, line.cells[1:]) for line in lines]
    context.show_lines(("TENANT", "THREAD", "INVARIANT", "IS BROKEN"), lines, "every invariant holds")


def _show_progress(done: int, of: int) -> None:
    show_progress(f"{done} of {counted(of, 'check')}")


@click.command()
@click.option(
    "--redis-url",
    envvar="CHATLOCK_REDIS_URL",
    callback=without_password,
    help="Redis, to try it; else CHATLOCK_REDIS_URL.",
)
@with_database
def doctor(context: Context, redis_url: str | None) -> None:
    """Check the installation: database, tables, pooler, clock, poller, due threads, windows, Redis, RQ.

    Exit code 1 if a check failed; a warning alone is 0.

    \b
    Examples:
      chatlock doctor --url sqlite:///chat.db
      CHATLOCK_URL=postgresql://app@db/app CHATLOCK_REDIS_URL=redis://cache/0 chatlock doctor --json
    """
    failed = 0
    with context.executor() as executor:
        for found in examine(executor, pooler=context.pooler, redis_url=redis_url):
            failed += found.level is Level.FAILED
            text = f"{found.level.value:<9}{found.check:<10}{visible(found.text)}"
            context.show(text, check=found.check, level=found.level.value, text=found.text)
    if failed:
        raise Refused(f"{counted(failed, 'check')} failed")


@click.group()
def windows() -> None:
    """The windows that bound how long a turn may run, and what others would have done.

    \b
    Examples:
      chatlock windows show
      chatlock windows backtest --agent default --since 30d
    """


with_agent = click.option("--agent", help="Only this agent.")


@windows.command("show")
@with_agent
@with_database
def show_windows(context: Context, agent: str | None) -> None:
    """Show the window in force of each agent and the runs that it stands on.

    \b
    Example:
      chatlock windows show --url sqlite:///chat.db
    """
    with context.console() as console:
        found = console.windows(agent)
    context.show_lines(WINDOW_HEADER, [window_line(window) for window in found], "no run has been counted yet")


@windows.command()
@with_agent
@click.option("--since", type=duration, default="30d", show_default=True, help="Runs that ended since.")
@click.option(
    "--margin",
    "margins",
    type=click.IntRange(1, 100),
    multiple=True,
    default=MARGINS,
    show_default=True,
    help="A window of so many times the longest run; give it again for more.",
)
@with_database
def backtest(context: Context, agent: str | None, since: int, margins: tuple[int, ...]) -> None:
    """Replay recorded runs against other margins.

    A small margin reclaims healthy runs; a large one lets a hung turn hold its thread for longer. Both
    are shown: the share of healthy runs that would have been reclaimed, and the delay.

    \b
    Examples:
      chatlock windows backtest
      chatlock windows backtest --agent crawler --margin 2 --margin 6 --json
    """
    with context.console() as console:
        tried = console.backtest(agent, since, sorted(set(margins)))
    context.show_lines(TRIED_HEADER, [tried_line(one) for one in tried], "no run is recorded")
