"""How a turn's runs begin and end: in async code, and the same in sync code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

from chatlock import AsyncTurn, ClaimLost, InvalidInput, Turn
from chatlock.middleware import framework
from chatlock.middleware.langgraph_questions import noted, put_again
from chatlock.middleware.langgraph_runs import (
    Config,
    Start,
    ToInput,
    adopted,
    after,
    has_decisions,
    head_of,
    is_of,
    left_at_head,
    left_at_head_sync,
    start_of,
    still_unread,
)
from chatlock.middleware.langgraph_saver import FencedSaver
from chatlock.middleware.stopping import STOPPED, give_up

GraphDrained: Any = framework("langgraph.errors", "langgraph").GraphDrained

ToReply: TypeAlias = Callable[[Any], Any]


def _saver(graph: Any) -> FencedSaver:
    if not isinstance(graph.checkpointer, FencedSaver):
        raise InvalidInput("bad_saver", "compile the graph with checkpointer=FencedSaver(saver)")
    return graph.checkpointer


async def begun(turn: AsyncTurn, graph: Any, to_input: ToInput, config: Config) -> Start:
    """Where the turn's first run begins; what it begins with is the turn's own."""
    saver = _saver(graph)
    left, before = await left_at_head(turn, saver, config)
    waiting = (await graph.aget_state(before.config)).interrupts if has_decisions(turn, before) else []
    start = start_of(turn, to_input, config, left, before, waiting)
    if start.anew or start.resumed is not None:
        async with saver.aheld(config) as held:
            if start.anew:
                await held.adelete_thread(config["configurable"]["thread_id"])
            else:
                await held.aput(*adopted(turn, start.resumed))
    return start


def begun_sync(turn: Turn, graph: Any, to_input: ToInput, config: Config) -> Start:
    """See begun."""
    saver = _saver(graph)
    left, before = left_at_head_sync(turn, saver, config)
    waiting = graph.get_state(before.config).interrupts if has_decisions(turn, before) else []
    start = start_of(turn, to_input, config, left, before, waiting)
    if start.anew or start.resumed is not None:
        with saver.held(config) as held:
            if start.anew:
                held.delete_thread(config["configurable"]["thread_id"])
            else:
                held.put(*adopted(turn, start.resumed))
    return start


async def ended(
    turn: AsyncTurn, graph: Any, start: Start, to_input: ToInput, to_reply: ToReply
) -> tuple[Start | None, Any]:
    """The turn ends with the question that the graph asks, or with its reply; or the next run of the turn."""
    config = head_of(start.config)
    snapshot = await graph.aget_state(config)
    if snapshot.interrupts:
        asked, unread = snapshot.interrupts[0], still_unread(turn, start)
        async with _saver(graph).aheld(config) as held:
            await held.aput(*noted(turn, await held.aget_tuple(config), asked, unread))
        await turn.suspend(asked.value)
    elif start.unread:
        return after(start, to_input), snapshot
    else:
        await turn.finish(to_reply(snapshot), upto=start.upto)
    return None, snapshot


def ended_sync(turn: Turn, graph: Any, start: Start, to_input: ToInput, to_reply: ToReply) -> tuple[Start | None, Any]:
    """See ended."""
    config = head_of(start.config)
    snapshot = graph.get_state(config)
    if snapshot.interrupts:
        asked, unread = snapshot.interrupts[0], still_unread(turn, start)
        with _saver(graph).held(config) as held:
            held.put(*noted(turn, held.get_tuple(config), asked, unread))
        turn.suspend(asked.value)
    elif start.unread:
        return after(start, to_input), snapshot
    else:
        turn.finish(to_reply(snapshot), upto=start.upto)
    return None, snapshot


async def stopped(turn: AsyncTurn, graph: Any, config: Config) -> None:
    """Notes at what a turn has stored that it was asked to stop: the next one starts over."""
    saver = _saver(graph)
    head = await saver.aget_tuple(head_of(config)) if turn.cancelled and not turn.lost else None
    if head is not None and is_of(turn, head):
        async with saver.aheld(config) as held:
            await held.aput(*put_again(head, chatlock_stopped=True))


def closing(turn: AsyncTurn, graph: Any, config: Config, run: Any) -> Callable[[], Awaitable[None]]:
    """Ends a stream once, however often it is called: the turn may be released by then."""
    over = False

    async def end() -> None:
        nonlocal over
        if not over:
            over = True
            await run.aclose()
            await stopped(turn, graph, config)

    return end


def stopped_sync(turn: Turn, graph: Any, config: Config) -> None:
    """See stopped."""
    saver = _saver(graph)
    head = saver.get_tuple(head_of(config)) if turn.cancelled and not turn.lost else None
    if head is not None and is_of(turn, head):
        with saver.held(config) as held:
            held.put(*put_again(head, chatlock_stopped=True))


@asynccontextmanager
async def drained(turn: AsyncTurn, graph: Any, config: Config) -> AsyncIterator[None]:
    """A run that came to the end of its step before it was cancelled is stopped in the same way."""
    try:
        yield
    except GraphDrained:
        if not turn.cancelled:
            raise
        await give_up(turn, lambda: stopped(turn, graph, config))


@contextmanager
def drained_sync(turn: Turn, graph: Any, config: Config) -> Iterator[None]:
    """A run is stopped at the end of its step."""
    try:
        yield
    except GraphDrained:
        if not turn.cancelled:
            raise
        stopped_sync(turn, graph, config)
        if not turn.lost:
            turn.release()
        raise ClaimLost(STOPPED) from None
