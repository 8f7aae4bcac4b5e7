"""`chatlock replay`: what each policy would have done to recorded arrivals."""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import TYPE_CHECKING, get_args

import click

from chatlock.cli.context import Context, with_scope
from chatlock.cli.facts import Line
from chatlock.cli.output import duration
from chatlock.policies import PolicyName
from chatlock.replay import Replayed, read_arrivals, replay

if TYPE_CHECKING:
    from typing import TextIO

HEADER = ("POLICY", "TURNS", "MODEL CALLS", "ANSWERED", "SUPERSEDED", "REFUSED", "ATTACHED", "REPLY p50", "REPLY p95")


@click.command("replay")
@click.argument("arrivals", type=click.File(encoding="utf-8"), required=False)
@click.option(
    "--policy",
    "policies",
    type=click.Choice(get_args(PolicyName)),
    multiple=True,
    help="A policy; give it again for more. Without it: every one.",
)
@click.option(
    "--run-ms",
    type=click.IntRange(min=1),
    default=20_000,
    show_default=True,
    help="How long a turn takes where its own time is not known.",
)
@click.option("--since", type=duration, default="1d", show_default=True, help="Of a database: what was received since.")
@functools.partial(with_scope, unless="arrivals")
def replay_command(
    context: Context, arrivals: TextIO | None, policies: tuple[PolicyName, ...], run_ms: int, since: int
) -> None:
    """Replay arrivals under each policy, on a clock of its own: nothing is written, and no turn runs.

    ARRIVALS is a CSV file with the columns thread and offset_s (seconds), and log where threads of several logs
    are apart; - is stdin. Without it the messages of a database are replayed, each turn as long as the
    one that answered its oldest message. REPLY is the time from a message to the reply to it, or to
    what took its place.

    \b
    Examples:
      chatlock replay arrivals.csv --policy debounce --run-ms 20000
      chatlock replay --all-tenants --since 7d --json
    """
    if arrivals is not None:
        recorded = read_arrivals(arrivals)
    else:
        with context.console() as console:
            recorded = console.arrivals(context.scope(), since)
    lines = (
        [_line(replay(recorded, policy, run_ms=run_ms)) for policy in policies or get_args(PolicyName)]
        if recorded
        else []
    )
    context.show_lines(HEADER, lines, "no message was received")


def _line(replayed: Replayed) -> Line:
    counts = (
        replayed.turns,
        replayed.model_calls,
        replayed.answered,
        replayed.superseded,
        replayed.refused,
        replayed.attached,
    )
    waits = (replayed.first_reply_p50_ms, replayed.first_reply_p95_ms)
    shown = ["-" if wait is None else f"{wait / 1000:.1f} s" for wait in waits]
    return Line(asdict(replayed), [replayed.policy, *map(str, counts), *shown])
