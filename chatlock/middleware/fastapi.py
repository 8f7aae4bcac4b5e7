"""FastAPI: a router with everything a chat front end needs, and a dependency for handlers of your own.

    app.include_router(router(chat, tenant=current_tenant))

Needs fastapi >= 0.118: before it a dependency's exit ran ahead of a streamed response.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from chatlock import AsyncChatlock, AsyncTurn, ChatlockError, InvalidInput, NotFound, TurnNotGranted
from chatlock.middleware import framework
from chatlock.middleware.detached import Detached, as_sse, stored_outcome
from chatlock.middleware.http import (
    BODY_BYTES_MAX,
    PROBLEM,
    Answer,
    answer_to_cancel,
    answer_to_error,
    answer_to_status,
    answer_to_submit,
    idempotency_key,
    location,
    payload_of,
    wait_ms_of,
)

fastapi: Any = framework("fastapi", "fastapi")
if tuple(int(part) for part in fastapi.__version__.split(".")[:2]) < (0, 118):
    raise ChatlockError("chatlock needs fastapi >= 0.118: a turn must outlive the response that it streams")

EVENTS = "text/event-stream"
_PROBLEMS = {
    400: "Malformed request",
    401: "No tenant",
    404: "Not found",
    409: "In the way of a turn, or resolved without an answer",
    410: "Thread deleted",
    412: "Precondition failed",
    413: "Too large",
    422: "Key used with another payload",
    503: "Try again",
}


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These problems as OpenAPI responses."""
    schema = {"type": "object", "required": ["type", "title", "status"]}
    return {s: {"description": _PROBLEMS[s], "content": {PROBLEM: {"schema": schema}}} for s in statuses}


def reply(answer: Answer) -> Any:
    """The answer as a framework response."""
    return fastapi.Response(answer.content(), answer.status, answer.headers, answer.media_type)


def install(app: Any) -> None:
    """Answers TurnNotGranted and chatlock's errors with problem documents, wherever they are raised."""

    async def not_granted(request: Any, error: TurnNotGranted) -> Any:
        return reply(answer_to_submit(error.outcome, str(request.url.path)))

    async def failed(request: Any, error: ChatlockError) -> Any:
        return reply(answer_to_error(error))

    app.add_exception_handler(TurnNotGranted, not_granted)
    app.add_exception_handler(ChatlockError, failed)


def turn(chat: AsyncChatlock, *, tenant: Callable[..., str], agent: str = "default") -> Callable[..., Any]:
    """A dependency that holds an attached turn over the request, its stream included: a client that drops stops it.

    The path needs {thread}; the body is the payload.  Finish the turn in the handler.  Use install(app) too.
    """

    async def held(
        request: fastapi.Request, thread: str, owner: str = fastapi.Depends(tenant)
    ) -> AsyncIterator[AsyncTurn]:
        payload = payload_of(await body_of(request))
        key, wait_ms = _asked(request)
        async with chat.turn(thread, payload, message_id=key, tenant=owner, agent=agent, wait_ms=wait_ms) as granted:
            yield granted
            if await request.is_disconnected():  # its stream was stopped, and no exception tells so
                await granted.release()

    held.__annotations__ = {"request": fastapi.Request, "thread": str, "owner": str}
    return held


async def body_of(request: Any) -> bytes:
    """The body, up to the limit.  Raises InvalidInput."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise InvalidInput("too_large", f"the body is larger than {BODY_BYTES_MAX} bytes")
    return body


def _asked(request: Any) -> tuple[str | None, int]:
    headers = request.headers
    return idempotency_key(headers.get("idempotency-key")), wait_ms_of(headers.get("prefer"), 30_000)


def router(
    chat: AsyncChatlock,
    *,
    tenant: Callable[..., str],
    agent: str = "default",
    prefix: str = "",
    tasks_max: int = 1_000,
    drain_s: float = 10.0,
) -> Any:
    """POST and GET of messages, their events, and cancellation, for the tenant that the dependency `tenant` names.

    Turns are detached: a client that drops does not stop them.  On shutdown they get drain_s, then are released.
    """
    detached = Detached(tasks_max)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await detached.drain(drain_s)

    api = fastapi.APIRouter(prefix=prefix, lifespan=lifespan)
    owner_of = fastapi.Depends(tenant)

    async def post(request: Any, thread: str, owner: str = owner_of) -> Any:
        try:
            payload = payload_of(await body_of(request))
            key, wait_ms = _asked(request)
            message_id = key if key is not None else uuid.uuid4().hex
            where = location(prefix, thread, message_id)
            options: Any = {"message_id": message_id, "tenant": owner, "agent": agent, "wait_ms": wait_ms}
            task = detached.start(chat.submit(thread, payload, **options))
            if EVENTS in request.headers.get("accept", ""):
                events = chat.follow(thread, message_id, tenant=owner, wait_ms=None)
                await stored_outcome(chat, task, thread, message_id, owner)
                return fastapi.responses.StreamingResponse(as_sse(events, None), media_type=EVENTS)
            await asyncio.wait({task}, timeout=max(wait_ms / 1000, 0.05))
            outcome = task.result() if task.done() else await stored_outcome(chat, task, thread, message_id, owner)
            return reply(answer_to_submit(outcome, where))
        except ChatlockError as error:
            return reply(answer_to_error(error))

    async def read(request: Any, thread: str, message_id: str, owner: str = owner_of) -> Any:
        try:
            return reply(answer_to_status(await chat.status(thread, message_id, tenant=owner)))
        except ChatlockError as error:
            return reply(answer_to_error(error))

    async def events(request: Any, thread: str, message_id: str, owner: str = owner_of) -> Any:
        try:
            outcome = await chat.status(thread, message_id, tenant=owner)
            if isinstance(outcome, NotFound):
                return reply(answer_to_status(outcome))
            source = chat.follow(thread, message_id, tenant=owner, wait_ms=None)
            last_id = request.headers.get("last-event-id")
            return fastapi.responses.StreamingResponse(as_sse(source, last_id), media_type=EVENTS)
        except ChatlockError as error:
            return reply(answer_to_error(error))

    async def cancel(request: Any, thread: str, message_id: str, owner: str = owner_of) -> Any:
        try:
            return reply(answer_to_cancel(await chat.cancel(thread, message_id, tenant=owner)))
        except ChatlockError as error:
            return reply(answer_to_error(error))

    _add_routes(api, post, read, events, cancel)
    return api


def _add_routes(api: Any, post: Any, read: Any, events: Any, cancel: Any) -> None:
    message = "/threads/{thread}/messages/{message_id}"
    for function, path, method, statuses in (
        (post, "/threads/{thread}/messages", "POST", (400, 401, 409, 410, 412, 413, 422, 503)),
        (read, message, "GET", (400, 401, 404, 503)),
        (events, f"{message}/events", "GET", (400, 401, 404, 503)),
        (cancel, f"{message}/cancel", "POST", (400, 401, 404, 409, 503)),
    ):
        function.__annotations__["request"] = fastapi.Request
        api.add_api_route(path, function, methods=[method], responses=responses(*statuses), response_model=None)
