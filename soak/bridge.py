"""The async client for code that runs in OS threads: a call is awaited on one event loop, and its result waited for."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from chatlock import AsyncTurn
from soak.agent import Agent

RUNNING_MAX = 32
"""Turns of an agent in OS threads beside the loop."""


class Bridged:
    """An AsyncChatlock or an AsyncTurn, whose coroutines run on `loop`; all else is the object's own."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop = inner, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *arguments, **options: run_on(self._loop, found(*arguments, **options))


def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that runs on a loop of another OS thread."""
    return asyncio.run_coroutine_threadsafe(work, loop).result()


def loop_beside() -> asyncio.AbstractEventLoop:
    """An event loop that runs in an OS thread of its own until the process ends."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="soak-loop", daemon=True).start()
    return loop


class AsyncAgent:
    """An async handler: the agent works in an OS thread, and its turn's calls are awaited on the handler's loop.

    A handler that is cancelled leaves that OS thread to itself: what it still tries has to be refused.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._os_threads = ThreadPoolExecutor(RUNNING_MAX, thread_name_prefix="soak-agent")

    async def __call__(self, turn: AsyncTurn) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._os_threads, self._agent, Bridged(turn, loop))
