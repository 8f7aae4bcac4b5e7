"""pg_advisory_lock of the thread around the handler, where the message arrives.  It stores nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg

from bench.peers import At, arrivals
from bench.peers.handler import Handler

Producer = arrivals.Producer


def setup(at: At) -> None:
    """An advisory lock needs no table."""


def work(at: At) -> None:
    handle = Handler(at)

    def opened() -> Callable[[str, str, float], None]:
        connection = psycopg.connect(at.url, autocommit=True)

        def locked(thread: str, message: str, work: float) -> None:
            arrived = time.monotonic_ns()
            handle.journal.write("accepted", thread, message, arrived, arrived)
            connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (thread,))
            try:
                handle(thread, message, work)
            finally:
                connection.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", (thread,))

        return locked

    arrivals.serve(at, opened)
