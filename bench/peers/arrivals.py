"""Messages that arrive at either worker process, as requests do at web processes: a Valkey list that all pop."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import redis

from bench.peers import SLOTS, At

LIST = "arrivals"


class Producer:
    """Sends to whichever process is free."""

    def __init__(self, at: At) -> None:
        self._redis = redis.Redis.from_url(at.redis)

    def send(self, thread: str, message: str, work: float) -> None:
        self._redis.rpush(LIST, json.dumps([thread, message, work]))

    def close(self) -> None:
        self._redis.close()


def serve(at: At, opened: Callable[[], Callable[[str, str, float], Any]]) -> None:
    """Pops in SLOTS OS threads; opened() gives each of them what handles a message."""

    def pop() -> None:
        handle, client = opened(), redis.Redis.from_url(at.redis)
        while True:
            _, arrived = client.blpop([LIST])
            handle(*json.loads(arrived))

    slots = [threading.Thread(target=pop, daemon=True) for _ in range(SLOTS)]
    for slot in slots:
        slot.start()
    for slot in slots:
        slot.join()
