"""OpenAI Agents SDK: one run of an agent per turn, whose history is written with the finish of the turn or not at all.

    @chat.handler()
    async def answer(turn: AsyncTurn) -> None:
        await run_turn(turn, agent, stored_session(turn, engine))

Needs openai-agents >= 0.24.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from chatlock import AsyncTurn, ClaimLost, InvalidInput, Message
from chatlock.middleware import framework
from chatlock.middleware.openai_sessions import TurnSession, conversation_session, kept_by_provider, stored_session

__all__ = ["TurnSession", "conversation_session", "run_turn", "stored_session", "stream_turn"]

agents: Any = framework("agents", "openai-agents")

T = TypeVar("T")
ToInput: TypeAlias = Callable[[list[Message]], Any]
ToReply: TypeAlias = Callable[[Any], Any]


def user_messages(messages: list[Message]) -> Any:
    """The input of a run: each payload, a text or a list of content parts, as a message of the user."""
    return [{"role": "user", "content": message.payload} for message in messages]


def final_output(result: Any) -> Any:
    """The reply of a run: its final output.  Raises InvalidInput for one that stopped for an approval."""
    if result.interruptions:
        raise InvalidInput("interrupted", "the run waits for an approval: give to_reply, and to_input for the answer")
    output = result.final_output
    return output.model_dump(mode="json") if hasattr(output, "model_dump") else output


async def run_turn(
    turn: AsyncTurn,
    agent: Any,
    session: Any = None,
    *,
    to_input: ToInput = user_messages,
    to_reply: ToReply = final_output,
    **options: Any,
) -> Any:
    """Runs the agent over the turn's messages and finishes the turn; a lost claim stops the run.

    Returns the RunResult.  Raises ClaimLost, InvalidInput, and what the run raises.

    Args:
        turn: The handler's turn.
        agent: The SDK's agent.
        session: Any of the SDK's; one whose history we can hold back is used as TurnSession(turn, session).
        to_input: to_input(messages) is the run's input; the default takes each payload as a message of the user.
        to_reply: to_reply(result) is the reply; the default takes the final output.
        options: Those of Runner.run.
    """
    messages, held = turn.messages, _held(turn, session)
    run = agents.Runner.run(agent, to_input(messages), session=held, **options)
    result = await _unless_lost(turn, run)
    await _finish(turn, held, to_reply(result), messages[-1].seq)
    return result


async def stream_turn(
    turn: AsyncTurn,
    agent: Any,
    session: Any = None,
    *,
    to_input: ToInput = user_messages,
    to_reply: ToReply = final_output,
    **options: Any,
) -> AsyncIterator[Any]:
    """See run_turn.  Yields the SDK's events.  Leaving early, with aclosing, stops the run; nothing of it is kept."""
    messages, held, loop = turn.messages, _held(turn, session), asyncio.get_running_loop()
    result = agents.Runner.run_streamed(agent, to_input(messages), session=held, **options)
    turn.on_lost(lambda: _soon(loop, result.cancel))
    try:
        async for event in result.stream_events():
            yield event
    finally:
        if not result.is_complete:
            result.cancel()
        await _settle(result.run_loop_task)
    turn.check()
    await _finish(turn, held, to_reply(result), messages[-1].seq)


def _held(turn: AsyncTurn, session: Any) -> Any:
    if session is None or isinstance(session, TurnSession) or kept_by_provider(session):
        return session
    return TurnSession(turn, session)


async def _finish(turn: AsyncTurn, held: Any, reply: Any, upto: int) -> None:
    finish = held.finish(reply, upto) if isinstance(held, TurnSession) else turn.finish(reply, upto=upto)
    task = asyncio.ensure_future(finish)
    await _settle(task)
    task.result()


async def _unless_lost(turn: AsyncTurn, run: Coroutine[Any, Any, T]) -> T:
    task, loop = asyncio.ensure_future(run), asyncio.get_running_loop()
    turn.on_lost(lambda: _soon(loop, task.cancel))
    try:
        return await task
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if turn.lost and not (caller and caller.cancelling()):
            raise ClaimLost from None
        raise


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the loop has closed since
        loop.call_soon_threadsafe(call)


async def _settle(task: asyncio.Task[Any]) -> None:
    """Waits until the task has ended, whatever cancellations come meanwhile; the first of them goes on afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
