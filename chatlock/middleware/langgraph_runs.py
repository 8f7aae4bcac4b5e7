"""Where the run of a turn begins: anew, in the middle of an earlier turn's run, or at the checkpoint before that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from chatlock import AsyncTurn, Message, Turn
from chatlock.middleware import qualified
from chatlock.middleware.langgraph_questions import decided, decisions_of, put_again, texts_of, unread_at, written

Config: TypeAlias = dict[str, Any]
ToInput: TypeAlias = Callable[[list[Message]], Any]

RUN = ("input", "loop")
"""The sources of a run's checkpoints; a turn may also have edited the state before it ran the graph."""
UNDONE = ("failed", "gave_up", "released", "reclaimed")
"""The states of turns whose runs answered nothing; a run of which nothing is known is kept."""


@dataclass(frozen=True)
class Start:
    """upto: the seq of its last message.  anew: all the checkpoints are of a run to forget.  resumed: the checkpoint
    that the run goes on from, with no input.  unread: the messages that a run after this one is to read.
    """

    input: Any
    config: Config
    upto: int
    anew: bool = False
    resumed: Any = None
    unread: list[Message] = field(default_factory=list)


def config_of(turn: Turn | AsyncTurn, config: Config | None) -> Config:
    """The run's config: the user's own, with the turn."""
    held = {
        "thread_id": qualified(turn.key),
        "chatlock_upto": turn.messages[-1].seq,
        "chatlock_count": len(turn.messages),
        **(config or {}).get("configurable", {}),
        "chatlock_turn": turn,
        "chatlock_thread": qualified(turn.key),
        "chatlock_token": turn.token,
        "chatlock_question": turn.step_key("question:1"),
        "chatlock_unread": "",
        "chatlock_run": turn.step_key("langgraph"),  # the same for every turn over the same oldest message
    }
    return {**(config or {}), "configurable": held}


def head_of(config: Config) -> Config:
    """Where the thread stands, at whichever checkpoint the run was told to begin."""
    named = {name: value for name, value in config["configurable"].items() if name != "checkpoint_id"}
    return {**config, "configurable": named}


async def left_at_head(turn: AsyncTurn, saver: Any, config: Config) -> tuple[list[Any], Any]:
    """The checkpoints at the thread's head whose turns have not finished, the latest first, and the one before."""
    left, found = [], await saver.aget_tuple(head_of(config))
    while (
        found and _may_be_left(turn, found) and (_edited(turn, found) or await turn.state_of(_token(found)) in UNDONE)
    ):
        left.append(found)
        found = await saver.aget_tuple(found.parent_config) if found.parent_config else None
    return left, found


def left_at_head_sync(turn: Turn, saver: Any, config: Config) -> tuple[list[Any], Any]:
    """See left_at_head."""
    left, found = [], saver.get_tuple(head_of(config))
    while found and _may_be_left(turn, found) and (_edited(turn, found) or turn.state_of(_token(found)) in UNDONE):
        left.append(found)
        found = saver.get_tuple(found.parent_config) if found.parent_config else None
    return left, found


def _may_be_left(turn: Turn | AsyncTurn, found: Any) -> bool:
    """Tokens are of one thread, and a LangGraph thread may be that of several."""
    return bool(found.metadata.get("chatlock_thread") == qualified(turn.key))


def _edited(turn: Turn | AsyncTurn, found: Any) -> bool:
    """Whether this turn has edited the state, on top of what is there."""
    return _token(found) == turn.token and found.metadata["source"] not in RUN


def is_of(turn: Turn | AsyncTurn, found: Any) -> bool:
    """Whether this turn's run has stored it, or goes on from it."""
    return _may_be_left(turn, found) and _token(found) == turn.token


def _token(found: Any) -> int:
    return int(found.metadata["chatlock_token"])


def start_of(
    turn: Turn | AsyncTurn, to_input: ToInput, config: Config, left: list[Any], before: Any, waiting: list[Any]
) -> Start:
    """A run that was left goes on if this turn has all its messages, else it is left out.

    Args:
        turn: The handler's turn.
        to_input: See run_turn.
        config: The run's config.
        left: See left_at_head.
        before: The checkpoint before those.
        waiting: The interrupts that the graph waits with, at the checkpoint before, if the turn has a decision.
    """
    run = [found for found in left if found.metadata["source"] in RUN]
    if run and (upto := _resumable(turn, config, run[0].metadata)):
        names = ("chatlock_upto", "chatlock_count", "chatlock_unread")
        put_in = {name: run[0].metadata.get(name, "") for name in names}
        return Start(None, _with(head_of(config), **put_in), upto, resumed=left[0], unread=unread_at(run[0]))
    anew = False
    if run and "checkpoint_id" not in config["configurable"]:
        parent = run[-1].parent_config
        anew = parent is None
        if parent is not None:
            config = _with(config, checkpoint_id=parent["configurable"]["checkpoint_id"])
    last, unread = turn.messages[-1].seq, [*unread_at(before), *texts_of(turn.messages)]
    if waiting:
        given = decided(turn, before, waiting)
        return Start(given, _with(config, chatlock_unread=written(unread)), last, unread=unread)
    if unread or before is None or anew:
        return Start(to_input(unread or turn.messages), config, last, anew)
    return Start(None, config, last)


def after(start: Start, to_input: ToInput) -> Start:
    """The run over the messages that the last one has left unread."""
    return Start(to_input(start.unread), _with(head_of(start.config), chatlock_unread=""), start.upto)


def has_decisions(turn: Turn | AsyncTurn, before: Any) -> bool:
    """Whether the graph is to be asked what it waits for."""
    return before is not None and bool(decisions_of(turn))


def still_unread(turn: Turn | AsyncTurn, start: Start) -> list[Message]:
    """What a question answers although the graph has not read it."""
    return [*start.unread, *(message for message in texts_of(turn.messages) if message.seq > start.upto)]


def adopted(turn: Turn | AsyncTurn, head: Any) -> tuple[Any, ...]:
    """What a saver is put to make an earlier turn's checkpoint this turn's: a run may go on to its end without another
    one, and whether it has answered is then told by this turn.
    """
    return put_again(head, chatlock_token=turn.token)


def _resumable(turn: Turn | AsyncTurn, config: Config, run: Any) -> int:
    """The seq of the run's last message, if this turn begins with the same and has all of them; 0 if not, or if that
    turn was asked to stop.
    """
    if run.get("chatlock_stopped"):
        return 0
    held = [message.seq for message in turn.messages if message.seq <= run["chatlock_upto"]]
    same = run["chatlock_run"] == config["configurable"]["chatlock_run"] and len(held) == run.get("chatlock_count")
    return held[-1] if same else 0


def _with(config: Config, **configurable: Any) -> Config:
    return {**config, "configurable": {**config["configurable"], **configurable}}
