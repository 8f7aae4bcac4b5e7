"""LangGraph: one run of a graph per turn, which only the turn with the claim can store, and which a retry goes on with.

    graph = builder.compile(checkpointer=FencedSaver(AsyncPostgresSaver(pool)))

    @chat.handler()
    async def answer(turn: AsyncTurn) -> None:
        await run_turn(turn, graph)

A turn that follows an incomplete one resumes its run, if it holds all the messages that went into it; else it starts
from the checkpoint before that run, as if that had never been.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

from chatlock import AsyncTurn, Turn
from chatlock.middleware import framework
from chatlock.middleware.langgraph_messages import last_message, user_messages
from chatlock.middleware.langgraph_runs import Config, Start, ToInput, config_of
from chatlock.middleware.langgraph_saver import FencedSaver, turn_of
from chatlock.middleware.langgraph_turns import (
    ToReply,
    begun,
    begun_sync,
    closing,
    drained,
    drained_sync,
    ended,
    ended_sync,
    stopped,
)
from chatlock.middleware.stopping import stoppable, stoppable_items

__all__ = ["FencedSaver", "claimed", "run_turn", "run_turn_sync", "stream_turn", "turn_of"]

RunControl: Any = framework("langgraph.runtime", "langgraph").RunControl


class _Control(RunControl):  # type: ignore[misc]  # frameworks are untyped here
    """Drains the run once the turn is asked to stop, or its claim is lost."""

    def __init__(self, turn: Turn | AsyncTurn) -> None:
        super().__init__()
        self._turn = turn

    @property
    def drain_requested(self) -> bool:
        return self._turn.cancelled or bool(super().drain_requested)


def claimed(turn: Turn | AsyncTurn, config: Config | None = None) -> dict[str, Any]:
    """Arguments for invoke, stream and their async kinds: graph.ainvoke(input, **claimed(turn)).

    Each step is stored before the next one.  A turn that is asked to stop, or whose claim is lost, ends the run between
    two of them: GraphDrained.

    Args:
        turn: The handler's turn, which nodes and saver find by turn_of.
        config: What else the run is configured with.  It may name LangGraph's thread, else "<tenant>/<thread>".
    """
    return {"config": config_of(turn, config), "control": _Control(turn), "durability": "sync"}


async def stream_turn(
    turn: AsyncTurn,
    graph: Any,
    to_input: ToInput = user_messages,
    to_reply: ToReply = last_message,
    *,
    config: Config | None = None,
    **options: Any,
) -> AsyncIterator[Any]:
    """See run_turn.  Yields what graph.astream yields.

    Leaving early, with aclosing, stops the run: its steps so far stay stored, and the next turn resumes.
    """
    start: Start | None = await begun(turn, graph, to_input, config_of(turn, config))
    while start is not None:
        run = graph.astream(start.input, **claimed(turn, start.config), **options)
        end = closing(turn, graph, start.config, run)
        async with drained(turn, graph, start.config), aclosing(stoppable_items(turn, run, end)) as chunks:
            async for chunk in chunks:
                yield chunk
        start, _ = await ended(turn, graph, start, to_input, to_reply)


async def run_turn(
    turn: AsyncTurn,
    graph: Any,
    to_input: ToInput = user_messages,
    to_reply: ToReply = last_message,
    *,
    config: Config | None = None,
    **options: Any,
) -> Any:
    """Runs the graph over the turn's messages, or the rest of an earlier run, and finishes the turn.

    A graph that stops with `interrupt` suspends the turn with that question, and the turn with the decision goes on.
    A turn that is asked to stop, or whose claim is lost, stops the run, is released when that has ended, and raises
    ClaimLost.  Returns the StateSnapshot at the end.  Raises InvalidInput, and what the graph raises.

    Args:
        turn: The handler's turn.
        graph: A compiled graph with a FencedSaver.
        to_input: to_input(messages) is the graph's input; the default takes the text of each payload.
        to_reply: to_reply(snapshot) is the reply; the default takes the content of the last message.
        config: See claimed.
        options: Those of ainvoke, astream or invoke.
    """
    start: Start | None = await begun(turn, graph, to_input, config_of(turn, config))
    while start is not None:
        end = partial(stopped, turn, graph, start.config)
        async with drained(turn, graph, start.config), stoppable(turn, end):
            await graph.ainvoke(start.input, **claimed(turn, start.config), **options)
        start, snapshot = await ended(turn, graph, start, to_input, to_reply)
    return snapshot


def run_turn_sync(
    turn: Turn,
    graph: Any,
    to_input: ToInput = user_messages,
    to_reply: ToReply = last_message,
    *,
    config: Config | None = None,
    **options: Any,
) -> Any:
    """See run_turn.  A run is stopped at the end of its step."""
    start: Start | None = begun_sync(turn, graph, to_input, config_of(turn, config))
    while start is not None:
        with drained_sync(turn, graph, start.config):
            graph.invoke(start.input, **claimed(turn, start.config), **options)
        start, snapshot = ended_sync(turn, graph, start, to_input, to_reply)
    return snapshot
