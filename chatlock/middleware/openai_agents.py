"""OpenAI Agents SDK: one run of an agent per turn, whose history is written with the finish of the turn or not at all.

    @chat.handler()
    async def answer(turn: AsyncTurn) -> None:
        await run_turn(turn, agent, stored_session(turn, engine))

Needs openai-agents >= 0.24.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

from chatlock import AsyncTurn, InvalidInput, Message
from chatlock.middleware import framework
from chatlock.middleware.contents import content_of
from chatlock.middleware.openai_sessions import TurnSession, conversation_session, kept_by_provider, stored_session
from chatlock.middleware.stopping import stoppable, stoppable_items

__all__ = ["TurnSession", "conversation_session", "run_turn", "stored_session", "stream_turn"]

agents: Any = framework("agents", "openai-agents")

ToInput: TypeAlias = Callable[[list[Message]], Any]
ToReply: TypeAlias = Callable[[Any], Any]


def user_messages(messages: list[Message]) -> Any:
    """The input of a run: the content of each payload as a message of the user."""
    return [{"role": "user", "content": content_of(message)} for message in messages]


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
    """Runs the agent over the turn's messages and finishes the turn.

    A turn that is asked to stop, or whose claim is lost, stops the run, is released when that has ended, and raises
    ClaimLost.  Returns the RunResult.  Raises InvalidInput, and what the run raises.

    Args:
        turn: The handler's turn.
        agent: The SDK's agent.
        session: Any of the SDK's; one whose history we can hold back is used as TurnSession(turn, session).
        to_input: to_input(messages) is the run's input; the default takes the text of each payload.
        to_reply: to_reply(result) is the reply; the default takes the final output.
        options: Those of Runner.run.
    """
    messages, held = turn.messages, _held(turn, session)
    given = to_input(messages)
    async with stoppable(turn):
        result = await agents.Runner.run(agent, given, session=held, **options)
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
    messages, held = turn.messages, _held(turn, session)
    result = agents.Runner.run_streamed(agent, to_input(messages), session=held, **options)

    async def end() -> None:
        if not result.is_complete:
            result.cancel()
        await _settle(result.run_loop_task)

    async with aclosing(stoppable_items(turn, result.stream_events(), end)) as events:
        async for event in events:
            yield event
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
