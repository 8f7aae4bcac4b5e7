"""One WebSocket for a thread: submit, follow and cancel over it, in JSON text, with the events of every message.

    > {"do": "submit", "message_id": "m1", "payload": ..}         if_match: the ETag of the turn that must run
    > {"do": "follow", "message_id": "m1", "last_event_id": ".."}
    > {"do": "cancel", "message_id": "m1"}
    < {"event": "stored" | "chunk" | "reply" | "outcome" | "problem", "message_id": "m1", "id": "..", "data": ..}

Turns are detached: whoever reconnects follows on.  A send that succeeds says nothing (some servers take what nobody
receives any more), so only a receive tells that the client has gone.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from chatlock import ChatlockError, InvalidInput
from chatlock.middleware.asked import BODY_BYTES_MAX, WAIT_MS, Asked, addressable, checked_owner, payload_of, turn_of
from chatlock.middleware.connection import Receive, Send
from chatlock.middleware.endpoints import Endpoints
from chatlock.middleware.events import data_of
from chatlock.middleware.http import answer_to_submit, document
from chatlock.middleware.problems import Answer, answer_to_error, compact

Wish = dict[str, str | None]

log = logging.getLogger("chatlock")

RUNNING_MAX = 32
UNSUPPORTED, POLICY = 1003, 1008


def same_origin(headers: Mapping[str, str]) -> bool:
    """Whether no page of another site opens the socket: browsers send cookies with it, and ask nobody before."""
    origin = headers.get("origin")
    try:
        return origin is None or urlsplit(origin).netloc == headers.get("host")
    except ValueError:  # no URL
        return False


class Socket:
    """An accepted socket of one tenant's thread."""

    def __init__(self, endpoints: Endpoints, owner: str, thread: str, send: Send) -> None:
        self._endpoints, self._owner, self._thread, self._send = endpoints, owner, thread, send
        self._sending = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self, receive: Receive) -> None:
        """Until the client has gone."""
        try:
            while (message := await receive())["type"] == "websocket.receive":
                text = message.get("text")
                if text is None:
                    await self._send({"type": "websocket.close", "code": UNSUPPORTED, "reason": "text only"})
                    return
                await self._take(text)
        finally:
            for task in self._running:
                task.cancel()

    async def _take(self, text: str) -> None:
        message_id = None
        try:
            wish, payload = _wish_of(text)
            message_id = wish["message_id"]
            if len(self._running) >= RUNNING_MAX:
                raise InvalidInput("too_many", f"at most {RUNNING_MAX} messages are followed over one socket")
            task = asyncio.ensure_future(self._do(wish, payload))
            self._running.add(task)
            task.add_done_callback(self._done)
        except ChatlockError as error:
            await self._tell(message_id, answer_to_error(error))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a broken socket: the next receive tells
            log.info("socket.broken", extra={"error": type(error).__name__})

    async def _do(self, wish: Wish, payload: Any) -> None:
        message_id = wish["message_id"] if wish["message_id"] is not None else uuid.uuid4().hex
        thread = self._thread
        try:
            owner = checked_owner(self._owner)
            if wish["do"] == "cancel":
                await self._tell(message_id, await self._endpoints.cancelled(owner, thread, message_id))
                return
            if wish["do"] == "submit" and not await self._stored(wish, payload, message_id):
                return
            async for event in self._endpoints.follow(owner, thread, message_id, wish["last_event_id"]):
                await self._put(event.kind, message_id, data_of(event), id=event.id)
        except ChatlockError as error:
            await self._tell(message_id, answer_to_error(error))

    async def _stored(self, wish: Wish, payload: Any, message_id: str) -> bool:
        asked = Asked(message_id, WAIT_MS, turn_of(wish["if_match"]), streams=True)
        submitting = self._endpoints.submitting(self._owner, self._thread, payload, asked)
        refused = await submitting.refused()
        if refused is not None:
            await self._tell(message_id, answer_to_submit(refused))
            return False
        await self._put("stored", message_id, document(await submitting.stored))
        return True

    async def _tell(self, message_id: str | None, answer: Answer) -> None:
        await self._put("problem" if answer.status >= 400 else "outcome", message_id, answer.body)

    async def _put(self, event: str, message_id: str | None, data: Any, **more: str) -> None:
        text = compact({"event": event, "message_id": message_id, **more, "data": data})
        async with self._sending:
            await self._send({"type": "websocket.send", "text": text})


def _wish_of(text: str) -> tuple[Wish, Any]:
    """What the client wants, and the payload.  Raises InvalidInput."""
    if len(text) > BODY_BYTES_MAX:
        raise InvalidInput("too_large", f"the text is larger than {BODY_BYTES_MAX} characters")
    value = payload_of(text)
    if not isinstance(value, dict) or value.get("do") not in ("submit", "follow", "cancel"):
        raise InvalidInput("bad_wish", "send an object whose do is submit, follow or cancel")
    wish = {name: value.get(name) for name in ("do", "message_id", "if_match", "last_event_id")}
    if not all(item is None or isinstance(item, str) for item in wish.values()):
        raise InvalidInput("bad_wish", "message_id, if_match and last_event_id are strings")
    if wish["message_id"] is not None:
        addressable(wish["message_id"])
    elif wish["do"] != "submit":
        raise InvalidInput("bad_wish", "name the message by its message_id")
    if wish["do"] == "submit" and "payload" not in value:
        raise InvalidInput("bad_wish", "a submit has a payload")
    return wish, value.get("payload")
