"""RQ, and redis-py's lock of the thread in the job.  SimpleWorker: it forks no process per job, and is faster."""

from __future__ import annotations

import logging
from functools import cache

import redis
import rq

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


def turn(thread: str, message: str, work: float) -> None:
    """The job."""
    client, handle = opened()
    with client.lock(f"lock:{thread}", timeout=LOCK_S):
        handle(thread, message, work)


class Producer:
    """Enqueues jobs."""

    def __init__(self, at: At) -> None:
        self._redis = redis.Redis.from_url(at.redis)
        self._queue = rq.Queue(connection=self._redis)

    def send(self, thread: str, message: str, work: float) -> None:
        self._queue.enqueue(turn, thread, message, work)

    def close(self) -> None:
        self._redis.close()


def work(at: At) -> None:
    logging.disable(logging.WARNING)
    client = redis.Redis.from_url(at.redis)
    rq.SimpleWorker([rq.Queue(connection=client)], connection=client).work(logging_level="ERROR")
