"""RQ, with a rate limit of one job per thread, or with redis-py's lock of the thread in the job.

SimpleWorker, which forks no process per job, is several times as fast as the default.
"""

from __future__ import annotations

import logging
from functools import cache

import redis
import rq
from rq.rate_limit import RateLimit

from bench.peers import At
from bench.peers.handler import Handler

LOCK_S = 60
"""A lock that outlives its holder is free after so long; it must be longer than the longest turn."""


def setup(at: At) -> None:
    """Redis needs no tables."""


@cache
def opened() -> tuple[redis.Redis, Handler]:
    at = At.here()
    return redis.Redis.from_url(at.redis), Handler(at)


def locked_turn(thread: str, message: str, work: float) -> None:
    """The job that waits for its thread."""
    client, handle = opened()
    with client.lock(f"lock:{thread}", timeout=LOCK_S):
        handle(thread, message, work)


def turn(thread: str, message: str, work: float) -> None:
    """The job that RQ holds back until its thread is free."""
    opened()[1](thread, message, work)


class Producer:
    """Enqueues jobs."""

    def __init__(self, at: At) -> None:
        self._redis = redis.Redis.from_url(at.redis)
        self._queue = rq.Queue(connection=self._redis)
        self._lock = at.options["lock"]

    def send(self, thread: str, message: str, work: float) -> None:
        if self._lock:
            self._queue.enqueue(locked_turn, thread, message, work)
        else:
            self._queue.enqueue(turn, thread, message, work, rate_limit=RateLimit(thread, concurrency=1))

    def close(self) -> None:
        self._redis.close()


def work(at: At) -> None:
    logging.disable(logging.WARNING)
    client = redis.Redis.from_url(at.redis)
    rq.SimpleWorker([rq.Queue(connection=client)], connection=client).work(logging_level="ERROR")
