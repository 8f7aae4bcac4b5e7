"""chatlock: messages stored for two processes with pollers; or, in place, submitted by the process they arrive at."""

from __future__ import annotations

import signal
import time
from typing import Any

from bench.peers import SLOTS, At, arrivals
from bench.peers.handler import Handler
from chatlock import Chatlock, Turn
from chatlock.protocol import Limits
from chatlock.wake.postgres import PostgresWake

TENANT = "bench"


def client(at: At, **options: Any) -> Chatlock:
    limits = Limits(batch_max=at.options.get("batch_max", Limits().batch_max))
    wake = None if at.options.get("in_place") else PostgresWake(at.url)
    return Chatlock(at.url, tenant=TENANT, limits=limits, wake=wake, **options)


def setup(at: At) -> None:
    with client(at, poller=False) as chat:
        chat.setup()


class Stored:
    """Stores, and leaves the turn to whoever polls."""

    def __init__(self, at: At) -> None:
        self._chat = client(at, poller=False)

    def send(self, thread: str, message: str, work: float) -> None:
        self._chat.submit(thread, {"work": work}, message_id=message, wait_ms=0)

    def close(self) -> None:
        self._chat.close()


def Producer(at: At) -> Stored | arrivals.Producer:
    return arrivals.Producer(at) if at.options.get("in_place") else Stored(at)


def work(at: At) -> None:
    handle = Handler(at)
    with client(at, turns_max=SLOTS) as chat:

        @chat.handler()
        def answer(turn: Turn) -> str:
            for message in turn.messages:  # so a batch saves statements and no work
                handle(turn.key.thread, message.message_id, message.payload["work"], turn.token)
            return "ok"

        def submit(thread: str, message: str, work: float) -> None:
            began = time.monotonic_ns()

            def stored(outcome: Any) -> None:
                handle.journal.write("accepted", thread, message, began, time.monotonic_ns())

            chat.submit(thread, {"work": work}, message_id=message, wait_ms=0, on_stored=stored)

        chat.setup()
        if at.options.get("in_place"):
            arrivals.serve(at, lambda: submit)
        else:
            signal.pause()
