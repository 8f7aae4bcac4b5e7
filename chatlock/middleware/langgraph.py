"""LangGraph: one run of a graph per turn, which only the turn with the claim can store, and which a retry goes on with.

    graph = builder.compile(checkpointer=FencedSaver(AsyncPostgresSaver(pool)))

    @chat.handler()
    async def answer(turn: AsyncTurn) -> None:
        await run_turn(turn, graph)

A turn that follows an incomplete one resumes its run, if it holds all the messages that went into it; else it starts
from the checkpoint before that run, as if that had never been.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeAlias

from chatlock import AsyncTurn, ClaimLost, InvalidInput, Turn
from chatlock.middleware import framework
from chatlock.middleware.langgraph_messages import last_message, user_messages
from chatlock.middleware.langgraph_runs import (
    Config,
    Start,
    ToInput,
    adopted,
    config_of,
    head_of,
    input_of,
    left_at_head,
    left_at_head_sync,
    start_of,
)
from chatlock.middleware.langgraph_saver import FencedSaver, turn_of
from chatlock.middleware.stopping import STOPPED, give_up, stoppable, stoppable_items

__all__ = ["FencedSaver", "claimed", "input_of", "run_turn", "run_turn_sync", "stream_turn", "turn_of"]

RunControl: Any = framework("langgraph.runtime", "langgraph").RunControl
GraphDrained: Any = framework("langgraph.errors", "langgraph").GraphDrained

ToReply: TypeAlias = Callable[[Any], Any]


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


def _saver(graph: Any) -> FencedSaver:
    if not isinstance(graph.checkpointer, FencedSaver):
        raise InvalidInput("bad_saver", "compile the graph with checkpointer=FencedSaver(saver)")
    return graph.checkpointer


async def _start(turn: AsyncTurn, graph: Any, to_input: ToInput, config: Config) -> Start:
    saver = _saver(graph)
    start = start_of(turn, to_input, config, await left_at_head(turn, saver, config))
    if start.anew or start.resumed is not None:
        async with saver.aheld(config) as held:
            if start.anew:
                await held.adelete_thread(config["configurable"]["thread_id"])
            else:
                await held.aput(*adopted(turn, start.resumed))
    return start


def _start_sync(turn: Turn, graph: Any, to_input: ToInput, config: Config) -> Start:
    saver = _saver(graph)
    start = start_of(turn, to_input, config, left_at_head_sync(turn, saver, config))
    if start.anew or start.resumed is not None:
        with saver.held(config) as held:
            if start.anew:
                held.delete_thread(config["configurable"]["thread_id"])
            else:
                held.put(*adopted(turn, start.resumed))
    return start


@asynccontextmanager
async def _drained(turn: AsyncTurn) -> AsyncIterator[None]:
    """A run that came to the end of its step before it was cancelled is stopped in the same way."""
    try:
        yield
    except GraphDrained:
        if not turn.cancelled:
            raise
        await give_up(turn)


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
    base = config_of(turn, config)
    start = await _start(turn, graph, to_input, base)
    run = graph.astream(start.input, **claimed(turn, start.config), **options)
    async with (
        _drained(turn),
        aclosing(stoppable_items(turn, run, run.aclose)) as chunks,
    ):
        async for chunk in chunks:
            yield chunk
    await turn.finish(to_reply(await graph.aget_state(head_of(base))), upto=start.upto)


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
    base = config_of(turn, config)
    start = await _start(turn, graph, to_input, base)
    async with _drained(turn), stoppable(turn):
        await graph.ainvoke(start.input, **claimed(turn, start.config), **options)
    snapshot = await graph.aget_state(head_of(base))
    await turn.finish(to_reply(snapshot), upto=start.upto)
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
    base = config_of(turn, config)
    start = _start_sync(turn, graph, to_input, base)
    try:
        graph.invoke(start.input, **claimed(turn, start.config), **options)
    except GraphDrained:
        if not turn.cancelled:
            raise
        if not turn.lost:
            turn.release()
        raise ClaimLost(STOPPED) from None
    snapshot = graph.get_state(head_of(base))
    turn.finish(to_reply(snapshot), upto=start.upto)
    return snapshot
