"""What a pass shows while it plays, and what chatlock's log has of it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY_S = 10
SLOWER = 1.5


class Pace:
    """The messages of a pass that have their answer: a bar on a terminal, else a line now and then."""

    def __init__(self, console: Console, title: str, total: int, least_s: float) -> None:
        self._console, self._title, self._total, self._least_s = console, title, total, least_s
        self._done = 0
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self._bars.add_task(title, total=total, rate="")

    def __enter__(self) -> Self:
        self._began = self._told = time.monotonic()
        self._bars.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bars.stop()

    def advance(self, count: int) -> None:
        """So many messages more have their answer."""
        self._done += count
        now = time.monotonic()
        rate = self._done / max(now - self._began, 0.001)
        self._bars.update(self._bar, advance=count, rate=f"{rate:,.0f}/s")
        if not self._console.is_terminal and now - self._told >= LINE_EVERY_S:
            self._told = now
            pace = f", {rate:,.0f}/s, about {(self._total - self._done) / rate:,.0f} s left"
            known = self._done * 100 >= self._total
            self._console.print(f"{self._title}: {self._done:,} of {self._total:,} messages{pace if known else ''}")

    def report(self, speed: float) -> None:
        """Says how long it took, and what to do where the machine was slower than the arrivals."""
        took_s = time.monotonic() - self._began
        self._console.print(f"{self._title}: {self._total:,} messages in {took_s:.1f} s")
        if took_s > SLOWER * self._least_s + 1:
            self._console.print(
                f"  this machine is slower than SPEED={speed:g}, which asks for {self._least_s:.0f} s; "
                "a lower SPEED takes no longer here, and ARGS=--quick plays fewer messages"
            )


class Warnings(logging.Handler):
    """Counts what chatlock warns of, by the event's name.  Errors are printed: a demo has none."""

    def __init__(self) -> None:
        super().__init__()
        self.events: Counter[str] = Counter()

    def __enter__(self) -> Self:
        logging.getLogger("chatlock").addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        logging.getLogger("chatlock").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        if record.levelno >= logging.ERROR and logging.lastResort:
            logging.lastResort.handle(record)
        else:
            self.events[record.getMessage().partition(":")[0]] += 1
