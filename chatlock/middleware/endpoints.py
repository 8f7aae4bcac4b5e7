"""What an HTTP API for chats does, the same for every framework: it is given who asks, and what for.

POST /threads/{thread}/messages
GET  /threads/{thread}/messages/{message_id}
GET  /threads/{thread}/messages/{message_id}/events
PATCH /threads/{thread}/messages/{message_id}
POST /threads/{thread}/messages/{message_id}/cancel
POST /threads/{thread}/questions/{question_id}/answer
POST /threads/{thread}/cancel
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec

from chatlock import AsyncChatlock, ChatlockError, Event, InvalidInput, NotFound, Outcome, Queued, Refused
from chatlock.middleware.asked import Asked, below, body_of, check_json, checked_owner, named_turn, payload_of
from chatlock.middleware.detached import Detached, Submitting
from chatlock.middleware.events import as_sse, as_stored
from chatlock.middleware.http import (
    Stream,
    answer_to_cancel,
    answer_to_edit,
    answer_to_status,
    answer_to_stop,
    answer_to_submit,
)
from chatlock.middleware.problems import Answer, answer, answer_to_error

P = ParamSpec("P")
Headers = Mapping[str, str]

DIGITS_MAX = 15
STREAMED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def answers(
    call: Callable[Concatenate[Endpoints, str, P], Awaitable[Answer | Stream]],
) -> Callable[Concatenate[Endpoints, str | None, P], Coroutine[Any, Any, Answer | Stream]]:
    """Errors of chatlock become problem documents.  Whoever is nobody is refused, whatever tenant the client has."""

    async def answering(self: Endpoints, owner: str | None, /, *args: P.args, **kwargs: P.kwargs) -> Answer | Stream:
        try:
            return await call(self, checked_owner(owner), *args, **kwargs)
        except ChatlockError as error:
            return answer_to_error(error)

    update_wrapper(answering, call)
    return answering


class Endpoints:
    """Over one client.  Turns are detached: a client that drops does not stop them."""

    def __init__(self, chat: AsyncChatlock, *, agent: str, tasks_max: int) -> None:
        self.chat, self._agent = chat, agent
        self.detached = Detached(tasks_max)

    def submitting(self, owner: str, thread: str, payload: Any, asked: Asked) -> Submitting:
        """Begins to submit; raises what is wrong with it once it is waited for."""
        options: dict[str, Any] = {"message_id": asked.message_id, "tenant": owner, "agent": self._agent}
        options |= {"wait_ms": asked.wait_ms, "if_turn": asked.if_turn}
        if asked.answers:
            options |= {"if_awaiting": asked.message_id, "policy": "enqueue"}
        return Submitting(self.detached, lambda stored: self.chat.submit(thread, payload, on_stored=stored, **options))

    @answers
    async def post(
        self, owner: str, thread: str, headers: Headers, body: AsyncIterator[bytes], path: str
    ) -> Answer | Stream:
        """Stores a message, and tells its outcome, where to find it later, or its events as they come.

        path: the one that was asked for; the message is found below it.
        """
        check_json(headers)
        payload, asked = payload_of(await body_of(body)), Asked.of(headers)
        return await self._take_in(owner, thread, payload, asked, path)

    @answers
    async def answer(
        self, owner: str, thread: str, question_id: str, headers: Headers, body: AsyncIterator[bytes], path: str
    ) -> Answer | Stream:
        """Answers the thread's open question: the body is the decision, a message under the question's id."""
        check_json(headers)
        payload, asked = payload_of(await body_of(body)), Asked.of(headers, question_id)
        return await self._take_in(owner, thread, payload, asked, f"{path.rsplit('/', 3)[0]}/messages")

    async def _take_in(self, owner: str, thread: str, payload: Any, asked: Asked, path: str) -> Answer | Stream:
        where = below(path, asked.message_id)
        submitting = self.submitting(owner, thread, payload, asked)
        refused = await submitting.refused()
        if refused is not None:
            found = below(path, refused.message_id)  # attached: it is another message's
            return answer_to_submit(refused, found, asked.applied)
        if asked.streams:
            return self._stream(owner, thread, await submitting.stored, None, Content_Location=where)
        outcome = await submitting.outcome(asked.wait_ms / 1000)
        if outcome is None or isinstance(outcome, Queued):  # where it stands now
            outcome = await self.chat.status(thread, asked.message_id, tenant=owner)
        return answer_to_submit(outcome, where, asked.applied)

    @answers
    async def read(self, owner: str, thread: str, message_id: str) -> Answer | Stream:
        """What became of a message."""
        return answer_to_status(await self.chat.status(thread, message_id, tenant=owner))

    @answers
    async def events(self, owner: str, thread: str, message_id: str, headers: Headers) -> Answer | Stream:
        """A message's events from the one after Last-Event-ID on; 204 to a client that has seen the last one."""
        outcome = await self.chat.status(thread, message_id, tenant=owner)
        last_id = headers.get("last-event-id")
        if isinstance(outcome, NotFound):
            return answer_to_status(outcome)
        if last_id == f"{message_id}-outcome" and not isinstance(outcome, Queued):
            return answer(204, None)
        return self._stream(owner, thread, outcome, last_id)

    @answers
    async def edit(
        self, owner: str, thread: str, message_id: str, headers: Headers, body: AsyncIterator[bytes], path: str
    ) -> Answer | Stream:
        """Puts a new message in place of one that no turn has: the body is its payload, Idempotency-Key its id."""
        check_json(headers)
        payload, asked = payload_of(await body_of(body)), Asked.of(headers)
        if asked.if_turn is not None:  # a precondition that is passed over would be taken for one that held
            raise InvalidInput("bad_if_match", "an edit takes no If-Match: once a turn has the message it is refused")
        outcome = await self.chat.edit(thread, message_id, payload, asked.message_id, tenant=owner)
        where = below(path.rsplit("/", 1)[0], asked.message_id)
        now = await self._if_in_turn(owner, thread, message_id, outcome)
        return answer_to_edit(outcome, asked.message_id, where, now)

    @answers
    async def cancel(self, owner: str, thread: str, message_id: str) -> Answer | Stream:
        """Cancels a message that no turn has fetched; tells which turn has it otherwise."""
        return await self.cancelled(owner, thread, message_id)

    async def cancelled(self, owner: str, thread: str, message_id: str) -> Answer:
        """See cancel.  Raises what is wrong."""
        outcome = await self.chat.cancel(thread, message_id, tenant=owner)
        return answer_to_cancel(outcome, await self._if_in_turn(owner, thread, message_id, outcome))

    async def _if_in_turn(self, owner: str, thread: str, message_id: str, outcome: Outcome) -> Outcome | None:
        """Where a message stands now that its turn kept from what was asked for; None: no turn did."""
        if isinstance(outcome, Refused) and outcome.reason == "in_turn":
            return await self.chat.status(thread, message_id, tenant=owner)
        return None

    @answers
    async def stop(self, owner: str, thread: str, headers: Headers, queued: str) -> Answer | Stream:
        """Asks the turn that If-Match names to stop.  queued: whether what waits stays ("keep") or is cancelled too."""
        turn = named_turn(headers)
        if queued not in ("keep", "cancel"):
            raise InvalidInput("bad_queued", "queued is keep or cancel")
        backlog: Any = queued
        return answer_to_stop(await self.chat.cancel(thread, turn=turn, queued=backlog, tenant=owner))

    def _stream(self, owner: str, thread: str, found: Outcome, last_id: str | None, **headers: str) -> Stream:
        first = as_stored(found) if last_id is None else b""
        events = as_sse(self.follow(owner, thread, found.message_id, last_id), first)
        return Stream(events, STREAMED | {name.replace("_", "-"): value for name, value in headers.items()})

    async def follow(self, owner: str, thread: str, message_id: str, last_id: str | None) -> AsyncIterator[Event]:
        """A message's events, without the chunks that a client which has seen last_id knows."""
        source: Any = self.chat.follow(thread, message_id, tenant=owner, wait_ms=None)
        async with aclosing(source) as events:
            async for event in events:
                if event.kind != "chunk" or _is_after(event.id, last_id):
                    yield event


def _is_after(event_id: str, last_id: str | None) -> bool:
    """Whether a chunk comes after the last one seen.  Those of another turn do: the message is answered anew."""
    turn, _, number = event_id.rpartition("-")
    seen_turn, _, seen = (last_id or "").rpartition("-")
    known = seen.isdecimal() and len(seen) <= DIGITS_MAX
    return turn != seen_turn or not known or int(number) > int(seen)
