"""Bounded waits and held handlers: how a test forces an order without sleeping for it."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
SECONDS_MAX = 60
POLL_SECONDS = 0.005


def until(predicate: Callable[[], T], timeout: float = SECONDS_MAX, what: str = "") -> T:
    """Return the first true value of `predicate`; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        assert time.monotonic() < deadline, f"{what or 'the condition'} did not hold in {timeout} s"
        time.sleep(POLL_SECONDS)  # bounded poll
    return value


class Gate:
    """Holds whoever passes it until the test opens it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._opened = threading.Event()

    def hold(self) -> None:
        self.entered.set()
        assert self._opened.wait(SECONDS_MAX), "nobody opened the gate"

    async def hold_async(self) -> None:
        """As `hold`, for a coroutine: the loop runs on, and a cancellation ends the wait."""
        self.entered.set()
        deadline = time.monotonic() + SECONDS_MAX
        while not self._opened.is_set():
            assert time.monotonic() < deadline, "nobody opened the gate"
            await asyncio.sleep(POLL_SECONDS)  # bounded poll

    def wait_entered(self) -> None:
        assert self.entered.wait(SECONDS_MAX), "nobody reached the gate"

    def open(self) -> None:
        self._opened.set()


class Blocked(NamedTuple):
    pid: int
    blockers: tuple[int, ...]
    query: str


def blocked_backends(postgres: Any) -> list[Blocked]:
    """The backends of this connection's database that wait for a lock, and for whom."""
    rows = postgres.execute(
        "SELECT pid, pg_blocking_pids(pid), query FROM pg_stat_activity"
        " WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
        " ORDER BY pid"
    )
    return [Blocked(pid, tuple(blockers), query) for pid, blockers, query in rows]
