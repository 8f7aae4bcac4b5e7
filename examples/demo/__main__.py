"""python -m examples.demo [--db sqlite|postgres] [--speed 1000] [--quick] [--gaps]"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

import examples.demo
from examples.demo import arrivals as source
from examples.demo.agent import THINK_S, Agent, Histories, SentLog
from examples.demo.ledger import Ledger, judge
from examples.demo.passes import with_chatlock, without_chatlock
from examples.demo.postgres import PostgresUnavailable, running_postgres
from examples.demo.progress import Pace, Warnings

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from chatlock import Verified
    from examples.demo.arrivals import Arrival
    from examples.demo.passes import Play

QUICK_PER_LOG = 100


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=examples.demo.__doc__)
    parser.add_argument(
        "--db",
        choices=("sqlite", "postgres"),
        default="sqlite",
        help="where chatlock keeps its tables",
    )
    parser.add_argument("--speed", type=float, default=1000, help="how many times faster than life (%(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"only the first {QUICK_PER_LOG} messages of each log")
    parser.add_argument("--gaps", action="store_true", help="print how soon people write again, and end")
    args = parser.parse_args()
    if args.speed <= 0:
        parser.error("--speed must be above 0")
    return args


def gaps_table() -> Table:
    """Per log: the share of follow-ups that come soon after the same person's previous message."""
    limits = [f"<= {limit} s" for limit in source.GAPS_SHOWN_S]
    table = Table("log", "messages", "people", "follow-ups", *limits, box=box.SIMPLE)
    every: list[int] = []
    for name, log in source.recorded().items():
        gaps = source.follow_ups(log)
        every += gaps
        table.add_row(name, f"{len(log):,}", str(len(log) - len(gaps)), f"{len(gaps):,}", *shares(gaps))
    table.add_row("all", "", "", f"{len(every):,}", *shares(every))
    return table


def shares(gaps: list[int]) -> list[str]:
    """The shares of `gaps` within each limit shown."""
    return [f"{source.share_within(gaps, limit):.1f} %" for limit in source.GAPS_SHOWN_S]


@contextlib.contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'chatlock.db'}"
    else:
        with running_postgres() as url:
            yield url


def run_pass(
    console: Console, title: str, play: Play, arrivals: list[Arrival], speed: float, record: Path
) -> tuple[Ledger, Verified | None]:
    """Play the arrivals.  Returns the judgement by the record, and what verify saw."""
    histories, log = Histories(), SentLog(record)
    least_s = (arrivals[-1].at_s + THINK_S) / speed
    console.print(f"{title}: {least_s:.0f} s, or as long as this machine needs")
    with contextlib.closing(log), Pace(console, title, len(arrivals), least_s) as pace:
        verified = asyncio.run(play(arrivals, Agent(histories, speed), log, pace.advance))
    pace.report(speed)
    return judge(arrivals, log.read(), histories), verified


def comparison(without: Ledger, with_: Ledger) -> Table:
    """Both passes side by side."""
    table = Table("by the agent's own record", "without", "with chatlock", box=box.SIMPLE)
    for title, figure in without.figures().items():
        table.add_row(title, f"{figure:,}", f"{with_.figures()[title]:,}")
    return table


def disagreements(ledger: Ledger, verified: Verified | None) -> list[str]:
    """Where what chatlock's tables say differs from the agent's own record, and what is wrong in them."""
    if verified is None:
        return ["it was not asked"]
    found = [f"{b.invariant} in {b.tenant}/{b.thread}: {b.text}" for b in verified.breaches]
    if verified.messages != {"answered": ledger.answered}:
        found.append(f"its messages: {verified.messages}")
    if verified.turns.get("done") != ledger.turns:
        found.append(f"its turns: {verified.turns}")
    return found


def said_of(events: Counter[str]) -> str:
    """How often each event was logged."""
    return ", ".join(f"{count:,} x {event}" for event, count in events.most_common())


def main() -> int:
    """Exit status: 0 if chatlock had every message answered once and its own check agrees."""
    args = arguments()
    console = Console(soft_wrap=True)
    if args.gaps:
        console.print(gaps_table())
        return 0
    arrivals = source.replayed(QUICK_PER_LOG if args.quick else None)
    console.print(
        f"{len(arrivals):,} messages of {len({(a.log, a.person) for a in arrivals}):,} threads "
        f"over {arrivals[-1].at_s / 3600:.1f} h, replayed {args.speed:g} times faster; "
        f"the agent thinks for {THINK_S} s"
    )
    with tempfile.TemporaryDirectory(prefix="chatlock-demo-") as name:
        folder = Path(name)
        without, _ = run_pass(
            console,
            "without chatlock",
            without_chatlock,
            arrivals,
            args.speed,
            folder / "without.jsonl",
        )
        with database(args.db, folder) as url:
            play = with_chatlock(url)
            with Warnings() as warned:
                with_, verified = run_pass(
                    console,
                    f"with chatlock on {args.db}",
                    play,
                    arrivals,
                    args.speed,
                    folder / "with.jsonl",
                )
    console.print(comparison(without, with_))
    if warned.events:
        console.print(f"chatlock warned, as it does where the machine is slow: {said_of(warned.events)}")
    objections = disagreements(with_, verified)
    said = "objects:" if objections else "agrees, and finds every invariant kept"
    console.print(f"chat.verify() {said}", *objections, sep="\n  ")
    print(with_, flush=True)
    return 0 if with_.is_clean and not objections else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PostgresUnavailable as error:
        sys.exit(str(error))
