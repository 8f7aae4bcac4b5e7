"""procrastinate: jobs of one lock run one at a time, in order."""

from __future__ import annotations

import asyncio

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from bench.peers import At
from bench.peers.handler import Handler

TASK = "turn"


def setup(at: At) -> None:
    with App(connector=SyncPsycopgConnector(conninfo=at.url)).open() as app:
        app.schema_manager.apply_schema()


class Producer:
    """Defers jobs."""

    def __init__(self, at: At) -> None:
        self._app = App(connector=SyncPsycopgConnector(conninfo=at.url)).open()

    def send(self, thread: str, message: str, work: float) -> None:
        self._app.configure_task(TASK, lock=thread).defer(thread=thread, message=message, work=work)

    def close(self) -> None:
        self._app.close()


def work(at: At) -> None:
    app = App(connector=PsycopgConnector(conninfo=at.url))
    handle = Handler(at)

    @app.task(name=TASK)
    async def turn(thread: str, message: str, work: float) -> None:
        await handle.asynchronous(thread, message, work)

    async def main() -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=at.options["concurrency"])

    asyncio.run(main())
