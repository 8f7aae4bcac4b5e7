"""FastAPI: a router with everything a chat front end needs, and a dependency for handlers of your own.

    app.include_router(router(chat, tenant=current_tenant))

Needs fastapi >= 0.118: before it a dependency's exit ran ahead of a streamed response.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from chatlock import AsyncChatlock, AsyncTurn, ChatlockError, TurnNotGranted
from chatlock.middleware import framework, openapi
from chatlock.middleware.asked import EVENTS, Asked, body_of, check_json, checked_owner, headers_of, payload_of
from chatlock.middleware.connection import Watched, connection_of, parts_of, path_of
from chatlock.middleware.endpoints import Endpoints
from chatlock.middleware.http import Stream, answer_to_submit
from chatlock.middleware.problems import Answer, answer_to_error
from chatlock.middleware.socket import POLICY, Socket, same_origin

__all__ = ["install", "router", "turn"]

fastapi: Any = framework("fastapi", "fastapi")
if tuple(int(part) for part in fastapi.__version__.split(".")[:2]) < (0, 118):
    raise ChatlockError("chatlock needs fastapi >= 0.118: a turn must outlive the response that it streams")

THREAD = "/threads/{thread}"
MESSAGE = f"{THREAD}/messages/{{message_id}}"


class Events(fastapi.responses.StreamingResponse):  # type: ignore[misc]  # frameworks are untyped here
    """Ends its events with the response: Starlette lets them run on where only send tells that the client has gone."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with aclosing(self.body_iterator):
            await super().__call__(scope, receive, send)


def reply(answer: Answer | Stream) -> Any:
    """The answer as a framework response."""
    if isinstance(answer, Stream):
        return Events(answer.events, 200, answer.headers, EVENTS)
    return fastapi.Response(answer.content(), answer.status, answer.headers, answer.media_type)


def install(app: Any) -> None:
    """Answers TurnNotGranted and chatlock's errors with problem documents, wherever they are raised.

    And watches whether clients go away, which the turn dependency has to know.

    Args:
        app: The FastAPI application.
    """

    async def not_granted(request: Any, error: TurnNotGranted) -> Any:
        return reply(answer_to_submit(error.outcome))

    async def failed(request: Any, error: ChatlockError) -> Any:
        return reply(answer_to_error(error))

    app.add_exception_handler(TurnNotGranted, not_granted)
    app.add_exception_handler(ChatlockError, failed)
    app.add_middleware(Watched)


def turn(chat: AsyncChatlock, *, tenant: Callable[..., Any], agent: str = "default") -> Callable[..., Any]:
    """A dependency that holds an attached turn over the request, its stream included.

    The path needs {thread}; the body is the payload, and the handler may read it again.  Finish the turn in the
    handler, or in what it streams.  A client that goes away while it streams stops it: the turn is released, uncharged.
    Needs install(app).

    Args:
        chat: The client.
        tenant: A dependency that names the tenant, from trusted code.
        agent: Whose turn it is.
    """

    owner_of = fastapi.Depends(tenant)

    async def held(request: Any, thread: str, owner: Any = owner_of) -> AsyncIterator[AsyncTurn]:
        owner = checked_owner(owner)
        connection, headers = connection_of(request.scope), headers_of(request.scope["headers"])
        check_json(headers)
        read = connection.read  # FastAPI has read and kept it, for a model in the handler's signature
        body = await body_of(request.stream() if read else parts_of(connection.receive))
        connection.unread(body)
        payload, asked = payload_of(body), Asked.of(headers)
        options: Any = {"message_id": asked.message_id, "wait_ms": asked.wait_ms, "if_turn": asked.if_turn}
        held_turn = chat.turn(thread, payload, tenant=owner, agent=agent, **options)
        async with held_turn as granted, connection.releasing(granted):
            yield granted

    held.__annotations__["request"] = fastapi.Request
    return held


