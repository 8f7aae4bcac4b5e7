"""SAQ over Redis, and redis-py's lock of the thread around the job."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis
from saq import Queue, Worker

from bench.peers import SLOTS, At
from bench.peers.handler import Handler
from bench.peers.rq_queue import LOCK_S

TASK = "turn"


def setup(at: At) -> None:
    """Redis needs no tables."""


class Producer:
    """Enqueues jobs."""

    def __init__(self, at: At) -> None:
        self._loop = asyncio.new_event_loop()
        self._queue = Queue.from_url(at.redis)
        self._loop.run_until_complete(self._queue.connect())

    def send(self, thread: str, message: str, work: float) -> None:
        self._loop.run_until_complete(self._queue.enqueue(TASK, thread=thread, message=message, work=work))

    def close(self) -> None:
        self._loop.run_until_complete(self._queue.disconnect())
        self._loop.close()


def work(at: At) -> None:
    handle = Handler(at)

    async def main() -> None:
        locks = Redis.from_url(at.redis)

        async def turn(context: Any, *, thread: str, message: str, work: float) -> None:
            async with locks.lock(f"lock:{thread}", timeout=LOCK_S):
                await handle.asynchronous(thread, message, work)

        await Worker(Queue.from_url(at.redis), functions=[(TASK, turn)], concurrency=SLOTS).start()

    asyncio.run(main())
