"""pgqueuer serializes an entrypoint (concurrency_limit=1), so each thread is one: all must be known beforehand."""

from __future__ import annotations

import asyncio
import json

import asyncpg
from pgqueuer import Job, PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver

from bench.peers import At
from bench.peers.handler import Handler


def setup(at: At) -> None:
    async def install() -> None:
        connection = await asyncpg.connect(at.url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    asyncio.run(install())


class Producer:
    """Enqueues jobs over one connection."""

    def __init__(self, at: At) -> None:
        self._loop = asyncio.new_event_loop()
        self._connection = self._loop.run_until_complete(asyncpg.connect(at.url))
        self._queries = Queries(AsyncpgDriver(self._connection))

    def send(self, thread: str, message: str, work: float) -> None:
        self._loop.run_until_complete(self._queries.enqueue(thread, json.dumps([thread, message, work]).encode()))

    def close(self) -> None:
        self._loop.run_until_complete(self._connection.close())
        self._loop.close()


def work(at: At) -> None:
    handle = Handler(at)

    async def turn(job: Job) -> None:
        await handle.asynchronous(*json.loads(job.payload or b"[]"))

    async def main() -> None:
        queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(at.url)))
        for thread in at.threads:
            queuer.entrypoint(thread, concurrency_limit=1)(turn)
        await queuer.run()

    asyncio.run(main())
