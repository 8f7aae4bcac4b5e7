"""A message's events as text/event-stream, for as long as somebody listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from chatlock import ChatlockError, Event, Outcome, Queued
from chatlock.middleware.http import document
from chatlock.middleware.problems import answer_to_error, compact

QUIET_S = 15.0
"""A stream says so often that it is alive: proxies close what is silent for longer."""


def data_of(event: Event) -> Any:
    """An event's data as JSON."""
    return document(event.data) if isinstance(event.data, Outcome) else event.data


def sse(event_id: str | None, name: str, data: Any) -> bytes:
    """One server-sent event.  None: the client's Last-Event-ID stays what it is."""
    named = "" if event_id is None else f"id: {event_id}\n"
    return f"{named}event: {name}\ndata: {compact(data)}\n\n".encode()


def as_stored(outcome: Outcome) -> bytes:
    """The first event of a message that has no answer yet: it names what to cancel, or the turn to stop."""
    return sse(f"{outcome.message_id}-stored", "stored", document(outcome)) if isinstance(outcome, Queued) else b""


async def as_sse(events: AsyncIterator[Event], first: bytes = b"") -> AsyncIterator[bytes]:
    """Events as text/event-stream; an error after the stream began is an event of its own.  first: goes ahead."""
    source: Any = events
    async with aclosing(source):
        upcoming: asyncio.Future[Event] | None = asyncio.ensure_future(anext(source))
        try:
            await asyncio.sleep(0)  # whoever has received anything listens already
            yield b"retry: 1000\n\n" + first
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(source))
                if not (await asyncio.wait({upcoming}, timeout=QUIET_S))[0]:
                    yield b": still here\n\n"
                    continue
                event, upcoming = upcoming.result(), None
                yield sse(event.id, event.kind, data_of(event))
        except StopAsyncIteration:
            return
        except ChatlockError as error:
            yield sse(None, "error", answer_to_error(error).body)
        finally:
            await _stopped(upcoming)


async def _stopped(upcoming: asyncio.Future[Event] | None) -> None:
    """Cancels the wait for the next event.  A server may cancel again and again meanwhile."""
    if upcoming is None:
        return
    upcoming.cancel()
    while not upcoming.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({upcoming})