def router(
    chat: AsyncChatlock,
    *,
    tenant: Callable[..., Any],
    agent: str = "default",
    prefix: str = "",
    tasks_max: int = 1_000,
    drain_s: float = 10.0,
) -> Any:
    """Messages, events, questions, cancellation and a WebSocket, for whom the dependency `tenant` names.

    Turns are detached: a client that drops does not stop them.

    Args:
        chat: The client.
        tenant: A dependency that names the tenant, from trusted code.
        agent: Whose handler runs the turns.
        prefix: What the paths begin with.
        tasks_max: How many submits may be under way at once; one more is answered 503.
        drain_s: How long turns may take to end on shutdown, in seconds; then they are released uncharged.
    """
    endpoints = Endpoints(chat, agent=agent, tasks_max=tasks_max)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await endpoints.detached.drain(drain_s)

    api = fastapi.APIRouter(prefix=prefix, lifespan=lifespan)
    _add_http(api, endpoints, fastapi.Depends(tenant))
    _add_socket(api, endpoints, fastapi.Depends(tenant))
    return api


def _add_http(api: Any, endpoints: Endpoints, owner_of: Any) -> None:
    async def post(request: Any, thread: str, owner: Any = owner_of) -> Any:
        headers, body = headers_of(request.scope["headers"]), parts_of(request.receive)
        return reply(await endpoints.post(owner, thread, headers, body, path_of(request.scope)))

    async def read(request: Any, thread: str, message_id: str, owner: Any = owner_of) -> Any:
        return reply(await endpoints.read(owner, thread, message_id))

    async def events(request: Any, thread: str, message_id: str, owner: Any = owner_of) -> Any:
        headers = headers_of(request.scope["headers"])
        return reply(await endpoints.events(owner, thread, message_id, headers))

    async def edit(request: Any, thread: str, message_id: str, owner: Any = owner_of) -> Any:
        headers, body = headers_of(request.scope["headers"]), parts_of(request.receive)
        return reply(await endpoints.edit(owner, thread, message_id, headers, body, path_of(request.scope)))

    async def cancel(request: Any, thread: str, message_id: str, owner: Any = owner_of) -> Any:
        return reply(await endpoints.cancel(owner, thread, message_id))

    async def answer(request: Any, thread: str, question_id: str, owner: Any = owner_of) -> Any:
        headers, body = headers_of(request.scope["headers"]), parts_of(request.receive)
        return reply(await endpoints.answer(owner, thread, question_id, headers, body, path_of(request.scope)))

    async def stop(request: Any, thread: str, queued: str = "keep", owner: Any = owner_of) -> Any:
        return reply(await endpoints.stop(owner, thread, headers_of(request.scope["headers"]), queued))

    for function, path, method, described in (
        (post, f"{THREAD}/messages", "POST", openapi.POST),
        (read, MESSAGE, "GET", openapi.READ),
        (events, f"{MESSAGE}/events", "GET", openapi.FOLLOW),
        (edit, MESSAGE, "PATCH", openapi.EDIT),
        (cancel, f"{MESSAGE}/cancel", "POST", openapi.CANCEL),
        (stop, f"{THREAD}/cancel", "POST", openapi.STOP),
        (answer, f"{THREAD}/questions/{{question_id}}/answer", "POST", openapi.ANSWER),
    ):
        function.__annotations__["request"] = fastapi.Request
        api.add_api_route(path, function, methods=[method], response_class=fastapi.Response, **described)


def _add_socket(api: Any, endpoints: Endpoints, owner_of: Any) -> None:
    async def socket(websocket: Any, thread: str, owner: Any = owner_of) -> None:
        if owner is None or not same_origin(headers_of(websocket.scope["headers"])):
            await websocket.close(POLICY)
            return
        await websocket.accept()
        await Socket(endpoints, owner, thread, websocket.send).serve(websocket.receive)

    socket.__annotations__["websocket"] = fastapi.WebSocket
    api.add_api_websocket_route(f"{THREAD}/socket", socket)
