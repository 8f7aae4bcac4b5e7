"""Pure ASGI, for Starlette and every other ASGI framework: an application to mount, and a turn around requests.

    Mount("/chats", ChatApp(chat, tenant=tenant_of_scope))
    Middleware(TurnMiddleware, chat=chat, key=key_of_scope)

Neither needs a framework.  A BaseHTTPMiddleware would let the claim go before the response has been streamed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, TypeVar
from urllib.parse import parse_qs

from chatlock import AsyncChatlock, ChatlockError, TurnNotGranted
from chatlock.middleware.asked import EVENTS, Asked, body_of, check_json, checked_owner, headers_of, payload_of
from chatlock.middleware.connection import App, Connection, Receive, Scope, Send, parts_of, path_of
from chatlock.middleware.endpoints import Endpoints
from chatlock.middleware.http import Stream, answer_to_submit
from chatlock.middleware.problems import Answer, answer_to_error, problem
from chatlock.middleware.socket import POLICY, Socket, same_origin

__all__ = ["ChatApp", "TurnMiddleware"]

T = TypeVar("T")


async def respond(connection: Connection, answer: Answer | Stream) -> None:
    """Sends the answer; a stream until the client has gone."""
    status, media_type = (answer.status, answer.media_type) if isinstance(answer, Answer) else (200, EVENTS)
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
    if media_type is not None:
        headers.append((b"content-type", media_type.encode()))
    await connection.send({"type": "http.response.start", "status": status, "headers": headers})
    if isinstance(answer, Answer):
        await connection.send({"type": "http.response.body", "body": answer.content()})
        return
    sending = asyncio.ensure_future(_send_all(connection, answer.events))
    receiving = asyncio.ensure_future(_disconnected(connection))
    try:
        await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sending.cancel()
        receiving.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)
    if not sending.cancelled():
        sending.result()


async def _send_all(connection: Connection, parts: AsyncIterator[bytes]) -> None:
    source: Any = parts
    async with aclosing(source):
        async for part in source:
            await connection.send({"type": "http.response.body", "body": part, "more_body": True})
    await connection.send({"type": "http.response.body", "body": b""})


async def _disconnected(connection: Connection) -> None:
    while (await connection.receive())["type"] != "http.disconnect":
        pass


async def _told(value: T | Awaitable[T]) -> T:
    return await value if inspect.isawaitable(value) else value


class ChatApp:
    """The same paths as the FastAPI router, for the tenant that `tenant(scope)` names; None = 401.

    Turns are detached: a client that drops does not stop them.  Call drain() when the process goes down.

    Args:
        chat: The client.
        tenant: tenant(scope) names the tenant of a request, from trusted code; it may be async.
        agent: Whose handler runs the turns.
        tasks_max: How many submits may be under way at once; one more is answered 503.
    """

    def __init__(
        self,
        chat: AsyncChatlock,
        *,
        tenant: Callable[[Scope], str | Awaitable[str | None] | None],
        agent: str = "default",
        tasks_max: int = 1_000,
    ) -> None:
        self._endpoints, self._tenant = Endpoints(chat, agent=agent, tasks_max=tasks_max), tenant

    async def drain(self, drain_s: float = 10.0) -> None:
        """Lets running turns end, then releases them uncharged.

        Args:
            drain_s: For how long, in seconds.
        """
        await self._endpoints.detached.drain(drain_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        segments = scope["path"].removeprefix(scope.get("root_path", ""))[1:].split("/")
        if scope["type"] == "websocket":
            await self._talk(scope, receive, send, segments)
        elif scope["type"] == "http":
            connection = Connection(receive, send)
            with suppress(OSError):  # the client has gone
                await respond(connection, await self._answer(scope, connection, segments))

    async def _answer(self, scope: Scope, connection: Connection, segments: list[str]) -> Answer | Stream:
        owner, headers, path = await _told(self._tenant(scope)), headers_of(scope["headers"]), path_of(scope)
        endpoints, body = self._endpoints, parts_of(connection.receive)
        match scope["method"], *segments:
            case "POST", "threads", thread, "messages":
                return await endpoints.post(owner, thread, headers, body, path)
            case "GET", "threads", thread, "messages", message_id:
                return await endpoints.read(owner, thread, message_id)
            case "PATCH", "threads", thread, "messages", message_id:
                return await endpoints.edit(owner, thread, message_id, headers, body, path)
            case "GET", "threads", thread, "messages", message_id, "events":
                return await endpoints.events(owner, thread, message_id, headers)
            case "POST", "threads", thread, "messages", message_id, "cancel":
                return await endpoints.cancel(owner, thread, message_id)
            case "POST", "threads", thread, "questions", question_id, "answer":
                return await endpoints.answer(owner, thread, question_id, headers, body, path)
            case "POST", "threads", thread, "cancel":
                queued = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("queued", ["keep"])
                return await endpoints.stop(owner, thread, headers, queued[0])
            case _, "threads", _, "messages", *rest if rest[1:] in ([], ["events"], ["cancel"]):
                return problem(405, "method-not-allowed", "Not with this method")
            case (_, "threads", _, "questions", _, "answer") | (_, "threads", _, "cancel"):
                return problem(405, "method-not-allowed", "Not with this method")
        return problem(404, "not-found", "No such path")

    async def _talk(self, scope: Scope, receive: Receive, send: Send, segments: list[str]) -> None:
        await receive()
        owner = await _told(self._tenant(scope))
        match segments:
            case "threads", thread, "socket" if owner is not None and same_origin(headers_of(scope["headers"])):
                await send({"type": "websocket.accept"})
                await Socket(self._endpoints, owner, thread, send).serve(receive)
            case _:
                await send({"type": "websocket.close", "code": POLICY})


class TurnMiddleware:
    """Holds an attached turn around each request that key(scope) names a (tenant, thread) for; None = passes it by.

    The body is the message's payload, and the application may read it again.  The turn is scope["state"]["turn"], which
    is request.state.turn in Starlette: finish it in the handler, or in what it streams.  A client that goes away
    releases it, uncharged.

    Args:
        app: The application that it wraps.
        chat: The client.
        key: key(scope) names the (tenant, thread) of a request, from trusted code; it may be async.
        agent: Whose turn it is.
    """

    def __init__(
        self,
        app: App,
        *,
        chat: AsyncChatlock,
        key: Callable[[Scope], tuple[str, str] | Awaitable[tuple[str, str] | None] | None],
        agent: str = "default",
    ) -> None:
        self._app, self._chat, self._key, self._agent = app, chat, key, agent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = await _told(self._key(scope)) if scope["type"] == "http" else None
        if key is None:
            await self._app(scope, receive, send)
            return
        connection = Connection(receive, send)
        try:
            await self._hold(scope, connection, *key)
        except ChatlockError as error:
            if connection.begun:
                raise
            if isinstance(error, TurnNotGranted):
                await respond(connection, answer_to_submit(error.outcome))
            else:
                await respond(connection, answer_to_error(error))

    async def _hold(self, scope: Scope, connection: Connection, tenant: str, thread: str) -> None:
        owner, headers = checked_owner(tenant), headers_of(scope["headers"])
        check_json(headers)
        body = await body_of(parts_of(connection.receive))
        asked: Any = vars(Asked.of(headers))
        options = {name: asked[name] for name in ("message_id", "wait_ms", "if_turn")}
        async with self._chat.turn(thread, payload_of(body), tenant=owner, agent=self._agent, **options) as turn:
            connection.unread(body)
            scope.setdefault("state", {})["turn"] = turn
            async with connection.releasing(turn):
                await self._app(scope, connection.receive, connection.send)
