"""The chat object that a service or a worker serves: where it is found, and the world that its turns run in."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from chatlock.async_client import AsyncChatlock
from chatlock.client_base import Client
from chatlock.errors import InvalidInput
from chatlock.io import drive
from chatlock.urls import checked_url, surely_apart

T = TypeVar("T")


def load_chat(path: str) -> Client:
    """The Chatlock or AsyncChatlock that `path`, module:name, names.  Raises InvalidInput; an error inside the module
    is its own.
    """
    module, _, name = path.partition(":")
    if not name or not all(part.isidentifier() for part in module.split(".")):
        raise InvalidInput("bad_chat", f"chat must be module:name, not {path!r}")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise InvalidInput("bad_chat", f"chat={path}: there is no module {error.name}") from None
    if not isinstance(found, Client):
        raise InvalidInput("bad_chat", f"chat={path}: {name} is no Chatlock or AsyncChatlock")
    return found


def load_chat_of(path: str, url: str) -> Client:
    """As load_chat.  Refused where its database cannot be that of `url`: what waits there would never be found here."""
    client = load_chat(path)
    if surely_apart(client._executor.url, checked_url(url)):
        text = f"CHATLOCK_URL and {path} are of different databases: its turns would never be found"
        raise InvalidInput("other_database", text)
    return client


class Host:
    """Runs flows of one chat object from any OS thread.  Its in-process poller is off: the service is the poller."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        if client._poller is not None:
            client._poller.close()
            client._poller, client._flows.nudge = None, lambda: None
        client._flows.signals_raise = lambda os_thread: False  # whoever hosts hears them apart

    def open(self) -> None:
        """First use: an AsyncChatlock gets an event loop in an OS thread of its own."""
        if isinstance(self.client, AsyncChatlock):
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="chatlock-loop", daemon=True).start()
        self.run(self._first_use())

    async def _first_use(self) -> None:
        self.client._ready()

    def run(self, flow: Coroutine[Any, Any, T]) -> T:
        """Runs a flow of the client to its end."""
        return drive(flow) if self._loop is None else asyncio.run_coroutine_threadsafe(flow, self._loop).result()

    def close(self, drain_ms: int) -> None:
        """Ends the client: no new turn begins, running ones get drain_ms, what still runs is released uncharged."""
        self.client._close(drain_ms)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def hurry(self) -> None:
        """`close` waits no longer."""
        self.client._hurry()
